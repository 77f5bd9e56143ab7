"""Static int8 for ONNX Runtime: products with constant weights between quantise and dequantise operations (QDQ)."""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.inference.whole_model import INPUT

_KINDS = ("MatMul", "Gemm", "Conv")
_MATRIX, _KERNEL = 2, 4  # dimensions of weights
_LEVELS = 255.0
_FEW = 4  # images by which layers are ranked


def find_layers(model: Any) -> dict[str, tuple[str, str]]:
    """The operations with constant weights, by name: what goes in and their weights.

    Products with several matrices at once have no int8 of their own in ONNX Runtime.
    """
    constants = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) in (_MATRIX, _KERNEL)}
    return {
        node.name: (node.input[0], node.input[1])
        for node in model.graph.node
        if node.op_type in _KINDS and node.input[1] in constants and node.input[0] not in constants
    }


def rank_layers(path: Path, pixels: Tensor) -> list[str]:
    """The layers, those first whose answers change most when what goes in and the weights are rounded to bytes."""
    import onnx
    from onnxruntime import InferenceSession

    model = onnx.load(path)
    layers = find_layers(model)
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    known = {output.name for output in model.graph.output} | {INPUT}
    for name in {source for source, _ in layers.values()} - known:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, str(Path(folder) / "watched.onnx"))
        session = InferenceSession(str(Path(folder) / "watched.onnx"), providers=["CPUExecutionProvider"])
        values = session.run(None, {INPUT: pixels[:_FEW].contiguous().numpy()})
    inputs = {one.name: value for one, value in zip(session.get_outputs(), values, strict=True)}
    noises = {
        name: _noise(inputs[source]) + _noise(weights[weight])
        for name, (source, weight) in layers.items()
        if source in inputs
    }
    return sorted(layers, key=lambda name: -noises.get(name, 0.0))


def _noise(values: np.ndarray) -> float:
    """The power of what rounding to bytes adds, as a share of the values' own."""
    low, high = float(values.min()), float(values.max())
    step = max((high - low) / _LEVELS, 1e-12)
    power = max(float(np.mean(np.square(values, dtype=np.float64))), 1e-24)
    return step * step / 12.0 / power


def quantise_onnx(path: Path, target: Path, pixels: Tensor, *, kept: Sequence[str]) -> None:
    """Write a quantised copy of a model, with the ranges of the images; layers that are `kept` stay in float32."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        """The images, one by one."""

        def __init__(self) -> None:
            self.rest = iter(pixels.split(1))

        def get_next(self) -> dict[str, np.ndarray] | None:
            part = next(self.rest, None)
            return None if part is None else {INPUT: part.contiguous().numpy()}

    metadata = {one.key: one.value for one in onnx.load(path, load_external_data=False).metadata_props}
    names = [name for name in find_layers(onnx.load(path)) if name not in set(kept)]
    with _quiet():
        quantize_static(
            str(path),
            str(target),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=list(_KINDS),
            nodes_to_quantize=names,
        )
        written = onnx.load(target)
        onnx.helper.set_model_props(written, metadata)
        onnx.save(written, str(target))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger()
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)
