"""Published weights by name: from caches and addresses that the tests make, with the network switched off."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import timm
import torch
from safetensors.torch import save_file
from shrunk import randomize
from torch import Tensor

import vitrail
from vitrail.cli import main
from vitrail.inference.trained import load_trained
from vitrail.models.catalog import CATALOG
from vitrail.models.contract import Model
from vitrail.models.published import PUBLISHED, choose_published, read_model_text, split_model_texts
from vitrail.weights import published_files
from vitrail.weights.published_files import downloaded_files, places_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "resmlp_s12"  # the smallest of our own; at its real size, as its name says


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of the hub and of torch.hub, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put_on_hub(caches: Path, repository: str, state: dict[str, Tensor]) -> Path:
    """A file of weights where the hub's library keeps what it downloaded."""
    folder = caches / "hub" / f"models--{repository.replace('/', '--')}"
    files = folder / "snapshots" / COMMIT
    files.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    save_file({name: value.contiguous() for name, value in state.items()}, files / "model.safetensors")
    return files / "model.safetensors"


@pytest.fixture(scope="module")
def source() -> Model:
    return randomize(vitrail.create_model("deit_tiny")).eval()


@pytest.fixture
def hub_file(caches: Path, source: Model) -> Path:
    return put_on_hub(caches, "timm/deit_tiny_patch16_224.fb_in1k", vitrail.to_timm(source))


def same(model: Model, other: Model) -> bool:
    own = other.state_dict()
    return all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


# The table.


def test_every_row_is_a_model_of_the_catalogue_and_says_its_own_name() -> None:
    assert len({weights.url for weights in PUBLISHED}) == len(PUBLISHED) == 58
    for weights in PUBLISHED:
        text = read_model_text(weights.text)
        assert text is not None
        assert choose_published(text.name, text.parts) is weights
        assert choose_published(weights.model, [str(weights.image_size), weights.tag]) is weights
        assert weights.model in CATALOG
        assert weights.repository is not None or weights.model.startswith("patchconvnet")


def test_hub_repositories_are_timms_own() -> None:
    for weights in PUBLISHED:
        if weights.timm_name is not None:
            facts = timm.get_pretrained_cfg(f"{weights.timm_name}.{weights.tag}")
            assert facts.hf_hub_id == weights.repository
            assert facts.url == weights.url
            assert facts.input_size[-1] == weights.image_size
            if weights.crop_ratio is not None:
                assert facts.crop_pct == weights.crop_ratio


# One of each kind: building timm's models takes seconds. All others differ in width, depth and image size only.
BUILT = ("deit_base@384", "deit_tiny_distilled", "deit3_huge", "cait_xxs24@384", "resmlp_b24_p8", "resmlp_s12@dino")


@pytest.mark.parametrize("text", BUILT)
def test_the_models_fit_what_timm_has_under_that_name(text: str) -> None:
    weights = next(weights for weights in PUBLISHED if weights.text == text)
    assert weights.timm_name is not None
    with torch.device("meta"):
        size = {"image_size": weights.image_size, "num_classes": weights.num_classes}
        ours = vitrail.to_timm(vitrail.create_model(weights.model, **size))
        theirs = timm.create_model(weights.timm_name, num_classes=weights.num_classes)
    expected = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.items()} == expected


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("deit3_base", "deit3_base_patch16_224.fb_in1k"),
        ("deit3_base@384,in22k", "deit3_base_patch16_384.fb_in22k_ft_in1k"),
        ("deit3_base@in21k", "deit3_base_patch16_224.fb_in22k_ft_in1k"),
        ("cait_m48", "cait_m48_448.fb_dist_in1k"),
        ("resmlp_s12", "resmlp_12_224.fb_in1k"),
        ("resmlp_s12@dist", "resmlp_12_224.fb_distilled_in1k"),
    ],
)
def test_which_weights_a_name_means(text: str, wanted: str) -> None:
    found = read_model_text(text)
    assert found is not None
    assert choose_published(found.name, found.parts).repository == f"timm/{wanted}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cait_xs24@224", "there are no weights like that; of cait_xs24 are published: cait_xs24@384,distilled"),
        ("deit3_base@dino", "deit3_base@224,in1k, deit3_base@224,in22k, deit3_base@384,in1k, deit3_base@384,in22k"),
        (
            "patchconvnet_s60_multi",
            "there are several weights like that; of patchconvnet_s60_multi are published: .*@224,finetuned",
        ),
        ("vit_s12x2", r"vit_s12x2 has no published weights: give a file, vit_s12x2 init=FILE"),
        ("deit_tiny@", "write an image size or how it was trained behind the @"),
        ("deit_tiny init=", "name the file of its weights"),
        ("deit_tinny", r"no such run or model \(did you mean deit_tiny"),
        ("timm/resnet18.nobody", "timm has no weights 'resnet18.nobody'; of resnet18 it has: .*a1_in1k"),
        ("timm/resnet_18", "timm has no model 'resnet_18': did you mean"),
    ],
)
def test_names_that_mean_nothing_are_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load_trained(text)
    assert "\n" not in str(error.value)


