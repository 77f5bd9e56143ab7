"""Weights on the Hugging Face hub, `hf://owner/name[@revision][/file]`: from the local cache if it has them."""

import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HUB_PREFIX = "hf://"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # in order of preference

_ADDRESS = re.compile(
    r"hf://(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^/@\s]+))?(/(?P<file>(?!.*\.\.)[^\s]+))?", re.ASCII
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


class UnreachableError(ValueError):
    """The cache does not have a file, and the hub did not give it."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def fetch(address: HubAddress, *, files: Sequence[str] = WEIGHT_FILES) -> Path:
    """The first of `files` (or the address's own file) that the cache has, else the first that the hub has."""
    wanted = (address.file,) if address.file else tuple(files)
    unreachable: Exception | None = None
    for is_local in (True, False):
        if not is_local and (unreachable := find_no_network()) is not None:
            break
        found, unreachable = _ask(address, wanted, is_local=is_local)
        if found is not None:
            return found
    names = " or ".join(wanted)
    if unreachable is None:
        raise ValueError(f"{address} has no {names}: name its file, hf://owner/name/FILE")
    reason = first_line(unreachable)
    raise UnreachableError(
        f"{address}: no {names} in the local cache, and the hub did not give it\n({reason})", reason=reason
    )


def find_cached(address: HubAddress, *, files: Sequence[str] = WEIGHT_FILES) -> Path | None:
    """The first of `files` that the cache has."""
    return _ask(address, (address.file,) if address.file else files, is_local=True)[0]


def _ask(address: HubAddress, files: Sequence[str], *, is_local: bool) -> tuple[Path | None, Exception | None]:
    """The first of the files that there is, or why none could be had; None where there just is none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

    unreachable: Exception | None = None
    for file in files:
        try:
            found = hf_hub_download(address.repository, file, revision=address.revision, local_files_only=is_local)
            return Path(found), None
        except LocalEntryNotFoundError as error:  # not in the cache, or no network
            unreachable = error
            if not is_local:
                break
        except EntryNotFoundError:
            unreachable = None
        except (OSError, HFValidationError) as error:  # no such repository or revision, no access, no network
            unreachable = error
    return None, unreachable


def find_no_network() -> Exception | None:
    """Why the hub can't be reached, where that shows at once: the hub's own library would try for minutes."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or urllib.request.getproxies():
        return None
    try:
        socket.getaddrinfo(urllib.parse.urlsplit(constants.ENDPOINT).hostname, None)
    except OSError as error:
        return error
    return None


def first_line(error: Exception) -> str:
    """What an error says, as far as one line goes."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
