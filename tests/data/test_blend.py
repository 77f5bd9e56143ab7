from collections.abc import Mapping
from typing import Any

import pytest
import torch
from timm.data.mixup import mixup_target

from vitrail.data.blend import Blend, Mixing, Normalize
from vitrail.data.contract import ImageBatch
from vitrail.data.draws import Draws
from vitrail.settings.images import BlendSettings

KEY = {"seed": 3, "epoch": 1, "step": 7}


def make_batch(count: int = 8, *, side: int = 16, classes: int = 5) -> ImageBatch:
    """Every image is filled with its own place in the batch."""
    images = torch.arange(float(count)).view(-1, 1, 1, 1).expand(-1, 3, side, side)
    images = images.contiguous(memory_format=torch.channels_last)
    return ImageBatch(images=images, targets=torch.arange(count) % classes, indices=100 + torch.arange(count))


def blend_of(num_classes: int = 5, *, smoothing: float = 0.1, **settings: Any) -> Blend:
    """DeiT's mixing, but for what is set otherwise."""
    return Blend(BlendSettings(**{"mixup": 0.8, "cutmix": 1.0, **settings}), num_classes, smoothing)


def copy_of(batch: ImageBatch) -> ImageBatch:
    return ImageBatch(*(part.clone() for part in batch[:3]))


def test_normalizing_is_the_textbook_formula_in_every_channel() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    normalized = Normalize(mean=(0.5, 0.1, 0.4), std=(0.25, 0.2, 0.3))(images)
    assert normalized.dtype == torch.float32
    torch.testing.assert_close(normalized.flatten(), torch.tensor([-2.0, 0.5, 2.0]))


