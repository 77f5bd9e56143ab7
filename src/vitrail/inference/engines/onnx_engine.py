"""ONNX Runtime: one file that other programs and languages read too. It holds a graph and numbers, and no code."""

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.inference.engines.contract import Engine
from vitrail.inference.export_record import ExportRecord
from vitrail.inference.whole_model import INPUT, Draft

FILE = "model.onnx"
_OPSET = 20  # the first with a Gelu of its own
_ANY_SIZE = 2**31  # bytes of a tensor
_QUIET = 4  # errors are raised, and told by whoever catches them


class OnnxEngine(Engine):
    """A session of ONNX Runtime on the CPU."""

    name = "onnx"
    has_int8 = has_lanes = True  # a session of one thread computes in the thread that asks
    packages = ("onnxruntime",)
    opening_extra = "onnx"
    writing_packages = ("onnx", "onnxscript")
    writing_extra = "export"

    @classmethod
    def precisions(cls) -> tuple[str, ...]:
        return ("fp32", "fp16")  # a CPU computes fp16 in fp32; the file is half as large, and for others too

    def __init__(self, session: Any, *, outputs: Sequence[str]) -> None:
        self.session, self.outputs = session, list(outputs)

    @classmethod
    def write(cls, draft: Draft, folder: Path) -> tuple[str, ...]:
        with _quiet():
            program = torch.onnx.export(
                draft.program,
                dynamo=True,
                input_names=[INPUT],
                output_names=list(draft.outputs),
                opset_version=_OPSET,
                verbose=False,
            )
            assert program is not None
            fold_weights(program.model)
        strip_traces(program.model)
        program.model.metadata_props.update(draft.metadata)
        program.save(str(folder / FILE))
        return (FILE, *sorted(path.name for path in folder.glob(f"{FILE}.*")))

    @classmethod
    def open(cls, folder: Path, record: ExportRecord, *, threads: int | None = None) -> "OnnxEngine":
        return cls(open_session(folder / next(iter(record.files)), threads=threads), outputs=list(record.outputs))

    @classmethod
    def rank_layers(cls, draft: Draft, folder: Path, pixels: Tensor) -> list[str]:
        from vitrail.inference.engines.onnx_int8 import rank_layers

        return rank_layers(folder / FILE, pixels)

    @classmethod
    def write_int8(
        cls, draft: Draft, plain: Path, folder: Path, *, pixels: Tensor, kept: Sequence[str]
    ) -> tuple[str, ...]:
        from vitrail.inference.engines.onnx_int8 import quantise_onnx

        quantise_onnx(plain / FILE, folder / FILE, pixels, kept=kept)
        return (FILE,)

    def compute(self, images: Tensor) -> dict[str, Tensor]:
        found = self.session.run(self.outputs, {INPUT: images.contiguous().numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(self.outputs, found, strict=True)}


def fold_weights(model: Any) -> None:
    """Compute what depends on weights alone, also of large ones, which the exporter leaves: int8 needs constants."""
    from onnxscript import optimizer

    optimizer.fold_constants(model, input_size_limit=_ANY_SIZE, output_size_limit=_ANY_SIZE)
    optimizer.remove_unused_nodes(model)


def strip_traces(model: Any) -> None:
    """Remove what the exporter notes of each operation: lines of source and paths of whoever exported."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()


def open_session(path: Path, *, threads: int | None) -> Any:
    """A session on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Threads that wait for work hold their cores, also between two calls, where others need them.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes have no common parent but this
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} can't be opened by ONNX Runtime ({reason}): export the model again") from None


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep the exporter's remarks off the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
