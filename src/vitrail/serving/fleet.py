"""All that a server has to offer, by name: read from the words of a command line, loaded once, and loaded anew."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vitrail.gallery.gallery_manifest import MANIFEST_FILE, ModelEntry
from vitrail.gallery.milvus_address import is_milvus, read_address
from vitrail.gallery.stores import open_store
from vitrail.inference.export_record import is_exported
from vitrail.inference.packs import load_shared_trunk
from vitrail.inference.passes import keep_source
from vitrail.inference.trained import Trained, load_exported, load_pack, load_trained
from vitrail.models.contract import Model
from vitrail.models.published import read_unless_there
from vitrail.serving.served_gallery import ServedGallery
from vitrail.serving.served_model import ServedModel
from vitrail.weights.pack import PACK_FILE, read_pack

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAMED = re.compile(rf"({_NAME.pattern})=(.+)", re.DOTALL)
_BELONGING = ("init=", "trunk=")  # words that belong to the one before them


@dataclass(frozen=True)
class FleetEntry:
    """A model or gallery to serve."""

    name: str
    source: str  # as `load_trained` takes it, or the place of a gallery
    trunk: str | None = None  # of a pack
    is_gallery: bool = False


@dataclass(frozen=True, eq=False)
class Fleet:
    """Models and galleries that are loaded, by name."""

    models: dict[str, ServedModel]
    galleries: dict[str, ServedGallery] = field(default_factory=dict)


def read_entries(words: Sequence[str]) -> list[FleetEntry]:
    """The entries that words name: RUN, EXPORT, PACK, GALLERY or a published name, each alone or as NAME=PLACE."""
    entries: list[FleetEntry] = []
    for group in _group(words):
        first, *others = group
        match = None if os.path.exists(first) else _NAMED.fullmatch(first)
        given, place = (match[1], match[2]) if match else (None, first)
        inits = [word for word in others if word.startswith("init=")]
        trunks = [word.partition("=")[2] for word in others if word.startswith("trunk=")]
        is_gallery = is_milvus(place) or (Path(place).expanduser() / MANIFEST_FILE).is_file()
        if is_gallery and others:
            raise ValueError(f"{others[0]} belongs to a model, and {place} is a gallery: leave it out")
        name = given or _name_after(place)
        if name in (entry.name for entry in entries):
            raise ValueError(f"two of what is served are called {name}: give one another name, as OTHER={place}")
        entries.append(FleetEntry(name, " ".join([place, *inits]), trunks[-1] if trunks else None, is_gallery))
    if not entries:
        raise ValueError("say what to serve: a run, an exported folder, a pack, a gallery or a name such as deit_tiny")
    return entries


def load_fleet(entries: Iterable[FleetEntry], *, device: torch.device, threads: int | None = None) -> Fleet:
    """Load all of it; packs on one trunk read the same memory, and a gallery shares a model that is served already.

    `threads` are those of one call of an exported folder's engine; None: those that the export names.
    """
    entries = list(entries)
    cache = _LoadedOnce(entries, threads=threads)
    models = {
        entry.name: ServedModel(
            entry.name, cache.load(entry.source, entry.trunk), device=device, is_folded=not cache.is_shared(entry)
        )
        for entry in entries
        if not entry.is_gallery
    }
    galleries = {}
    for entry in (one for one in entries if one.is_gallery):
        seen = cache.load_for_gallery(entry.source)
        viewer = next((one for one in models.values() if one.trained is seen or one.trained.model is seen.model), None)
        if viewer is None or viewer.trained.view != seen.view:
            viewer = models.setdefault(entry.name, ServedModel(entry.name, seen, device=device))
        galleries[entry.name] = ServedGallery(entry.name, entry.source, viewer)
    return Fleet(models, galleries)


class _LoadedOnce:
    """Models by where they come from: what is named twice is loaded once."""

    def __init__(self, entries: Sequence[FleetEntry], *, threads: int | None = None) -> None:
        self._threads = threads
        self._loaded: dict[tuple[str, str | None], Trained] = {}
        self._trunks: dict[str, Model] = {}
        packs = [self._trunk_of(entry.source, entry.trunk) for entry in entries if not entry.is_gallery]
        self._shared = {trunk for trunk in packs if trunk is not None and packs.count(trunk) > 1}

    def is_shared(self, entry: FleetEntry) -> bool:
        """Whether other packs that are served have the same trunk."""
        return self._trunk_of(entry.source, entry.trunk) in self._shared

    def load(self, source: str, trunk: str | None) -> Trained:
        """The model of a source."""
        key = keep_source(source), trunk
        if key not in self._loaded:
            place = self._trunk_of(source, trunk)
            if place is not None and place in self._shared:
                if place not in self._trunks:
                    self._trunks[place] = load_shared_trunk(source, trunk=trunk)
                self._loaded[key] = load_pack(self._trunks[place], source)
            elif trunk is None and is_exported(Path(source).expanduser()):
                self._loaded[key] = load_exported(source, threads=self._threads)
            else:
                self._loaded[key] = load_trained(source, trunk=trunk)
        return self._loaded[key]

    def load_for_gallery(self, place: str) -> Trained:
        """The model of a gallery, seeing as it did when the gallery was made."""
        entry = open_store(place).read_facts().model
        if not entry.source:
            raise ValueError(f"the gallery {place} does not say where its model ({entry.name}) is: build it anew")
        trained = self.load(entry.source, entry.trunk)
        return (
            trained
            if _sees_alike(trained, entry)
            else trained.seeing(image_size=entry.image_size, crop_ratio=entry.crop_ratio)
        )

    def _trunk_of(self, source: str, trunk: str | None) -> str | None:
        """The place of a pack's trunk; None for whatever is no pack."""
        folder = Path(source).expanduser()
        if not (folder / PACK_FILE).is_file():
            return None
        return keep_source(trunk or read_pack(folder).trunk)


def _sees_alike(trained: Trained, entry: ModelEntry) -> bool:
    view = trained.view
    return view.image_size == entry.image_size and view.crop_ratio == entry.crop_ratio


def _group(words: Sequence[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for word in words:
        if word.startswith(_BELONGING):
            if not groups:
                raise ValueError(f"{word} belongs behind a model, such as deit_tiny {word}")
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _name_after(place: str) -> str:
    """A name for what lies at a place: that of its folder, of its collection, or of the model."""
    is_database = is_milvus(place)
    named = None if is_database or os.path.exists(os.path.expanduser(place)) else read_unless_there(place)
    if is_database:
        address = read_address(place)
        text = address.file.stem if address.file is not None and "#" not in place else address.name
    elif named is not None:
        text = str(named).partition(" ")[0]
    else:
        path = Path(os.path.abspath(os.path.expanduser(place)))
        text = path.parent.name if (path / PACK_FILE).is_file() and path.name == "pack" else path.name
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text.rpartition("/")[2]).lstrip("._-")[:64]
    if not _NAME.fullmatch(name):
        raise ValueError(f"{place} has no name that an address can hold: give it one, as NAME={place}")
    return name
