"""ClusterFit+: clusters of a model's features in the place of labels."""
