"""Embeddings of data sets: what they are for each kind of model, exactness, broken images, and the cache on disk."""

import dataclasses
import errno
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shrunk import randomize, small_model

import vitrail
from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Dataset
from vitrail.data.datasets import open_dataset
from vitrail.evaluation import features
from vitrail.evaluation.features import Embedder, Extraction, embed
from vitrail.models.contract import Model

Change = Callable[[Extraction, Dataset], tuple[Extraction, Dataset]]
SHAPES = "shapes:size=16,count=24,val=24"


def tiny_model(seed: int = 0) -> Model:
    settings = {"image_size": 16, "patch_size": 4, "dim": 32, "num_heads": 2, "depth": 1, "num_classes": 5}
    return randomize(vitrail.create_model("deit_tiny", **settings), seed=seed).eval()


def extraction_of(model: Model, *, crop_ratio: float = 1.0, batch_size: int = 5) -> Extraction:
    view = EvaluationView(image_size=16, crop_ratio=crop_ratio)
    return Extraction(model, view, Normalize(), torch.device("cpu"), batch_size=batch_size)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of two classes with three pictures each, and the same as val."""
    numbers = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("apple", "pear"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(3):
                pixels = numbers.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{number}.png")
    return tmp_path / "data"


def test_one_token_is_the_embedding_and_two_are_put_side_by_side() -> None:
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        plain, distilled = small_model("deit_tiny").eval(), small_model("deit_tiny_distilled").eval()
        assert torch.allclose(Embedder(plain)(images), plain.features(images).summary[:, 0], atol=1e-5)
        tokens = distilled.features(images).summary
        expected = torch.cat([tokens[:, 0], tokens[:, 1]], dim=1)
        assert torch.allclose(Embedder(distilled)(images), expected, atol=1e-5)


def test_tokens_of_single_classes_give_way_to_the_mean_of_the_patches() -> None:
    model = randomize(small_model("patchconvnet_s60", per_class_tokens=True)).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(Embedder(model)(images), model.features(images).patches.mean(dim=(2, 3)))


def test_every_image_is_embedded_once_in_the_order_of_the_data_whatever_the_batch() -> None:
    model, data = tiny_model(), open_dataset(SHAPES, "train")
    found = embed(extraction_of(model, batch_size=7), data)
    assert found.indices.tolist() == list(range(24))
    images = torch.stack([torch.from_numpy(np.asarray(data.read(index))).permute(2, 0, 1) for index in range(24)])
    with torch.no_grad():
        expected = model.features(Normalize()(images)).summary[:, 0]
    assert torch.allclose(found.vectors, expected, atol=1e-5)
    assert not model.training
    assert not found.vectors.requires_grad
    assert not found.vectors.is_inference()  # probes are trained on them


def test_broken_images_are_left_out_and_reported(pictures: Path, tmp_path: Path) -> None:
    (pictures / "train" / "apple" / "1.png").write_bytes(b"nothing")
    data = open_dataset(pictures, "train")
    for _ in range(2):  # the second time from the cache
        found = embed(extraction_of(tiny_model()), data, cache=tmp_path / "cache")
        assert found.indices.tolist() == [0, 2, 3, 4, 5]
        assert [Path(problem.path).name for problem in found.unread] == ["1.png"]


def test_data_without_a_readable_image_is_one_line(pictures: Path) -> None:
    for path in (pictures / "train").glob("*/*.png"):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="none of the 6 images of train of data could be read"):
        embed(extraction_of(tiny_model()), open_dataset(pictures, "train"))


class AskedError(Exception):
    """The model was asked."""


class RefusingModel(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise AskedError


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on every pass of a model is an error: only the cache can answer."""
    monkeypatch.setattr("vitrail.evaluation.features.Embedder", lambda model: RefusingModel())


def test_a_second_time_the_cache_answers_for_every_level_of_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    data = open_dataset(SHAPES, "train")
    first = embed(extraction_of(tiny_model()), data, cache=tmp_path)
    assert [path.name.startswith("features-") for path in tmp_path.iterdir()] == [True]
    refuse(monkeypatch)
    second = embed(extraction_of(tiny_model(), batch_size=3), data, cache=tmp_path, advance=shown.append)
    assert torch.equal(first.vectors, second.vectors)
    assert torch.equal(first.indices, second.indices)
    assert shown == [24]


def change_weights(extraction: Extraction, data: Dataset) -> tuple[Extraction, Dataset]:
    return dataclasses.replace(extraction, model=tiny_model(seed=1)), data


def change_view(extraction: Extraction, data: Dataset) -> tuple[Extraction, Dataset]:
    return dataclasses.replace(extraction, view=EvaluationView(image_size=16, crop_ratio=0.5)), data


def change_normalisation(extraction: Extraction, data: Dataset) -> tuple[Extraction, Dataset]:
    return dataclasses.replace(extraction, normalize=Normalize(mean=(0.5, 0.5, 0.5))), data


def change_precision(extraction: Extraction, data: Dataset) -> tuple[Extraction, Dataset]:
    return dataclasses.replace(extraction, dtype=torch.bfloat16), data


def change_split(extraction: Extraction, data: Dataset) -> tuple[Extraction, Dataset]:
    return extraction, open_dataset(SHAPES, "val")


def change_data(extraction: Extraction, data: Dataset) -> tuple[Extraction, Dataset]:
    return extraction, open_dataset(SHAPES + ",seed=3", "train")


