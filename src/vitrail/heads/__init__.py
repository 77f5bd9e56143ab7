"""What reads a backbone's features: one module for each kind of answer beside the models' own classifiers."""
