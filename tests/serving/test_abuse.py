"""Whatever clients send or leave out, over real connections: the right 4xx, nothing held, nothing lost, no crash."""

import json
import random
import resource
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from damaged_bodies import draw_body
from PIL import Image
from served import Running, build_gallery, encode, save_tiny, serving

from vitrail.data.decode import OpenedImage
from vitrail.serving import decoding
from vitrail.serving.limits import ServingLimits

LIMITS = ServingLimits(
    max_body=200_000,
    max_held=2_000_000,
    max_pixels=200_000,
    max_images=8,
    max_queue=12,
    max_batch=4,
    timeout=60.0,  # on a busy machine too
    body_timeout=10.0,
    max_connections=200,
)
PREDICT = "/v1/models/pets/predict"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("served") / "pets")


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Running]:
    with serving(str(model), str(build_gallery(model.parent / "colours", model)), limits=LIMITS) as server:
        yield server


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


@pytest.fixture(autouse=True)
def _is_well_afterwards(running: Running) -> Iterator[None]:
    yield
    with running.client() as client:
        for _ in range(1500):
            if running.service.held == 0 and not any(map(len, running.service.crew.batchers.values())):
                break
            time.sleep(0.02)
        assert client.post(PREDICT, files={"image": encode()}).status_code == 200
    assert running.service.held == 0


