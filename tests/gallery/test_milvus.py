"""Galleries on Milvus: addresses, kills at any moment, writers that take turns, a database that goes, bad content."""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from milvus_places import Server, Wire, new_place, serving
from tiny_galleries import COLOURS, colour_gallery, colours, paint, tiny_viewer
from warm import WarmProgram

from vitrail.cli import main
from vitrail.gallery import milvus_client, milvus_turns, milvus_writing
from vitrail.gallery.building import Choices
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.milvus_address import read_address
from vitrail.gallery.milvus_client import Database, GoneError
from vitrail.gallery.milvus_state import StateTexts
from vitrail.gallery.milvus_store import MilvusStore
from vitrail.gallery.milvus_table import MilvusTable, decode_path, encode_path
from vitrail.gallery.milvus_turns import Turn, taking_turn
from vitrail.gallery.stores import open_store

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")

PURPLE = (150, 20, 160)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("milvus") / "all.db"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "data") as found:
        yield found


@pytest.fixture
def gallery(file: Path, tmp_path: Path) -> Iterator[Gallery]:
    made = colour_gallery(new_place("milvus", tmp_path, database=f"milvus:{file}#"), "red", "blue", count=3)
    yield made
    made.store.remove()


def store_of(gallery: Gallery) -> MilvusStore:
    assert isinstance(gallery.store, MilvusStore)
    return gallery.store


def texts_of(gallery: Gallery) -> StateTexts:
    return StateTexts(Database(store_of(gallery).address))


def rows_in_collection(gallery: Gallery) -> int:
    """Images that the database holds, whether or not they belong to the state."""
    name = store_of(gallery).address.name
    return len(Database(store_of(gallery).address).query(name, "id >= 0", fields=["id"], limit=1000))


def state_of(gallery: Gallery) -> tuple[dict[str, int], list[str], list[list[str]]]:
    opened = Gallery(gallery.store, model=tiny_viewer())
    hits = opened.search_vectors(torch.eye(24)[:2], top=100)
    return opened.counts(), sorted(opened.contents.paths()), [[hit.path for hit in found] for found in hits]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("milvus:a.db", (str(Path.cwd() / "a.db"), "gallery", "")),
        ("milvus:a/b.db#shoes", (str(Path.cwd() / "a/b.db"), "shoes", "")),
        ("milvus://db.example:19531/shoes", ("http://db.example:19531", "shoes", "")),
        ("milvus://10.0.0.1/shop/shoes", ("http://10.0.0.1:19530", "shoes", "shop")),
        ("milvus+tls://db.example/shoes", ("https://db.example:19530", "shoes", "")),
        ("milvus://[::1]:19530/shoes", ("http://[::1]:19530", "shoes", "")),
    ],
)
def test_addresses(text: str, parts: tuple[str, str, str]) -> None:
    address = read_address(text)
    assert (address.uri, address.name, address.database) == parts


@pytest.mark.parametrize(
    "text",
    [
        *(
            "milvus:",
            "milvus:a",
            "milvus:.db",
            "milvus:a.db#1st",
            "milvus:a.db#a-b",
            "milvus:a.db#a b",
            "milvus:a.db#x'",
        ),
        *("milvus://", "milvus:///x", "milvus://host", "milvus://host/", "milvus://host:99999/x", "milvus://host:p/x"),
        *("milvus://host/a/b/c", "milvus://user:password@host/x", "milvus+tls:a.db", "milvus://host/x?y=1"),
    ],
)
def test_what_is_no_address_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gallery", "report", text]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert text in told


@pytest.mark.parametrize("path", ["a.jpg", "été 紫.jpg", "caf\udce9.jpg", "%bytes:x", "", "a%20b", 'it\'s "odd" \\'])
def test_every_path_is_text_for_the_database_and_comes_back(path: str) -> None:
    assert decode_path(encode_path(path)) == path
    encode_path(path).encode("utf-8")


