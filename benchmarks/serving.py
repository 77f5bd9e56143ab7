"""Requests a second and latency of `vitrail serve` against the same model in LitServe, with batching and without.

python benchmarks/serving.py [--model deit_tiny] [--clients 1,8,64] [--seconds 8] [--rounds 3] [--max-requests 5000]

The model is a name, which gets random weights, or the folder of a run or of an export. All servers answer the same
requests on a loopback port: an image in base64 as JSON, decoded, resized and computed by the same code of vitrail. Each
server runs alone, in turns, and is asked by clients that wait for each answer. A number of clients is measured for so
many seconds, or until there are that many requests. With the defaults twelve servers are started one after the other,
and clients ask for 288 seconds in all. At the end the model is computed without a server, one image on each core (by an
engine, which divides an image among the cores, one by one) and in batches, to tell how much there is to gain.
"""

import argparse
import asyncio
import base64
import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from measure import best_times, machine

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "cat.jpg"
MAX_BATCH, BATCH_WAIT = 16, 0.005
_PATIENCE = 300.0  # seconds for a server to begin
_WARM_UP = 20  # requests


@dataclass
class Measured:
    """What clients saw of one server."""

    rates: list[float] = field(default_factory=list)  # requests a second, one of each round
    slowest: list[float] = field(default_factory=list)  # p99 in seconds
    medians: list[float] = field(default_factory=list)
    failed: int = 0


SERVERS = {
    "vitrail, batches": ("vitrail", MAX_BATCH),
    "vitrail, one by one": ("vitrail", 1),
    "LitServe, batches": ("litserve", MAX_BATCH),
    "LitServe, one by one": ("litserve", 1),
}


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny", help="a name, with random weights, or a folder")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-requests", type=int, default=5000)
    arguments = parser.parse_args()
    servers = dict(SERVERS)
    if importlib.util.find_spec("litserve") is None:
        print("litserve is not installed: pip install litserve", file=sys.stderr)
        servers = {name: how for name, how in servers.items() if how[0] == "vitrail"}
    counts = [int(text) for text in arguments.clients.split(",")]
    found = {(name, count): Measured() for name in servers for count in counts}
    for _ in range(arguments.rounds):
        for name, (kind, batch) in servers.items():
            with serving(kind, arguments.model, max_batch=batch) as (port, path):
                request = make_request(path)
                asyncio.run(load(port, request, clients=1, seconds=60.0, limit=_WARM_UP))
                for count in counts:
                    limit = arguments.max_requests
                    times, seconds, failed = asyncio.run(
                        load(port, request, clients=count, seconds=arguments.seconds, limit=limit)
                    )
                    note(found[name, count], times, seconds=seconds, failed=failed)
    show(found, counts=counts, servers=list(servers), model=arguments.model)
    measure_gain(arguments.model)


def note(measured: Measured, times: list[float], *, seconds: float, failed: int) -> None:
    """Keep the figures of one round."""
    measured.rates.append(len(times) / seconds)
    ordered = sorted(times) or [float("nan")]
    measured.medians.append(statistics.median(ordered))
    measured.slowest.append(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))])
    measured.failed += failed


def show(found: dict[tuple[str, int], Measured], *, counts: list[int], servers: list[str], model: str) -> None:
    """A table of medians over the rounds."""
    print(f"{Path(model).name}, {machine()}")
    print("\n| clients | server | requests/s | p50 ms | p99 ms | failed |\n|---|---|---|---|---|---|")
    for count in counts:
        for name in servers:
            one = found[name, count]
            rate, p50, p99 = (statistics.median(each) for each in (one.rates, one.medians, one.slowest))
            print(f"| {count} | {name} | {rate:.1f} | {1000 * p50:.1f} | {1000 * p99:.1f} | {one.failed} |")
    print()
    for count in counts:
        rates = {name: statistics.median(found[name, count].rates) for name in servers}
        told = [f"batches {rates['vitrail, batches'] / rates['vitrail, one by one']:.2f}x of one by one"]
        if "LitServe, batches" in rates:
            told.append(f"{rates['vitrail, batches'] / rates['LitServe, batches']:.2f}x of LitServe with batches")
            told.append(f"{rates['vitrail, one by one'] / rates['LitServe, one by one']:.2f}x without")
        print(f"{count} clients: {', '.join(told)}")


