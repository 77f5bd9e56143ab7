"""Engines: programs that compute an exported model. The one table of them; none is imported until it is asked for."""

import difflib
from importlib import import_module
from pathlib import Path

from vitrail.inference.engines.contract import Engine
from vitrail.inference.engines.threads import count_cores
from vitrail.inference.engines.ways import SideBySide
from vitrail.inference.export_record import ExportRecord

# Name -> where its class is. In the order in which they are tried and shown.
ENGINES = {
    "eager": "vitrail.inference.engines.eager_engine:EagerEngine",
    "torch": "vitrail.inference.engines.program_engines:ProgramEngine",
    "inductor": "vitrail.inference.engines.program_engines:InductorEngine",
    "onnx": "vitrail.inference.engines.onnx_engine:OnnxEngine",
    "openvino": "vitrail.inference.engines.openvino_engine:OpenVinoEngine",
}


def find_engine(name: str) -> type[Engine]:
    """The engine of that name, whether its libraries are installed or not."""
    if name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ENGINES)}"
        raise ValueError(f"there is no engine {name[:60]!r}; {hint}")
    module, _, attribute = ENGINES[name].partition(":")
    found: type[Engine] = getattr(import_module(module), attribute)
    return found


def open_engine(folder: Path, record: ExportRecord, *, threads: int | None = None) -> Engine:
    """The engine of an exported folder, as its record says; `threads` are those of one call.

    With other threads than the record's, and on a single core, nothing is computed side by side: a batch is then
    computed whole.
    """
    engine_class, wanted = find_engine(record.engine), threads or record.threads
    engine = engine_class.open(folder, record, threads=wanted)
    lanes = min(record.lanes, count_cores())  # there may be fewer than where it was chosen
    if record.lanes == 1:
        engine.part = record.part
    elif lanes > 1 and engine_class.has_lanes and wanted == record.threads:
        engine.part = record.part
        engine.beside = SideBySide(engine_class.open_lanes(folder, record, lanes=lanes).compute, lanes=lanes)
    return engine


def installed_engines() -> list[str]:
    """The engines that can be used here."""
    return [name for name in ENGINES if not find_engine(name).missing()]
