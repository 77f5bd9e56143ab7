"""Data at addresses: as on disk, whatever the server does; and one line where it can't be."""

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from object_stores import S3_ENVIRONMENT, WebServer, put_folder, put_objects, s3_server, web_server
from PIL import Image

from vitrail.data.contract import Dataset, Source, SourceFailedError
from vitrail.data.datasets import open_source
from vitrail.data.remote.block_cache import BLOCK_BYTES, BlockCache
from vitrail.data.remote.objects import ObjectMark, forget_stores, look_at
from vitrail.data.remote.patience import ChangedObjectError
from vitrail.data.remote.plain_store import PlainStore
from vitrail.data.remote.remote_file import RemoteFile
from vitrail.data.shard_making import ShardMaking, make_shards

pytest.importorskip("aiohttp", reason="needs the extra remote")
SPEC = "shapes:size=16,count=30,val=12"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, short patience, credentials of nobody."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VITRAIL_REMOTE_PATIENCE", "5")
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("vitrail.data.remote.patience._FIRST_PAUSE", 0.01)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a few images."""
    folder = tmp_path_factory.mktemp("made") / "shards"
    source = open_source(SPEC)
    make_shards([source.open(split) for split in source.splits], out=str(folder), how=ShardMaking(samples=10))
    return folder


@pytest.fixture(scope="module")
def endpoint(shards: Path) -> Iterator[str]:
    """S3 on loopback with the shards in it."""
    forget_stores()
    with s3_server() as address:
        put_folder(address, shards, "shapes")
        yield address


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint, where botocore looks for it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return endpoint


@pytest.fixture
def web(shards: Path, tmp_path: Path) -> Iterator[WebServer]:
    """A web server of a copy of the shards."""
    folder = tmp_path / "www"
    folder.mkdir()
    for path in shards.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with web_server(folder) as server:
        yield server


def all_of(source: Source) -> list[tuple[str, bytes, int]]:
    """Every sample of every split in order, by its member, bytes and label."""
    found = []
    for split in source.splits:
        dataset = source.open(split)
        for index in range(len(dataset)):
            data = dataset.read(index)
            assert isinstance(data, bytes)
            found.append((dataset.locate(index).rpartition("/")[2], data, int(dataset.level().labels[index])))
    return found


@pytest.mark.parametrize(
    "pattern", ["s3://bucket/shapes/{split}-*.tar", "s3://bucket/shapes/shards.json", "s3://bucket/shapes/train-*.tar"]
)
def test_shards_in_s3_are_those_on_disk(s3: str, shards: Path, pattern: str) -> None:
    local = open_source(f"shards:{pattern.replace('s3://bucket/shapes', str(shards))}")
    remote = open_source(f"shards:{pattern}")
    assert remote.splits == local.splits
    assert all_of(remote) == all_of(local)
    for split in local.splits:
        assert np.array_equal(remote.open(split).groups, local.open(split).groups)  # type: ignore[arg-type]
        assert remote.open(split).level().classes == local.open(split).level().classes


@pytest.mark.parametrize("name", ["shards.json", "train-{000000..000002}.tar"])
def test_shards_on_a_web_server_are_those_on_disk(web: WebServer, shards: Path, name: str) -> None:
    assert all_of(open_source(f"shards:{web.address}/{name}")) == all_of(open_source(f"shards:{shards}/{name}"))


def test_shards_without_an_index_are_read_once(web: WebServer, shards: Path) -> None:
    for path in web.folder.glob("*.index"):
        path.unlink()
    spec = f"shards:{web.address}/shards.json"
    assert all_of(open_source(spec)) == all_of(open_source(f"shards:{shards}/shards.json"))
    num_requests = len(web.requests)
    open_source(spec)  # the index was kept here
    again = [path for path, _ in web.requests[num_requests:]]
    assert not [path for path in again if path.endswith(".index")]


def test_an_index_of_another_shard_is_not_believed(web: WebServer, shards: Path) -> None:
    (web.folder / "train-000000.tar.index").write_bytes((shards / "train-000001.tar.index").read_bytes())
    spec = "shards.json"
    assert all_of(open_source(f"shards:{web.address}/{spec}")) == all_of(open_source(f"shards:{shards}/{spec}"))


@pytest.mark.parametrize("fault", ["drop", "500", "503", "429", "cut", "slow"])
def test_what_passes_is_tried_again(web: WebServer, shards: Path, fault: str) -> None:
    web.fault = lambda number, path: fault if number % 3 == 1 else None
    assert all_of(open_source(f"shards:{web.address}/shards.json")) == all_of(
        open_source(f"shards:{shards}/shards.json")
    )
    assert len(web.requests) > 10


def test_what_does_not_pass_is_one_line_that_stops(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = open_source(f"shards:{web.address}/shards.json").open("train")
    monkeypatch.setenv("VITRAIL_REMOTE_PATIENCE", "0.3")
    web.fault = lambda number, path: "500"
    with pytest.raises(
        SourceFailedError, match=r"tar can't be reached since \d+ s \(status 500; \d+ attempts\)"
    ) as caught:
        dataset.read(0)
    assert "\n" not in str(caught.value)


def change(path: Path) -> None:
    """Another file of the same length."""
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(bytes(data))


def test_an_object_that_changes_in_the_middle_stops(web: WebServer) -> None:
    dataset = open_source(f"shards:{web.address}/shards.json").open("train")
    for path in web.folder.glob("*.tar"):
        change(path)
    with pytest.raises(ChangedObjectError, match=r"train-\d+.tar was changed or replaced after the data was opened"):
        dataset.read(0)


def test_an_object_that_changes_where_the_server_gives_no_mark_is_told_by_its_bytes(web: WebServer) -> None:
    web.fault = lambda number, path: "no tag"
    dataset = open_source(f"shards:{web.address}/shards.json").open("train")
    for path in web.folder.glob("*.tar"):
        path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ChangedObjectError, match="was changed or replaced"):
        dataset.read(0)


def test_an_object_of_s3_that_changes_or_goes_stops(s3: str, shards: Path) -> None:
    put_folder(s3, shards, "other")
    dataset = open_source("shards:s3://bucket/other/shards.json").open("train")
    put_objects(s3, {f"other/train-{number:06d}.tar": b"x" * 40_000 for number in range(3)})
    with pytest.raises(ChangedObjectError, match=r"s3://bucket/other/train-\d+.tar was changed"):
        dataset.read(0)


def test_a_loader_stops_rather_than_leave_samples_out(web: WebServer) -> None:
    from vitrail.data.augment import EvaluationView
    from vitrail.data.loader import ImageLoader
    from vitrail.data.sampler import Sampler

    dataset = open_source(f"shards:{web.address}/shards.json").open("train")
    for path in web.folder.glob("*.tar"):
        change(path)
    sampler = Sampler(len(dataset), batch_size=8, groups=dataset.groups)
    loader = ImageLoader(dataset, transform=EvaluationView(image_size=16), sampler=sampler)
    with pytest.raises(ValueError, match="was changed or replaced after the data was opened"):
        next(loader.epoch(0))


def test_a_data_set_reaches_other_processes(web: WebServer) -> None:
    dataset = open_source(f"shards:{web.address}/shards.json").open("train")
    copied: Dataset = pickle.loads(pickle.dumps(dataset))
    assert copied.read(3) == dataset.read(3)


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 4), colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_folder_in_s3_is_read_as_one_on_disk(s3: str, tmp_path: Path) -> None:
    for split, count in (("train", 4), ("val", 2)):
        for name in ("ant", "bee"):
            for number in range(count):
                path = tmp_path / "photos" / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(number))
    put_folder(s3, tmp_path / "photos", "photos")
    assert all_of(open_source("s3://bucket/photos")) == all_of(open_source(str(tmp_path / "photos")))
    assert open_source("s3://bucket/photos/").open("val").locate(0) == "s3://bucket/photos/val/ant/0.png"
    put_objects(s3, {"photos/train/ant/0.png": png(99)})
    dataset = open_source("s3://bucket/photos").open("train")
    put_objects(s3, {"photos/train/ant/0.png": png(77)})
    with pytest.raises(ChangedObjectError):
        dataset.read(0)


def test_a_manifest_lists_objects_below_it(web: WebServer, s3: str) -> None:
    rows = ["path,label,split"]
    for number in range(6):
        (web.folder / f"{number}.png").write_bytes(png(number))
        rows.append(f"{number}.png,{'ab'[number % 2]},{'train' if number < 4 else 'val'}")
    (web.folder / "list.csv").write_text("\n".join(rows))
    source = open_source(f"{web.address}/list.csv")
    assert [len(source.open(split)) for split in source.splits] == [4, 2]
    assert source.open("val").read(1) == png(5)
    put_objects(
        s3, {"far/list.csv": "\n".join(rows).encode(), **{f"far/{number}.png": png(number) for number in range(6)}}
    )
    assert all_of(open_source("s3://bucket/far/list.csv")) == all_of(source)


@pytest.mark.parametrize("path", ["/etc/passwd", "file:///etc/passwd", "../../etc/passwd", "C:\\secrets\\1.png"])
def test_a_manifest_at_an_address_names_no_file_of_this_disk(web: WebServer, path: str) -> None:
    (web.folder / "list.csv").write_text(f"path,label\n{path},a\n")
    with pytest.raises(ValueError, match=r"path of this machine's disk|leads out of|can't be read from file://"):
        open_source(f"{web.address}/list.csv")


def test_a_list_of_shards_names_nothing_but_its_neighbours(web: WebServer) -> None:
    for name in ("../secret.tar", "/etc/passwd", "file:///etc/passwd", ""):
        (web.folder / "shards.json").write_text(f'{{"shards": [{{"name": "{name}", "split": "train"}}]}}')
        with pytest.raises(ValueError, match="is not the name of a shard beside it"):
            open_source(f"shards:{web.address}/shards.json")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x.tar", "//"])
def test_a_redirect_leads_to_web_servers_alone(web: WebServer, target: str) -> None:
    web.redirects["/x.tar"] = target
    with pytest.raises(
        ValueError, match=r"is no address of a web server|can't be reached|redirects more than"
    ) as caught:
        open_source(f"shards:{web.address}/x.tar")
    assert "root:" not in str(caught.value)


def test_a_redirect_to_another_place_is_followed(web: WebServer, shards: Path) -> None:
    web.redirects["/moved.tar"] = f"{web.address}/train-000000.tar"
    source = open_source(f"shards:{web.address}/moved.tar", val_share=0.0)
    assert len(source.open("train")) == 10


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("shards:file:///etc/a.tar", "can't be read from file://; .* write a path without file://"),
        ("shards:simplecache::s3://bucket/a.tar", "can't be read from simplecache::s3://"),
        ("ftp://host/list.csv", "can't be read from ftp://"),
        ("https://name:hunter7@host/list.csv", "before the @ is refused.*netrc"),
        ("https://host/list.csv?X-Amz-Signature=abc", "may hold a signature"),
        ("shards:s3://bucket/none.tar", "there is no object s3://bucket/none.tar"),
        ("shards:s3://bucket/shapes/train-{000000..000004}.tar", "2 of the 5 objects .* are missing, the first is"),
        ("shards:s3://bucket/none-*.tar", "no object matches s3://bucket/none-"),
        ("shards:s3://nowhere/a-*.tar", "there is no bucket 'nowhere'"),
        ("s3://bucket/none/", "there is nothing below s3://bucket/none/"),
        ("s3://bucket/shapes/train-000000.tar", "is an archive: write shards:s3://bucket"),
    ],
)
def test_an_address_that_can_not_be_read_is_one_line(s3: str, spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        open_source(spec)
    message = str(caught.value)
    assert "\n" not in message
    assert not any(secret in message for secret in ("hunter7", "abc", S3_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]))


def test_a_web_server_has_no_listing_and_says_what_does(web: WebServer) -> None:
    with pytest.raises(ValueError, match=r"a web server has no listing .*shards.json"):
        open_source(f"shards:{web.address}/train-*.tar")


def test_a_server_without_ranges_gives_small_files_only(web: WebServer, shards: Path, tmp_path: Path) -> None:
    web.fault = lambda number, path: "whole"
    assert all_of(open_source(f"shards:{web.address}/shards.json")) == all_of(
        open_source(f"shards:{shards}/shards.json")
    )
    (web.folder / "long.bin").write_bytes(bytes(BLOCK_BYTES + 1))
    mark = ObjectMark(BLOCK_BYTES + 1, "")
    web.fault = lambda number, path: "whole"
    with pytest.raises((SourceFailedError, ChangedObjectError)):
        RemoteFile(f"{web.address}/long.bin", mark).read(10, 0)


def test_a_store_of_fsspec_by_its_common_methods() -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory", skip_instance_cache=True)
    files.pipe("/vitrail-test/a.bin", b"0123456789")
    store = PlainStore(files, scheme="memory")
    mark = store.look("memory://vitrail-test/a.bin")
    assert store.read("memory://vitrail-test/a.bin", 2, 5, mark=mark) == b"234"
    assert [entry.address for entry in store.list("memory://vitrail-test/")] == ["memory://vitrail-test/a.bin"]
    files.pipe("/vitrail-test/a.bin", b"0123456789x")
    with pytest.raises(ChangedObjectError):
        store.read("memory://vitrail-test/a.bin", 2, 5, mark=mark)
    with pytest.raises(FileNotFoundError):
        store.look("memory://vitrail-test/none")


def test_the_cache_stays_within_its_limit_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    limit = 16 * BLOCK_BYTES
    cache = BlockCache(tmp_path / "blocks", limit=limit)
    for number in range(20):
        cache.block("key", number, lambda: bytes(BLOCK_BYTES))
        os.utime(cache._path("key", number), (number, number))
        cache.block("first", 0, lambda: bytes(100))
        os.utime(cache._path("first", 0), (1000 + number, 1000 + number))
        held = sum(path.stat().st_size for path in (tmp_path / "blocks").rglob("*-*"))
        assert held <= limit
    assert cache.has("first", 0)
    assert cache.has("key", 19)
    assert not cache.has("key", 0)


def test_a_damaged_block_is_fetched_again(tmp_path: Path) -> None:
    BlockCache(tmp_path, limit=1 << 30).block("key", 0, lambda: b"content")
    path = BlockCache(tmp_path, limit=1 << 30)._path("key", 0)
    path.write_bytes(b"c0ntent" + path.read_bytes()[7:])
    again = BlockCache(tmp_path, limit=1 << 30).block("key", 0, lambda: b"content")
    assert again.read(0, 7) == b"content"


def test_a_block_that_another_process_removes_meanwhile_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BlockCache(tmp_path, limit=1 << 30).block("key", 0, lambda: b"content")
    utime = os.utime

    def remove_before(path: Path) -> None:
        path.unlink()
        utime(path)

    monkeypatch.setattr(os, "utime", remove_before)
    again = BlockCache(tmp_path, limit=1 << 30).block("key", 0, lambda: b"")
    assert again.read(0, 7) == b"content"


def test_a_block_is_fetched_once_though_many_want_it(web: WebServer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    (web.folder / "one.bin").write_bytes(bytes(range(256)) * 100)
    web.fault = lambda number, path: "slow"
    file = RemoteFile(f"{web.address}/one.bin", look_at(f"{web.address}/one.bin"))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda place: file.read(2, 256 * place), range(8))) == {b"\0\1"}
    assert len(web.requests) == 2  # to look, and to read
