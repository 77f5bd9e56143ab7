"""Serve models and galleries over HTTP: JSON and files in, answers out, a page to try them on, numbers for Prometheus.

On this machine alone unless --host says otherwise, and then with keys. Ctrl-C and SIGTERM end it when all requests are
answered; SIGHUP loads models, galleries and keys anew without dropping a request.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.serving.limits import ServingLimits

SUMMARY = "serve models and galleries over HTTP"

_PORT = 8000
_MEGABYTE = 1 << 20
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")  # as browsers write it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail serve` takes."""
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="[NAME=]RUN|EXPORT|PACK|GALLERY|MODEL",
        help="what to serve; behind a model init=FILE gives its weights, behind a pack trunk=PLACE its trunk",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine alone)")
    parser.add_argument("--port", type=_whole(0, 65535), default=_PORT, help=f"port (default: {_PORT}; 0: a free one)")
    parser.add_argument("--keys", metavar="FILE", help="lines `read KEY` and `write KEY`; needed beyond this machine")
    parser.add_argument(
        "--cors", type=_origin, action="append", default=[], metavar="ORIGIN", help="let pages of this place ask"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps (default: the best there is)")
    parser.add_argument("--threads", type=_whole(1, 1024), help="threads that compute (default: torch's)")
    parser.add_argument("--workers", type=_whole(1, 256), help="threads that decode (default: by the cores)")
    parser.add_argument("--max-batch", type=_whole(1, 4096), default=16, help="images computed together (default: 16)")
    parser.add_argument(
        "--batch-wait", type=_number(0.0, 1000.0), default=5.0, help="milliseconds a batch waits at most (default: 5)"
    )
    parser.add_argument("--max-queue", type=_whole(1, 10**6), default=256, help="images that wait (default: 256)")
    parser.add_argument("--max-images", type=_whole(1, 10**4), default=64, help="images of a request (default: 64)")
    parser.add_argument(
        "--max-body", type=_number(0.001, 1e5), default=32.0, help="megabytes of a request (default: 32)"
    )
    parser.add_argument(
        "--max-pixels", type=_number(0.001, 1e3), default=40.0, help="megapixels of an image (default: 40)"
    )
    parser.add_argument(
        "--timeout", type=_number(0.1, 3600.0), default=30.0, help="seconds for an answer (default: 30)"
    )
    parser.add_argument(
        "--drain", type=_number(1.0, 3600.0), default=30.0, help="seconds to end in, after SIGTERM (default: 30)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Load everything, then serve until told to stop."""
    from vitrail.serving.hangups import Hangups

    hangups = Hangups()
    hangups.watch()  # first of all: `systemctl reload` may come at any time
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ValueError(f"vitrail serve needs {error.name}: pip install 'vitrail[serve]'") from None
    import torch

    from vitrail.evaluation.predict import choose_device
    from vitrail.serving.fleet import load_fleet, read_entries
    from vitrail.serving.running import bind, check_place, serve_forever
    from vitrail.serving.service import Service
    from vitrail.serving.telemetry import logging_to_stderr

    entries, device = read_entries(arguments.settings), choose_device(arguments.device)
    check_place(arguments.host, has_keys=arguments.keys is not None)
    if "*" in arguments.cors and arguments.keys is None:
        raise ValueError("--cors '*' lets pages of all places ask: add --keys FILE, or name the places")
    keys_file = None if arguments.keys is None else Path(arguments.keys).expanduser()
    threads = arguments.threads or torch.get_num_threads()
    # The thread that computes has torch's own threads for itself: beside a second set of them, that of the thread which
    # loads, they would sleep between operations, and one image take half as long again.
    torch.set_num_threads(1)
    with bind(arguments.host, arguments.port) as listener:
        service = Service(
            lambda: load_fleet(entries, device=device, threads=arguments.threads),
            limits=_read_limits(arguments),
            keys_file=keys_file,
            num_workers=arguments.workers,
            threads=threads,
        )
        host, port = listener.getsockname()[:2]
        for model in service.crew.fleet.models.values():
            print(f"model {model.name}: {', '.join(model.abilities) or 'nothing'}")
        for gallery in service.crew.fleet.galleries.values():
            print(f"gallery {gallery.name}: {len(gallery):,} images, of the model {gallery.viewer.name}")
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)
        sys.stdout.flush()
        with logging_to_stderr():
            serve_forever(service, listener, origins=arguments.cors, hangups=hangups)
    return 0


def _read_limits(arguments: argparse.Namespace) -> "ServingLimits":
    from vitrail.serving.limits import ServingLimits

    return ServingLimits(
        max_body=int(arguments.max_body * _MEGABYTE),
        max_pixels=int(arguments.max_pixels * 1e6),
        max_images=arguments.max_images,
        max_queue=arguments.max_queue,
        max_batch=arguments.max_batch,
        batch_wait=arguments.batch_wait / 1000.0,
        timeout=arguments.timeout,
        drain_timeout=arguments.drain,
    )


def _origin(text: str) -> str:
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise argparse.ArgumentTypeError(f"* or scheme://host[:port], such as https://shop.example, not {text!r}")
    return text


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"a number from {least:g} to {most:g}, not {text!r}")
        return value

    return read
