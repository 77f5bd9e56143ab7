"""The page in a real browser: a picture in, answers, maps and neighbours out, a class added, an error shown."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Told, browsing, open_page, playwright, wait_for
from PIL import Image
from served import Running, build_gallery, encode, read_png, save_tiny, serving
from tiny_galleries import save_colour

from vitrail.storage import write_json

PHONE = {"width": 390, "height": 844}
COPY = """async (picture) => {
    await picture.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
    canvas.getContext("2d").drawImage(picture, 0, 0);
    return canvas.toDataURL();
}"""


# Whether the element in focus has an outline, or the label that stands for it.
IS_MARKED = """[document.activeElement, document.activeElement.previousElementSibling].some(
    (one) => one && getComputedStyle(one).outlineStyle === "solid")"""
# What reaches beyond the window, or is wider than the box that it is scrolled in.
CUT_OFF = """[...document.body.querySelectorAll("*")].filter((one) => one.checkVisibility()
    && (one.getBoundingClientRect().right > innerWidth
      || (one.matches("pre, .scroll") && one.scrollWidth > one.clientWidth)))
    .map((one) => one.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    model = save_tiny(folder / "pets")
    with serving(str(model), f"colours={build_gallery(folder / 'colours', model)}") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as browser:
        yield browser


def test_a_picture_is_answered_and_explained(browser: Any, running: Running, tmp_path: Path) -> None:
    page, told = open_page(browser, running)
    page.set_input_files("#file", save_colour(tmp_path / "blue.png", "blue", seed=70))
    wait_for(page, "#status", "Answered by pets")
    best = page.locator("#classes .answers li .line").first.inner_text().split("\n")
    assert page.locator("#status").inner_text() == f"Answered by pets: {', '.join(best)}; the gallery says blue."
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
    assert curl.startswith("curl -F image=@blue.png --form-string kind=gradient --form-string class=")
    assert "requests.post(" in python
    assert told.errors == []
    assert {place.rstrip("/").split("/static")[0] for place in told.places if not place.startswith("blob:")} == {
        running.address
    }
    page.close()


def test_layers_and_heads_are_chosen_by_sliders(browser: Any, tmp_path: Path) -> None:
    picture = save_colour(tmp_path / "blue.png", "blue", seed=75)
    with serving(str(save_tiny(tmp_path / "deep", depth=3))) as running, running.client() as client:
        page, told = open_page(browser, running)
        page.set_input_files("#file", picture)
        wait_for(page, "#status", "Answered by deep")
        layer, head, shown = page.locator("#layer"), page.locator("#head"), page.locator("#maps img.shown")

        def show(move: Callable[[], object], **asked: int) -> bytes:
            """Move a slider; the map that is then shown is the server's own of that layer and head."""
            move()
            words = "".join(f", {name} {number}" for name, number in asked.items())
            playwright.expect(shown).to_have_attribute("alt", re.compile(f"attention{words};"))
            files, data = {"image": picture.read_bytes()}, {"kind": "attention", **asked}
            drawn = client.post("/v1/models/deep/explain", files=files, data=data).content
            seen = base64.b64decode(shown.evaluate(COPY).partition(",")[2])
            assert np.array_equal(read_png(seen)[..., :3], read_png(drawn))
            return drawn

        def press(slider: Any, key: str) -> None:
            slider.focus()
            page.keyboard.press(key)

        box = layer.bounding_box()
        maps = [
            show(lambda: page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2), layer=0),
            show(lambda: press(layer, "ArrowRight"), layer=1),
            show(lambda: press(head, "End"), layer=1, head=1),
            show(lambda: press(head, "ArrowLeft"), layer=1, head=0),
            show(lambda: press(layer, "End"), layer=2, head=0),
        ]
        assert len(set(maps)) == len(maps)
        assert page.locator("#layer-value").inner_text() == "2 (0 to 2)"
        assert [one.get_attribute("aria-valuetext") for one in (layer, head)] == ["layer 2", "head 0"]
        assert told.errors == []
        page.close()


def test_the_camera_takes_a_picture(browser: Any, running: Running) -> None:
    page, told = open_page(browser, running, permissions=["camera"])
    dialog, video = page.locator("#camera-dialog"), page.locator("#video")
    page.click("#camera")
    playwright.expect(page.locator("#shoot")).to_be_focused()
    page.keyboard.press("Escape")
    playwright.expect(dialog).to_be_hidden()
    playwright.expect(video).to_have_js_property("srcObject", None)  # the camera is off
    playwright.expect(page.locator("#camera")).to_be_focused()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#shoot")).to_be_focused()
    page.evaluate("window.track = document.getElementById('video').srcObject.getTracks()[0]")
    page.keyboard.press("Enter")
    wait_for(page, "#status", "Answered by pets")
    wait_for(page, "#drop-hint", "camera.jpg")
    size = page.locator("#preview").evaluate("(one) => one.decode().then(() => [one.naturalWidth, one.naturalHeight])")
    assert min(size) > 100
    playwright.expect(dialog).to_be_hidden()
    assert page.evaluate("window.track.readyState") == "ended"
    assert told.errors == []
    page.close()


