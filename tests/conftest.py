"""Settings of the whole suite."""

import os

import pytest
import torch

# gRPC, which Milvus's client brings, writes to the screen of processes that others of the suite look at.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# The workers of pytest-xdist share the cores; small tensors gain nothing from more threads.
torch.set_num_threads(1)


@pytest.fixture
def _short_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans measure for a hundredth of a second, where it does not matter how well."""
    monkeypatch.setattr("vitrail.training.loop.planning._SECONDS", 0.01)