@pytest.mark.parametrize("module", ["pymilvus", "milvus_lite", "milvus_lite.server_manager"])
def test_without_the_extra_it_is_told_how_to_get_it(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.db").mkdir()
    assert main(["gallery", "report", f"milvus:{tmp_path / 'a.db'}"]) == 2
    assert "pip install 'vitrail[milvus]'" in capsys.readouterr().err


def test_no_gallery_is_one_line_and_makes_nothing(tmp_path: Path, gallery: Gallery) -> None:
    with pytest.raises(ValueError, match=r"no gallery 'milvus:.*': make one with `vitrail gallery build"):
        Gallery(f"milvus:{tmp_path / 'nothing.db'}")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no gallery"):
        Gallery(f"milvus:{store_of(gallery).address.file}#other")


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("dear")
    with pytest.raises(ValueError, match=r"letter\.db is no database of milvus-lite"):
        Gallery(f"milvus:{tmp_path / 'letter.db'}")
    with pytest.raises(ValueError, match=r"letter\.db is a file"):
        colour_gallery(f"milvus:{tmp_path / 'letter.db'}")


def test_a_collection_of_others_is_left_alone(file: Path) -> None:
    database = Database(read_address(f"milvus:{file}#others"), is_new=True)
    database.create(
        "others",
        [("id", "INT64", {"is_primary": True}), ("v", "FLOAT_VECTOR", {"dim": 2})],
        [("v", "FLAT", {"metric_type": "L2"})],
    )
    for use in (Gallery, colour_gallery):
        with pytest.raises(ValueError, match="the collection others is there and is no gallery of vitrail's"):
            use(f"milvus:{file}#others")
    assert list(database.describe("others")) == ["id", "v"]


def test_a_file_that_another_process_has_open_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "a.db").mkdir()
    monkeypatch.setattr(milvus_client, "_WAIT_SECONDS", 0.2)
    with (tmp_path / "a.db" / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=r"a\.db is open in another process, or damaged.*milvus-lite server"):
            Gallery(f"milvus:{tmp_path / 'a.db'}")