@pytest.mark.parametrize(
    "change", [change_weights, change_view, change_normalisation, change_precision, change_split, change_data]
)
def test_whatever_the_embeddings_depend_on_makes_another_key(change: Change) -> None:
    before = extraction_of(tiny_model()), open_dataset(SHAPES, "train")
    extraction, data = change(*before)
    assert extraction.key(data) != before[0].key(before[1])
    assert extraction.key(data) == extraction.key(data)


def test_a_changed_or_renamed_file_makes_another_key(pictures: Path) -> None:
    extraction = extraction_of(tiny_model())
    before = extraction.key(open_dataset(pictures, "train"))
    path = pictures / "train" / "apple" / "1.png"
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000_000))
    touched = extraction.key(open_dataset(pictures, "train"))
    path.rename(path.with_name("7.png"))
    assert len({before, touched, extraction.key(open_dataset(pictures, "train"))}) == 3


def test_a_damaged_cache_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extraction, data = extraction_of(tiny_model()), open_dataset(SHAPES, "train")
    first = embed(extraction, data)
    embed(extraction, data, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        second = embed(extraction, data, cache=tmp_path)
    assert "is damaged" in caplog.text
    assert torch.equal(first.vectors, second.vectors)
    assert list(tmp_path.iterdir()) == [path]  # nothing half written lies beside it
    caplog.clear()
    embed(extraction, data, cache=tmp_path)
    assert caplog.text == ""


def test_a_cache_that_another_command_mends_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extraction, data = extraction_of(tiny_model()), open_dataset(SHAPES, "train")
    first = embed(extraction, data, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    monkeypatch.setattr(features, "_check_writable", lambda folder: path.write_bytes(whole))  # after the first look
    refuse(monkeypatch)
    assert torch.equal(embed(extraction, data, cache=tmp_path).vectors, first.vectors)
    assert list(tmp_path.iterdir()) == [path]


def test_a_cache_that_the_system_does_not_give_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extraction, data = extraction_of(tiny_model()), open_dataset(SHAPES, "train")
    embed(extraction, data, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for place in ("vitrail.storage.tensors.safe_open", "pathlib.Path.open"):
        with monkeypatch.context() as patched:
            patched.setattr(place, fail)
            with pytest.raises(ValueError, match=r"can't be read \(Too many open files\): choose another cache"):
                embed(extraction, data, cache=tmp_path)
        assert path.read_bytes() == whole


def test_a_cache_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; the cache of embeddings is a folder"):
        embed(extraction_of(tiny_model()), open_dataset(SHAPES, "train"), cache=tmp_path / "file")


def test_a_folder_is_blamed_for_what_fails_while_it_is_written_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extraction, data = extraction_of(tiny_model()), open_dataset(SHAPES, "train")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(features, "_compute", lambda *_, **__: map(fail, [0]))  # once it is asked for
        with pytest.raises(OSError, match="Too many open files") as told:
            embed(extraction, data, cache=tmp_path)
        assert told.value.errno == errno.EMFILE
    for name in ("write", "join"):
        with monkeypatch.context() as patched:
            patched.setattr(features.EmbeddingParts, name, fail)
            with pytest.raises(ValueError, match=r"the embeddings can't be kept in .* \(.*Too many open files\)"):
                embed(extraction, data, cache=tmp_path)


def test_a_folded_copy_gives_the_same_embeddings() -> None:
    model, data = tiny_model(), open_dataset(SHAPES, "val")
    plain = embed(extraction_of(model), data)
    faster = embed(dataclasses.replace(extraction_of(model), faster=vitrail.fold(model)), data)
    assert torch.allclose(plain.vectors, faster.vectors, atol=1e-4)


def with_a_new_setting(extraction: Extraction, **values: object) -> Extraction:
    """The same model, whose config has a setting more than it had."""
    model = tiny_model()
    kind = type(model.config)
    longer = dataclasses.make_dataclass(kind.__name__, [("wide", bool, False)], bases=(kind,), frozen=True)
    model.config = longer(**{**vars(model.config), **values})
    return dataclasses.replace(extraction, model=model)


def test_a_new_setting_leaves_the_keys_of_models_that_do_not_use_it() -> None:
    before, data = extraction_of(tiny_model()), open_dataset(SHAPES, "train")
    same, other = with_a_new_setting(before), with_a_new_setting(before, wide=True)
    assert repr(same.model.config) != repr(before.model.config)
    assert (same.key(data), same.model_key()) == (before.key(data), before.model_key())
    assert same.has_model_key(before.model_key())
    assert not other.has_model_key(before.model_key())
    assert other.key(data) != before.key(data)


def former_digest(extraction: Extraction, *more: object) -> "hashlib._Hash":
    """What keys of all settings began with, written out by hand."""
    model = extraction.model
    digest = hashlib.sha256(
        repr((1, model.family, model.config, extraction.view, extraction.normalize, *more)).encode()
    )
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode() + value.numpy().tobytes())
    return digest


def test_keys_of_all_settings_are_still_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extraction, data = extraction_of(tiny_model()), open_dataset(SHAPES, "train")
    assert extraction.has_model_key(former_digest(extraction).hexdigest()[:32])
    digest = former_digest(extraction, extraction.dtype, "train")
    for index in range(len(data)):
        image = data.read(index)
        assert isinstance(image, np.ndarray)
        digest.update(f"\n{data.locate(index)} {image.shape}".encode() + image.tobytes())
    wanted = embed(extraction, data, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.rename(tmp_path / f"features-{digest.hexdigest()[:32]}.safetensors")
    refuse(monkeypatch)
    assert torch.equal(embed(extraction, data, cache=tmp_path).vectors, wanted.vectors)
    with pytest.raises(AskedError):
        embed(extraction_of(tiny_model(seed=1)), data, cache=tmp_path)