def measure_gain(name: str) -> None:
    """Print what the model gains by batches on this machine, computed as the server does it and nothing else."""
    import torch

    from vitrail.data.decode import open_image
    from vitrail.evaluation.lanes import Lanes
    from vitrail.inference.trained import load_trained
    from vitrail.serving.served_model import ServedModel

    model = ServedModel(name, load_trained(" ".join(words_of(name))), device=torch.device("cpu"))
    pictures = [model.trained.view(open_image(PICTURE.read_bytes()))] * MAX_BATCH
    num_lanes = torch.get_num_threads() if model.may_part else 1
    with Lanes(num_lanes) as lanes:

        def compute(size: int) -> object:
            parts = [pictures[first : first + size] for first in range(0, MAX_BATCH, size)]
            return list(lanes.map(model.compute_logits, parts))

        single, batch = best_times(lambda: compute(1), lambda: compute(max(1, MAX_BATCH // num_lanes)), rounds=10)
    alone = "one on each core" if model.may_part else "one by one"
    speeds = f"{MAX_BATCH / single:.1f} images/s {alone}, {MAX_BATCH / batch:.1f} in batches of {MAX_BATCH}"
    print(f"the model without a server: {speeds}: a gain of {single / batch:.2f}x")


def words_of(model: str) -> list[str]:
    """A model as `vitrail serve` takes it: a folder as it is, a name with random weights."""
    return [model] if Path(model.rpartition("=")[2]).exists() else [model, "init=random"]


def make_request(path: str) -> bytes:
    """The whole request, head and body."""
    body = json.dumps({"image": base64.b64encode(PICTURE.read_bytes()).decode()}).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body


async def load(
    port: int, request: bytes, *, clients: int, seconds: float, limit: int
) -> tuple[list[float], float, int]:
    """Times of all requests that were answered, how long it took, and how many were not answered with 200."""
    times: list[float] = []
    failed = started = 0
    begin = time.perf_counter()
    until = begin + seconds

    async def ask() -> None:
        nonlocal failed, started
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until and started < limit:
            started += 1
            start = time.perf_counter()
            writer.write(request)
            await writer.drain()
            if await read_status(reader) == 200:
                times.append(time.perf_counter() - start)
            else:
                failed += 1
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    await asyncio.gather(*(ask() for _ in range(clients)))
    return times, time.perf_counter() - begin, failed


async def read_status(reader: asyncio.StreamReader) -> int:
    """The status of an answer, which is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next(int(line.partition(":")[2]) for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(length)
    return int(head.split(" ", 2)[1])


@contextlib.contextmanager
def serving(kind: str, model: str, *, max_batch: int) -> Iterator[tuple[int, str]]:
    """A server of its own process: its port, and the path that answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    if kind == "vitrail":
        command = [sys.executable, "-m", "vitrail", "serve", *words_of(f"model={model}"), "--port", str(port)]
        command += ["--max-batch", str(max_batch), "--batch-wait", str(1000 * BATCH_WAIT), "--max-queue", "1000"]
        health, path = "/v2/health/ready", "/v1/models/model/predict"
    else:
        script = Path(__file__).with_name("litserve_model.py")
        command = [sys.executable, str(script), " ".join(words_of(model)), str(port), str(max_batch), str(BATCH_WAIT)]
        health, path = "/health", "/predict"
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env=os.environ | {"NO_COLOR": "1"}, start_new_session=True
        )
        try:
            wait(process, port, health)
            yield port, path
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            said.seek(0)
            print(said.read().decode(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(ProcessLookupError):  # workers that outlive their server
                os.killpg(process.pid, signal.SIGKILL)


def wait(process: "subprocess.Popen[bytes]", port: int, health: str) -> None:
    """Until a server answers that it is well."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ConnectionError("the server has ended")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            connection.sendall(f"GET {health} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            if b" 200 " in connection.recv(4096).split(b"\r\n", 1)[0]:
                return
        time.sleep(0.2)
    raise TimeoutError(f"the server did not begin within {_PATIENCE:.0f} seconds")


if __name__ == "__main__":
    main()
