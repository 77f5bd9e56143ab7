"""Stores of objects asked directly: pages of a listing, guests, and what answers and errors of servers mean."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from object_stores import S3_ENVIRONMENT, WebServer, put_objects, s3_server, web_server

from vitrail.data.contract import SourceFailedError
from vitrail.data.remote.objects import Listed, ObjectMark
from vitrail.data.remote.patience import PassingFaultError
from vitrail.data.remote.s3_store import S3Store
from vitrail.data.remote.web_store import WebStore

pytest.importorskip("aiohttp", reason="needs the extra remote")
pytest.importorskip("s3fs", reason="needs the extra remote")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """S3 on loopback with one object."""
    with s3_server() as address:
        put_objects(address, {"folder/one.bin": b"12345"})
        yield address


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    return S3Store()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "five.bin").write_bytes(b"12345")
    (tmp_path / "empty.bin").touch()
    with web_server(tmp_path) as server:
        yield server


def test_a_listing_goes_on_from_page_to_page(s3: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        """A bucket of three objects, of which it tells two at a time."""

        async def list_objects_v2(self, *, Bucket: str, Prefix: str, ContinuationToken: str = "0") -> Any:  # noqa: N803
            start = int(ContinuationToken)
            entries = [{"Key": f"{Prefix}{number}", "Size": number, "ETag": "t"} for number in range(3)]
            is_last = start + 2 >= len(entries)
            return {
                "Contents": entries[start : start + 2],
                "IsTruncated": not is_last,
                **({} if is_last else {"NextContinuationToken": str(start + 2)}),
            }

    monkeypatch.setattr(s3, "_call", lambda address, ask: asyncio.run(ask(Client())))
    assert list(s3.list("s3://bucket/folder/")) == [
        Listed(f"s3://bucket/folder/{number}", ObjectMark(number, "t")) for number in range(3)
    ]


def test_without_credentials_one_asks_as_a_guest(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_objects(endpoint, {"public.bin": b"12345"}, access="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    for name in ("AWS_EC2_METADATA_DISABLED", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, S3_ENVIRONMENT[name])
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    store = S3Store()
    mark = store.look("s3://bucket/public.bin")
    assert mark.size == 5
    assert store.read("s3://bucket/public.bin", 1, 4, mark=mark) == b"234"
    with pytest.raises(SourceFailedError, match=r"one.bin may not be read \(status 403\): credentials are taken from"):
        store.look("s3://bucket/folder/one.bin")


def test_an_upload_is_read_back_and_needs_a_bucket(s3: S3Store, tmp_path: Path) -> None:
    (tmp_path / "two.bin").write_bytes(b"abc")
    s3.write("s3://bucket/folder/two.bin", tmp_path / "two.bin")
    assert s3.read("s3://bucket/folder/two.bin", 0, 3, mark=s3.look("s3://bucket/folder/two.bin")) == b"abc"
    with pytest.raises(SourceFailedError, match=r"^s3://nowhere/two.bin: there is no bucket 'nowhere'$"):
        s3.write("s3://nowhere/two.bin", tmp_path / "two.bin")


def test_a_long_range_is_read_to_its_end(s3: S3Store, tmp_path: Path) -> None:
    data = random.Random(0).randbytes(12 << 20)  # it arrives in many pieces
    (tmp_path / "long.tar").write_bytes(data)
    s3.write("s3://bucket/long.tar", tmp_path / "long.tar")
    mark = s3.look("s3://bucket/long.tar")
    assert s3.read("s3://bucket/long.tar", 1000, len(data) - 5, mark=mark) == data[1000:-5]


def test_a_store_that_asks_for_patience_gets_it(s3: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError

    async def refuse(bucket: str) -> Any:
        answer = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise ClientError(answer, "HeadObject")

    monkeypatch.setattr(s3._files, "get_s3", refuse)
    with pytest.raises(PassingFaultError):
        s3.look("s3://bucket/folder/one.bin")


def test_a_range_of_a_file_on_the_web(web: WebServer) -> None:
    store = WebStore()
    mark = store.look(f"{web.address}/five.bin")
    assert mark.size == 5
    assert store.read(f"{web.address}/five.bin", 1, 4, mark=mark) == b"234"
    assert store.look(f"{web.address}/empty.bin").size == 0
    with pytest.raises(PassingFaultError, match="an answer cut short: 3 of 5 bytes"):
        store.read(f"{web.address}/five.bin", 2, 7, mark=mark)


def test_redirects_come_to_an_end(web: WebServer) -> None:
    web.redirects["/round"] = "/round"
    with pytest.raises(SourceFailedError, match="/round redirects more than 5 times"):
        WebStore().look(f"{web.address}/round")


def test_a_server_that_is_not_there_may_come_back(web: WebServer) -> None:
    web.close()
    with pytest.raises(PassingFaultError, match="no connection"):
        WebStore().look(f"{web.address}/five.bin")
