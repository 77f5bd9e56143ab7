"""The folder of a gallery: whole after a kill, two writers at once, readers meanwhile, and damage that is named."""

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_galleries import COLOURS, colour_gallery, colours, listed, paint, tiny_viewer
from warm import WarmProgram

from vitrail.gallery.folder_changes import change
from vitrail.gallery.folder_files import Writer, check_new, read_state, writing
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_manifest import MANIFEST_FILE, read_manifest

# Adds the first image again and again, without its model; says so after each time.
ADDING = """
import sys
from pathlib import Path
from vitrail.gallery.folder_changes import change, take_rows
from vitrail.gallery.folder_files import read_state, writing
folder = Path(sys.argv[1])
while True:
    with writing(folder) as writer:
        state = read_state(folder)
        change(writer, state, more=take_rows(state, [0]))
    print("added", flush=True)
"""


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {MANIFEST_FILE, ".lock"}


def test_a_writer_that_is_killed_leaves_a_whole_gallery(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    process = WarmProgram(ADDING, str(gallery.folder))
    for _ in range(3):
        assert process.stdout.readline() == "added\n"
    process.kill()
    state = read_state(gallery.folder)
    assert len(state) >= 27
    (gallery.folder / ".tmp75EbN2").touch()  # where safetensors was about to write
    gallery.remove("red")  # the lock went with the process, and what it left is cleared away
    assert files_in(gallery.folder) == listed(gallery).files


def test_a_failure_before_the_manifest_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = colour_gallery(tmp_path / "g")
    before = (gallery.folder / MANIFEST_FILE).read_bytes()

    def fail(self: Writer, manifest: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "commit", fail)
        with pytest.raises(KeyboardInterrupt):
            gallery.add("purple", [paint((150, 20, 160), seed=0)])
    assert (gallery.folder / MANIFEST_FILE).read_bytes() == before
    assert len(files_in(gallery.folder)) == 2  # the part that nobody lists
    assert len(Gallery(gallery.folder)) == 24
    gallery.add("purple", [paint((150, 20, 160), seed=0)])
    assert files_in(gallery.folder) == listed(gallery).files


def test_two_writers_at_once_both_have_their_way(tmp_path: Path) -> None:
    colour_gallery(tmp_path / "g")
    failures: list[Exception] = []

    def add(name: str, first_seed: int) -> None:
        try:
            own = Gallery(tmp_path / "g", model=tiny_viewer())
            for seed in range(4):
                own.add(f"{name} {seed}", [paint(COLOURS["red"], seed=first_seed + seed)])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=add, args=pair) for pair in (("first", 100), ("second", 200))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    counts = Gallery(tmp_path / "g").counts()
    assert {name for name in counts if " " in name} == {
        f"{name} {seed}" for name in ("first", "second") for seed in range(4)
    }
    assert read_manifest(tmp_path / "g").generation == 9


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    done = threading.Event()

    def remove() -> None:
        Gallery(tmp_path / "g").remove("red")
        done.set()

    with writing(tmp_path / "g"):
        thread = threading.Thread(target=remove)
        thread.start()
        time.sleep(0.2)
        assert not done.is_set()
        assert "red" in Gallery(tmp_path / "g").counts()  # readers do not wait
    thread.join()
    gallery.refresh()
    assert "red" not in gallery.counts()


