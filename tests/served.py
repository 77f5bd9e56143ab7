"""A server on a loopback port in a thread of this process, with tiny models and a gallery of plain colours."""

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import torch
from PIL import Image
from tiny_galleries import COLOURS, colours, paint, tiny_model

import vitrail
from vitrail.gallery.building import Choices, Origin
from vitrail.gallery.gallery import Gallery
from vitrail.inference.trained import load_trained
from vitrail.serving.fleet import load_fleet, read_entries
from vitrail.serving.hangups import Hangups
from vitrail.serving.limits import ServingLimits
from vitrail.serving.running import ServerProcess, bind
from vitrail.serving.service import Service
from vitrail.storage import write_json

Place = TypeVar("Place", str, Path)
CLASSES = ["cat", "dog", "fish"]


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    service: Service
    port: int
    server: ServerProcess

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        """A client of it."""
        return httpx.Client(base_url=self.address, timeout=30.0, trust_env=False, **options)

    def connect(self) -> socket.socket:
        """A bare connection to it."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def save_tiny(folder: Path, *, seed: int = 0, depth: int = 1) -> Path:
    """A saved classifier of three classes."""
    vitrail.save_model(tiny_model(seed, depth=depth), folder)
    write_json(folder / "task.json", {"task": "classify", "classes": CLASSES})
    return folder


def build_gallery(folder: Place, model: Path, *names: str) -> Place:
    """A gallery of colours on a saved model, which it names, in a folder or at an address."""
    Gallery.build(
        load_trained(model),
        colours(*names),
        folder=folder,
        held_out=colours(*names, split="val", first_seed=1000),
        choices=Choices(),
        origin=Origin(source=str(model)),
    )
    return folder


def encode(colour: str = "red", *, seed: int = 0, kind: str = "PNG", side: int | None = None) -> bytes:
    """A file of a picture of about that colour."""
    picture = Image.fromarray(paint(COLOURS[colour], seed=seed))
    if side is not None:
        picture = picture.resize((side, side))
    file = BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def as_text(data: bytes) -> str:
    """Bytes in base64."""
    return base64.b64encode(data).decode()


def read_png(data: bytes) -> np.ndarray:
    """The pixels of a file of PNG."""
    return np.asarray(Image.open(BytesIO(data)))


@contextlib.contextmanager
def serving(
    *words: str,
    limits: ServingLimits | None = None,
    keys: Path | None = None,
    origins: tuple[str, ...] = (),
    hangups: Hangups | None = None,
) -> Iterator[Running]:
    """Serve what the words name while the block lasts."""
    entries = read_entries(words)
    listener = bind("127.0.0.1", 0)
    service = Service(
        lambda: load_fleet(entries, device=torch.device("cpu")),
        limits=limits,
        keys_file=keys,
        num_workers=2,
        threads=1,
    )
    server = ServerProcess(service, origins=origins, hangups=hangups)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    port = listener.getsockname()[1]
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield Running(service, port, server)
    finally:
        server.should_exit = True
        thread.join(30.0)
        listener.close()
        torch.set_num_threads(1)
