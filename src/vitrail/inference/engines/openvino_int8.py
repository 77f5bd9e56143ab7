"""Static int8 for OpenVINO, by its own library NNCF."""

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.inference.engines.openvino_engine import compile_model, import_openvino, only_core

_KINDS = ("MatMul", "Convolution", "GroupConvolution")
_LEVELS = 255.0


def require_nncf() -> Any:
    """NNCF, or a line that says how to get it."""
    import_openvino()
    if importlib.util.find_spec("nncf") is None:
        raise ValueError("int8 for openvino needs nncf: pip install 'vitrail[openvino]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    return nncf


def rank_layers(path: Path, pixels: Tensor) -> list[str]:
    """The layers with constant weights, those first whose weights lose most when they are rounded to bytes."""
    require_nncf()
    noises: dict[str, float] = {}
    for node in only_core().read_model(str(path)).get_ordered_ops():
        if node.get_type_name() in _KINDS:
            weight = node.input_value(1).get_node()
            if weight.get_type_name() == "Constant":
                noises[node.get_friendly_name()] = _noise(np.asarray(weight.data))
    return sorted(noises, key=lambda name: -noises[name])


def _noise(values: np.ndarray) -> float:
    """The power of what rounding to bytes by rows adds, as a share of the values' own."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    steps = np.abs(rows).max(axis=1) * 2.0 / _LEVELS
    return float(np.mean(steps**2) / 12.0 / max(np.mean(rows**2), 1e-24))


def quantise_openvino(path: Path, target: Path, pixels: Tensor, *, kept: Sequence[str]) -> None:
    """Write a quantised copy of a model; what OpenVINO then can't compile is refused in one line."""
    nncf, openvino = require_nncf(), import_openvino()
    model = only_core().read_model(str(path))
    parts = [part.contiguous().numpy() for part in pixels.split(1)]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # bars of progress
            warnings.simplefilter("ignore")
            quantised = nncf.quantize(
                model,
                nncf.Dataset(parts),
                subset_size=len(parts),
                model_type=nncf.ModelType.TRANSFORMER,
                ignored_scope=nncf.IgnoredScope(names=list(kept), validate=False),
            )
        openvino.save_model(quantised, str(target), compress_to_fp16=False)
        compile_model(str(target), threads=None).create_infer_request().infer([parts[0]])
    except (RuntimeError, nncf.ValidationError, nncf.InternalError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(
            f"OpenVINO can't compute this model in int8 ({reason}): leave --quantise out, or export it to onnx"
        ) from None
