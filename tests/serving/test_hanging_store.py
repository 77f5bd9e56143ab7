"""A gallery whose database hangs or fails: all else is answered, and its last count is told."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Running, build_gallery, encode, save_tiny, serving

from vitrail.gallery.milvus_client import GoneError
from vitrail.gallery.store import GalleryStore, ImageTable

COUNT = 'vitrail_gallery_images{name="shades"} 12.0'
_PATIENCE = 120.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hanging")
    model = save_tiny(folder / "pets")
    place: Path = build_gallery(folder / "shades", model, "red", "blue")
    with serving(str(place), str(build_gallery(folder / "tones", model, "red"))) as server:
        yield server


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as client:
        assert COUNT in client.get("/metrics").text
        yield client


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def store_of(running: Running) -> GalleryStore:
    return running.service.crew.gallery("shades")._gallery.store


class Hanging:
    """What takes the place of a question to the store, and has no answer until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.num_begun = 0

    def __call__(self, table: ImageTable) -> ImageTable:
        self.num_begun += 1
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


def test_models_answer_while_as_many_as_may_wait_for_a_store(
    running: Running, client: httpx.Client, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(number: int) -> int:
        with running.client() as other:
            return int(other.get("/v1/galleries/shades", timeout=_PATIENCE).status_code)

    questions = running.service.crew.questions["shades"]
    monkeypatch.setattr(questions, "_most", 2)
    with ThreadPoolExecutor(6) as pool:
        described = [pool.submit(describe, number) for number in range(6)]
        try:
            wait_until(lambda: hanging.num_begun == 4 and questions._num_waiting == 2)
            refused = client.get("/v1/galleries/shades")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "too many questions to the gallery 'shades' wait" in refused.text
            assert client.post("/v1/models/shades/predict", files={"image": encode()}).status_code == 200
        finally:
            hanging.released.set()
        assert [one.result() for one in described] == [200] * 6


def test_a_change_that_hangs_holds_up_no_other_gallery_and_no_memory(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    store = store_of(running)
    writing = store.writing

    def hang() -> Any:
        begun.set()
        assert released.wait(_PATIENCE)
        return writing()

    def add(name: str, label: str) -> int:
        with running.client() as other:
            answer = other.post(
                f"/v1/galleries/{name}/images",
                files={"image": encode("cyan", seed=len(label))},
                data={"label": label},
                timeout=_PATIENCE,
            )
            return int(answer.status_code)

    monkeypatch.setattr(store, "writing", hang)
    service = running.service
    changes, limits = service.crew.changes["shades"], service.limits
    monkeypatch.setattr(service, "limits", replace(limits, timeout=_PATIENCE))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(add, "shades", "first")
        try:
            assert begun.wait(_PATIENCE)
            assert service.held == 0
            assert add("tones", "first") == 201
            monkeypatch.setattr(service, "limits", replace(limits, timeout=0.5))
            assert add("shades", "second") == 504
            monkeypatch.setattr(service, "limits", replace(limits, timeout=_PATIENCE))
            assert changes._num_waiting == 0
            with monkeypatch.context() as patched:
                patched.setattr(changes, "_most", 0)
                assert add("shades", "third") == 429
        finally:
            released.set()
        assert first.result() == 201
    assert add("shades", "fourth") == 201
    assert set(client.get("/v1/galleries/shades").json()["classes"]) == {"red", "blue", "first", "fourth"}
    for label in ("first", "fourth"):
        assert client.delete(f"/v1/galleries/shades/images?label={label}").status_code == 200
