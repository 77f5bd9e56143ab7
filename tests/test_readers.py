"""Files are read by the checked readers of `vitrail.storage` alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import vitrail

PACKAGE = Path(vitrail.__file__).parent
READERS = {
    *("json.load", "json.loads", "pickle.load", "pickle.loads", "torch.load", "safe_open", "load_file"),
    *("ElementTree.parse", "ElementTree.fromstring", "ElementTree.iterparse"),
    *("yaml.load", "yaml.safe_load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "yaml.safe_load_all"),
}
OWN_READERS = {"gallery/part_files.py": {"safe_open"}}  # it reads parts of files that are too large for memory


def find_readers(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that read without checks, and by what."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in READERS or name.rpartition(".")[2] in {"safe_open", "load_file"}:
                yield node.lineno, name
        if isinstance(node, ast.ImportFrom) and node.module in ("json", "yaml", "pickle"):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in ("load", "loads"))


def test_nobody_reads_files_past_the_checked_readers() -> None:
    found = [
        f"{place}:{line}: {name}"
        for path in PACKAGE.rglob("*.py")
        if (place := path.relative_to(PACKAGE).as_posix()).partition("/")[0] != "storage"
        for line, name in find_readers(path)
        if name not in OWN_READERS.get(place, set())
    ]
    assert not found, f"read through vitrail.storage instead: {found}"


def test_such_calls_are_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import json, torch\nfrom yaml import load\njson.loads(x)\ntorch.load(y)\nsafetensors.torch.load_file(z)"
    )
    assert sorted(find_readers(path)) == [
        (2, "load"),
        (3, "json.loads"),
        (4, "torch.load"),
        (5, "safetensors.torch.load_file"),
    ]
