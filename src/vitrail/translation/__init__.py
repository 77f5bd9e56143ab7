"""Translation: a sequence-to-sequence ResMLP and its transformer twin, parallel text, decoding and scores."""
