"""The page in a real browser: a picture in, answers, maps and neighbours out, a class added, an error shown."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served import Running, build_gallery, encode, save_tiny, serving
from tiny_galleries import save_colour

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
playwright.expect.set_options(timeout=30_000)  # a busy machine takes its time
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    model = save_tiny(folder / "pets")
    with serving(str(model), f"colours={build_gallery(folder / 'colours', model)}") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
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
    page = browser.new_page(**options)
    page.set_default_timeout(30_000)
    told = Told(page)
    page.goto(running.address)
    return page, told


def wait_for(page: Any, place: str, text: str) -> None:
    """Until the text stands there; the policy of the page forbids to wait by code in texts."""
    playwright.expect(page.locator(place)).to_contain_text(text, timeout=30_000)


def test_a_picture_is_answered_and_explained(browser: Any, running: Running, tmp_path: Path) -> None:
    page, told = open_page(browser, running)
    page.set_input_files("#file", save_colour(tmp_path / "blue.png", "blue", seed=70))
    wait_for(page, "#status", "Answered by pets")
    assert page.locator("#classes .answers li").count() == 3
    assert page.locator("#gallery-label").inner_text() == "blue"
    assert page.locator("#neighbours .near img").count() == 8
    first = page.locator("#maps img.shown").get_attribute("src")
    assert "attention, layer 0" in page.locator("#maps img.shown").get_attribute("alt")
    page.locator("#head").focus()
    page.keyboard.press("ArrowRight")  # a slider is moved by keys
    shown = page.locator("#maps img.shown")
    playwright.expect(shown).to_have_attribute("alt", re.compile("attention, layer 0, head 0"))
    assert shown.get_attribute("src") != first
    page.select_option("#kind", "gradient")
    playwright.expect(shown).to_have_attribute("alt", re.compile("gradient, class"))
    page.locator("#maps summary").click()
    curl, python = page.locator("#maps pre").all_inner_texts()
    assert curl.startswith("curl -F image=@blue.png -F kind=gradient -F class=")
    assert "requests.post(" in python
    assert told.errors == []
    assert {place.rstrip("/").split("/static")[0] for place in told.places if not place.startswith("blob:")} == {
        running.address
    }
    page.close()


def test_a_picture_may_come_before_the_models_are_known(browser: Any, running: Running, tmp_path: Path) -> None:
    page = browser.new_page()
    told = Told(page)
    held: list[Any] = []
    page.route("**/v1/models", lambda asked: held.append(asked))  # a function that can be marked
    page.goto(running.address)
    page.set_input_files("#file", save_colour(tmp_path / "blue.png", "blue", seed=72))
    wait_for(page, "#status", "Looking ...")
    while not held:
        page.wait_for_timeout(10)
    held[0].continue_()
    wait_for(page, "#status", "Answered by pets")
    assert page.locator("#classes .answers li").count() == 3
    assert page.locator("#gallery-label").inner_text() == "blue"
    assert told.errors == []
    page.close()


def test_a_class_is_added_and_the_answer_changes(browser: Any, running: Running, tmp_path: Path) -> None:
    page, told = open_page(browser, running)
    page.on("dialog", lambda dialog: dialog.accept())
    green = np.full((16, 16, 3), (90, 200, 60), np.uint8)
    paths = []
    for seed in range(5):
        noisy = np.clip(green + np.random.default_rng(seed).integers(0, 9, green.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / f"green{seed}.png")
        paths.append(tmp_path / f"green{seed}.png")
    page.set_input_files("#file", paths[0])
    wait_for(page, "#status", "Answered by pets")
    page.fill("#label", "<b>green</b>")
    page.set_input_files("#examples", paths[1:])
    page.click("#teach-form button")
    wait_for(page, "#taught", "4 added to")
    assert "The answer changed from" in page.locator("#taught").inner_text()
    assert page.locator("#gallery-label").inner_text() == "<b>green</b>"  # as text, never as HTML
    page.locator("#classes-of-gallery summary").click()
    page.get_by_label("Remove the class <b>green</b>").click()
    wait_for(page, "#taught", "is removed")
    assert told.errors == []
    page.close()


def test_a_broken_file_is_an_error_that_people_can_read(browser: Any, running: Running, tmp_path: Path) -> None:
    page, told = open_page(browser, running)
    (tmp_path / "cut.png").write_bytes(encode("red", side=64)[:-40])
    page.set_input_files("#file", tmp_path / "cut.png")
    page.wait_for_selector("#error:visible")
    assert "the image is cut off or damaged" in page.locator("#error").inner_text()
    assert page.locator("#classes").is_hidden()
    assert all("422" in error for error in told.errors)  # the browser's own words on such answers
    page.set_input_files("#file", save_colour(tmp_path / "red.png", "red", seed=71))
    page.wait_for_selector("#classes:visible")
    assert page.locator("#error").is_hidden()
    page.close()


def test_pictures_are_pasted_and_dropped(browser: Any, running: Running) -> None:
    page, told = open_page(browser, running)
    make = """async (kind) => {
        const canvas = document.createElement("canvas");
        canvas.width = canvas.height = 16;
        const blob = await new Promise((done) => canvas.toBlob(done));
        const carried = new DataTransfer();
        carried.items.add(new File([blob], `${kind}.png`, { type: "image/png" }));
        const event = kind === "paste"
          ? new ClipboardEvent("paste", { clipboardData: carried, bubbles: true })
          : new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true });
        document.body.dispatchEvent(event);
    }"""
    for kind in ("paste", "drop"):
        page.evaluate(make, kind)
        wait_for(page, "#drop-hint", f"{kind}.png")
        wait_for(page, "#status", "Answered by pets")
    assert told.errors == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_can_be_used_without_a_mouse(browser: Any, running: Running, scheme: str) -> None:
    page, told = open_page(browser, running, viewport=PHONE, color_scheme=scheme)
    page.wait_for_selector("#teach:visible")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"file", "label", "examples", "with-shown"} <= set(seen)
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, button, img, section")].filter((one) => one.checkVisibility()
            && !(one.labels?.length || one.textContent.trim() || one.alt || one.getAttribute("aria-label"))).length"""
    )
    assert unnamed == 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 23, 26)") == (scheme == "dark")
    assert told.errors == []
    page.close()