def test_normalizing_keeps_the_memory_format_and_takes_several_views() -> None:
    pixels = torch.randint(0, 256, (2, 4, 6, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = pixels.permute(0, 1, 4, 2, 3)  # [batch, views, 3, height, width] on channels-last memory
    normalized = Normalize()(views)
    assert normalized.stride() == views.stride()
    assert torch.equal(normalized[:, 1], Normalize()(views[:, 1]))
    assert Normalize()(views[:, 0].contiguous(memory_format=torch.channels_last)).is_contiguous(
        memory_format=torch.channels_last
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_normalizing_to_half_precision_rounds_only_the_result(dtype: torch.dtype) -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    assert torch.equal(Normalize()(images, dtype=dtype), Normalize()(images).to(dtype))


def test_normalizing_refuses_what_it_cannot_mean() -> None:
    with pytest.raises(ValueError, match="uint8"):
        Normalize()(torch.zeros(1, 3, 2, 2))
    with pytest.raises(ValueError, match="positive"):
        Normalize(mean=(0.0,), std=(0.0,))
    with pytest.raises(ValueError, match="3 channels and std 1"):
        Normalize(std=(1.0,))


def test_mixup_gives_each_image_a_share_of_its_neighbour() -> None:
    blend = blend_of(num_classes=5, cutmix=0.0, smoothing=0.0)
    share = blend.draw(Draws(3, 1, 7, "blend"), height=16, width=16).share
    assert 0.0 < share < 1.0
    batch = make_batch(5)
    mixed = blend(batch, **KEY)
    expected = torch.tensor([share, 1.0 - share, 2.0 + share, 3.0 - share, 4.0])
    torch.testing.assert_close(mixed.images, expected.view(-1, 1, 1, 1).expand(-1, 3, 16, 16))
    torch.testing.assert_close(mixed.targets[2], torch.tensor([0.0, 0.0, 1.0 - share, share, 0.0]))
    assert mixed.targets[4].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]  # the last of an odd batch has no partner
    assert mixed.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("step", range(12))
def test_cutmix_exchanges_one_box_and_the_targets_follow_its_true_area(step: int) -> None:
    batch = make_batch(4, side=20)
    mixed = blend_of(num_classes=5, mixup=0.0, smoothing=0.0)(batch, seed=0, epoch=0, step=step)
    from_partner = mixed.images == torch.tensor([1.0, 0.0, 3.0, 2.0]).view(-1, 1, 1, 1)
    assert torch.equal(from_partner, from_partner[:1, :1].expand_as(from_partner))  # one box for the whole batch
    mask = from_partner[0, 0]
    rows, columns = mask.any(dim=1).sum(), mask.any(dim=0).sum()
    assert mask.sum() == rows * columns  # a rectangle
    share = mask.float().mean()
    torch.testing.assert_close(mixed.targets[0, :2], torch.stack([1.0 - share, share]))


def test_the_box_has_the_drawn_area_when_it_is_not_clipped() -> None:
    blend = blend_of(num_classes=2, mixup=0.0)
    shares = {True: [0.0], False: [0.0]}
    for number in range(2000):
        box = blend.draw(Draws(number), height=200, width=100).box
        assert box is not None
        touches = 0 in (box.rows.start, box.columns.start) or box.rows.stop == 200 or box.columns.stop == 100
        height, width = box.rows.stop - box.rows.start, box.columns.stop - box.columns.start
        if not touches:
            assert abs(height - 2 * width) <= 3  # the image's own proportions, up to rounding
        shares[touches].append(height * width / 20_000)
    assert max(shares[True]) > 0.5  # large boxes are cut off at the border
    assert 0.05 < sum(shares[False]) / len(shares[False]) < 0.5


def test_the_share_follows_the_beta_distribution() -> None:
    def spread(alpha: float) -> tuple[float, float]:
        blend = blend_of(num_classes=2, mixup=alpha, cutmix=0.0)
        shares = torch.tensor([blend.draw(Draws(number), height=8, width=8).share for number in range(2000)])
        return float(shares.mean()), float(shares.var())

    for alpha in (0.2, 0.8, 4.0):
        mean, variance = spread(alpha)
        assert mean == pytest.approx(0.5, abs=0.03)
        assert variance == pytest.approx(0.25 / (2.0 * alpha + 1.0), rel=0.1)


def test_switch_and_probability_say_how_often() -> None:
    def count(blend: Blend) -> tuple[float, float]:
        drawn = [blend.draw(Draws(number), height=32, width=32) for number in range(2000)]
        cut, untouched = sum(one.box is not None for one in drawn), sum(one == Mixing(0.0, None) for one in drawn)
        return cut / len(drawn), untouched / len(drawn)

    assert count(blend_of(num_classes=2, switch=0.0)) == (0.0, 0.0)
    assert count(blend_of(num_classes=2, switch=1.0)) == (1.0, 0.0)
    assert count(blend_of(num_classes=2, cutmix=0.0, switch=1.0))[0] == 0.0
    assert count(blend_of(num_classes=2, mixup=0.0, switch=0.0))[0] == 1.0
    cut, untouched = count(blend_of(num_classes=2, switch=0.3, probability=0.5))
    assert cut == pytest.approx(0.15, abs=0.03)
    assert untouched == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("per", ["batch", "pair"])
@pytest.mark.parametrize("settings", [{"cutmix": 0.0}, {"mixup": 0.0}, {"switch": 0.5}], ids=str)
@pytest.mark.parametrize("parts", [(4, 4, 4), (6, 6), (2, 10), (8, 4)], ids=str)
def test_even_parts_are_mixed_as_the_whole(per: str, settings: Mapping[str, float], parts: tuple[int, ...]) -> None:
    blend = blend_of(num_classes=5, **settings, per=per)
    whole = make_batch(12)
    whole.images.normal_(generator=torch.Generator().manual_seed(0))
    cut = [ImageBatch(*columns) for columns in zip(*(part.clone().split(parts) for part in whole[:3]), strict=True)]
    together = blend(copy_of(whole), **KEY)
    apart = [blend(part, **KEY) for part in cut]
    for name in ("images", "targets", "indices"):
        assert torch.equal(getattr(together, name), torch.cat([getattr(part, name) for part in apart]))
    assert not torch.equal(together.images, whole.images)


@pytest.mark.parametrize("parts", [(48,), (24, 24), (2, 20, 8, 18), (48 - 6, 6)])
def test_a_group_is_mixed_alike_however_the_batch_is_cut(parts: tuple[int, ...]) -> None:
    blend = blend_of(smoothing=0.0, mixup=0.8, group_size=20)
    batch = make_batch(48)
    shares, first = [], 0
    for part in parts:
        rows = slice(first, first + part)
        mixed = blend(copy_of(ImageBatch(*(item[rows] for item in batch[:3]))), seed=1, epoch=2, step=3, first=first)
        own = (mixed.images - batch.images[rows]).flatten(1)
        partners = torch.arange(len(own)) ^ 1
        partner = (batch.images[rows][partners] - batch.images[rows]).flatten(1)
        shares += ((own * partner).sum(dim=1) / partner.square().sum(dim=1)).tolist()
        first += part
    drawn = [
        blend.draw(Draws(1, 2, 3, group, "blend"), height=16, width=16).share
        for group, size in enumerate((20, 20, 8))
        for _ in range(size)
    ]
    assert len(set(drawn)) == 3
    assert shares == pytest.approx(drawn, abs=1e-5)


def test_one_group_or_none_is_one_draw_for_all() -> None:
    none, one, two = (
        blend_of(mixup=0.8, cutmix=1.0, group_size=size)(copy_of(make_batch()), seed=0, epoch=0, step=1).targets
        for size in (None, 8, 4)
    )
    assert len(none.unique()) == len(one.unique()) < len(two.unique())


@pytest.mark.parametrize("per", ["batch", "pair"])
def test_answers_of_a_teacher_are_mixed_as_the_targets_are(per: str) -> None:
    blend = blend_of(num_classes=5, smoothing=0.0, per=per)
    batch = copy_of(make_batch(12))
    targets = blend.soften(batch.targets)
    mixed = blend(batch._replace(answers=targets.clone()), **KEY)
    assert mixed.answers is not None
    assert torch.equal(mixed.answers, mixed.targets)
    assert not torch.equal(mixed.answers, targets)


def test_pairs_are_drawn_one_by_one_from_their_indices() -> None:
    blend = blend_of(num_classes=5, cutmix=0.0, smoothing=0.0, per="pair")
    batch = make_batch(6)
    mixed = blend(copy_of(batch), **KEY)
    shares = mixed.images[0::2, 0, 0, 0] - torch.tensor([0.0, 2.0, 4.0])
    assert len(set(shares.tolist())) == 3
    expected = blend.draw(Draws(3, 1, 7, 102, 103, "blend"), height=16, width=16).share
    assert float(shares[1]) == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(mixed.targets[2, 2:4], torch.tensor([1.0 - expected, expected]))
    # Another order of the pairs changes nothing about a pair.
    other = blend(ImageBatch(*(part[[4, 5, 0, 1, 2, 3]] for part in copy_of(batch)[:3])), **KEY)
    assert torch.equal(other.images[4:], mixed.images[2:4])


def test_a_pair_may_be_cut_while_another_is_mixed() -> None:
    mixed = blend_of(num_classes=5, per="pair")(make_batch(32), **KEY)
    whole_numbers = [bool((image == image.round()).all()) for image in mixed.images[0::2]]
    assert len(set(whole_numbers)) == 2


@pytest.mark.parametrize("per", ["batch", "pair"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_any_float_type_stays_and_targets_sum_to_one(per: str, dtype: torch.dtype) -> None:
    for step in range(6):
        batch = make_batch(7)
        blend = blend_of(num_classes=5, per=per)
        mixed = blend(batch._replace(images=batch.images.to(dtype)), seed=0, epoch=0, step=step)
        assert mixed.images.dtype == dtype
        assert mixed.targets.dtype == torch.float32
        torch.testing.assert_close(mixed.targets.sum(dim=1), torch.ones(7))


def test_targets_are_those_of_timm_for_the_same_share() -> None:
    blend = blend_of(num_classes=10, cutmix=0.0, smoothing=0.1)
    batch = make_batch(2)._replace(targets=torch.tensor([3, 8]))  # of two images, timm's partner is the neighbour too
    share = blend.draw(Draws(3, 1, 7, "blend"), height=16, width=16).share
    expected = mixup_target(batch.targets, 10, lam=1.0 - share, smoothing=0.1)
    torch.testing.assert_close(blend(batch, **KEY).targets, expected)


def test_smoothing_alone_leaves_the_images_as_they_are() -> None:
    batch = make_batch(2, classes=4)
    images = batch.images.to(torch.uint8)
    smoothed = blend_of(num_classes=4, mixup=0.0, cutmix=0.0, smoothing=0.2)(batch._replace(images=images), **KEY)
    assert smoothed.images is images
    torch.testing.assert_close(smoothed.targets, torch.tensor([[0.85, 0.05, 0.05, 0.05], [0.05, 0.85, 0.05, 0.05]]))


def test_several_classes_an_image_are_mixed_likewise() -> None:
    targets = torch.tensor([[True, True, False], [False, True, False]])
    blend = blend_of(num_classes=3, cutmix=0.0, smoothing=0.0)
    share = blend.draw(Draws(3, 1, 7, "blend"), height=16, width=16).share
    mixed = blend(make_batch(2)._replace(targets=targets), **KEY)
    torch.testing.assert_close(mixed.targets, torch.tensor([[1.0 - share, 1.0, 0.0], [share, 1.0, 0.0]]))


@pytest.mark.parametrize("settings", [{"cutmix": 0.0}, {"mixup": 0.0}], ids=str)
def test_all_views_of_an_image_are_mixed_alike(settings: Mapping[str, float]) -> None:
    blend = blend_of(num_classes=5, **settings)
    batch = make_batch(4)
    views = batch.images[:, None].repeat(1, 3, 1, 1, 1)
    alone = blend(copy_of(batch), **KEY)
    together = blend(batch._replace(images=views), **KEY)
    assert all(torch.equal(together.images[:, view], alone.images) for view in range(3))


def test_a_batch_of_one_stays_alone() -> None:
    for blend in (blend_of(num_classes=5), blend_of(num_classes=5, per="pair")):
        assert torch.equal(blend(make_batch(1), **KEY).images, make_batch(1).images)


def test_a_group_of_an_odd_number_of_images_is_refused() -> None:
    with pytest.raises(ValueError, match="give an even number: images are mixed in pairs"):
        BlendSettings(group_size=63)
    assert "group_size" in BlendSettings(mixup=1.0, per="pair", group_size=64).unused()


def test_wrong_settings_are_refused() -> None:
    for settings in (
        {"num_classes": 0},
        {"mixup": -1.0},
        {"cutmix": float("nan")},
        {"switch": 1.5},
        {"probability": -0.1},
        {"smoothing": 2.0},
        {"per": "image"},
    ):
        (name,) = settings
        with pytest.raises(ValueError, match=name):
            blend_of(**settings)


def test_a_section_builds_its_blend_or_nothing() -> None:
    settings = BlendSettings(mixup=0.8)
    assert settings.build(num_classes=5, smoothing=0.1) == Blend(settings, num_classes=5, smoothing=0.1)
    assert BlendSettings().build(num_classes=5, smoothing=0.1) is None
    assert BlendSettings(cutmix=1.0, probability=0.0).build(num_classes=5, smoothing=0.1) is None


def test_wrong_batches_are_refused() -> None:
    batch = make_batch(2)
    with pytest.raises(ValueError, match="normalise them first"):
        blend_of(num_classes=5)(batch._replace(images=batch.images.to(torch.uint8)), **KEY)
    with pytest.raises(ValueError, match="have 3 classes, the blend has 5"):
        blend_of(num_classes=5)(batch._replace(targets=torch.ones(2, 3)), **KEY)


@pytest.mark.parametrize("label", [5, 900, -1])
def test_a_label_that_is_no_class_is_named(label: int) -> None:
    batch = make_batch(2)._replace(targets=torch.tensor([4, label]))
    with pytest.raises(ValueError, match=f"^a label is {label}, but num_classes is 5: [^\n]*$"):
        blend_of(num_classes=5)(batch, **KEY)


def test_labels_are_not_looked_at_on_other_devices_because_the_device_would_be_waited_for() -> None:
    targets = torch.tensor([0, 9]).to("meta")  # a tensor whose numbers can't be read
    assert blend_of(num_classes=5).soften(targets).shape == (2, 5)


def test_an_empty_batch_has_no_wrong_label() -> None:
    assert blend_of(num_classes=5).soften(torch.empty(0, dtype=torch.int64)).shape == (0, 5)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 4, 4, 4), (2, 4, 4, 3), (4, 4)])
def test_normalizing_refuses_another_number_of_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^normalising for 3 channels takes images \[[^\n]*$"):
        Normalize()(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(ValueError, match="for 1 channels"):
        Normalize(mean=(0.5,), std=(0.5,))(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
