"""What a server says of itself: numbers for Prometheus, and a line of JSON for every request."""

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LOGGER = logging.getLogger("vitrail.serving")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Telemetry:
    """Counters of one server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "vitrail_requests", "requests that were answered", ["route", "name", "status"], registry=registry
        )
        self.seconds = Histogram(
            "vitrail_request_seconds",
            "seconds from the head of a request to its answer",
            ["route", "name"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batches = Histogram(
            "vitrail_batch_images", "images computed together", ["name", "verb"], buckets=_IMAGES, registry=registry
        )
        self.computing = Histogram(
            "vitrail_batch_seconds", "seconds of a batch", ["name", "verb"], buckets=_SECONDS, registry=registry
        )
        self.queue = Gauge(
            "vitrail_queue_images", "images decoded, waiting or computed", ["name", "verb"], registry=registry
        )
        self.gallery = Gauge("vitrail_gallery_images", "images of a gallery", ["name"], registry=registry)
        self.held = Gauge(
            "vitrail_held_bytes", "bytes of requests being answered and of answers not yet taken", registry=registry
        )
        self.reloads = Counter("vitrail_reloads", "times that all was loaded anew", ["result"], registry=registry)

    def render(self) -> bytes:
        """All numbers, as Prometheus reads them."""
        return generate_latest(self.registry)


class JsonLines(logging.Formatter):
    """Records as JSON, one a line; what a caller puts into `fields` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The record in one line."""
        content: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=True, default=str)


@contextlib.contextmanager
def logging_to_stderr(level: int = logging.INFO) -> Iterator[None]:
    """While the block lasts, write the server's and uvicorn's records to stderr as lines of JSON.

    They go by a descriptor of their own: what is printed to that of the process waits while images are decoded, and is
    taken for a decoder's where it reads like one (`data/decode/library_lines.py`).
    """
    with _open_stderr() as stream:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JsonLines())
        loggers = [logging.getLogger(name) for name in ("vitrail", "uvicorn")]
        former = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
            logger.setLevel(level)
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        logging.getLogger("uvicorn.access").disabled = True
        try:
            yield
        finally:
            for logger, (handlers, propagate, former_level) in zip(loggers, former, strict=True):
                logger.handlers, logger.propagate = handlers, propagate
                logger.setLevel(former_level)


@contextlib.contextmanager
def _open_stderr() -> Iterator[TextIO]:
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (AttributeError, OSError):  # the process has none, or something else takes its place
        yield sys.stderr
        return
    with open(descriptor, "w", encoding="utf-8", buffering=1) as stream:
        yield stream
