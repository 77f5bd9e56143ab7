"""Maps of models of pixels and objects are of what their heads read, and of nothing that was not trained."""

import pytest
import torch
from shrunk import randomize
from torch import Tensor

import vitrail
from vitrail.explain.maps import kinds_of
from vitrail.heads.followed_maps import follow_maps
from vitrail.heads.mask_rcnn import Detector, DetectorSettings
from vitrail.heads.segment import SegmentModel, SegmentSettings
from vitrail.models.catalog import create_model
from vitrail.models.contract import Features, Model

TRUNKS = {
    "deit_tiny": {"dim": 24, "num_heads": 2, "depth": 4},
    "patchconvnet_s20": {"dim": 32, "depth": 4},
    "timm/resnet18": {},
}


def trunk_of(name: str) -> Model:
    torch.manual_seed(0)
    return create_model(name, image_size=64, num_classes=0, **TRUNKS[name])


def segmenter(name: str, *, kind: str = "upernet") -> SegmentModel:
    model = SegmentModel(trunk_of(name), SegmentSettings(num_classes=3, kind=kind, channels=16))
    randomize(model)
    return model.eval()


def detector(name: str) -> Detector:
    settings = DetectorSettings(
        num_classes=3, channels=16, anchor_sizes=(8, 16, 32, 64, 96), box_dim=32, mask_dim=16, score_threshold=0.0
    )
    return Detector(trunk_of(name), settings).eval()


def noise(*size: int) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def test_of_a_linear_head_the_map_is_the_logits_of_the_class_where_it_is_said() -> None:
    model = segmenter("deit_tiny", kind="linear")
    images = noise(64, 64)
    found = vitrail.attention_maps(model, images, class_index=[0, 1, 2])
    with torch.no_grad():
        logits = model(images)
        empty = model.head(torch.zeros(1, 24, 1, 1)).flatten()  # what the head says where patches are zero
    is_said = torch.nn.functional.one_hot(logits.argmax(dim=1), 3).movedim(-1, 1).bool()
    assert found.kind == "gradient"
    for row in range(2):
        for label in range(3):
            own = logits[row, label] - empty[label]
            wanted = own * is_said[row, label] if is_said[row, label].any() else own
            torch.testing.assert_close(found.maps[row, label], wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.probabilities, is_said.float().mean(dim=(2, 3)))


@pytest.mark.parametrize("make", [segmenter, detector])
@pytest.mark.parametrize("name", TRUNKS)
def test_maps_do_not_depend_on_what_no_head_reads(make: type, name: str) -> None:
    model = make(name)
    images = noise(64, 64)
    before = vitrail.attention_maps(model, images, top=3)
    assert kinds_of(model) == ("gradient",)
    assert before.maps.abs().max() > 0
    assert before.maps.shape[:2] == (2, 3)
    unread = [parameter for parameter in model.trunk.parameters() if not parameter.requires_grad]
    with torch.no_grad():
        for parameter in unread:
            parameter.normal_()
    after = vitrail.attention_maps(model, images, top=3)
    assert torch.equal(after.maps, before.maps)
    assert torch.equal(after.probabilities, before.probabilities)


def test_of_a_detector_the_answer_is_its_most_probable_objects() -> None:
    model = detector("patchconvnet_s20")
    images = noise(64, 80)  # computed at 64 x 96: what is padding is cut off the map
    found = vitrail.attention_maps(model, images, class_index=0)
    assert found.maps.shape == (2, 1, 4, 5)
    with torch.no_grad():
        answers = model(images)
    for row, answer in enumerate(answers):
        best = answer.scores[answer.labels == 0].max() if (answer.labels == 0).any() else torch.tensor(0.0)
        torch.testing.assert_close(found.probabilities[row, 0], best)


def test_cells_of_coarser_maps_are_divided_among_those_of_the_finest() -> None:
    levels = tuple(torch.randn(2, 5, side, side) for side in (8, 4, 2))
    maps = follow_maps(Features(torch.zeros(2, 1, 5), levels[-1], levels))
    product = torch.randn_like(maps.values)
    summed = maps.to_map(product)
    assert summed.shape == (2, 8, 8)
    torch.testing.assert_close(summed.sum(dim=(1, 2)), product.sum(dim=1), rtol=1e-4, atol=1e-4)


def test_attention_of_untrained_tokens_is_refused_in_a_line() -> None:
    with pytest.raises(ValueError, match="where its special tokens look was not learnt; it has: gradient") as error:
        vitrail.attention_maps(segmenter("deit_tiny"), noise(64, 64), kind="attention")
    assert "\n" not in str(error.value)