def test_names_between_commas() -> None:
    assert split_model_texts("deit3_base@384,in22k, runs/a,cait_s24@384") == [
        *("deit3_base@384,in22k", "runs/a", "cait_s24@384")
    ]


# From the hub's cache.


def test_a_name_gives_weights_preprocessing_and_words(hub_file: Path, source: Model) -> None:
    trained = load_trained("deit_tiny")
    assert same(trained.model, source)
    assert (trained.view.image_size, trained.view.crop_ratio) == (224, 0.9)
    assert trained.classes is not None
    assert trained.classes[:2] == ("tench", "goldfish")
    assert trained.synonyms["n01440764"] == trained.synonyms["tench, Tinca tinca"] == 0
    answer = trained.predict(torch.rand(3, 50, 40), top=2)
    assert answer.classes[0] in trained.classes  # type: ignore[union-attr]


def test_create_model_with_published_weights(hub_file: Path, source: Model) -> None:
    assert same(vitrail.create_model("deit_tiny", pretrained=True), source)
    other = vitrail.create_model("deit_tiny", pretrained="224", num_classes=7, image_size=96, drop_path=0.2)
    assert (other.config.num_classes, other.image_size) == (7, 96)
    assert torch.equal(other.state_dict()["norm.weight"], source.state_dict()["norm.weight"])
    assert other.preprocessing.crop_ratio == 0.9
    with pytest.raises(ValueError, match="names weights: add pretrained=True"):
        vitrail.create_model("cait_s24@384")
    with pytest.raises(ValueError, match="pretrained is True, False or a text"):
        vitrail.create_model("deit_tiny", pretrained=224)
    with pytest.raises(ValueError, match="there are no weights like that"):
        vitrail.create_model("deit_tiny", pretrained="in22k")


def test_a_file_takes_the_place_of_published_weights(caches: Path) -> None:
    large = randomize(vitrail.create_model("deit_tiny", image_size=64, num_classes=5))
    save_file(vitrail.to_timm(large), caches / "a file.safetensors")
    trained = load_trained("deit_tiny init=a file.safetensors")
    assert same(trained.model, large)
    assert (trained.view.image_size, trained.num_classes, trained.classes) == (64, 5, None)


def test_a_folder_of_that_name_goes_first(hub_file: Path, caches: Path) -> None:
    vitrail.save_model(vitrail.create_model("deit_tiny", image_size=32, num_classes=3), caches / "deit_tiny")
    assert load_trained("deit_tiny").num_classes == 3


def test_a_timm_model_is_loaded_as_timm_does(caches: Path) -> None:
    theirs = randomize(timm.create_model("test_vit2", num_classes=1000)).eval()
    put_on_hub(caches, "timm/test_vit2.r160_in1k", theirs.state_dict())
    trained = load_trained("timm/test_vit2.r160_in1k")
    images = torch.rand(2, 3, *trained.model.config.size)
    torch.testing.assert_close(trained.model(images), theirs(images))
    assert trained.class_names[0] == "tench"
    other = vitrail.create_model("timm/test_vit2.r160_in1k", pretrained=True, num_classes=3, image_size=128)
    assert torch.equal(
        other.state_dict()["backbone.blocks.0.norm1.weight"], theirs.state_dict()["blocks.0.norm1.weight"]
    )


def test_a_file_that_is_not_what_it_says(hub_file: Path) -> None:
    hub_file.write_bytes(hub_file.read_bytes()[:5000])
    with pytest.raises(ValueError, match=rf"deit_tiny: damaged.*: delete {hub_file}, and it is downloaded again"):
        load_trained("deit_tiny")
    save_file(vitrail.to_timm(vitrail.create_model("cait_xxs24", depth=1)), hub_file)
    with pytest.raises(ValueError, match="deit_tiny: the weights are of a cait and deit_tiny is a vit"):
        load_trained("deit_tiny")


