"""Why a request is not answered: a status, one line, and nothing about the machine that the server runs on."""

import math
import re

# Folders of the machine: two names or more with slashes before them, or a drive of Windows.
_PLACE = re.compile(r"(?:~|(?<![\w.:/]))(?:/[^\s/'\",;:()]+){2,}/?|\b[A-Za-z]:\\[^\s'\",;()]+")
_LONGEST = 500  # characters of a message


class RefusedError(Exception):
    """A request that is refused; `status` is HTTP's."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(without_places(message))
        self.status = status
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))

    @property
    def headers(self) -> dict[str, str]:
        """What HTTP wants beside the message."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (408, 413):  # the rest of the body is not read
            headers["Connection"] = "close"
        return headers


def without_places(message: str) -> str:
    """A message in one line, without paths of this machine."""
    return _PLACE.sub("...", " ".join(message.split()))[:_LONGEST]
