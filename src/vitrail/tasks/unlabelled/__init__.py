"""What tasks share that learn from images without labels: data, measures of features, and the watch for collapse."""