def test_without_a_network_one_line_says_what_to_fetch_and_where_to_put_it() -> None:
    with pytest.raises(ValueError, match="can't be downloaded") as error:
        load_trained("cait_s24@384")
    assert "\n" not in str(error.value)
    assert f"fetch {choose_published('cait_s24', ['384']).url} and put it into {downloaded_files()}" in str(error.value)


# From an address.


class Server(http.server.BaseHTTPRequestHandler):
    content = b""
    announced: int | None = None

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(self.announced or len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    """The authors' address, here."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        monkeypatch.setattr(
            "vitrail.models.published.AUTHORS_ADDRESS", f"http://127.0.0.1:{served.server_address[1]}/deit/"
        )
        yield Server
        served.shutdown()
    Server.announced = None


def test_a_download_from_an_address(caches: Path, server: type[Server]) -> None:
    torch.save({"model": {"weight": torch.ones(3)}}, caches / "s60.pth")
    server.content = (caches / "s60.pth").read_bytes()
    places = places_of(choose_published("patchconvnet_s60"))
    file = places.fetch()
    assert file == downloaded_files() / "s60_224_1k.pth"
    noted = file.with_name("s60_224_1k.pth.sha256").read_text()
    assert noted == f"{hashlib.sha256(server.content).hexdigest()}  s60_224_1k.pth\n"
    server.content = b"never asked again"
    assert places.fetch() == file
    file.write_bytes(b"changed")
    with pytest.raises(ValueError, match=r"is not the file it was when it was first used .*delete both"):
        places.fetch()


def test_a_cache_that_can_only_be_read_will_do(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr("vitrail.weights.published_files.write_text", refuse)
    file = downloaded_files() / "s60_224_1k.pth"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"weight": torch.ones(3)}, file)
    assert places_of(choose_published("patchconvnet_s60")).fetch() == file


def test_a_download_that_breaks_off_leaves_nothing(caches: Path, server: type[Server]) -> None:
    torch.save({"model": {"weight": torch.rand(1000)}}, caches / "s60.pth")
    whole = (caches / "s60.pth").read_bytes()
    server.content, server.announced = whole[:2000], len(whole)
    places = places_of(choose_published("patchconvnet_s60"))
    with pytest.raises(ValueError, match=r"s60_224_1k\.pth"):
        places.fetch()
    assert [path.name for path in downloaded_files().iterdir() if not path.name.endswith(".lock")] == []
    server.content = whole
    assert places.fetch().read_bytes() == whole


def test_an_answer_that_is_no_file_of_weights(server: type[Server]) -> None:
    server.content = b"<html>moved</html>"
    with pytest.raises(ValueError, match=r"not a file of weights.*the download was not kept: try again"):
        places_of(choose_published("patchconvnet_s60")).fetch()


def test_a_checksum_in_the_name_is_compared(caches: Path, server: type[Server]) -> None:
    torch.save({"weight": torch.ones(3)}, caches / "x.pth")
    server.content = (caches / "x.pth").read_bytes()
    url = choose_published("deit_tiny").url
    with pytest.raises(RuntimeError, match="invalid hash value"):
        published_files.download(url, downloaded_files() / "deit_tiny_patch16_224-a1311bcf.pth")


def test_a_file_that_a_person_put_there_is_compared_with_its_name(caches: Path) -> None:
    downloaded_files().mkdir(parents=True)
    (downloaded_files() / "deit_tiny_patch16_224-a1311bcf.pth").write_bytes(b"half of it")
    with pytest.raises(ValueError, match=r"damaged or another file \(its SHA-256 does not begin with a1311bcf\)"):
        load_trained("deit_tiny")


# The verbs.


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_download_lists_and_fills_the_cache(hub_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(hub_file) in run(capsys, "download", "deit_tiny")
    listed = run(capsys, "download", "--list", "deit_tiny*")
    assert [line.split()[0] for line in listed.splitlines()] == ["deit_tiny", "deit_tiny_distilled"]
    assert listed.splitlines()[1].endswith("not here")
    for words, message in {
        (): "which weights?",
        ("nobody_*",): "no published weights match 'nobody_*'",
        ("runs/mine",): "no name of published weights",
        ("deit_tiny", "cait_s24@100"): "there are no weights like that",
    }.items():
        assert main(["download", *words]) == 2
        assert message in capsys.readouterr().err
