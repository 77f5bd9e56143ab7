"""Damage to a gallery's files: noticed, named in one line, and never mistaken for a change by another process."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import safetensors
import torch
from safetensors.torch import load_file
from tiny_galleries import COLOURS, colour_gallery, listed, paint, tiny_viewer

from vitrail.cli import main
from vitrail.gallery import gallery_damage
from vitrail.gallery.building import Choices
from vitrail.gallery.folder_files import read_state
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_damage import hash_content
from vitrail.gallery.gallery_manifest import MANIFEST_FILE, read_manifest
from vitrail.storage.tensors import write_tensors


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what gallery.json says, without its own checksum."""
    path = folder / MANIFEST_FILE
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    change(content)
    path.write_text(json.dumps(content))


def make_former(content: dict[str, Any]) -> None:
    """As galleries were before they had checksums and rules."""
    content["format"] = 1
    for entry in (*content["parts"], *filter(None, [content["index"]])):
        entry.pop("sha256")


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def test_a_file_that_goes_between_opening_and_reading_is_looked_for_in_the_next_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = colour_gallery(tmp_path / "g")
    left = ["red", "orange", "blue"]

    def open_late(path: Path, framework: str) -> Any:
        if left:
            name = left.pop()  # before the gallery is opened, which comes here again
            Gallery(gallery.folder).remove(name)
        return safetensors.safe_open(path, framework=framework)

    monkeypatch.setattr("vitrail.gallery.part_files.safe_open", open_late)
    assert Gallery(gallery.folder).counts() == {"cyan": 6}


def test_a_state_that_never_holds_still_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = colour_gallery(tmp_path / "g")
    number = iter(range(1000))

    def go(*arguments: object) -> object:
        rewrite(gallery.folder, lambda content: content.update(generation=10 + next(number)))
        raise FileNotFoundError(2, "No such file", "part-1.safetensors")

    monkeypatch.setattr("vitrail.gallery.folder_files.read_part", go)
    with pytest.raises(ValueError, match="changes faster than it can be read"):
        read_state(gallery.folder)


@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_flipped_bits_are_noticed_in_every_file(tmp_path: Path, index: str) -> None:
    if index != "exact":
        pytest.importorskip("faiss", reason="faiss is not installed")
    gallery, rng = colour_gallery(tmp_path / "g", choices=Choices(index=index)), random.Random(0)
    query = gallery.embed([paint(COLOURS["red"], seed=900)])
    for name in sorted([*listed(gallery).files, MANIFEST_FILE]):
        path = gallery.folder / name
        whole = path.read_bytes()
        for _ in range(40):
            flip(path, rng)
            with pytest.raises(ValueError, match=name):
                Gallery(gallery.folder).search_vectors(query)
            path.write_bytes(whole)
    assert Gallery(gallery.folder).search_vectors(query)


@pytest.mark.parametrize(
    "change",
    [
        {"neighbours": 0},
        {"neighbours": "many"},
        {"dim": 0},
        {"dim": 10**30},
        {"generation": -1},
        {"coarse": "genus"},
        {"levels": {}},
        {"levels": {"label": ["red", "red", "blue", "cyan"], "coarse": ["warm", "cold"]}},
        {"threshold": {"cosine": float("nan"), "false_reject": 0.1, "num_held_out": 3, "held_out": "val"}},
        {"parts": [{"file": "../secret.safetensors", "count": 1, "size": 1}]},
        {"index": {"kind": "ivf", "file": "index-1.faiss", "size": 5, "parts": ["part-9.safetensors"]}},
        {"model": None},
    ],
    ids=str,
)
def test_wrong_values_are_one_line_that_names_the_file(
    colour_folder: Path, capsys: pytest.CaptureFixture[str], change: Any
) -> None:
    whole = (colour_folder / MANIFEST_FILE).read_bytes()
    try:
        rewrite(colour_folder, lambda content: content.update(change))
        assert main(["gallery", "report", str(colour_folder)]) == 2
    finally:
        (colour_folder / MANIFEST_FILE).write_bytes(whole)
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert MANIFEST_FILE in told or "part-" in told


@pytest.fixture(scope="module")
def colour_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colour_gallery(tmp_path_factory.mktemp("damage") / "g").folder


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"a": ' * 100_000, "\udcff"])
def test_what_is_no_manifest_is_one_line(colour_folder: Path, content: str) -> None:
    path = colour_folder / MANIFEST_FILE
    whole = path.read_bytes()
    try:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(ValueError, match=r"gallery\.json .*build the gallery anew"):
            Gallery(colour_folder)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("is_former", [False, True])
def test_embeddings_that_are_no_numbers_are_refused(tmp_path: Path, is_former: bool) -> None:
    gallery = colour_gallery(tmp_path / "g")
    (part,) = gallery.folder.glob("part-*")
    tensors = load_file(part)
    tensors["vectors"] = tensors["vectors"].clone()
    tensors["vectors"][3, 2] = torch.nan
    write_tensors(tensors, part)

    def take_over(content: dict[str, Any]) -> None:
        content["parts"][0]["sha256"] = hash_content(part)
        if is_former:
            make_former(content)

    rewrite(gallery.folder, take_over)
    with pytest.raises(ValueError, match=rf"is damaged: {part.name}: it has embeddings that are no numbers"):
        Gallery(gallery.folder)


def test_galleries_without_checksums_open_and_a_change_adds_them(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    gallery = colour_gallery(tmp_path / "g", choices=Choices(index="hnsw"))
    rewrite(gallery.folder, make_former)
    former = Gallery(gallery.folder, model=tiny_viewer())
    assert listed(former).format == 1
    assert former.search(paint(COLOURS["red"], seed=900), top=1)[0].labels["label"] == "red"
    former.add("purple", [paint((150, 20, 160), seed=0)])
    now = read_manifest(gallery.folder)
    assert now.format == 2
    assert now.index is not None
    assert now.index.sha256
    assert all(part.sha256 for part in now.parts)


def test_a_file_is_read_in_full_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = colour_gallery(tmp_path / "g")
    read: list[str] = []
    hash_file = gallery_damage._hash

    def note(file: BinaryIO) -> str:
        read.append(file.name)
        return hash_file(file)

    monkeypatch.setattr(gallery_damage, "_hash", note)
    Gallery(gallery.folder)
    assert not read
    gallery.add("purple", [paint((150, 20, 160), seed=0)])
    assert len(read) == 2  # the new file: when it was written, and when it was read for the first time
