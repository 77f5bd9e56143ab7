"""The arrows of ARCHITECTURE.md, checked on the source: who may import whom, and what must stay light."""

import ast
import re
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
    "storage": set(),
    "pages": set(),
    "layers": set(),
    "models": {"layers", "settings"},
    "translation": {"storage", "pages", "layers", "settings", "models", "data", "evaluation"},
    "weights": {"vitrail", "storage", "layers", "settings", "models", "heads", "translation"},
    "data": {"storage", "pages", "settings"},
    "heads": {"layers", "models"},
    "evaluation": {"storage", "layers", "models", "data"},
    "explain": {"layers", "models", "heads", "data", "evaluation", "pages", "storage"},
    "inspection": {"layers", "models", "heads", "data", "evaluation", "explain", "pages", "storage"},
    "preview": {"data", "explain", "pages", "settings"},
    "gallery": {"storage", "models", "data", "evaluation", "pages"},
    "settings": set(),
    "tasks": {
        *("storage", "pages", "layers", "models", "heads", "weights", "data", "evaluation", "inspection", "inference"),
        *("preview", "explain", "settings", "translation"),
    },
    "inference": {
        *(
            "vitrail",
            "storage",
            "pages",
            "layers",
            "models",
            "heads",
            "weights",
            "data",
            "evaluation",
            "settings",
            "tasks",
        ),
        *("training", "translation"),
    },
    "training": {
        *("vitrail", "storage", "pages", "layers", "models", "heads", "weights", "data", "evaluation", "settings"),
        "tasks",
    },
    "serving": {
        *("vitrail", "storage", "pages", "models", "weights", "data", "evaluation", "explain", "gallery", "tasks"),
        "inference",
    },
    "recipes": {"models", "settings", "tasks"},
    "cli": {
        *("vitrail", "layers", "models", "weights", "data", "evaluation", "explain", "inference", "tasks"),
        *("inspection", "preview", "gallery", "training", "settings", "recipes", "pages", "storage", "translation"),
        "serving",
    },
}


def room_of(path: Path) -> str:
    """The first folder below the package; the package's own `__init__` is the room "vitrail"."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "vitrail"


# A section of a recipe builds its part: what it is built of is imported inside its methods, so that reading a recipe
# imports nothing heavy.
LAZY = {"settings"}


def imported_modules(path: Path) -> Iterator[str]:
    """Every absolute import of a file, at its top or, in rooms that are not lazy, inside its functions."""
    is_lazy = room_of(path) in LAZY
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if is_lazy and (isinstance(node, ast.FunctionDef) or _is_for_types(node)):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    if room == "vitrail":
        return
    assert room in ARROWS, f"room {room!r} is not in the table of arrows"
    ours = [name.split(".") for name in imported_modules(path) if name.split(".")[0] == "vitrail"]
    imported = {parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "vitrail" for parts in ours}
    assert imported <= ARROWS[room] | {room}


# What several tasks share, and the table and contract of them all, are no task by name.
SHARED = {"vitrail.tasks", "vitrail.tasks.contract", "vitrail.tasks.results", "vitrail.tasks.images"}


@pytest.mark.parametrize("room", ["training", "inference", "serving", "cli"])
def test_these_rooms_know_no_task_by_name(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        for name in imported_modules(path):
            if name.startswith("vitrail.tasks."):
                owner = ".".join(name.split(".")[:3])
                is_shared = owner in SHARED or (PACKAGE / "tasks" / f"{name.split('.')[2]}").is_dir() is False
                assert is_shared, f"{path.relative_to(PACKAGE)} imports {name}"


def named(path: Path) -> set[str]:
    """Every name that a file reads, but those in texts."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


# Kinds of models that others ask and never tell apart. Those who build them may name them.
KINDS = {
    *("TimmBackbone", "TimmConfig", "EmbeddingModel", "EmbeddingConfig"),
    *("FeatureModel", "FeatureConfig", "DinoModel", "DinoConfig"),
    *("MaskedModel", "Tokenizer", "TokenizerConfig"),
    *("Detector", "DetectorConfig"),
    *("SegmentModel", "SegmentConfig"),
    *("Seq2Seq", "Seq2SeqConfig"),
}
WHO_MAKES_MODELS = ("models/", "heads/", "tasks/", "translation/", "weights/save.py", "weights/pretrained.py")


def test_models_answer_for_themselves() -> None:
    for path in MODULES:
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(WHO_MAKES_MODELS):
            assert not named(path) & KINDS, f"{place}: ask the model instead, see models/contract.py"


PLAN = PACKAGE.parents[1] / "ARCHITECTURE.md"


def test_every_room_is_on_the_plan() -> None:
    plan = PLAN.read_text(encoding="utf-8")
    missing = {room_of(path) for path in MODULES if f"{room_of(path)}/" not in plan}
    assert not missing


def test_the_plan_has_the_same_arrows() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PLAN.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {room: set(re.findall(r"`(\w+)`", others)) for room, others in rows} == ARROWS


def test_the_plan_names_files_that_exist() -> None:
    tree = PLAN.read_text(encoding="utf-8").split("```")[1].partition("src/vitrail/")[2]
    room = PACKAGE
    for line in tree.splitlines():
        names = re.findall(r"[a-z0-9_]+(?:\.py|\.css|/)", line)
        if line.startswith("  ") and not line.startswith("   ") and names[0].endswith("/"):
            room = PACKAGE / names.pop(0)
            assert room.is_dir(), f"{room} is no folder"
        elif line.startswith("    "):
            missing = [name for name in names if not (room / name).exists()]
            assert not missing, f"ARCHITECTURE.md names {missing} in {room.name}/"


def test_no_room_for_odds_and_ends() -> None:
    names = {part.removesuffix(".py") for path in MODULES for part in path.relative_to(PACKAGE).parts}
    assert names.isdisjoint({"utils", "util", "misc", "helpers", "common"})


def test_a_class_name_means_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"two classes of one name: {twice}"


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
