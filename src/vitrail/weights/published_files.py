"""Files of published weights: from a cache where one has them, else from the hub or from the authors' address."""

import contextlib
import hashlib
import re
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlparse

import torch

from vitrail.models.catalog import TIMM_PREFIX
from vitrail.models.published import PublishedWeights, choose_published, read_model_text
from vitrail.storage import locked, replacing, write_text
from vitrail.weights.hub import HUB_PREFIX, WEIGHT_FILES, HubAddress, UnreachableError, fetch, find_cached, first_line
from vitrail.weights.weight_files import read_file

CHECKSUM_ENDING = ".sha256"  # of the file beside a downloaded one that notes its checksum, as sha256sum reads it
_NAMED_CHECKSUM = re.compile(r"-([0-9a-f]{8,})\.")  # in the name of a file, as torch.hub has it


@dataclass(frozen=True)
class WeightPlaces:
    """Where a file of weights may be had: from the hub, or else from an address."""

    name: str  # what the user calls it
    address: HubAddress | None
    url: str | None = None
    files: tuple[str, ...] = WEIGHT_FILES  # of the repository, the first that it has

    @property
    def downloaded(self) -> Path | None:
        """Where torch.hub keeps what comes from the address."""
        return None if self.url is None else downloaded_files() / Path(urlparse(self.url).path).name

    def find(self) -> Path | None:
        """The file, where one of the two caches has it; one from an address is checked."""
        if self.address is not None and (found := find_cached(self.address, files=self.files)) is not None:
            return found
        if self.downloaded is None or not self.downloaded.is_file():
            return None
        check_sum(self.downloaded)
        return self.downloaded

    def fetch(self) -> Path:
        """The file; where it can't be had, an error that says what to fetch and where to put it."""
        if (found := self.find()) is not None:
            return found
        try:
            if self.address is not None:
                return fetch(self.address, files=self.files)
            if self.url is None or self.downloaded is None:
                raise ValueError(f"there are no published weights of {self.name}: give a file, {self.name} init=FILE")
            download(self.url, self.downloaded)
            return self.downloaded
        except UnreachableError as error:
            reason = error.reason
        except (OSError, HTTPException, RuntimeError) as error:
            reason = first_line(error)
        remedy = f"run `vitrail download {self.name}` where there is a network and copy the cache"
        if self.url is not None:
            remedy = f"fetch {self.url} and put it into {downloaded_files()}"
        raise ValueError(
            f"the weights of {self.name} are in no cache here and can't be downloaded ({reason}): {remedy}"
        )


def find_places(name: str) -> WeightPlaces:
    """Where the weights that a name means may be had: one of the catalogue, timm's, or hf://OWNER/NAME."""
    if name.startswith(HUB_PREFIX):
        return WeightPlaces(name, HubAddress.parse(name))
    text = read_model_text(name)
    if text is None or text.init is not None:
        raise ValueError(f"{name} is no name of published weights: `vitrail download --list` shows what there is")
    return places_of_timm(text.name) if text.is_timm else places_of(choose_published(text.name, text.parts))


def places_of(weights: PublishedWeights) -> WeightPlaces:
    """Where published weights may be had."""
    address = None if weights.repository is None else HubAddress(weights.repository)
    return WeightPlaces(weights.text, address, weights.url)


def places_of_timm(name: str) -> WeightPlaces:
    """Where the weights may be had that timm offers for `timm/NAME` or `timm/NAME.TAG`."""
    from vitrail.models.timm_config import find_timm_facts

    facts = find_timm_facts(name.removeprefix(TIMM_PREFIX))
    repository, file = facts.get("hf_hub_id"), facts.get("hf_hub_filename")
    address = HubAddress(repository) if repository else None
    return WeightPlaces(name, address, facts.get("url") or None, (file,) if file else WEIGHT_FILES)


def downloaded_files() -> Path:
    """The folder where torch.hub keeps what it downloaded."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def download(url: str, place: Path) -> None:
    """Download a file of weights, with a bar; it takes its name only when it is whole, and its checksum is noted."""
    place.parent.mkdir(parents=True, exist_ok=True)
    named = _NAMED_CHECKSUM.search(place.name)
    with locked(place.with_name(f".{place.name}.lock")):
        if place.is_file():  # another process was faster
            return
        with replacing(place) as draft:
            torch.hub.download_url_to_file(url, str(draft), hash_prefix=named[1] if named else None)
            try:
                read_file(draft, label=url)
            except ValueError as error:
                raise ValueError(f"{error}; the download was not kept: try again") from None
        note_sum(place)


def note_sum(place: Path) -> None:
    """Write down the checksum of a file, beside it."""
    write_text(_sum_file(place), f"{compute_sum(place)}  {place.name}\n")


def check_sum(place: Path) -> None:
    """Compare a file with the checksum that was noted when it was first used.

    Where this is the first use, it is noted; the beginning of it may stand in the name of the file.
    """
    named = _NAMED_CHECKSUM.search(place.name)
    try:
        noted = _sum_file(place).read_text(encoding="ascii").split()[0]
    except (FileNotFoundError, IndexError):
        if named and not compute_sum(place).startswith(named[1]):
            raise ValueError(
                f"{place} is damaged or another file (its SHA-256 does not begin with {named[1]}): fetch it again"
            ) from None
        with contextlib.suppress(OSError):  # a cache of others that can only be read
            note_sum(place)
        return
    if compute_sum(place) != noted:
        raise ValueError(
            f"{place} is not the file it was when it was first used (its checksum is another than the one in "
            f"{_sum_file(place).name}): delete both, and it is downloaded again"
        )


def compute_sum(place: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with place.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sum_file(place: Path) -> Path:
    return place.with_name(place.name + CHECKSUM_ENDING)
