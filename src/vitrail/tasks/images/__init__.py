"""What tasks on images share: labelled data, weights to start from, loaders and preparation of batches."""
