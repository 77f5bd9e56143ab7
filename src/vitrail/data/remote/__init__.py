"""Data at addresses (s3://, gs://, https://): asked with patience, kept in a bounded local cache, checked when read."""
