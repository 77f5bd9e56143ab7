"""What words of a command line name, what is loaded once, and the errors of both."""

import socket
from pathlib import Path

import pytest
import torch
from served import build_gallery, encode, save_tiny, serving
from tiny_runs import run_in

from vitrail.cli import main
from vitrail.gallery.gallery import Gallery
from vitrail.inference.exporting import ExportSettings, export_trained
from vitrail.inference.packs import pack_run
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained, load_trained
from vitrail.serving.fleet import FleetEntry, load_fleet, read_entries
from vitrail.serving.limits import ServingLimits

SHORT = ("epochs=1", "regularisation.ema=null", "augmentation.repeats=1")


def test_names_come_from_folders_models_or_people(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "My pets!")
    gallery = build_gallery(tmp_path / "shades", model)
    entries = read_entries([str(model), "deit_tiny", "init=random", f"b={gallery}", "timm/resnet50.a1_in1k"])
    assert entries == [
        FleetEntry("My-pets-", str(model)),
        FleetEntry("deit_tiny", "deit_tiny init=random"),
        FleetEntry("b", str(gallery), is_gallery=True),
        FleetEntry("resnet50.a1_in1k", "timm/resnet50.a1_in1k"),
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["init=x"], "belongs behind a model"),
        (["deit_tiny", "deit_tiny"], "two of what is served are called deit_tiny"),
        ([], "say what to serve"),
        (["---"], "has no name that an address can hold"),
    ],
)
def test_words_that_name_nothing(words: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_entries(words)


def test_packs_share_one_trunk_and_a_gallery_its_model(tmp_path: Path) -> None:
    trunk = run_in(tmp_path / "trunk", *SHORT)
    packs = []
    for name, seed in (("one", 1), ("two", 2)):
        words = (*SHORT, f"init={trunk.path}", "train_only=attention", "lr=1e-2", f"seed={seed}")
        packs.append(pack_run(run_in(tmp_path / name, *words).path).folder)
    gallery = build_gallery(tmp_path / "colours", tmp_path / "trunk")
    entries = read_entries([*map(str, packs), str(trunk.path), str(gallery)])
    assert [entry.name for entry in entries] == ["one", "two", "trunk", "colours"]
    fleet = load_fleet(entries, device=torch.device("cpu"))
    one, two = (dict(fleet.models[name].fast.named_parameters()) for name in ("one", "two"))
    shared = [name for name in one if one[name].data_ptr() == two[name].data_ptr()]
    assert "stem.projection.weight" in shared or any(name.startswith("stem.") for name in shared)
    assert not any(name.startswith("head.") for name in shared)
    assert len(shared) > len(one) // 3
    images = torch.rand(2, 3, 16, 16)
    for name, folder in zip(("one", "two"), packs, strict=True):
        alone = load_trained(folder).model
        torch.testing.assert_close(fleet.models[name].fast(images), alone(images))
    assert fleet.galleries["colours"].viewer is fleet.models["trunk"]


def test_a_gallery_alone_brings_its_model(tmp_path: Path) -> None:
    gallery = build_gallery(tmp_path / "colours", save_tiny(tmp_path / "pets"))
    with serving(str(gallery)) as server, server.client() as client:
        described = client.get("/v1/models/colours").json()
        assert described["galleries"] == ["colours"]
        found = client.post("/v1/models/colours/search", files={"image": encode("cyan", seed=90)})
        assert found.json()["results"][0]["label"] == "cyan"


def test_a_gallery_on_milvus_is_served_as_a_folder_is(tmp_path: Path) -> None:
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    model = save_tiny(tmp_path / "pets")
    known = ("red", "orange", "blue")
    places = {
        "folder": str(build_gallery(tmp_path / "folder", model, *known)),
        "shades": build_gallery(f"milvus:{tmp_path}/shades.db", model, *known),
    }
    assert [one.name for one in read_entries(list(places.values()))] == list(places)
    assert read_entries(["milvus:a b.db"])[0] == FleetEntry("a-b", "milvus:a b.db", is_gallery=True)
    assert read_entries(["milvus:a.db#cats"])[0].name == "cats"
    assert read_entries(["milvus://host/base/dogs"])[0].name == "dogs"
    with serving(str(model), *places.values()) as server, server.client() as client:
        answers = []
        for name, place in places.items():
            address = f"/v1/galleries/{name}"
            before = client.get(address).json()
            added = client.post(f"{address}/images", files={"image": encode("cyan")}, data={"label": "cyan"})
            found = client.post(f"{address}/search", files={"image": encode("cyan", seed=3)}).json()["results"][0]
            hit = found["hits"][0]
            assert hit["labels"][before["level"]] == "cyan"
            removed = client.delete(f"{address}/images", params={"id": hit["id"]})
            missing = client.delete(f"{address}/images", params={"label": "cyan"})
            assert client.get(address).json() == before
            Gallery(place).remove("red")  # as another would
            changed = client.get(address).json()
            assert "red" not in changed["classes"]
            statuses = added.status_code, removed.status_code, missing.status_code
            answers.append((before["classes"], found["label"], hit["cosine"], statuses, changed["images"]))
        folder, database = answers
        assert database[:2] == folder[:2]
        assert database[2] == pytest.approx(folder[2], abs=1e-5)
        assert database[3:] == folder[3:]
        assert folder[3] == (201, 200, 404)


@pytest.mark.parametrize("engine", ["eager", "onnx"])
def test_an_exported_folder_is_served_as_its_model_is(tmp_path: Path, engine: str) -> None:
    model = save_tiny(tmp_path / "pets")
    noise = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    export_trained(
        load_trained(model),
        ExportSettings(engine=engine),
        images=ProofImages(noise, torch.tensor([0, 1, 2]), "noise"),
        source=str(model),
        out=tmp_path / "fast",
    )
    files = [("image", encode("red")), ("image", encode("blue"))]
    with serving(str(model), str(tmp_path / "fast")) as server, server.client() as client:
        assert client.get("/v1/models/fast").json()["abilities"] == ["predict", "embed"]
        first, second = (
            client.post(f"/v1/models/{name}/predict", files=files).json()["predictions"] for name in ("pets", "fast")
        )
        for own, exported in zip(first, second, strict=True):
            assert [one["class"] for one in own["answers"]] == [one["class"] for one in exported["answers"]]
            told = [one["probability"] for one in exported["answers"]]
            assert told == pytest.approx([one["probability"] for one in own["answers"]], abs=1e-4)
        vectors = [client.post(f"/v1/models/{name}/embed", files=files).json() for name in ("pets", "fast")]
        torch.testing.assert_close(*(torch.tensor(one["embeddings"]) for one in vectors), rtol=1e-3, atol=1e-4)
        refused = client.post("/v1/models/fast/explain", files={"image": encode()})
        assert (refused.status_code, "can't explain; it can: predict, embed" in refused.text) == (404, True)


def test_threads_reach_the_engine_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int | None]] = []
    trained = load_trained(save_tiny(tmp_path / "pets"))

    def load(source: str, *, threads: int | None = None) -> Trained:
        seen.append((source, threads))
        return trained

    monkeypatch.setattr("vitrail.serving.fleet.is_exported", lambda folder: folder.name == "fast")
    monkeypatch.setattr("vitrail.serving.fleet.load_exported", load)
    place = str(tmp_path / "fast")
    entries = read_entries([str(tmp_path / "pets"), place])
    for threads in (3, None):
        load_fleet(entries, device=torch.device("cpu"), threads=threads)
    assert seen == [(place, 3), (place, None)]


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["serve", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_tiny(tmp_path / "pets"))
    assert "no such run or model" in complaint(capsys, "nonsense")
    assert "add --keys FILE" in complaint(capsys, model, "--host", "0.0.0.0")
    assert "can't be read" in complaint(capsys, model, "--keys", str(tmp_path / "none"), "--port", "0")
    assert "a whole number from 0 to 65535" in complaint(capsys, model, "--port", "99999")
    assert "a number from 0.1 to 3600" in complaint(capsys, model, "--timeout", "nan")
    for origin in ("nonsense", "https://", "https://shop.example/page", "shop.example:80", "https://*.example"):
        assert "* or scheme://host[:port], such as https://shop.example" in complaint(capsys, model, "--cors", origin)
    assert "add --keys FILE, or name the places" in complaint(capsys, model, "--cors", "*")
    assert "there is no device 'quantum'" in complaint(capsys, model, "--device", "quantum")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = str(other.getsockname()[1])
        assert f"can't serve at 127.0.0.1:{taken}: Address already in use" in complaint(capsys, model, "--port", taken)
    (tmp_path / "pets" / "task.json").write_text("{")
    assert "task.json" in complaint(capsys, model, "--port", "0")


def test_a_missing_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert "pip install 'vitrail[serve]'" in complaint(capsys, str(tmp_path))


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="max_queue must be above 0"):
        ServingLimits(max_queue=0)
    with pytest.raises(ValueError, match="batch_wait is between 0 and 1"):
        ServingLimits(batch_wait=2.0)
