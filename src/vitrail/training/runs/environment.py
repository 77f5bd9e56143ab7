"""What a run is computed with, for the report."""

import platform
from typing import Any

import torch

import vitrail


def describe_environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The device, precision and versions that a run is computed with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": f"{device} ({name})",
        "precision": str(dtype).removeprefix("torch."),
        "vitrail": vitrail.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
