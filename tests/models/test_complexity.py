"""Counting parameters and multiply-adds; the catalogue's own figures are in test_catalog.py."""

import pytest
from shrunk import small_model

import vitrail


def test_a_timm_model_is_counted_with_its_classifier() -> None:
    counts = [
        vitrail.complexity(vitrail.create_model("timm/resnet18", num_classes=classes), image_size=64).multiply_adds
        for classes in (1000, 10)
    ]
    assert counts[0] - counts[1] == 512 * 990


def test_the_type_of_the_weights_does_not_matter() -> None:
    model = small_model("cait_s24")
    assert vitrail.complexity(model) == vitrail.complexity(model.bfloat16())


def test_a_larger_image_costs_more_and_has_no_more_parameters() -> None:
    model = small_model("deit_small")
    small, large = vitrail.complexity(model), vitrail.complexity(model, image_size=(64, 128))
    assert small.parameters == large.parameters
    assert large.multiply_adds > 1.9 * small.multiply_adds


@pytest.mark.parametrize("image_size", ["224", -16, (64,), 64.0])
def test_a_bad_size_is_told(image_size: object) -> None:
    with pytest.raises(ValueError, match=r"image_size must be a whole number or \(height, width\)"):
        vitrail.complexity(small_model("deit_small"), image_size=image_size)  # type: ignore[arg-type]


def test_what_is_not_a_model_is_told() -> None:
    with pytest.raises(ValueError, match="not NoneType"):
        vitrail.complexity(None)  # type: ignore[arg-type]
