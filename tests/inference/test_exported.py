"""Exported folders: engines give the answers of the model, and every verb takes the folder as it takes a run."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitrail
from vitrail.inference.engines import installed_engines
from vitrail.inference.exporting import ExportSettings, export_trained
from vitrail.inference.trained import Trained, make_trained

CLASSES = ["ant", "bee", "cat", "dog", "eel"]
ENGINES = ("eager", "onnx")


def tiny_trained() -> Trained:
    torch.manual_seed(0)
    model = vitrail.create_model(
        "cait_xxs24", image_size=32, patch_size=8, dim=16, depth=1, class_depth=1, num_heads=2, num_classes=5
    )
    for parameter in model.parameters():  # LayerScale begins near zero, where nothing would show
        torch.nn.init.normal_(parameter, std=0.2)
    return make_trained(model.eval(), {"classes": CLASSES}, label="tiny")


@pytest.fixture(scope="module")
def trained() -> Trained:
    return tiny_trained()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def exports(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny model exported to every engine."""
    folder = tmp_path_factory.mktemp("exports")
    for engine in ENGINES:
        export_trained(trained, ExportSettings(engine=engine), source="tiny", out=folder / engine)
    return {engine: folder / engine for engine in ENGINES}


def test_all_engines_are_installed_where_the_tests_run() -> None:
    assert set(ENGINES) <= set(installed_engines())


@pytest.mark.parametrize("engine", ENGINES)
@torch.no_grad()
def test_an_engine_gives_the_answers_of_the_model(
    engine: str, trained: Trained, exports: dict[str, Path], images: Tensor
) -> None:
    loaded = vitrail.load_trained(exports[engine])
    normalized = trained.normalize(images)
    for count in (1, 3):
        wanted = trained.model(normalized[:count])
        torch.testing.assert_close(loaded.model(images[:count]), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(loaded.model(normalized[:count]), wanted, rtol=1e-5, atol=1e-5)
    assert loaded.classes == tuple(CLASSES)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exported_folder_predicts_and_embeds_as_the_model_does(
    engine: str, trained: Trained, exports: dict[str, Path], images: Tensor
) -> None:
    loaded = vitrail.load_trained(exports[engine])
    wanted, found = trained.predict(images), loaded.predict(images)
    assert isinstance(wanted, list)
    assert isinstance(found, list)
    assert [answer.classes for answer in found] == [answer.classes for answer in wanted]  # type: ignore[attr-defined]
    torch.testing.assert_close(loaded.embed(images), trained.embed(images), rtol=1e-4, atol=1e-5)
    assert loaded.embed(images[0]).shape == (16,)
