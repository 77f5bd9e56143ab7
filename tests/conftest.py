"""Settings of the whole suite."""

import os

import torch

# gRPC, which Milvus's client brings, writes to the screen of processes that others of the suite look at.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# The workers of pytest-xdist share the cores; small tensors gain nothing from more threads.
torch.set_num_threads(1)
