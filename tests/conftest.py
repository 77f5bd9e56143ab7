"""Settings of the whole suite."""

import torch

# The workers of pytest-xdist share the cores; small tensors gain nothing from more threads.
torch.set_num_threads(1)