def test_a_server_that_is_not_there_or_silent_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(milvus_client, "_CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (1, silent.getsockname()[1]):
            assert main(["gallery", "report", f"milvus://127.0.0.1:{port}/shoes"]) == 2
            told = capsys.readouterr().err
            assert told.count("\n") == 1
            assert f"the database of milvus://127.0.0.1:{port}/shoes can't be reached" in told


def change_it(gallery: Gallery) -> None:
    """A class comes, with an image in the place of another, in one change."""
    opened = Gallery(gallery.store, model=tiny_viewer())
    red = opened.contents.table.find_rows({"label": 0}, limit=1)
    more = opened.contents.table.take(red.tolist())
    rows = Rows(more.vectors.repeat(2, 1), torch.full((2, 2), 2), (*more.paths, "new"), more.thumbnails * 2)
    with opened.store.writing() as writer:
        levels = {**opened.manifest.levels, "label": (*opened.manifest.levels["label"], "green")}
        levels["coarse"] = (*levels["coarse"], "green")
        writer.change(without=red.tolist(), more=rows, levels=levels)


def test_whenever_the_database_goes_the_gallery_is_as_it_was_until_the_change_is_made(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(gallery)
    call = Database._call
    for last in range(1, 100):
        calls = iter(range(last))

        def stop(self: Database, name: str, *arguments: Any, calls: Any = calls, **settings: Any) -> Any:
            if next(calls, None) is None:
                raise GoneError("the database can't be reached")
            return call(self, name, *arguments, **settings)

        gallery.store.__dict__.pop("_texts", None)
        with monkeypatch.context() as patch:
            patch.setattr(Database, "_call", stop)
            try:
                change_it(gallery)
            except GoneError:
                pass
            else:
                break
        assert state_of(gallery) == before
    assert last > 15  # it was cut before each of them
    assert state_of(gallery)[0] == {"red": 2, "blue": 3, "green": 2}
    with gallery.store.writing():  # sets right what is left
        pass
    assert rows_in_collection(gallery) == len(Gallery(gallery.store))


def test_rows_of_a_writer_that_was_killed_are_not_seen_and_cleared_away(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(gallery)
    reader = Gallery(gallery.store, model=tiny_viewer())
    with monkeypatch.context() as patch:
        patch.setattr(StateTexts, "write_manifest", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            gallery.add("purple", [paint(PURPLE, seed=seed) for seed in range(2)])
    assert rows_in_collection(gallery) == 8
    assert state_of(gallery) == before
    assert len(reader.search(paint(PURPLE, seed=0), top=100)) == 6  # which had looked before
    gallery.add("purple", [paint(PURPLE, seed=0)])
    assert rows_in_collection(gallery) == 7
    with monkeypatch.context() as patch:
        patch.setattr(milvus_writing, "remove_dying", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            gallery.remove("red")
    assert rows_in_collection(gallery) == 7
    assert {hit.labels["label"] for hit in reader.search(paint(PURPLE, seed=0), top=100)} == {"purple", "blue"}
    assert gallery.remove("purple") == 1
    assert rows_in_collection(gallery) == 3


# Adds images for ever, without their model; says so after each time.
ADDING = """
import sys
from dataclasses import replace
from vitrail.gallery.stores import open_store
store = open_store(sys.argv[1])
for number in range(10**6):
    with store.writing() as writer:
        rows = writer.table.take([0])
        writer.change(more=replace(rows, paths=(f"new-{number}",)))
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_loses_nothing_that_it_has_acknowledged(tmp_path: Path) -> None:
    gallery = colour_gallery(f"milvus:{tmp_path / 'a.db'}", "red", "blue", count=3)
    gallery.close()
    process = WarmProgram(ADDING, gallery.store.place)
    said = [int(process.stdout.readline()) for _ in range(5)]
    said += [int(line) for line in process.kill().splitlines()]
    again = Gallery(gallery.store.place, model=tiny_viewer())
    there = set(again.contents.paths())
    assert {f"new-{number}" for number in said} <= there
    assert len(again) == len(there)
    again.add("purple", [paint(PURPLE, seed=0)])
    assert rows_in_collection(again) == len(again)
    again.close()


def test_writers_on_a_server_take_turns_and_readers_see_whole_states(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place("milvus", tmp_path, database=server.address)
    assert colour_gallery(place, "red", "blue", count=3).contents.table.thumbnails_of([0]) == [b""]
    failures: list[BaseException] = []
    ended = threading.Event()

    def add(name: str, seed: int) -> None:
        own = Gallery(place, model=tiny_viewer())
        for number in range(3):
            own.add(f"{name} {number}", [paint(PURPLE, seed=seed + number)])
            own.remove(f"{name} {number}") if number == 1 else None

    def read() -> None:
        own = Gallery(place, model=tiny_viewer())
        while not ended.is_set():
            hits = own.search(paint(PURPLE, seed=1), top=100)
            assert len(hits) >= 6
            assert len({hit.path for hit in hits}) == len(hits)

    def note(work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=note, args=(add, name, seed)) for name, seed in (("a", 100), ("b", 200))]
    reader = threading.Thread(target=note, args=(read,))
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert not failures
    gallery = Gallery(place)
    assert gallery.counts() == {"red": 3, "blue": 3, "a 0": 1, "a 2": 1, "b 0": 1, "b 2": 1}
    assert gallery.manifest.generation == 9


def test_the_turn_of_a_dead_writer_passes_and_one_that_was_away_finds_so(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = colour_gallery(new_place("milvus", tmp_path, database=server.address), "red", "blue", count=1)
    texts = texts_of(gallery)
    monkeypatch.setattr(milvus_turns, "DEAD_SECONDS", 0.6)
    monkeypatch.setattr(milvus_turns, "BEAT_SECONDS", 0.1)
    away = Turn(texts.database, texts.collection)
    away.wait()
    away.check()
    with taking_turn(texts.database, texts.collection) as check:  # waits until the other has not beaten for long
        check()
        away.beat()  # too late
        with pytest.raises(GoneError, match="has lost its turn: nothing was changed, try again"):
            away.check()
        check()
    assert gallery.remove("red") == 1


def test_a_connection_that_is_cut_changes_nothing_and_a_retry_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_turns, "DEAD_SECONDS", 2.0)
    monkeypatch.setattr(milvus_turns, "BEAT_SECONDS", 0.2)
    wire = Wire(server.port)
    gallery = colour_gallery(new_place("milvus", tmp_path, database=wire.address), "red", "blue", count=3)
    before = state_of(gallery)
    pictures = [paint(PURPLE, seed=seed) for seed in range(40)]
    monkeypatch.setattr(milvus_client, "_CALL_SECONDS", 1.0)
    monkeypatch.setattr(milvus_client, "_CONNECT_SECONDS", 0.5)
    wire.left = 9_000  # about the middle of the images
    with pytest.raises(
        ValueError, match=r"the database of milvus://127.0.0.1:\d+/\w+ (can't be reached|does not answer)"
    ):
        gallery.add("purple", pictures)
    with pytest.raises(ValueError, match=r"can't be reached|does not answer"):
        Gallery(gallery.store).counts()
    wire.mend()
    monkeypatch.setattr(milvus_client, "_CALL_SECONDS", 30.0)
    for _ in range(100):  # the client waits a while before it connects again
        with contextlib.suppress(GoneError):
            assert state_of(gallery) == before
            break
        time.sleep(0.2)
    gallery.add("purple", pictures)
    assert gallery.counts() == {"red": 3, "blue": 3, "purple": 40}
    assert rows_in_collection(gallery) == 46
    wire.close()


def test_a_server_that_is_started_again_has_all(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as own:
        gallery = colour_gallery(f"{own.address}shoes", "red", "blue", count=2)
        wanted = state_of(gallery)
        own.stop()
        own.start()
        assert state_of(gallery) == wanted


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ivf", {"index_params": {"nlist": 2}, "search_params": {"nprobe": 2}}),
        (
            "hnsw",
            {"index_params": {"M": 8, "efConstruction": 64}, "search_params": {"ef": 32}, "consistency": "Bounded"},
        ),
        ("exact", {"partition": True}),
    ],
)
def test_indexes_and_their_parameters(kind: str, settings: dict[str, Any], file: Path, tmp_path: Path) -> None:
    exact = colour_gallery(tmp_path / "exact")
    store = open_store(new_place("milvus", tmp_path, database=f"milvus:{file}#"), **settings)
    gallery = colour_gallery(store, choices=Choices(index=kind))
    query = paint(COLOURS["blue"], seed=700)
    for words in ({}, {"rank": "conditional"}, {"coarse": "warm"}):
        found = gallery.search(query, top=5, **words)
        assert [hit.path for hit in found] == [hit.path for hit in exact.search(query, top=5, **words)]
    assert gallery.manifest.wanted_index == kind
    kept = gallery.manifest.model_dump()
    assert {name: kept[name] for name in settings if name in kept} == {
        name: value for name, value in settings.items() if name in kept
    }
    assert kept["is_partitioned"] == settings.get("partition", False)


@pytest.mark.parametrize(
    ("settings", "choices", "message"),
    [
        ({}, {"index": "diskann"}, "milvus-lite has no index diskann: use a server"),
        ({}, {"index": "tree"}, "index must be one of exact, ivf, hnsw, diskann, auto on Milvus, not 'tree'"),
        ({}, {"is_half": True}, "the database of milvus:.* says: "),
        ({"index_params": [1]}, {}, "index_params must be names and values"),
        ({"search_params": {"ef": True}}, {}, "search_params: ef: True is no number and no text"),
        ({"consistency": "strong"}, {}, "consistency must be one of Strong"),
        ({"partition": 3}, {}, "partition must be true or false"),
        ({"files": "ftp://x/y"}, {}, "ftp://x/y is no place for thumbnails"),
        ({"files": "simplecache::s3://x/y"}, {}, "is no place for thumbnails"),
    ],
    ids=str,
)
def test_settings_that_can_not_be_are_one_line(
    file: Path, settings: dict[str, Any], choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        colour_gallery(open_store(f"milvus:{file}#wrong", **settings), "red", count=2, choices=Choices(**choices))
    gallery = colour_gallery(f"milvus:{file}#wrong", "red", count=2)  # what is left is no hindrance
    gallery.store.remove()


def test_settings_of_milvus_are_for_milvus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="files is for galleries on Milvus"):
        open_store(tmp_path / "g", files="x")


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_thumbnails_are_where_they_are_asked_for(kind: str, server: Server, tmp_path: Path) -> None:
    if kind == "memory":
        pytest.importorskip("fsspec", reason="fsspec is not installed")
    files = str(tmp_path / "pictures") if kind == "folder" else f"memory://{tmp_path.name}"
    place = new_place("milvus", tmp_path, database=server.address)
    gallery = colour_gallery(open_store(place, files=files), "red", "blue", count=2)
    gallery.add("purple", [paint(PURPLE, seed=0)])
    again = Gallery(place)
    assert all(picture[:2] == b"\xff\xd8" for picture in again.contents.table.thumbnails_of(range(5)))
    if kind == "folder":
        assert len(list((tmp_path / "pictures").glob("pack-*.bin"))) == 2
        (tmp_path / "pictures" / ".vitrail-thumbnails").unlink()
        with pytest.raises(ValueError, match=r"has no file \.vitrail-thumbnails"):
            gallery.add("pink", [paint(PURPLE, seed=1)])
        assert "pink" not in gallery.counts()
    again.store.remove()
    assert not list((tmp_path).glob("pictures/pack-*.bin"))


def spoil_head(texts: StateTexts, text: str) -> None:
    texts._put({"head": text})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "head: it is not JSON"),
        ({"generation": -1}, "head: generation"),
        ({"next_id": "many"}, "head: next_id"),
        ({"manifest": {"key": "manifest/0123456789ab", "parts": 1}}, "the text manifest/0123456789ab/0 is missing"),
        ({"manifest": {"key": "x' or '", "parts": 1}}, "head: manifest.key"),
        ({"format": 7}, "head: format"),
    ],
    ids=str,
)
def test_what_is_wrong_in_the_database_is_one_line(gallery: Gallery, change: Any, message: str) -> None:
    texts = texts_of(gallery)
    head = texts.read_head()
    assert head is not None
    content = json.loads(head.model_dump_json())
    texts._put({"head": "{" if change is None else json.dumps({**content, **change})})
    with pytest.raises(ValueError, match=rf"the gallery milvus:.* is damaged: .*{message}"):
        Gallery(gallery.store)
    texts.write_head(head)


def test_labels_sums_and_fields_that_can_not_be_are_damage(gallery: Gallery) -> None:
    texts, name = texts_of(gallery), store_of(gallery).address.name
    table = gallery.contents.table
    entry = gallery.contents.facts.model_dump()["sets"][0]["sums"]
    texts._put({f"{entry['key']}/0": "AAAA"})
    with pytest.raises(ValueError, match="the sum of a class is not what was written"):
        Gallery(gallery.store, model=tiny_viewer()).classify(paint(PURPLE, seed=0))
    row = texts.database.get(name, [0], fields=["*"])[0]
    texts.database.upsert(name, [{**row, "label_0": 99}])
    with pytest.raises(ValueError, match="it has labels that are not listed"):
        Gallery(gallery.store, model=tiny_viewer()).search(paint(PURPLE, seed=0), top=100)
    texts.database.drop(name)
    fields: list[tuple[str, str, dict[str, Any]]] = [
        ("id", "INT64", {"is_primary": True}),
        ("vector", "FLOAT_VECTOR", {"dim": 5}),
    ]
    texts.database.create(name, fields, [("vector", "FLAT", {"metric_type": "IP"})])
    with pytest.raises(ValueError, match="its embeddings have 5 numbers instead of 24"):
        Gallery(gallery.store)
    assert len(table) == 6


def test_embeddings_of_another_model_are_refused(gallery: Gallery) -> None:
    with pytest.raises(ValueError, match=r"the gallery milvus:.* holds embeddings of another model"):
        Gallery(gallery.store, model=tiny_viewer(seed=1))


def test_many_classes_and_odd_paths_fit(gallery: Gallery) -> None:
    names = tuple(f"a class with quite a long name, number {number}" for number in range(3000))
    with gallery.store.writing() as writer:
        rows = writer.table.take([0, 1])
        levels = {**gallery.manifest.levels, "label": (*gallery.manifest.levels["label"], *names)}
        writer.change(
            more=Rows(rows.vectors, rows.labels + 0, ("caf\udce9.jpg", "été.jpg"), rows.thumbnails), levels=levels
        )
    again = Gallery(gallery.store)
    assert again.manifest.levels["label"][2:] == names
    assert again.contents.table.paths_of([6, 7]) == ["caf\udce9.jpg", "été.jpg"]
    assert again.remove("caf\udce9.jpg") == 1


def test_more_than_milvus_finds_is_told(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.gallery.milvus_table.MAX_FOUND", 4)
    with pytest.raises(ValueError, match="Milvus finds 4 images for a query at most, not 6"):
        gallery.search(paint(PURPLE, seed=0), top=100)


def test_of_too_many_images_only_the_answers_are_measured(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    data = colours("red", "blue", split="test", first_seed=500)
    whole = gallery.evaluate(data)
    monkeypatch.setattr(MilvusTable, "max_whole", 5)
    found = gallery.evaluate(data)
    assert isinstance(found["levels"], dict)
    assert isinstance(whole["levels"], dict)
    assert found["levels"]["label"] == {
        name: whole["levels"]["label"][name] for name in ("num_images", "answer_top1", "answer_top5")
    }
    assert "map_cosine" in whole["levels"]["label"]


def test_nothing_else_is_left_in_the_state_than_what_it_needs(gallery: Gallery) -> None:
    for seed in range(3):
        gallery.add("purple", [paint(PURPLE, seed=seed)])
    gallery.remove("purple")
    gallery.store.write_note("suggestions.json", "[]")
    gallery.store.write_note("suggestions.json", "[1]")
    texts = texts_of(gallery)
    keys = {row["key"] for row in texts.database.query(texts.collection, 'key like "%"', fields=["key"], limit=1000)}
    kinds = sorted(key.partition("/")[0] for key in keys)
    assert kinds == ["head", "manifest", "note", "note", "sums", "sums"]


with contextlib.suppress(ImportError):  # importing it takes seconds: before the first test is timed
    import pymilvus  # noqa: F401
