"""Settings of the whole suite."""

import gc
import os
from collections.abc import Iterator

import pytest
import torch

# On CPUs with instructions for bfloat16 runs would compute in it; what tests compare is compared in float32.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
# gRPC, which Milvus's client brings, writes to the screen of processes that others of the suite look at.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
# So does torch where two processes meet and one is late.
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

# The workers of pytest-xdist share the cores; small tensors gain nothing from more threads.
torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the collector of garbage what stays to the end: torch's modules and thousands of tests.

    It would look through all of it again and again, half a second each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def _short_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans measure for a hundredth of a second, where it does not matter how well."""
    monkeypatch.setattr("vitrail.training.loop.planning._SECONDS", 0.01)
