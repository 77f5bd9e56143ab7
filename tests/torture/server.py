"""A server under dozens of clients that send nonsense, drop connections and change a gallery, until it is killed."""

import os
import random
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import httpx
from damaged_bodies import draw_body
from served import build_gallery, encode, save_tiny
from serving_process import ServingProcess, started

from vitrail.gallery.gallery import Gallery

AREA = "server"
NUM_TESTED = 1
_ALLOWED = {200, 400, 408, 413, 415, 422, 429, 503}
_MOST_MEMORY = 1_500_000  # kilobytes; a server that has just begun takes about a third
_CLIENTS = 64


def attempt(rng: random.Random, folder: Path) -> str | None:
    """Ask for some seconds, reload meanwhile, then kill the server or tell it to stop."""
    return _attempt(rng, folder, seconds=rng.uniform(1.0, 3.0), is_killed=rng.random() < 0.5)


def first_attempt(rng: random.Random, folder: Path) -> str | None:
    """Ask for a minute, and tell how much was answered in how much memory."""
    return _attempt(rng, folder, seconds=60.0, is_killed=False, is_told=True)


def _attempt(rng: random.Random, folder: Path, *, seconds: float, is_killed: bool, is_told: bool = False) -> str | None:
    if os.name != "posix":
        return None
    gallery = build_gallery(folder / "colours", save_tiny(folder / "pets"))
    own = Gallery(gallery).counts()
    num_reloads = rng.randrange(3)
    seeds = [rng.randrange(1 << 30) for _ in range(_CLIENTS)]
    acknowledged: dict[str, int] = {}
    with started(str(folder / "pets"), str(gallery), "--max-queue", "32", "--timeout", "60") as process:
        until = time.monotonic() + seconds
        is_over = threading.Event()
        with ThreadPoolExecutor(_CLIENTS + 1) as pool:
            clients = [pool.submit(_ask, process, random.Random(seed), is_over) for seed in seeds]
            writer = pool.submit(_write, process, random.Random(seeds[0]), is_over, acknowledged)
            for _ in range(num_reloads):
                time.sleep(seconds / 4)
                process.send_signal(signal.SIGHUP)
            time.sleep(max(0.0, until - time.monotonic()))
            if is_killed:
                process.kill()
            else:
                is_over.set()
            broken = [found for one in (*clients, writer) if (found := _end(one, is_over)) is not None]
        memory = 0 if is_killed else _find_memory(process)
        if is_told:
            print(f"server: {_count_answers(process)} in {seconds:.0f} s, {memory:,} kB at most", flush=True)
        if not is_killed:
            if not process.is_ready():
                broken.append("it is not ready afterwards")
            process.send_signal(signal.SIGTERM)
            process.wait_for_end()
            if process.returncode != 0:
                broken.append(f"SIGTERM ended it with {process.returncode}")
    if broken:
        return broken[0]
    if memory > _MOST_MEMORY:
        return f"it took {memory:,} kB"
    counts = Gallery(gallery).counts()
    left = {label: count for label, count in counts.items() if not label.startswith("class ")}
    if left != own:
        return f"damaged bodies have changed the gallery from {own} to {left}"
    lost = {label for label, count in acknowledged.items() if counts.get(label) != count}
    return f"{len(lost)} classes that were added are lost, such as {min(lost)}" if lost else None


def _end(one: object, is_over: threading.Event) -> str | None:
    """What a client found wrong, waiting for it."""
    found = one.result()  # type: ignore[attr-defined]
    is_over.set()  # of a server that was killed no client learns any more
    return None if found is None else str(found)


def _ask(process: ServingProcess, rng: random.Random, is_over: threading.Event) -> str | None:
    """Send whole and damaged requests; what is wrong with an answer."""
    paths = ("/v1/models/pets/predict", "/v1/models/pets/explain", "/v1/galleries/colours/search")
    changing = (("POST", "/v1/galleries/colours/images"), ("DELETE", "/v1/galleries/colours/images"))
    connection = HTTPConnection("127.0.0.1", process.port, timeout=90.0)
    while not is_over.is_set():
        content, body = ("image/png", encode("blue")) if rng.random() < 0.5 else draw_body(rng)
        try:
            if rng.random() < 0.05:
                _drop(process.port, body)
                continue
            # Without a label even a whole body changes nothing: the writer's classes alone are added.
            method, path = rng.choice(changing) if rng.random() < 0.2 else ("POST", rng.choice(paths))
            connection.request(method, path, body=body, headers={"Content-Type": content})
            answer = connection.getresponse()
            told = answer.read()
        except (OSError, HTTPException):
            connection.close()
            if process.poll() is not None or not process.is_ready():
                return None  # it was killed
            continue
        if answer.status not in _ALLOWED:
            return f"{answer.status}: {told[:300]!r}"
    connection.close()
    return None


def _write(
    process: ServingProcess, rng: random.Random, is_over: threading.Event, acknowledged: dict[str, int]
) -> str | None:
    """Add classes one after the other, and note what is acknowledged."""
    number = 0
    with httpx.Client(base_url=process.client.base_url, timeout=90.0, trust_env=False) as client:
        while not is_over.is_set():
            number += 1
            # No picture comes twice: one that is there already would leave its class for the new one.
            files = [("image", encode("red", seed=4 * number + place)) for place in range(rng.randrange(1, 4))]
            try:
                answer = client.post("/v1/galleries/colours/images", files=files, data={"label": f"class {number}"})
            except httpx.TransportError:
                return None  # it was killed
            if answer.status_code == 201:
                acknowledged[f"class {number}"] = answer.json()["images_of_label"]
            elif answer.status_code not in _ALLOWED:
                return f"adding: {answer.status_code} {answer.text}"
    return None


def _drop(port: int, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        head = f"POST /v1/models/pets/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + 1}\r\n\r\n"
        connection.sendall(head.encode() + body)


def _count_answers(process: ServingProcess) -> str:
    """How many requests the server has answered, by status."""
    counts: dict[str, int] = {}
    numbers = process.client.get("/metrics").text
    for status, count in re.findall(r'^vitrail_requests_total\{.*status="(\d+)"\} (\S+)', numbers, flags=re.MULTILINE):
        counts[status] = counts.get(status, 0) + int(float(count))
    return ", ".join(f"{count:,} x {status}" for status, count in sorted(counts.items()))


def _find_memory(process: ServingProcess) -> int:
    """The most memory that the process has had, in kilobytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
