"""`vitrail serve` as a process: SIGTERM lets requests end, SIGHUP loads anew, kill -9 loses nothing acknowledged."""

import json
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import as_text, build_gallery, encode, save_tiny, serving
from serving_process import started

from vitrail.cli import main
from vitrail.gallery.gallery import Gallery
from vitrail.serving.fleet import Fleet, load_fleet
from vitrail.serving.hangups import Hangups

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of Unix")


def test_sigterm_lets_requests_end(tmp_path: Path) -> None:
    picture = encode()
    with started(str(save_tiny(tmp_path / "pets"))) as process:
        with socket.create_connection(("127.0.0.1", process.port), timeout=30.0) as connection:
            head = "POST /v1/models/pets/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
            connection.sendall(f"{head}Content-Length: {len(picture)}\r\n\r\n".encode() + picture[:50])
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            process.wait_for('"event": "drain"')
            connection.sendall(picture[50:])
            answer = connection.recv(65536)
        process.wait_for_end()
        assert process.returncode == 0
        said = process.said()
    assert answer.startswith(b"HTTP/1.1 200 ")
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (request,) = (line for line in lines if line.get("route") == "/v1/models/{name}/predict")
    assert (request["status"], request["served"], request["images"]) == (200, "pets", 1)
    assert len(request["request_id"]) == 32


def test_sighup_loads_anew_and_drops_nothing(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "pets")
    with started(str(folder)) as process:
        asked = {"images": [as_text(encode())]}
        before = process.client.post("/v1/models/pets/predict", json=asked).json()
        counts: dict[int, int] = {}
        is_over = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=process.client.base_url, timeout=30.0, trust_env=False) as client:
                while not is_over.is_set():
                    status = client.post("/v1/models/pets/predict", json=asked).status_code
                    counts[status] = counts.get(status, 0) + 1

        body = json.dumps(asked).encode()
        slow = socket.create_connection(("127.0.0.1", process.port), timeout=30.0)
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        slow.sendall(f"POST /v1/models/pets/predict HTTP/1.1\r\n{head}".encode() + body[:-9])
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        save_tiny(folder, seed=7)
        process.send_signal(signal.SIGHUP)
        process.wait_for('"loaded anew"')
        slow.sendall(body[-9:])  # of a request that began before
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        slow.close()
        time.sleep(0.3)
        is_over.set()
        for thread in threads:
            thread.join()
        after = process.client.post("/v1/models/pets/predict", json=asked).json()
        assert list(counts) == [200]
        assert after != before
        (folder / "task.json").write_text("{")
        process.send_signal(signal.SIGHUP)
        process.wait_for("not loaded anew")
        assert process.client.post("/v1/models/pets/predict", json=asked).json() == after
        assert 'vitrail_reloads_total{result="failed"} 1.0' in process.client.get("/metrics").text


def test_a_gallery_is_changed_while_all_is_loaded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = build_gallery(tmp_path / "colours", save_tiny(tmp_path / "pets"))
    has_begun, may_end, hangups = threading.Event(), threading.Event(), Hangups()
    hangups.has_come = True
    num_loaded = 0

    def load(*arguments: Any, **options: Any) -> Fleet:
        nonlocal num_loaded
        num_loaded += 1
        if num_loaded > 1:  # as large models do, it takes its time
            has_begun.set()
            may_end.wait(60.0)
        return load_fleet(*arguments, **options)

    monkeypatch.setattr("served.load_fleet", load)
    with serving(str(tmp_path / "pets"), str(gallery), hangups=hangups) as server, server.client() as client:
        try:
            assert has_begun.wait(60.0)
            answer = client.post("/v1/galleries/colours/images", files={"image": encode()}, data={"label": "new"})
            assert answer.status_code == 201
        finally:
            may_end.set()


def test_sighup_while_models_are_loaded_is_obeyed_afterwards(tmp_path: Path) -> None:
    hangups, former = Hangups(), signal.getsignal(signal.SIGHUP)
    try:
        hangups.watch()
        os.kill(os.getpid(), signal.SIGHUP)
        assert hangups.has_come
    finally:
        signal.signal(signal.SIGHUP, former)
    with serving(str(save_tiny(tmp_path / "pets")), hangups=hangups) as server, server.client() as client:
        until = time.monotonic() + 60.0
        while 'vitrail_reloads_total{result="loaded"} 1.0' not in client.get("/metrics").text:
            assert time.monotonic() < until
            time.sleep(0.02)


def test_sighup_is_remembered_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def read(words: list[str]) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise ValueError("there is nothing to serve")

    monkeypatch.setattr("vitrail.serving.fleet.read_entries", read)
    former = signal.getsignal(signal.SIGHUP)
    try:
        assert main(["serve", "deit_tiny"]) == 2
    finally:
        signal.signal(signal.SIGHUP, former)
    assert isinstance(getattr(seen[0], "__self__", None), Hangups)


def test_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(3)
    gallery = build_gallery(tmp_path / "colours", save_tiny(tmp_path / "pets"))
    acknowledged: dict[str, int] = {}
    for number in range(2):
        with started(str(gallery)) as process:
            for place in range(10_000):
                if place == 3:
                    threading.Timer(0.3 * rng.random(), process.kill).start()
                label = f"class {number}-{place}"
                files = [("image", encode("red", seed=rng.randrange(10**6))) for _ in range(rng.randrange(1, 4))]
                try:
                    answer = process.client.post(
                        "/v1/galleries/colours/images", files=files, data={"label": label}, timeout=10.0
                    )
                except httpx.TransportError:
                    break
                assert answer.status_code == 201, answer.text
                acknowledged[label] = answer.json()["images_of_label"]
            assert process.poll() is not None or not process.is_ready()
    assert len(acknowledged) >= 6
    counts = Gallery(gallery).counts()
    assert {label: counts.get(label) for label in acknowledged} == acknowledged
