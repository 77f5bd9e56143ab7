"""The Open Inference Protocol, by hand and with the client of Triton."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from served import CLASSES, Running, as_text, encode, save_tiny, serving
from tiny_galleries import COLOURS, paint


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(str(save_tiny(tmp_path_factory.mktemp("served") / "pets"))) as server:
        yield server


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


def ask(client: httpx.Client, *inputs: dict[str, Any], **others: Any) -> httpx.Response:
    return client.post("/v2/models/pets/infer", json={"inputs": list(inputs), **others})


def image(*texts: str, **others: Any) -> dict[str, Any]:
    return {"name": "image", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts), **others}


def test_metadata_and_health(client: httpx.Client) -> None:
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/pets/ready").json() == {"name": "pets", "ready": True}
    described = client.get("/v2/models/pets/versions/1").json()
    assert [(one["name"], one["datatype"]) for one in described["inputs"]] == [("image", "BYTES"), ("pixels", "UINT8")]
    assert described["outputs"][0] == {"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]}
    missing = client.get("/v2/models/none")
    assert (missing.status_code, type(missing.json()["error"])) == (404, str)


def test_files_and_pixels_give_the_same(client: httpx.Client) -> None:
    pixels = paint(COLOURS["red"], seed=0)
    by_file = ask(client, image(as_text(encode("red"))), id="seven").json()
    assert (by_file["id"], by_file["model_name"]) == ("seven", "pets")
    shaped = {"name": "pixels", "datatype": "UINT8", "shape": [1, 16, 16, 3], "data": pixels.tolist()}
    by_pixels = ask(client, shaped).json()
    assert by_pixels["outputs"][0]["data"] == pytest.approx(by_file["outputs"][0]["data"], abs=1e-6)
    assert sum(by_file["outputs"][0]["data"]) == pytest.approx(1.0, abs=1e-5)
    answer = client.post("/v1/models/pets/predict", files={"image": encode("red")}).json()
    label = answer["predictions"][0]["answers"][0]["class"]
    named = ask(client, image(as_text(encode("red"))), outputs=[{"name": "label"}, {"name": "embedding"}]).json()
    assert named["outputs"][0]["data"] == [label]
    assert named["outputs"][1]["shape"] == [1, 24]


def test_binary_tensors_by_hand(client: httpx.Client) -> None:
    data = encode("blue")
    blob = struct.pack("<I", len(data)) + data
    entry = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(blob)}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    answer = client.post("/v2/models/pets/infer", content=head + blob, headers=headers)
    length = int(answer.headers["inference-header-content-length"])
    described = json.loads(answer.content[:length])["outputs"][0]
    assert described["parameters"] == {"binary_data_size": 12}
    values = np.frombuffer(answer.content[length:], "<f4")
    listed = ask(client, image(as_text(data))).json()["outputs"][0]["data"]
    np.testing.assert_allclose(values, listed, atol=1e-6)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "no inputs"),
    ({"inputs": 3}, "inputs must be a list"),
    ({"inputs": [{"datatype": "BYTES"}]}, "has no name"),
    ({"inputs": [image("!!")]}, "not in base64"),
    ({"inputs": [image(as_text(b"no image"))]}, "the image"),
    ({"inputs": [image(as_text(b"x"), shape=[2])]}, "has 1 values and the shape [2]"),
    ({"inputs": [image(as_text(b"x"), shape=[0])]}, "is no list of up to four sizes"),
    ({"inputs": [image(as_text(b"x"), shape=[10**9, 10**9])]}, "more than 64 images"),
    ({"inputs": [image(as_text(b"x"), datatype="FP64")]}, "has the datatype 'FP64'"),
    ({"inputs": [image(as_text(b"x"), datatype=["BYTES"])]}, "has the datatype"),
    ({"inputs": [image(*[as_text(b"x")] * 256, shape=[1, 256])]}, "is [images] or [images, 1]"),
    ({"inputs": [image(as_text(b"x"), parameters={"binary_data_size": 99})]}, "more than the body holds"),
    ({"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, 2, 999]}]}, "no bytes"),
    ({"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [10**400]}]}, "no bytes"),
    ({"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [1.5]}]}, "no bytes"),
    ({"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [3], "data": [1, 2, 3]}]}, "UINT8 [images, height"),
    ({"inputs": [{"name": "other", "datatype": "UINT8", "shape": [1], "data": [1]}]}, "give one input"),
    ({"inputs": [image(as_text(encode()))], "outputs": [{"name": "none"}]}, "has no output 'none'"),
]


@pytest.mark.parametrize(("body", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_wrong_requests_are_refused_in_a_line(client: httpx.Client, body: dict[str, Any], reason: str) -> None:
    answer = client.post("/v2/models/pets/infer", json=body)
    assert 400 <= answer.status_code < 500
    assert reason in answer.json()["error"]


@pytest.mark.parametrize("length", ["9" * 5000, "--3", "0", "10000"])
def test_a_length_that_is_none_is_refused(client: httpx.Client, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    answer = client.post("/v2/models/pets/infer", json={"inputs": []}, headers=headers)
    assert (answer.status_code, "is no length within the body" in answer.json()["error"]) == (400, True)


def test_texts_may_stand_in_a_column(client: httpx.Client) -> None:
    texts = [[as_text(encode("red"))], [as_text(encode("blue"))]]
    answer = ask(client, image(shape=[2, 1], data=texts))
    assert answer.json()["outputs"][0]["shape"] == [2, 3]


@pytest.mark.parametrize("value", [b"1,", b"{},", b"[],"])
def test_json_of_millions_of_values_is_refused_unread(client: httpx.Client, value: bytes) -> None:
    body = b'{"inputs": [' + value * 2_000_000 + b"1]}"
    answer = client.post("/v2/models/pets/infer", content=body)
    assert (answer.status_code, "or binary tensors" in answer.json()["error"]) == (413, True)


def test_a_server_that_stops_is_not_ready(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.service, "is_draining", True)
    for path, told in (("health/ready", {}), ("models/pets/ready", {"name": "pets"})):
        answer = client.get(f"/v2/{path}")
        assert (answer.status_code, answer.json()) == (503, {**told, "ready": False})


def test_the_client_of_triton_works(running: Running) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
    try:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("pets")
        assert client.get_server_metadata()["name"] == "vitrail"
        assert client.get_model_metadata("pets")["outputs"][0]["shape"] == [-1, 3]
        files = np.array([encode("red"), encode("cyan")], dtype=object)
        given = triton.InferInput("image", [2], "BYTES")
        given.set_data_from_numpy(files)  # as bytes behind the JSON
        wanted = [
            triton.InferRequestedOutput("probabilities", binary_data=True),
            triton.InferRequestedOutput("label", binary_data=True),
            triton.InferRequestedOutput("embedding", binary_data=False),
        ]
        answer = client.infer("pets", [given], outputs=wanted, request_id="one")
        probabilities = answer.as_numpy("probabilities")
        assert probabilities.shape == (2, 3)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-5)
        labels = [text.decode() for text in answer.as_numpy("label")]
        assert labels == [CLASSES[at] for at in probabilities.argmax(axis=1)]
        assert answer.as_numpy("embedding").shape == (2, 24)
        pixels = triton.InferInput("pixels", [1, 16, 16, 3], "UINT8")
        pixels.set_data_from_numpy(paint(COLOURS["red"], seed=0)[None])
        again = client.infer("pets", [pixels]).as_numpy("probabilities")
        np.testing.assert_allclose(again[0], probabilities[0], atol=1e-6)
        with pytest.raises(triton.InferenceServerException, match="no model 'none'"):
            client.infer("none", [given])
    finally:
        client.close()


def test_several_models_are_kept_apart(tmp_path: Path) -> None:
    words = f"one={save_tiny(tmp_path / 'a')}", f"two={save_tiny(tmp_path / 'b', seed=5)}"
    asked = {"inputs": [image(as_text(encode()))]}
    with serving(*words) as server, server.client() as client:
        one, two = (client.post(f"/v2/models/{name}/infer", json=asked).json() for name in ("one", "two"))
    assert one["outputs"][0]["data"] != two["outputs"][0]["data"]
