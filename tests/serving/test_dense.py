"""Models that answer about places in images, over HTTP: masks, boxes, and pictures of them."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from served import Running, encode, read_png, serving
from tiny_dense import DETECT_CHAINED, SEGMENT
from tiny_runs import run_in

from vitrail.inference.trained import load_trained

PIXELS = (*SEGMENT, "data=shapes:size=32,count=8,val=4", "image_size=32", "epochs=1", "segment.channels=8")
THINGS = (
    *DETECT_CHAINED,
    "data=shapes:size=64,count=8,val=4",
    "epochs=1",
    "detector.max_detections=5",
    "augmentation.short_sides=[64]",
    "augmentation.crop=0.0",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {"pixels": run_in(folder / "pixels", *PIXELS).path, "things": run_in(folder / "things", *THINGS).path}


@pytest.fixture(scope="module")
def running(runs: dict[str, Path]) -> Iterator[Running]:
    with serving(*map(str, runs.values())) as server:
        yield server


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


def test_masks(client: httpx.Client, runs: dict[str, Path]) -> None:
    assert client.get("/v1/models/pixels").json()["abilities"] == ["segment", "explain"]
    picture = encode("cyan", side=40)
    (found,) = client.post("/v1/models/pixels/segment", files={"image": picture}).json()["predictions"]
    assert (found["height"], found["width"]) == (40, 40)
    assert sum(one["share"] for one in found["classes"]) == pytest.approx(1.0, abs=1e-5)
    mask = read_png(base64.b64decode(found["png"]["mask"]))
    expected = load_trained(runs["pixels"]).predict(np.asarray(Image.open(BytesIO(picture))))
    np.testing.assert_array_equal(mask, expected.mask)  # type: ignore[union-attr]
    shown = client.post("/v1/models/pixels/segment", files={"image": picture}, data={"picture": "overlay"})
    assert read_png(shown.content).shape == (40, 40, 3)
    wrong = client.post("/v1/models/pixels/segment", files={"image": picture}, data={"picture": "photo"})
    assert (wrong.status_code, "picture is one of mask, overlay" in wrong.text) == (400, True)


def test_objects(client: httpx.Client) -> None:
    assert client.get("/v1/models/things").json()["abilities"][0] == "detect"
    answer = client.post("/v1/models/things/detect", files=[("image", encode(side=64)), ("image", encode(side=48))])
    first, second = answer.json()["predictions"]
    assert (first["width"], second["width"]) == (64, 48)
    assert {"class", "probability", "box", "mask"} <= first["objects"][0].keys()
    assert read_png(base64.b64decode(first["png"]["overlay"])).ndim == 3
    assert client.post("/v1/models/things/predict", files={"image": encode()}).status_code == 404


def test_the_page_lays_masks_and_boxes_over_a_picture(running: Running, tmp_path: Path) -> None:
    browsing = pytest.importorskip("browsing", reason="playwright is not installed")
    picture = tmp_path / "cyan.png"
    picture.write_bytes(encode("cyan", side=64))
    with browsing.browsing() as browser:
        page, told = browsing.open_page(browser, running)
        page.set_input_files("#file", picture)
        shown = page.locator("#overlay img.shown")
        for name, verb in (("pixels", "segment"), ("things", "detect"), ("pixels", "segment")):
            page.select_option("#model", name)
            browsing.wait_for(page, "#status", f"Answered by {name}")
            assert page.locator("#classes").is_hidden()
            assert shown.get_attribute("alt").startswith("your picture with what was found: ")
            width, height = shown.evaluate("one => one.decode().then(() => [one.naturalWidth, one.naturalHeight])")
            assert width == height >= 64
            page.locator("#overlay summary").click()
            assert f"/v1/models/{name}/{verb}" in page.locator("#overlay pre").first.inner_text()
        assert told.errors == []
        page.close()


def test_a_broken_image_is_refused_alone(client: httpx.Client) -> None:
    whole = encode(side=64)
    cut = client.post("/v1/models/things/detect", files={"image": whole[:-30]})
    assert cut.status_code == 422
    assert "cut off or damaged" in cut.json()["error"]["message"]
    assert client.post("/v1/models/things/detect", files={"image": whole}).status_code == 200


def test_the_protocol_gives_answers_as_texts(client: httpx.Client) -> None:
    asked = {
        "inputs": [
            {
                "name": "image",
                "datatype": "BYTES",
                "shape": [1],
                "data": [base64.b64encode(encode(side=32)).decode()],
            }
        ]
    }
    assert client.get("/v2/models/pixels").json()["outputs"] == [{"name": "answer", "datatype": "BYTES", "shape": [-1]}]
    (output,) = client.post("/v2/models/pixels/infer", json=asked).json()["outputs"]
    assert output["name"] == "answer"
    assert '"classes"' in output["data"][0]


def test_images_that_pictures_are_drawn_of_are_bounded_together(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.service, "limits", replace(running.service.limits, max_pixels=2000))
    pictures = [("image", encode(side=40))] * 2
    assert client.post("/v1/models/pixels/segment", files=pictures[:1]).status_code == 200
    refused = client.post("/v1/models/pixels/segment", files=pictures)
    assert (refused.status_code, "more than 0.002 megapixels together" in refused.text) == (413, True)
