"""Keys of a server: who may ask, and who may change a gallery."""

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.serving.refusals import RefusedError
from vitrail.storage.reading import read_text

Scope = Literal["open", "read", "write"]
_LEAST = 16  # characters of a key
_REMEDY = "write lines such as `read KEY who` and `write KEY who`, with keys of at least 16 signs of ASCII"


@dataclass(frozen=True)
class ApiKey:
    """A key that a client shows."""

    digest: bytes  # of the key itself, which is not kept
    may_write: bool
    owner: str  # for the log


@dataclass(frozen=True)
class KeyRing:
    """All keys that a server knows."""

    keys: tuple[ApiKey, ...]

    def find(self, shown: str | None) -> ApiKey | None:
        """The key that is shown. Every known one is compared in full, so that the time tells nothing."""
        digest = _digest((shown or "").encode("utf-8", "surrogateescape"))
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def check(self, shown: str | None, scope: Scope) -> ApiKey:
        """The key, if it allows what is asked."""
        key = self.find(shown)
        if key is None:
            what = "a key is needed" if shown is None else "the key is not known"
            raise RefusedError(401, f"{what}: send it as Authorization: Bearer KEY")
        if scope == "write" and not key.may_write:
            raise RefusedError(403, "the key may read and not write")
        return key


def read_keys(path: Path) -> KeyRing:
    """The keys of a file: a line for each, `read KEY` or `write KEY` and who has it; # begins a remark."""
    text = read_text(path, remedy=_REMEDY)
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & stat.S_IROTH:
        raise ValueError(f"{path} may be read by everybody on this machine: chmod o-r {path}")
    keys = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split(maxsplit=2)
        if not words:
            continue
        if len(words) < 2 or words[0] not in ("read", "write"):
            raise ValueError(f"{path}, line {number}: this is no key: {_REMEDY}")
        if not words[1].isascii():  # clients and proxies do not agree on how a header holds others
            raise ValueError(f"{path}, line {number}: the key has signs beyond ASCII: {_REMEDY}")
        if len(words[1]) < _LEAST:
            raise ValueError(f"{path}, line {number}: the key is shorter than {_LEAST} characters: {_REMEDY}")
        owner = words[2] if len(words) > 2 else f"line {number}"
        keys.append(ApiKey(_digest(words[1].encode()), words[0] == "write", owner))
    if not keys:
        raise ValueError(f"{path} holds no key: {_REMEDY}")
    if len({key.digest for key in keys}) < len(keys):
        raise ValueError(f"{path}: a key is listed twice: give everybody their own")
    return KeyRing(tuple(keys))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
