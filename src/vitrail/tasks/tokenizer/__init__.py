"""Tokenizers: a code for every patch, which masked image modelling predicts."""
