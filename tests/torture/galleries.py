"""Galleries whose writers are killed while others read, and galleries whose files are damaged."""

import contextlib
import json
import multiprocessing
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch.nn import functional

from vitrail.gallery.folder_changes import change, with_index
from vitrail.gallery.folder_files import LOCK_FILE, read_state, writing
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_manifest import MANIFEST_FILE, Manifest, ModelEntry, Threshold, read_manifest
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.index import has_faiss
from vitrail.gallery.part_files import write_part

AREA = "galleries"
NUM_TESTED = 12  # the last kills writers
_DIM, _CLASSES = 8, ("first", "second")
_KILLS = 0.2  # the share of attempts that kill; the others damage a file, in a hundredth of the time
_ROUNDS, _WRITERS = 3, 2


def attempt(rng: random.Random, folder: Path) -> str | None:
    """Kill writers of a gallery, or damage one of its files."""
    if rng.random() < _KILLS and os.name == "posix":
        return _kill_writers(rng, folder)
    return _damage(rng, folder)


def _make(folder: Path, rng: random.Random, *, num_images: int, index: str = "exact") -> None:
    """A gallery of random vectors."""
    with writing(folder, is_new=True) as writer:
        rows = _draw(rng, [f"start-{number}" for number in range(num_images)])
        manifest = Manifest(
            generation=1,
            model=ModelEntry(source=None, name="none", key="none", image_size=8, crop_ratio=1.0),
            dim=_DIM,
            levels={"label": _CLASSES},
            coarse=None,
            neighbours=3,
            threshold=Threshold(cosine=0.1, false_reject=0.05, num_held_out=20, held_out="nothing"),
            wanted_index=index,  # type: ignore[arg-type]
            parts=(write_part(rows, writer.new_file("part", "safetensors")),),
        )
        writer.commit(with_index(writer, manifest, [rows.vectors]))


def _draw(rng: random.Random, paths: list[str]) -> Rows:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    vectors = functional.normalize(torch.randn(len(paths), _DIM, generator=generator), dim=1)
    labels = torch.randint(len(_CLASSES), (len(paths), 1), generator=generator).int()
    return Rows(vectors, labels, tuple(paths), tuple(rng.randbytes(rng.randrange(200)) for _ in paths))


def _damage(rng: random.Random, folder: Path) -> str | None:
    """Damage one file: a search must end in one line that names it."""
    index = rng.choice(("exact", "ivf", "hnsw")) if has_faiss() else "exact"
    _make(folder / "g", rng, num_images=rng.randrange(2, 120), index=index)
    path = rng.choice(sorted(path for path in (folder / "g").iterdir() if path.name != LOCK_FILE))
    whole = bytearray(path.read_bytes())
    how = rng.choice(("flip", "flip", "flip", "truncate", "lengthen", "zeros", "remove"))
    place = rng.randrange(len(whole))
    if how == "flip":
        whole[place] ^= 1 << rng.randrange(8)
    elif how == "truncate":
        del whole[place:]
    elif how == "lengthen":
        whole += rng.randbytes(rng.randrange(1, 100))
    elif how == "zeros":
        whole[place : place + 16] = bytes(len(whole[place : place + 16]))
    is_changed = how == "remove" or bytes(whole).rstrip() != path.read_bytes().rstrip()  # gallery.json ends in a line
    path.unlink()
    if how != "remove":
        path.write_bytes(whole)
    told = None
    try:
        Gallery(folder / "g").search_vectors(torch.ones(1, _DIM))
    except ValueError as error:
        told = str(error)
    kind = f"{how} at {place} in {path.name.partition('-')[0]}"
    if not is_changed:
        return None if told is None else f"{kind} changed nothing and is refused: {told}"
    if told is None:
        return f"{kind} is not noticed"
    if "\n" in told or (path.name not in told and "no gallery" not in told):
        return f"{kind} does not name the file in one line: {told}"
    return None


def _kill_writers(rng: random.Random, folder: Path) -> str | None:
    """Kill writers at random moments while another process reads: what they had acknowledged must be there."""
    _make(folder / "g", rng, num_images=20)
    end = time.monotonic() + 20.0
    reader = _start(_read, folder)
    for number in range(_ROUNDS):
        logs = [folder / f"log-{number}-{writer}" for writer in range(_WRITERS)]
        writers = [_start(_write, folder, rng.random(), log) for log in logs]
        while not all(log.exists() for log in logs) and time.monotonic() < end:
            time.sleep(0.01)
        for writer in writers:
            time.sleep(rng.random() * 0.8)
            writer.kill()
            writer.join()
    (folder / "stop").touch()
    reader.join(20.0)
    return _judge(folder)


def _start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that need not import torch, which takes longer than an attempt."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads: none is used in the new process
        process.start()
    return process


def _write(folder: Path, seed: float, log: Path) -> None:
    """Add and remove images until killed; say what is about to be removed, and what is done."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    own: list[str] = []
    with log.open("a", buffering=1) as file, _noting(folder / f"error-{log.name}"):
        for number in range(10**6):
            if own and rng.random() < 0.3:
                path = own.pop(rng.randrange(len(own)))
                file.write(f"removing {path}\n")
                Gallery(folder / "g").remove(path)
                file.write(f"removed {path}\n")
            else:
                paths = [f"{log.name}-{number}-{place}" for place in range(rng.randrange(1, 4))]
                with writing(folder / "g") as writer:
                    change(writer, read_state(folder / "g"), more=_draw(rng, paths))
                own += paths
                file.write("".join(f"added {path}\n" for path in paths))


def _read(folder: Path) -> None:
    torch.set_num_threads(1)
    with _noting(folder / "error-reader"):
        while not (folder / "stop").exists():
            gallery = Gallery(folder / "g")
            found = gallery.search_vectors(torch.ones(1, _DIM), top=5)
            assert len(found[0]) == 5 <= len(gallery)


@contextlib.contextmanager
def _noting(path: Path) -> Iterator[None]:
    """Leave an error in a file."""
    try:
        yield
    except Exception as error:
        path.write_text(json.dumps(f"{type(error).__name__}: {error}"))


def _judge(folder: Path) -> str | None:
    for path in folder.glob("error-*"):
        return f"{path.name.partition('-')[2]} ended with {path.read_text()}"
    if not any("added" in log.read_text() for log in folder.glob("log-*")):
        return "no writer has changed anything in 20 seconds"
    kept = set(Gallery(folder / "g").contents.paths())
    for log in folder.glob("log-*"):
        lines = [line.split() for line in log.read_text().splitlines() if len(line.split()) == 2]
        said: dict[str, set[str]] = {"added": set(), "removing": set(), "removed": set()}
        for what, image in lines:
            said[what].add(image)
        if lost := said["added"] - said["removing"] - kept:
            return f"{len(lost)} images that were added are lost, such as {min(lost)}"
        if back := said["removed"] & kept:
            return f"{len(back)} images that were removed are there, such as {min(back)}"
    gallery = Gallery(folder / "g")
    gallery.remove("start-0")
    files = {path.name for path in gallery.folder.iterdir()} - {MANIFEST_FILE, LOCK_FILE}
    listed = read_manifest(gallery.folder).files
    return None if files == listed else f"files are left: {files - listed}"