def test_a_camera_that_may_not_be_used_is_an_error_that_people_can_read(browser: Any, running: Running) -> None:
    page, told = open_page(browser, running)
    page.click("#camera")
    wait_for(page, "#error", "The camera can't be used")
    playwright.expect(page.locator("#camera-dialog")).to_be_hidden()
    assert told.errors == []
    page.close()


def test_a_picture_may_come_before_the_models_are_known(browser: Any, running: Running, tmp_path: Path) -> None:
    page = browser.new_page()
    told = Told(page)
    held: list[Any] = []
    page.route("**/v1/models", lambda asked: held.append(asked))  # a function that can be marked
    page.goto(running.address)
    page.set_input_files("#file", save_colour(tmp_path / "blue.png", "blue", seed=72))
    wait_for(page, "#status", "Looking ...")
    for _ in range(1500):
        if held:
            break
        page.wait_for_timeout(20)
    held[0].continue_()
    wait_for(page, "#status", "Answered by pets")
    assert page.locator("#classes .answers li").count() == 3
    assert page.locator("#gallery-label").inner_text() == "blue"
    assert told.errors == []
    page.close()


def test_what_was_asked_of_another_model_or_with_another_key_is_dropped(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("two")
    keys = folder / "keys.txt"
    keys.write_text(f"read {'k' * 24} us\n")
    keys.chmod(0o600)
    first, second = (save_tiny(folder / name, seed=seed) for seed, name in enumerate(("first", "second")))
    with serving(str(first), str(second), keys=keys) as running:
        page, told = open_page(browser, running)
        page.set_input_files("#file", save_colour(folder / "blue.png", "blue", seed=73))
        page.wait_for_selector("#error:visible")
        assert "key" in page.locator("#error").inner_text()
        playwright.expect(page.locator("#status")).to_be_empty()
        held: list[Any] = []
        page.route("**/v1/models", lambda asked: held.append(asked))
        page.fill("#key", "wrong" * 5)
        page.click("#key-form button")
        page.fill("#key", "k" * 24)
        page.click("#key-form button")
        for _ in range(100):
            if len(held) == 2:
                break
            page.wait_for_timeout(100)
        held[1].continue_()
        wait_for(page, "#status", "Answered by first")  # the picture that came before the key
        held[0].continue_()  # the refusal of the wrong key comes last, and changes nothing
        page.unroute("**/v1/models")
        waiting: list[Any] = []
        page.route("**/v1/models/second", lambda asked: waiting.append(asked))
        page.select_option("#model", "second")
        page.set_input_files("#file", save_colour(folder / "red.png", "red", seed=74))  # while it is being chosen
        page.select_option("#model", "first")
        wait_for(page, "#status", "Answered by first")
        waiting[0].continue_()
        page.wait_for_timeout(500)
        wait_for(page, "#status", "Answered by first")
        assert page.locator("#model").input_value() == "first"
        assert page.locator("#error").is_hidden()
        assert all("401" in error for error in told.errors)  # the browser's own words on such answers
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
    playwright.expect(page.locator("#classes-of-gallery summary")).to_be_focused()  # the button has gone
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


def test_a_gradient_is_of_a_class_of_this_model_and_this_picture(browser: Any, tmp_path: Path) -> None:
    pets, birds = save_tiny(tmp_path / "pets"), save_tiny(tmp_path / "birds", seed=1)
    write_json(birds / "task.json", {"task": "classify", "classes": ["owl", "tit", "wren"]})
    with serving(str(pets), str(birds)) as running:
        page, told = open_page(browser, running)
        named = iter(("cat", "dog"))

        def name(asked: Any) -> None:
            """Answer as a model of many classes, of which each picture has another."""
            asked.fulfill(json={"predictions": [{"answers": [{"class": next(named), "probability": 1.0}]}]})

        page.route("**/pets/predict", name)
        shown, chosen = page.locator("#maps img.shown"), page.locator("#class")
        page.set_input_files("#file", save_colour(tmp_path / "blue.png", "blue", seed=77))
        wait_for(page, "#status", "Answered by pets: cat")
        page.select_option("#kind", "gradient")
        playwright.expect(shown).to_have_attribute("alt", re.compile("gradient, class cat;"))
        page.set_input_files("#file", save_colour(tmp_path / "red.png", "red", seed=78))
        wait_for(page, "#status", "Answered by pets: dog")
        assert (chosen.input_value(), "class dog;" in shown.get_attribute("alt")) == ("dog", True)
        page.select_option("#model", "birds")
        wait_for(page, "#status", "Answered by birds")
        assert chosen.input_value() in ("owl", "tit", "wren")
        assert f"gradient, class {chosen.input_value()};" in shown.get_attribute("alt")
        assert told.errors == []
        page.close()


def test_a_part_that_fails_leaves_the_others(browser: Any, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "pets")
    gallery = build_gallery(tmp_path / "colours", model, "red", "blue")
    with serving(str(model), str(gallery)) as running:
        page, told = open_page(browser, running)
        page.on("dialog", lambda dialog: dialog.accept())
        page.set_input_files("#file", save_colour(tmp_path / "blue.png", "blue", seed=79))
        wait_for(page, "#status", "the gallery says blue")
        page.locator("#classes-of-gallery summary").click()
        for name in ("red", "blue"):
            page.get_by_label(f"Remove the class {name}").click()
            wait_for(page, "#taught", f"{name} is removed")
        wait_for(page, "#neighbours .failure", "is empty: add images first")
        wait_for(page, "#status", "Answered by pets")
        assert page.locator("#classes .answers li").count() == 3
        assert page.locator("#maps img.shown").is_visible()
        assert page.locator("#error").is_hidden()
        assert page.locator("#neighbours .code").inner_text() == ""
        page.fill("#label", "sky")
        page.check("#with-shown")
        page.click("#teach-form button")
        wait_for(page, "#gallery-label", "sky")
        assert page.locator("#neighbours .failure").count() == 0
        assert all("409" in error for error in told.errors)  # the browser's own words on such answers
        page.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_curl_that_is_shown_gives_the_answer(browser: Any, running: Running, tmp_path: Path) -> None:
    page, told = open_page(browser, running)

    def run_shown(place: str) -> Any:
        page.locator(f"{place} .code summary").click()
        command = page.locator(f"{place} .code pre").first.inner_text()
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env={**os.environ, "no_proxy": "*"}, capture_output=True, check=True
        )
        return json.loads(done.stdout)

    picture = save_colour(tmp_path / 'it\'s "a", \\b; $HOME.png', "cyan", seed=80)
    page.set_input_files("#file", picture)
    wait_for(page, "#status", "Answered by pets")
    answers = run_shown("#classes")["predictions"][0]["answers"]
    assert page.locator("#classes .answers li .line span").first.inner_text() == answers[0]["class"]
    page.fill("#label", "@home <of> ours; type=x")
    page.check("#with-shown")
    page.click("#teach-form button")
    wait_for(page, "#taught", "1 added to @home")
    assert run_shown("#teach")["label"] == "@home <of> ours; type=x"
    with running.client() as client:
        removed = client.delete("/v1/galleries/colours/images", params={"label": "@home <of> ours; type=x"})
    assert removed.status_code == 200
    assert told.errors == []
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
def test_it_fits_a_phone_and_can_be_used_without_a_mouse(
    browser: Any, running: Running, scheme: str, tmp_path: Path
) -> None:
    page, told = open_page(browser, running, viewport=PHONE, color_scheme=scheme)
    page.wait_for_selector("#teach:visible")
    seen, unmarked = [], []
    for _ in range(9):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        if not page.evaluate(IS_MARKED):
            unmarked.append(seen[-1])
    assert seen[:3] == ["file", "camera", "Key"]
    assert {"label", "examples", "with-shown"} <= set(seen)
    assert unmarked == []
    page.set_input_files("#file", save_colour(tmp_path / f"{'long' * 30}.png", "blue", seed=76))
    wait_for(page, "#status", "Answered by pets")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for width in (PHONE["width"], 320):
        page.set_viewport_size({**PHONE, "width": width})
        assert page.evaluate(CUT_OFF) == []
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, button, img, section")].filter((one) => one.checkVisibility()
            && !one.ariaHidden
            && !(one.labels?.length || one.textContent.trim() || one.alt || one.getAttribute("aria-label"))).length"""
    )
    assert unnamed == 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 23, 26)") == (scheme == "dark")
    page.goto(f"{running.address}/docs")
    assert page.evaluate(CUT_OFF) == []
    assert told.errors == []
    page.close()
