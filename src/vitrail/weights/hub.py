"""Weights on the Hugging Face hub, `hf://owner/name[@revision][/file]`: from the local cache if it has them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HUB_PREFIX = "hf://"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # in order of preference

_ADDRESS = re.compile(
    r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@\s]+))?(/(?P<file>(?!.*\.\.)[^\s]+))?", re.ASCII
)


@dataclass(frozen=True)
class HubAddress:
    """A repository, optionally one revision and one file of it."""

    repository: str
    revision: str | None = None  # a branch, a tag or a commit; None: the main branch
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubAddress":
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not of the form hf://owner/name, hf://owner/name@revision or with /file after it"
            )
        return cls(**match.groupdict())

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB_PREFIX}{self.repository}{revision}" + (f"/{self.file}" if self.file else "")


def fetch(address: HubAddress, *, files: Sequence[str] = WEIGHT_FILES) -> Path:
    """The first of `files` (or the address's own file) that the cache has, else the first that the hub has."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

    wanted = (address.file,) if address.file else tuple(files)
    unreachable: Exception | None = None
    for is_local in (True, False):
        for file in wanted:
            try:
                found = hf_hub_download(address.repository, file, revision=address.revision, local_files_only=is_local)
                return Path(found)
            except LocalEntryNotFoundError as error:  # not in the cache, or no network
                unreachable = error
            except EntryNotFoundError:
                unreachable = None
            except (OSError, HFValidationError) as error:  # no such repository or revision, no access, no network
                unreachable = error
    names = " or ".join(wanted)
    if unreachable is None:
        raise ValueError(f"{address} has no {names}: name its file, hf://owner/name/FILE")
    reason = str(unreachable).strip().splitlines()[0] if str(unreachable).strip() else type(unreachable).__name__
    raise ValueError(f"{address}: no {names} in the local cache, and the hub did not give it\n({reason})")
