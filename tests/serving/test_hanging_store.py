"""A gallery whose database hangs or fails: all else is answered, and its last count is told."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Running, build_gallery, save_tiny, serving

from vitrail.gallery.milvus_client import GoneError
from vitrail.gallery.store import GalleryStore, ImageTable

COUNT = 'vitrail_gallery_images{name="shades"} 12.0'
_PATIENCE = 120.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hanging")
    model = save_tiny(folder / "pets")
    place: Path = build_gallery(folder / "shades", model, "red", "blue")
    with serving(str(place)) as server:
        yield server


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as client:
        assert COUNT in client.get("/metrics").text
        yield client


def store_of(running: Running) -> GalleryStore:
    return running.service.crew.gallery("shades")._gallery.store


class Hanging:
    """What takes the place of a question to the store, and has no answer until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def __call__(self, table: ImageTable) -> ImageTable:
        self.begun.set()
        assert self.released.wait(_PATIENCE)
        return table


@pytest.fixture
def hanging(running: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging()
    monkeypatch.setattr(store_of(running), "renewed", hanging)
    yield hanging
    hanging.released.set()


def test_the_numbers_are_told_while_a_store_fails(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: Any) -> Any:
        raise GoneError("the database does not answer")

    monkeypatch.setattr(store_of(running), "renewed", fail)
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert COUNT in answer.text


def test_the_numbers_are_told_while_a_store_hangs_which_is_asked_once(
    running: Running, client: httpx.Client, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.serving.service._COUNT_SECONDS", 0.01)
    for _ in range(3):
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert COUNT in answer.text
    assert len(running.service._counting) == 1


def test_all_else_is_answered_while_a_list_waits_for_a_store(
    running: Running, client: httpx.Client, hanging: Hanging
) -> None:
    def list_galleries() -> Any:
        with running.client() as other:
            return other.get("/v1/galleries").json()

    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(list_galleries)
        try:
            assert hanging.begun.wait(_PATIENCE)
            assert client.get("/v2/health/live").status_code == 200
            assert not listed.done()
        finally:
            hanging.released.set()
        assert listed.result()["galleries"][0]["images"] == 12
