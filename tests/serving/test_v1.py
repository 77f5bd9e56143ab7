"""Models and galleries over real HTTP: what they answer, and that it is what Python gives."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from fastapi.responses import JSONResponse
from served import CLASSES, Running, as_text, build_gallery, encode, read_png, save_tiny, serving
from tiny_galleries import paint

from vitrail.inference.trained import load_trained
from vitrail.serving import routes_v1
from vitrail.serving.served_model import ServedModel


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    model = save_tiny(folder / "pets")
    return {"pets": model, "shades": build_gallery(folder / "shades", model)}


@pytest.fixture(scope="module")
def running(places: dict[str, Path]) -> Iterator[Running]:
    with serving(str(places["pets"]), f"colours={places['shades']}") as server:
        yield server


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


def test_it_says_what_it_serves(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    (model,) = listed["models"]
    assert (model["name"], model["abilities"], model["classes"]) == ("pets", ["predict", "embed", "explain"], 3)
    assert listed["galleries"] == ["colours"]
    described = client.get("/v1/models/pets").json()
    assert described["classes"] == CLASSES
    assert described["galleries"] == ["colours"]  # it shares the model that is served
    assert described["maps"] == {
        "kinds": ["attention", "rollout", "gradient", "likeness"],
        "layers": [0],
        "heads": 2,
        "shown_layer": 0,
    }


def test_answers_are_those_of_python(client: httpx.Client, places: dict[str, Path]) -> None:
    colours = ("red", "blue", "cyan")
    expected = load_trained(places["pets"]).predict(
        [
            paint({"red": (200, 30, 30), "blue": (30, 40, 200), "cyan": (20, 190, 200)}[name], seed=0)
            for name in colours
        ],
        top=2,
    )
    assert isinstance(expected, list)
    files = [("image", (f"{name}.png", encode(name), "image/png")) for name in colours]
    by_form = client.post("/v1/models/pets/predict", files=files, data={"top": "2"}).json()["predictions"]
    by_json = client.post(
        "/v1/models/pets/predict?top=2", json={"images": [as_text(encode(name)) for name in colours]}
    ).json()["predictions"]
    for answers, wanted, again in zip(by_form, expected, by_json, strict=True):
        assert [one["class"] for one in answers["answers"]] == list(wanted.classes)  # type: ignore[attr-defined]
        told = [one["probability"] for one in answers["answers"]]
        assert told == pytest.approx(list(wanted.probabilities), abs=2e-6)  # type: ignore[attr-defined]
        assert [one["probability"] for one in again["answers"]] == pytest.approx(told, abs=2e-6)
    bare = client.post("/v1/models/pets/predict", content=encode("red"), headers={"Content-Type": "image/png"}).json()
    assert bare["predictions"][0]["answers"][0] == by_form[0]["answers"][0]


def test_embeddings_and_maps(client: httpx.Client) -> None:
    (vector,) = client.post("/v1/models/pets/embed", json={"image": as_text(encode())}).json()["embeddings"]
    assert len(vector) == 24
    shown = client.post("/v1/models/pets/explain", files={"image": encode(side=64)}, data={"layer": "0", "head": "1"})
    assert shown.headers["content-type"] == "image/png"
    assert read_png(shown.content).shape == (64, 64, 3)
    told = client.post(
        "/v1/models/pets/explain",
        json={"image": as_text(encode()), "kind": "gradient", "class": "dog", "format": "json", "picture": "map"},
    ).json()
    assert (told["kind"], told["class"]) == ("gradient", "dog")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"layer": "7"}, "layer 7 is not one of the layers 0 to 0"),
        ({"head": "2"}, "head 2 is not one of the heads 0 to 1"),
        ({"kind": "magic"}, "kind must be one of attention, rollout, gradient, likeness, mixing"),
        ({"kind": "rollout", "layer": "0"}, "rollout maps go through all layers"),
        ({"kind": "gradient", "class": "horse"}, "knows no class 'horse'"),
        ({"picture": "photo"}, "picture is one of overlay, map"),
        ({"layer": "first"}, "layer is a whole number"),
        ({"layer": "--1"}, "layer is a whole number"),
    ],
)
def test_maps_that_there_are_not_are_refused(client: httpx.Client, words: dict[str, str], reason: str) -> None:
    answer = client.post("/v1/models/pets/explain", files={"image": encode()}, data=words)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


@pytest.mark.parametrize("top", ["--3", "3-", "0", "1001", "\u0663", "9" * 5000])
def test_numbers_that_are_none_are_refused(client: httpx.Client, top: str) -> None:
    answer = client.post("/v1/models/pets/predict", files={"image": encode()}, data={"top": top})
    assert answer.status_code == 400
    assert "top is a whole number from 1 to 1000" in answer.json()["error"]["message"]


def test_a_gallery_is_searched_and_learns_a_class(client: httpx.Client) -> None:
    found = client.post("/v1/galleries/colours/search", files={"image": encode("blue", seed=50)}, data={"top": "3"})
    (result,) = found.json()["results"]
    assert result["label"] == "blue"
    assert [hit["labels"]["label"] for hit in result["hits"]] == ["blue"] * 3
    assert result["hits"][0]["thumbnail"].startswith("/9j/")  # a JPEG
    strange = np.full((16, 16, 3), (90, 200, 60), np.uint8)
    pictures = [
        np.clip(strange + np.random.default_rng(seed).integers(0, 9, strange.shape), 0, 255) for seed in range(4)
    ]
    files = [("image", ("green.png", _as_file(picture.astype(np.uint8)), "image/png")) for picture in pictures]
    query = {"image": _as_file(strange)}
    before = client.post("/v1/models/pets/search", files=query).json()["results"][0]
    added = client.post("/v1/galleries/colours/images", files=files, data={"label": "green"})
    assert (added.status_code, added.json()["added"], added.json()["images_of_label"]) == (201, 4, 4)
    after = client.post("/v1/models/pets/search", files=query).json()["results"][0]
    assert before["label"] != "green"
    assert after["label"] == "green"
    assert client.get("/v1/galleries/colours").json()["classes"]["green"] == 4
    gone = client.request("DELETE", "/v1/galleries/colours/images", params={"id": after["hits"][0]["id"]})
    assert gone.json()["removed"] == 1
    gone = client.request("DELETE", "/v1/galleries/colours/images", params={"label": "green"})
    assert gone.json()["removed"] == 3
    assert client.request("DELETE", "/v1/galleries/colours/images?label=green").status_code == 404


def _as_file(pixels: np.ndarray) -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/v1/models/horse", 404, "no model 'horse'; there are: pets"),
        ("POST", "/v1/models/pets/segment", 404, "can't segment; it can: predict, embed, explain"),
        ("POST", "/v1/models/pets/detect", 404, "can't detect"),
        ("POST", "/v1/galleries/none/search", 404, "no gallery 'none'; there are: colours"),
        ("GET", "/v1/nothing", 404, "there is nothing at this address"),
        ("PUT", "/v1/models", 405, "takes another method"),
        ("GET", "/static/../app.py", 404, "there is nothing"),
        ("GET", "/static/app.py", 404, "no such file"),
    ],
)
def test_what_is_not_there(client: httpx.Client, method: str, path: str, status: int, reason: str) -> None:
    answer = client.request(method, path, files={"image": encode()} if method == "POST" else None)
    assert answer.status_code == status
    assert reason in answer.json()["error"]["message"]


def test_every_answer_has_an_id_and_a_strict_policy(client: httpx.Client) -> None:
    own = client.get("/v2/health/live", headers={"X-Request-ID": "order-66"})
    assert own.headers["x-request-id"] == "order-66"
    made = client.get("/v1/models", headers={"X-Request-ID": "no spaces\tallowed"})
    assert len(made.headers["x-request-id"]) == 32
    for answer in (own, made, client.get("/"), client.get("/nothing")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


def test_prometheus_reads_numbers(client: httpx.Client) -> None:
    client.post("/v1/models/pets/predict", files={"image": encode()})
    client.get("/v1/models/secret-name")
    text = client.get("/metrics").text
    assert 'vitrail_requests_total{name="pets",route="/v1/models/{name}/predict",status="200"}' in text
    assert 'vitrail_request_seconds_bucket{le="0.005",name="pets",route="/v1/models/{name}/predict"}' in text
    assert 'vitrail_batch_images_count{name="pets",verb="predict"}' in text
    assert 'vitrail_queue_images{name="pets",verb="predict"} 0.0' in text
    assert 'vitrail_gallery_images{name="colours"}' in text
    assert "secret-name" not in text  # names that clients invent are no labels


def test_the_routes_are_documented_without_a_network(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert "multipart/form-data" in document["paths"]["/v1/models/{name}/predict"]["post"]["requestBody"]["content"]
    told = [
        document["paths"][f"/v1/{kind}/{{name}}/search"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for kind in ("models", "galleries")
    ]
    assert [sorted(one["properties"]) for one in told] == [
        ["coarse", "gallery", "images", "rank", "top"],
        ["coarse", "images", "rank", "top"],
    ]
    asked = document["paths"]["/v2/models/{name}/infer"]["post"]["requestBody"]["content"]
    assert asked["application/json"]["schema"]["required"] == ["inputs"]
    assert "application/octet-stream" in asked
    removing = document["paths"]["/v1/galleries/{name}/images"]["delete"]["parameters"]
    assert {one["name"] for one in removing} == {"name", "label", "id"}
    page = client.get("/docs").text
    assert "/v1/galleries/{name}/images" in page
    assert "https://" not in page
    assert "<script" not in page


def test_what_nobody_foresaw_is_an_error_like_all_others(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise OSError(f"{__file__} is gone")

    monkeypatch.setattr(running.service, "look", fail)
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [as_text(encode())]}
    bodies: dict[str, dict[str, object]] = {
        "/v1/models/pets/predict": {"images": [as_text(encode())]},
        "/v2/models/pets/infer": {"inputs": [tensor]},
    }
    for path, body in bodies.items():
        answer = client.post(path, json=body, headers={"X-Request-ID": "order-67"})
        assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
        assert answer.headers["x-request-id"] == "order-67"
        assert "something went wrong in the server" in answer.text
        assert not [word for word in (".py", "Traceback", "OSError", "gone") if word in answer.text]
        error = answer.json()["error"]
        assert isinstance(error, str) == path.startswith("/v2")
        assert isinstance(error, str) or (error["status"], error["request_id"]) == (500, "order-67")
    failed = [one for one in caplog.records if one.exc_info is not None]
    assert [one.exc_info[0] for one in failed if one.exc_info] == [OSError, OSError]


def test_no_answer_names_a_place_of_the_machine(client: httpx.Client, places: dict[str, Path]) -> None:
    root = str(places["pets"].parent)
    answers = [
        client.get(path).text
        for path in ("/v1/models", "/v1/models/pets", "/v1/galleries/colours", "/v2/models/pets", "/metrics", "/docs")
    ]
    answers.append(client.post("/v1/galleries/colours/search", files={"image": encode()}).text)
    manifest = places["shades"] / "gallery.json"
    whole = manifest.read_bytes()
    try:
        manifest.write_bytes(b"{}")
        broken = client.post("/v1/galleries/colours/search", files={"image": encode()})
        refused = client.post("/v1/galleries/colours/images", files={"image": encode()}, data={"label": "red"})
    finally:
        manifest.write_bytes(whole)
    assert broken.status_code == 503
    assert refused.status_code == 503
    answers += [broken.text, refused.text]
    assert not [answer for answer in answers if root in answer or "site-packages" in answer or "/src/" in answer]
    assert client.post("/v1/galleries/colours/search", files={"image": encode()}).status_code == 200


def test_batches_hold_images_of_several_requests(running: Running) -> None:
    seen: list[int] = []
    crew = running.service.crew
    batcher = crew.batcher(crew.model("pets"), "predict")
    former, batcher._note = batcher._note, lambda count, seconds: seen.append(count)
    try:
        with running.client() as client:
            many = client.post("/v1/models/pets/predict", json={"images": [as_text(encode())] * 40})
    finally:
        batcher._note = former
    assert many.status_code == 200
    assert len({tuple(one["class"] for one in each["answers"]) for each in many.json()["predictions"]}) == 1
    assert sum(seen) == 40
    assert max(seen) == 16


def test_large_answers_are_written_by_worker_threads(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    class Watched(JSONResponse):
        def render(self, content: object) -> bytes:
            threads.append(threading.current_thread().name)
            return super().render(content)

    monkeypatch.setattr(routes_v1, "JSONResponse", Watched)
    for path in ("models/pets/predict", "models/pets/embed", "models/pets/search", "galleries/colours/search"):
        files = [("image", encode(seed=seed)) for seed in range(5)]
        assert client.post(f"/v1/{path}", files=files, data={"top": "200"}).status_code == 200
    assert client.get("/v1/galleries/colours").status_code == 200
    assert [name.partition("_")[0] for name in threads] == ["worker"] * 5


def test_images_for_a_gallery_are_embedded_where_models_compute(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    run = ServedModel._run

    def watch(self: ServedModel, module: torch.nn.Module, pictures: Sequence[torch.Tensor]) -> torch.Tensor:
        threads.append(threading.current_thread().name)
        return run(self, module, pictures)

    monkeypatch.setattr(ServedModel, "_run", watch)
    path = "/v1/galleries/colours/images"
    added = client.post(path, files={"image": encode("red", seed=900)}, data={"label": "crimson"})
    assert added.status_code == 201
    assert client.delete(path, params={"label": "crimson"}).json() == {"gallery": "colours", "removed": 1}
    assert [name.partition("_")[0] for name in threads] == ["compute"]


def test_a_batch_is_computed_as_its_images_would_be_alone(places: dict[str, Path]) -> None:
    model = ServedModel("pets", load_trained(places["pets"]), device=torch.device("cpu"))
    pictures = [torch.from_numpy(paint((200, 30, 30), seed=seed)).permute(2, 0, 1) for seed in range(3)]
    together = torch.stack(model.compute_logits(pictures))
    alone = torch.cat([torch.stack(model.compute_logits([picture])) for picture in pictures])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
