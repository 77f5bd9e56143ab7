"""OpenVINO: its intermediate representation, made straight of torch's graph. No code is in its files."""

import queue
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.inference.engines.contract import Engine
from vitrail.inference.export_record import ExportRecord
from vitrail.inference.whole_model import INPUT, Draft
from vitrail.layers.bfloat16 import has_native_bfloat16

FILES = ("model.xml", "model.bin")
_ANY = None  # size of batches that a graph is compiled for: whichever they have
_METADATA = "vitrail"  # the group of runtime information that holds what the file says of itself


class Graph:
    """A model that OpenVINO has compiled for the CPU; each call has a request of its own."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, images: Tensor) -> list[Tensor]:
        """The outputs for a batch, in their order."""
        try:
            request = self._free.get_nowait()
        except queue.Empty:
            request = self.compiled.create_infer_request()
        try:
            request.infer([images.contiguous().numpy()], share_inputs=True)
            # A request answers into memory of its own, which the next call writes over.
            return [
                torch.from_numpy(request.get_output_tensor(place).data.copy())
                for place in range(len(self.compiled.outputs))
            ]
        finally:
            self._free.put(request)


class OpenVinoEngine(Engine):
    """A model as a graph for batches of any size, and once more as one for single images.

    What a graph is compiled for one size it computes faster: OpenVINO then knows the shape of every tensor, and leaves
    copies out. Parts that are computed side by side have a graph for their size alone.
    """

    name = "openvino"
    has_int8 = has_lanes = True
    packages = ("openvino",)
    opening_extra = writing_extra = "openvino"

    @classmethod
    def precisions(cls) -> tuple[str, ...]:
        return ("fp32", "fp16", "bf16") if has_native_bfloat16() else ("fp32", "fp16")

    @classmethod
    def dtype_for(cls, precision: str) -> torch.dtype:
        return torch.float32  # the file or the hint says the rest

    def __init__(self, graphs: Mapping[int | None, Graph], *, outputs: Sequence[str]) -> None:
        self.graphs, self.outputs = dict(graphs), list(outputs)

    @classmethod
    def write(cls, draft: Draft, folder: Path) -> tuple[str, ...]:
        openvino = import_openvino()
        model = convert(draft)
        if draft.precision == "bf16":
            from vitrail.inference.engines.openvino_bf16 import prepare_for_bfloat16

            prepare_for_bfloat16(model)
        for key, text in draft.metadata.items():
            model.set_rt_info(text, [_METADATA, key])
        openvino.save_model(model, str(folder / FILES[0]), compress_to_fp16=draft.precision == "fp16")
        return FILES

    @classmethod
    def open(cls, folder: Path, record: ExportRecord, *, threads: int | None = None) -> "OpenVinoEngine":
        sizes = (_ANY,) if record.input.multiple is not None else (_ANY, 1)
        return cls._open(folder, record, sizes=sizes, threads=threads)

    @classmethod
    def open_lanes(cls, folder: Path, record: ExportRecord, *, lanes: int) -> "OpenVinoEngine":
        size = _ANY if record.input.multiple is not None else record.part
        return cls._open(folder, record, sizes=(size,), threads=lanes, lanes=lanes)

    @classmethod
    def _open(
        cls, folder: Path, record: ExportRecord, *, sizes: Sequence[int | None], threads: int | None, lanes: int = 1
    ) -> "OpenVinoEngine":
        path = folder / next(iter(record.files))
        try:
            graphs = {}
            for size in sizes:
                model = only_core().read_model(str(path))
                if size is not _ANY:
                    model.reshape({INPUT: [size, *record.input.shape]})
                compiled = compile_model(model, threads=threads, precision=record.precision, lanes=lanes)
                graphs[size] = Graph(compiled)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{path} can't be opened by OpenVINO ({reason}): export the model again") from None
        return cls(graphs, outputs=list(record.outputs))

    @classmethod
    def rank_layers(cls, draft: Draft, folder: Path, pixels: Tensor) -> list[str]:
        from vitrail.inference.engines.openvino_int8 import rank_layers

        return rank_layers(folder / FILES[0], pixels)

    @classmethod
    def write_int8(
        cls, draft: Draft, plain: Path, folder: Path, *, pixels: Tensor, kept: Sequence[str]
    ) -> tuple[str, ...]:
        from vitrail.inference.engines.openvino_int8 import quantise_openvino

        quantise_openvino(plain / FILES[0], folder / FILES[0], pixels, kept=kept)
        return FILES

    def compute(self, images: Tensor) -> dict[str, Tensor]:
        count = len(images)
        graph = self.graphs.get(count) or self.graphs.get(_ANY)
        if graph is None:  # there is one alone, for larger batches: it is filled up
            ((size, graph),) = self.graphs.items()
            assert size is not None
            images = torch.cat([images, images[:1].expand(size - count, -1, -1, -1)])
        found = graph(images)
        return {name: value[:count] for name, value in zip(self.outputs, found, strict=True)}


def import_openvino() -> Any:
    """The library, without the reports that it would send to its makers when it is imported and when it converts."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # what is None can't be imported
    import openvino

    return openvino


@cache
def only_core() -> Any:
    """OpenVINO's core, one for the life of the process.

    Its plugin for the CPU gives the thread that loads it a stack for signals and takes it back when the core goes.
    Where several come and go, the stack that is left may be one that is gone, and the next signal ends the process
    without a word.
    """
    return import_openvino().Core()


def convert(draft: Draft) -> Any:
    """OpenVINO's model of torch's graph, with our names of what goes in and comes out."""
    openvino = import_openvino()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = openvino.convert_model(draft.program)
    model.inputs[0].get_tensor().set_names({INPUT})
    for output, name in zip(model.outputs, draft.outputs, strict=True):
        output.get_tensor().set_names({name})
    return model


def compile_model(model: Any, *, threads: int | None, precision: str = "fp32", lanes: int = 1) -> Any:
    """A model, or the file of one, compiled for calls that come one after the other, or `lanes` of them at a time.

    `threads` are those of all lanes together. Numbers that are stored in fp16 are computed in float32.
    """
    openvino = import_openvino()
    from openvino import properties
    from openvino.properties import hint

    settings: dict[Any, Any] = {
        hint.performance_mode(): hint.PerformanceMode.LATENCY,
        hint.inference_precision(): openvino.Type.bf16 if precision == "bf16" else openvino.Type.f32,
    }
    if threads is not None:
        settings[properties.inference_num_threads()] = threads
    if lanes > 1:
        settings[properties.num_streams()] = lanes
        settings[hint.enable_cpu_pinning()] = False  # a core that another program holds would hold up its lane
    return only_core().compile_model(model, "CPU", settings)
