"""A real browser for tests of pages: chromium by playwright, and what a page says on its console."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from served import Running

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    "--use-fake-device-for-media-stream",  # a camera, for pages that are allowed to use it
)
PATIENCE = 30_000  # milliseconds: a busy machine takes its time
playwright.expect.set_options(timeout=PATIENCE)


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """A browser without a window; the test is skipped where there is none."""
    if not CHROMIUM:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Told:
    """What a page says on the console and asks of the network."""

    def __init__(self, page: Any) -> None:
        self.errors: list[str] = []
        self.places: set[str] = set()
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda asked: self.places.add(asked.url.partition("/v1/")[0]))


def open_page(browser: Any, running: Running, **options: Any) -> tuple[Any, Told]:
    """The page of a server."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    told = Told(page)
    page.goto(running.address)
    return page, told


def wait_for(page: Any, place: str, text: str) -> None:
    """Until the text stands there; the policy of the page forbids to wait by code in texts."""
    playwright.expect(page.locator(place)).to_contain_text(text)