@contextmanager
def busy(running: Running) -> Iterator[None]:
    """The thread that computes is held up while the block lasts."""
    event = threading.Event()
    running.service.lane._pool.submit(event.wait)
    try:
        yield
    finally:
        event.set()


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A file of PNG whose header says so much."""

    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(data)) + part(b"IEND", b"")


def head_of(length: int) -> bytes:
    """The head of a request with so many bytes of an image."""
    lines = (f"POST {PREDICT} HTTP/1.1", "Host: localhost", "Content-Type: image/png", f"Content-Length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_large_images_are_added_small(model: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    shrink = decoding._shrink

    def watch(image: OpenedImage, spare: float) -> np.ndarray:
        pixels = shrink(image, spare)
        held.append(pixels.nbytes)
        assert 2 * 96 <= max(pixels.shape) <= 4 * 96
        return pixels

    gallery = build_gallery(tmp_path / "colours", model)
    with serving(str(gallery)) as server, server.client() as client:
        large = [("image", encode("red", seed=seed, kind=kind, side=1500)) for seed in range(4)]
        with monkeypatch.context() as patched:
            patched.setattr(decoding, "_shrink", watch)
            added = client.post("/v1/galleries/colours/images", files=large, data={"label": "large"})
        assert (added.status_code, added.json()["added"]) == (201, 4)
        strip = Image.new("RGB", (40_000, 30))  # none of its few rows can be left out
        file = BytesIO()
        strip.save(file, "PNG")
        added = client.post("/v1/galleries/colours/images", files={"image": file.getvalue()}, data={"label": "strip"})
        assert (added.status_code, added.json()["added"]) == (201, 1)
    assert sum(held) < 4 * 4 * 96 * 4 * 96 * 3  # of 27 MB


ADDED = "/v1/galleries/colours/images"


def test_damaged_bodies_change_no_gallery(running: Running, client: httpx.Client) -> None:
    rng = random.Random(22)
    before = client.get("/v1/galleries/colours").json()
    counts: dict[int, int] = {}
    for number in range(200):
        content, body = draw_body(rng)
        method, words = rng.choice((("POST", ""), ("POST", "?label=damaged"), ("DELETE", "")))
        answer = client.request(
            method, ADDED + words, content=body, headers={b"Content-Type": content.encode("latin-1")}
        )
        counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
        assert answer.status_code in (201, 400, 404, 413, 415, 422), f"body {number}: {answer.status_code}"
        if answer.status_code == 201:  # it was whole
            assert answer.json()["images_of_label"] >= answer.json()["added"] > 0
    if counts.get(201):
        assert client.delete(f"{ADDED}?label=damaged").status_code == 200
    assert client.get("/v1/galleries/colours").json() == before
    assert min(counts[400], counts[422]) > 5


def test_a_thousand_damaged_bodies(running: Running) -> None:
    rng = random.Random(20)
    paths = (PREDICT, PREDICT, "/v1/models/pets/explain", "/v1/models/pets/embed", "/v2/models/pets/infer")
    counts: dict[int, int] = {}
    connection = HTTPConnection("127.0.0.1", running.port, timeout=30.0)
    for number in range(1000):
        content, body = draw_body(rng)
        headers = {"Content-Type": content}
        if rng.random() < 0.1:
            headers["Inference-Header-Content-Length"] = str(rng.randrange(-5, 400))
        connection.request("POST", rng.choice(paths), body=body, headers=headers)
        answer = connection.getresponse()
        told = answer.read()
        counts[answer.status] = counts.get(answer.status, 0) + 1
        assert answer.status in (200, 400, 413, 415, 422), f"body {number}: {answer.status} {told!r}"
        if answer.status != 200:
            error = json.loads(told)["error"]
            message = error if isinstance(error, str) else error["message"]
            assert message
            assert "\n" not in message
            assert "Traceback" not in message
    connection.close()
    assert counts[200] > 25  # some are whole, and all ways to fail are tried
    assert min(counts[400], counts[415], counts[422]) > 25


def test_what_is_no_http(running: Running) -> None:
    rng = random.Random(21)
    lines = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",  # the beginning of TLS
        b"POST " + PREDICT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    for number in range(60):
        with running.connect() as connection:
            sent = lines[number] if number < len(lines) else rng.randbytes(rng.randrange(1, 300)) + b"\r\n\r\n"
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
            assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), answer


BOMBS = {
    "a header of gigapixels": png(60_000, 60_000),
    "more pixels than are allowed": png(1000, 1000, bytes(3001 * 1000)),
    "a strip of a million columns": png(1_000_000, 1),
    "TIFF of gigabytes": b"II*\0\x08\0\0\0\x03\0"
    + struct.pack("<HHIIHHIIHHII", 256, 4, 1, 100_000, 257, 4, 1, 100_000, 258, 3, 1, 8)
    + bytes(8),
}


@pytest.mark.parametrize("what", BOMBS)
def test_bombs_are_refused_and_take_no_memory(client: httpx.Client, what: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in (PREDICT, "/v1/models/pets/explain", "/v1/galleries/colours/search", "/v1/galleries/colours/images"):
        answer = client.post(path, files={"image": BOMBS[what]}, data={"label": "bomb"})
        assert answer.status_code in (413, 422), answer.text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    assert "bomb" not in client.get("/v1/galleries/colours").json()["classes"]


@pytest.mark.parametrize(
    ("body", "content", "status", "reason"),
    [
        (b"[" * 9_000, "application/json", 400, "nested too deeply"),
        (b"[" * 100_000, "application/json", 413, "more than 10,000 values"),
        (b'{"images": [], "x": [' + b"{}," * 50_000 + b"{}]}", "application/json", 413, "more than 10,000 values"),
        (b'{"images": ' + b"9" * 50_000 + b"}", "application/json", 400, ""),
        (b'{"images": [' + b'"",' * 100 + b'""]}', "application/json", 413, "more than 8 images"),
        (b'{"images": []}', "application/json", 400, "no image given"),
        (b'{"images": [null]}', "application/json", 400, "image 0 is no text in base64"),
        (b'\xff\xfe{"images"', "application/json", 400, "the body can't be read"),
        (b"", "image/png", 422, "the image is empty"),
        (b"x" * 300_000, "image/png", 413, "more than 200,000 bytes"),
        (b"hello", "text/plain", 415, "content of the type 'text/plain'"),
    ],
)
def test_bodies_that_are_too_much(client: httpx.Client, body: bytes, content: str, status: int, reason: str) -> None:
    answer = client.post(PREDICT, content=body, headers={"Content-Type": content})
    assert answer.status_code == status
    assert reason in answer.json()["error"]["message"]


def test_a_form_of_many_parts_is_refused(client: httpx.Client) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="%d"\r\n\r\n1\r\n'
    body = b"".join(part % number for number in range(3000)) + b"--b--\r\n"
    answer = client.post(PREDICT, content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, "more than 32 fields" in answer.text) == (400, True)


def test_a_search_tells_a_bounded_number_of_images(running: Running, client: httpx.Client) -> None:
    pictures = [("image", encode(seed=seed)) for seed in range(2)]
    for path in ("/v1/galleries/colours/search", "/v1/models/pets/search"):
        refused = client.post(path, files=pictures, data={"top": "501"})
        assert (refused.status_code, "at most 1,000 hits, not 1,002" in refused.text) == (413, True)
        assert client.post(path, files=pictures, data={"top": "500"}).status_code == 200


def test_a_body_without_an_end_is_refused(client: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(400):
            yield b"x" * 1000

    answer = client.post(PREDICT, content=endless(), headers={"Content-Type": "image/png"})
    assert answer.status_code == 413


def test_slow_clients_are_let_go(model: Path) -> None:
    with (
        serving(str(model), limits=replace(LIMITS, body_timeout=2.0)) as impatient,
        impatient.connect() as slow_head,
        impatient.connect() as slow_body,
        impatient.connect() as silent,
    ):
        slow_head.sendall(b"GET /v1/models HTTP/1.1\r\nHost: loc")
        slow_body.sendall(head_of(900) + b"xx")
        with impatient.client() as client:
            assert client.get("/v1/models").status_code == 200  # others are served meanwhile
        assert slow_body.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert slow_head.recv(4096) == b""
        assert silent.recv(4096) == b""


def test_connections_that_drop(running: Running) -> None:
    picture = encode()
    head = head_of(len(picture))
    for number in range(60):
        with running.connect() as connection:
            linger = struct.pack("ii", 1, 0)  # a reset instead of an end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(head + picture[: len(picture) * (number % 3) // 2])


def test_a_full_queue_says_when_to_come_back(running: Running, client: httpx.Client) -> None:
    with ThreadPoolExecutor(20) as pool, busy(running):

        def ask(number: int) -> httpx.Response:
            return httpx.post(
                running.address + PREDICT, files={"image": encode(seed=number)}, timeout=30.0, trust_env=False
            )

        answers = [pool.submit(ask, number) for number in range(20)]
        for _ in range(3000):
            if sum(one.done() for one in answers) == 8:
                break
            time.sleep(0.01)
        refused = [one.result() for one in answers if one.done()]
        assert client.get("/v2/health/live").status_code == 200
    assert [one.status_code for one in refused] == [429] * 8
    assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
    assert sorted(one.result().status_code for one in answers) == [200] * 12 + [429] * 8
    assert (
        'vitrail_requests_total{name="pets",route="/v1/models/{name}/predict",status="429"}'
        in client.get("/metrics").text
    )


def test_an_answer_that_takes_too_long_is_a_timeout(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.service, "limits", replace(LIMITS, timeout=0.5))
    with busy(running):
        answer = client.post(PREDICT, files={"image": encode()})
    assert answer.status_code == 504
    assert "no answer within 0.5 seconds" in answer.json()["error"]["message"]


def test_a_gallery_is_whole_to_every_search_while_it_changes(running: Running) -> None:
    pictures = [("image", encode("orange", seed=seed)) for seed in range(500, 504)]
    counts: set[int] = set()
    wrong: list[str] = []
    is_over = threading.Event()

    def search() -> None:
        with running.client() as client:
            while not is_over.is_set():
                answer = client.post(
                    "/v1/galleries/colours/search", files={"image": encode("orange", seed=500)}, data={"top": "40"}
                )
                if answer.status_code == 429:
                    continue
                if answer.status_code != 200:
                    wrong.append(answer.text)
                    continue
                hits = answer.json()["results"][0]["hits"]
                counts.add(sum(hit["labels"]["label"] == "amber" for hit in hits))

    with ThreadPoolExecutor(3) as pool, running.client() as client:
        searches = [pool.submit(search) for _ in range(3)]
        until, num_changes = time.monotonic() + 60.0, 0
        try:
            while (num_changes < 10 or len(counts) < 2) and time.monotonic() < until:
                added = client.post("/v1/galleries/colours/images", files=pictures, data={"label": "amber"})
                assert added.status_code == 201
                assert client.delete("/v1/galleries/colours/images?label=amber").json()["removed"] == 4
                num_changes += 1
        finally:
            is_over.set()
        for one in searches:
            one.result()
    assert not wrong
    assert counts == {0, 4}  # all pictures of the class or none


def test_sixty_four_clients_at_once(running: Running) -> None:
    picture, together = encode(), threading.Barrier(64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def ask() -> dict[int, int]:
        """Ask until three requests are answered; how often each status came."""
        counts: dict[int, int] = {}
        connection = HTTPConnection("127.0.0.1", running.port, timeout=120.0)
        together.wait(120.0)
        for _ in range(2000):
            connection.request("POST", PREDICT, body=picture, headers={"Content-Type": "image/png"})
            answer = connection.getresponse()
            answer.read()
            counts[answer.status] = counts.get(answer.status, 0) + 1
            if counts.get(200) == 3:
                break
            if answer.status == 429:
                time.sleep(0.05)
        connection.close()
        return counts

    with ThreadPoolExecutor(64) as pool:
        found = [one.result() for one in [pool.submit(ask) for _ in range(64)]]
    assert {status for counts in found for status in counts} <= {200, 429}  # the queue takes twelve
    assert [counts.get(200) for counts in found] == [3] * 64
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_nothing_was_written_beside_the_gallery(running: Running) -> None:
    folder: Path = running.service.crew.gallery("colours")._gallery.folder
    names = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert names <= {"gallery.json", ".lock", "part"}
