"""Several processes: ranks, launching, sharding."""
