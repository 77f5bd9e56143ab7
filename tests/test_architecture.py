"""The arrows of ARCHITECTURE.md, checked on the source: who may import whom, and what must stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail

PACKAGE = Path(vitrail.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# Room -> the rooms it may import, beside itself. A new room gets its line here and its place in ARCHITECTURE.md.
ARROWS: dict[str, set[str]] = {
    "layers": set(),
    "models": {"layers"},
    "weights": {"vitrail", "layers", "models", "heads"},
    "data": set(),
    "heads": {"layers", "models"},
    "evaluation": {"layers", "models", "data"},
    "explain": {"layers", "models", "heads", "data", "evaluation"},
    "inspection": {"layers", "models", "heads", "data", "evaluation", "explain"},
    "gallery": {"models", "data", "evaluation"},
    "settings": set(),
    "tasks": {"layers", "models", "heads", "weights", "data", "evaluation", "inference", "settings", "training"},
    "inference": {"layers", "models", "heads", "weights", "data", "evaluation", "settings", "training"},
    "training": {
        *("vitrail", "layers", "models", "heads", "weights", "data", "evaluation", "settings", "tasks", "inference"),
        "inspection",
    },
    "recipes": {"settings"},
    "cli": {
        *("vitrail", "layers", "models", "weights", "data", "evaluation", "explain", "inference", "tasks"),
        *("inspection", "gallery", "training", "settings", "recipes"),
    },
}


def room_of(path: Path) -> str:
    """The first folder below the package; the package's own `__init__` is the room "vitrail"."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "vitrail"


def imported_modules(path: Path) -> Iterator[str]:
    """Every absolute import of a file, at its top or inside its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    if room == "vitrail":
        return
    assert room in ARROWS, f"room {room!r} is not in the table of arrows"
    ours = [name.split(".") for name in imported_modules(path) if name.split(".")[0] == "vitrail"]
    imported = {parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "vitrail" for parts in ours}
    assert imported <= ARROWS[room] | {room}


def named(path: Path) -> set[str]:
    """Every name that a file reads, but those in texts."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


# Kinds of models that others ask and never tell apart. Those who build them may name them, and who trains embeddings.
KINDS = {"TimmBackbone", "TimmConfig", "EmbeddingModel", "EmbeddingConfig"}
WHO_MAKES_MODELS = ("models/", "heads/", "tasks/", "weights/save.py")
WHO_TRAINS_EMBEDDINGS = ("training/loop/build.py", "training/loop/measuring.py")


def test_models_answer_for_themselves() -> None:
    for path in MODULES:
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith((*WHO_MAKES_MODELS, *WHO_TRAINS_EMBEDDINGS)):
            assert not named(path) & KINDS, f"{place}: ask the model instead, see models/contract.py"


def test_every_room_is_on_the_plan() -> None:
    plan = (PACKAGE.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    missing = {room_of(path) for path in MODULES if f"{room_of(path)}/" not in plan}
    assert not missing


def test_no_room_for_odds_and_ends() -> None:
    names = {part.removesuffix(".py") for path in MODULES for part in path.relative_to(PACKAGE).parts}
    assert names.isdisjoint({"utils", "util", "misc", "helpers", "common"})


@pytest.mark.parametrize("module", ["vitrail", "vitrail.cli", "vitrail.cli.models", "vitrail.models.catalog"])
def test_import_is_light(module: str) -> None:
    program = f"import {module}, sys; print(*{{'torch', 'timm', 'pydantic', 'numpy'}} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == []


def test_public_names_are_found_and_listed() -> None:
    assert set(vitrail.__all__) <= set(dir(vitrail))
    assert all(getattr(vitrail, name) is not None for name in vitrail.__all__)
    with pytest.raises(AttributeError, match="no attribute 'crate_model'"):
        vitrail.crate_model  # noqa: B018
