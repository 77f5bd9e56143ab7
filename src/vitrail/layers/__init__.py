"""Parts the models are composed of; they know no architecture and no config."""
