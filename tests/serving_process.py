"""`vitrail serve` in a process of its own, which can be told to stop, to load anew, and be killed."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
from warm import WarmProcess


class ServingProcess(WarmProcess):
    """`vitrail serve WORDS` on a free port, with a look at what it says."""

    def __init__(self, *words: str) -> None:
        super().__init__(["serve", *words, "--port", "0", "--threads", "1"], environment={"OMP_NUM_THREADS": "1"})
        until = time.monotonic() + 300.0
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)/", self.said())) is None:
            if self.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"it did not begin: {self.said()}")
            time.sleep(0.02)
        self.port = int(found[1])
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0, trust_env=False)
        while not self.is_ready():
            time.sleep(0.02)

    def said(self) -> str:
        return self._said.read_text(encoding="utf-8")

    def is_ready(self) -> bool:
        try:
            return self.client.get("/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def wait_for_end(self) -> None:
        self._process.join(300.0)

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + 300.0
        while words not in self.said():
            assert time.monotonic() < until, self.said()
            time.sleep(0.02)


@contextmanager
def started(*words: str) -> Iterator[ServingProcess]:
    process = ServingProcess(*words)
    try:
        yield process
    finally:
        process.client.close()
        with suppress(ProcessLookupError):  # it may have been killed a moment ago
            if process.poll() is None:
                process.kill()
        process.communicate(30.0)
