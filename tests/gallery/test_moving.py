"""Galleries that move between stores: the same answers there, and a move that was killed goes on."""

from pathlib import Path
from typing import Any

import pytest
from tiny_galleries import COLOURS, colour_gallery, paint, tiny_viewer
from warm import WarmProgram

from vitrail.cli import main
from vitrail.gallery.folder_store import FolderStore
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.moving import move_gallery
from vitrail.gallery.store import GalleryStore
from vitrail.gallery.stores import open_store

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"milvus:{tmp_path_factory.mktemp('moving') / 'all.db'}"


def contents_of(place: str | Path | GalleryStore) -> Any:
    gallery = Gallery(place, model=tiny_viewer())
    rows = gallery.contents.rows.tolist()
    table = gallery.contents.table
    hits = gallery.search(paint(COLOURS["red"], seed=5), top=100, rank="conditional")
    return (
        gallery.manifest.plain(),
        table.paths_of(rows),
        table.labels_of(gallery.contents.rows).tolist(),
        table.thumbnails_of(rows),
        table.vectors_of(gallery.contents.rows).tolist(),
        [hit.path for hit in hits],
        gallery.store.read_note("suggestions.json"),
    )


def test_there_and_back_again(tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    gallery = colour_gallery(tmp_path / "g")
    gallery.add("it's", [paint((150, 20, 160), seed=0)])
    gallery.store.write_note("suggestions.json", "[[]]")
    gallery.report()
    wanted = contents_of(tmp_path / "g")
    assert main(["gallery", "move", str(tmp_path / "g"), f"{database}#there"]) == 0
    assert capsys.readouterr().out == f"25 images are in {database}#there now\n"
    assert not (tmp_path / "g").exists()
    assert contents_of(f"{database}#there") == wanted
    assert main(["gallery", "move", f"{database}#there", str(tmp_path / "g"), "keep=true"]) == 0
    assert "as before" in capsys.readouterr().out
    assert contents_of(tmp_path / "g") == contents_of(f"{database}#there") == wanted
    Gallery(f"{database}#there").remove("red")
    assert main(["gallery", "move", f"{database}#there", str(tmp_path / "g")]) == 2
    assert "holds a gallery already" in capsys.readouterr().err
    assert main(["gallery", "move", str(tmp_path / "g"), str(tmp_path / "g")]) == 2
    assert "choose another one" in capsys.readouterr().err
    assert main(["gallery", "move", str(tmp_path / "none"), f"{database}#none"]) == 2
    assert "no gallery" in capsys.readouterr().err


class _Stopped(BaseException):
    pass


@pytest.mark.parametrize("to", ["folder", "milvus"])
def test_a_move_that_was_ended_goes_on_where_it_was(tmp_path: Path, database: str, to: str) -> None:
    source: GalleryStore = FolderStore(tmp_path / "g")
    colour_gallery(source)
    if to == "folder":
        move_gallery(source, open_store(f"{database}#from"))
        source = open_store(f"{database}#from")
    target = open_store(tmp_path / "new" if to == "folder" else f"{database}#onwards")
    wanted = contents_of(source)
    moved: list[int] = []

    def stop_at(number: int) -> Any:
        def advance(count: int) -> None:
            moved.append(count)
            if len(moved) == number:
                raise _Stopped

        return advance

    for number in (2, 3):
        with pytest.raises(_Stopped):
            move_gallery(source, target, page=5, advance=stop_at(number))
        with pytest.raises(ValueError, match="no gallery"):
            target.read()
        assert contents_of(source) == wanted
    assert move_gallery(source, target, page=5, advance=stop_at(0)) == 24
    assert moved == [5, 5, 5, 5, 4]  # nothing went twice
    assert contents_of(target) == wanted
    with pytest.raises(ValueError, match="no gallery"):
        source.read()
    target.remove()


def test_a_move_that_was_ended_before_the_old_one_was_removed_removes_it(tmp_path: Path, database: str) -> None:
    colour_gallery(tmp_path / "g")
    target = open_store(f"{database}#twice")
    move_gallery(FolderStore(tmp_path / "g"), target, keep=True)
    assert move_gallery(FolderStore(tmp_path / "g"), target) == 24
    assert not (tmp_path / "g").exists()
    move_gallery(target, FolderStore(tmp_path / "g"), keep=True)
    assert move_gallery(target, FolderStore(tmp_path / "g")) == 24
    with pytest.raises(ValueError, match="no gallery"):
        target.read()


def test_a_change_between_two_attempts_begins_anew(tmp_path: Path, database: str) -> None:
    gallery = colour_gallery(tmp_path / "g")

    def stop(count: int) -> None:
        raise _Stopped

    target = open_store(f"{database}#changed")
    with pytest.raises(_Stopped):
        move_gallery(gallery.store, target, page=5, advance=stop)
    gallery.remove("red")
    wanted = contents_of(gallery.store)
    assert move_gallery(gallery.store, target, page=5) == 18
    assert contents_of(target) == wanted
    target.remove()


# Moves page after page of five images, and says so after each.
MOVING = """
import sys
from vitrail.gallery.moving import move_gallery
from vitrail.gallery.stores import open_store
def tell(count):
    print(count, flush=True)
    sys.stdin.readline()
move_gallery(open_store(sys.argv[1]), open_store(sys.argv[2]), page=5, advance=tell)
"""


def test_a_move_that_is_killed_goes_on(tmp_path: Path) -> None:
    colour_gallery(tmp_path / "g")
    wanted, target = contents_of(tmp_path / "g"), f"milvus:{tmp_path / 'a.db'}"
    process = WarmProgram(MOVING, str(tmp_path / "g"), target)
    assert process.stdout.readline() == "5\n"
    process.tell("")
    assert process.stdout.readline() == "5\n"
    process.kill()
    moved: list[int] = []
    store = open_store(target)
    assert move_gallery(FolderStore(tmp_path / "g"), store, page=5, advance=moved.append) == 24
    assert moved == [5, 5, 4]
    assert contents_of(store) == wanted
    store.close()
