"""Tokenizers: the nearest code, the gradient past it, and pictures of codes."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig


def make(**settings: Any) -> Tokenizer:
    torch.manual_seed(0)
    config = TokenizerConfig(**{"image_size": 8, "patch_size": 4, "num_codes": 6, "dim": 8, "code_dim": 3, **settings})
    model = Tokenizer.made(config)
    assert isinstance(model, Tokenizer)
    return model


def test_k_means_gives_the_nearest_patch_and_paints_it() -> None:
    model = make(kind="kmeans").eval()
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for code in range(4):  # the patches of the first image, in reading order
            row, column = divmod(code, 2)
            model.codebook[code] = images[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten()
    tokens = model.tokens_of(images)
    assert tokens[0].tolist() == [0, 1, 2, 3]
    by_hand = torch.cdist(model.vectors_of(images)[1], model.codebook).argmin(dim=1)
    assert tokens[1].tolist() == by_hand.tolist()
    painted = model.paint(tokens.view(2, 2, 2))
    assert painted is not None
    torch.testing.assert_close(painted[0], images[0])


def test_the_gradient_of_the_picture_passes_the_codes_as_it_is() -> None:
    model = make().train()
    images = torch.randn(2, 3, 8, 8)
    found = model.quantise(images)
    assert found.pixels is not None
    assert found.pixels.shape == images.shape
    torch.testing.assert_close(found.vectors.norm(dim=2), torch.ones(2, 4))
    torch.testing.assert_close(found.codes, torch.nn.functional.normalize(model.codebook, dim=1)[found.tokens])
    found.pixels.square().sum().backward()
    assert model.codebook.grad is None or not model.codebook.grad.any()  # the loss of the codes moves them
    assert model.encoder is not None
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.encoder.parameters())
    assert model.undecayed() >= {"codebook"}


@pytest.mark.parametrize(
    "settings", [{"kind": "kmeans"}, {}, {"kind": "kmeans", "teacher": "deit_tiny", "teacher_dim": 5}]
)
def test_a_saved_tokenizer_is_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    model = make(**settings).eval()
    vitrail.save_model(model, tmp_path)
    loaded = vitrail.load_model(tmp_path)
    assert isinstance(loaded, Tokenizer)
    assert loaded.config == model.config
    inputs = torch.randn(1, 5, 2, 2) if model.config.teacher else torch.randn(1, 3, 8, 8)
    assert torch.equal(loaded.tokens_of(inputs), model.tokens_of(inputs))
    if model.config.teacher:
        assert model.paint(model.tokens_of(inputs).view(1, 2, 2)) is None
        with pytest.raises(ValueError, match="this tokenizer reads patches of deit_tiny, not images"):
            loaded(torch.randn(1, 3, 8, 8))
    else:
        assert loaded(inputs).shape == (1, model.config.vector_dim)


def test_what_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match="images of 8x8 can't be cut into patches of 3"):
        make(patch_size=3)
    with pytest.raises(ValueError, match="kind must be kmeans"):
        make(teacher="deit_tiny", teacher_dim=5)