def test_an_open_gallery_stays_as_it_was_until_it_is_refreshed(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    Gallery(tmp_path / "g").remove("red")
    query = paint(COLOURS["red"], seed=1)
    assert gallery.classify(query).probabilities[0][0] == "red"
    gallery.refresh()
    assert gallery.classify(query).probabilities[0][0] != "red"


def test_many_small_changes_do_not_leave_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.gallery.folder_changes._MAX_PARTS", 3)
    gallery = colour_gallery(tmp_path / "g")
    for seed in range(5):
        gallery.add(f"new {seed}", [paint(COLOURS["red"], seed=400 + seed)])
    assert len(listed(gallery).parts) <= 3
    assert len(gallery) == 29
    assert gallery.counts()["new 4"] == 1
    assert gallery.contents.thumbnail(28)


def test_a_killed_build_can_be_made_again_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Writer, manifest: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "commit", fail)
        with pytest.raises(KeyboardInterrupt):
            colour_gallery(tmp_path / "g")
    with pytest.raises(ValueError, match="no gallery"):
        Gallery(tmp_path / "g")
    assert files_in(colour_gallery(tmp_path / "g").folder) == read_manifest(tmp_path / "g").files


def test_a_place_that_holds_something_is_refused(tmp_path: Path) -> None:
    colour_gallery(tmp_path / "g")
    with pytest.raises(ValueError, match="holds a gallery already"):
        colour_gallery(tmp_path / "g")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds something else"):
        colour_gallery(tmp_path / "other")
    with pytest.raises(ValueError, match="is a file"):
        colour_gallery(tmp_path / "other" / "letter.txt")


def test_no_such_gallery_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no gallery '.*nothing': make one with `vitrail gallery build"):
        Gallery(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no gallery"), writing(tmp_path / "nothing"):
        pass


def test_damage_is_named(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    (part,) = listed(gallery).files
    content = (gallery.folder / part).read_bytes()
    (gallery.folder / part).write_bytes(content[:-7])
    with pytest.raises(ValueError, match=f"is damaged: {part}: it has .* bytes instead of"):
        Gallery(gallery.folder)
    (gallery.folder / part).write_bytes(b"\xff" * len(content))
    with pytest.raises(ValueError, match=f"is damaged: {part}"):
        Gallery(gallery.folder)
    (gallery.folder / part).unlink()
    with pytest.raises(ValueError, match=f"is damaged: {part} is missing"):
        Gallery(gallery.folder)
    (gallery.folder / MANIFEST_FILE).write_text("{")
    with pytest.raises(ValueError, match=r"gallery\.json can't be read \(it is not JSON"):
        Gallery(gallery.folder)


def test_a_manifest_that_does_not_fit_its_files_is_damage(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    path = gallery.folder / MANIFEST_FILE
    content = json.loads(path.read_text())
    del content["checksum"]
    content["levels"]["label"] = ["red"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="it has labels that are not listed"):
        Gallery(gallery.folder)
    content["dim"] = 5
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not those that are listed"):
        Gallery(gallery.folder)


def test_paths_of_any_encoding_come_back(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    with writing(gallery.folder) as writer:
        state = read_state(gallery.folder)
        rows = state.parts[0].rows().choose([0, 1])
        odd = type(rows)(rows.vectors, rows.labels, ("caf\udce9.jpg", "été.jpg"), rows.thumbnails)
        change(writer, state, more=odd)
    gallery.refresh()
    assert [gallery.contents.path(row) for row in (24, 25)] == ["caf\udce9.jpg", "été.jpg"]


def test_vectors_are_of_length_one(tmp_path: Path) -> None:
    gallery, _ = Gallery.build(tiny_viewer(), colours(count=2), folder=tmp_path / "g")
    assert torch.allclose(gallery.contents.vectors.norm(dim=1), torch.ones(8), atol=1e-5)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """As a user who may read only what all may."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(own)


def test_what_may_not_be_read_is_told_by_its_name() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        gallery = colour_gallery(folder / "g")
        gallery.folder.chmod(0o755)
        (part,) = gallery.folder.glob("part-*")
        part.chmod(0)
        (folder / "closed").mkdir(mode=0)
        with as_nobody():
            with pytest.raises(ValueError, match=rf"can't be read: {part.name}: Permission denied"):
                read_state(gallery.folder)
            with pytest.raises(ValueError, match=r"can't be made in .*: Permission denied"):
                check_new(folder / "closed" / "g")
        (folder / "closed").chmod(0o755)
