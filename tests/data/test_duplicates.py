"""Copies and look-alikes: what is found, what is left alone, and that the quick search misses nothing."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from vitrail.data.doctor import duplicates
from vitrail.data.doctor.duplicates import find_close, group_alike, group_equal
from vitrail.data.doctor.image_fingerprints import describe_look, digest_pixels, shrink, thumbnail_of


def scene(seed: int, *, width: int = 160, height: int = 120) -> Image.Image:
    """Soft random blobs: as different from one another as photographs are."""
    noise = np.random.RandomState(seed).randint(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def fingerprints(images: list[Image.Image]) -> tuple[np.ndarray, np.ndarray]:
    small = [shrink(np.asarray(image)) for image in images]
    return np.array([describe_look(one) for one in small], np.uint64), np.stack([thumbnail_of(one) for one in small])


def groups_of(images: list[Image.Image]) -> list[list[int]]:
    looks, thumbnails = fingerprints(images)
    return [group.tolist() for group in group_alike(looks, thumbnails=thumbnails, among=np.arange(len(looks)))]


def compressed(image: Image.Image, quality: int) -> Image.Image:
    file = BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def test_equal_keys_are_grouped_in_the_order_of_their_first_places() -> None:
    keys = np.array([7, 0, 3, 7, 2**64 - 1, 0, 7], np.uint64)
    assert [group.tolist() for group in group_equal(keys)] == [[0, 3, 6], [1, 5]]


@pytest.mark.parametrize("keys", [[], [5], [5, 6]])
def test_different_keys_are_not_grouped(keys: list[int]) -> None:
    assert group_equal(np.array(keys, np.uint64)) == []


@pytest.mark.parametrize("max_bits", [0, 3, 7])
def test_the_search_finds_exactly_the_pairs_that_comparing_all_finds(max_bits: int) -> None:
    random = np.random.RandomState(0)
    looks = random.randint(0, 2**62, 60).astype(np.uint64)
    for place in range(0, 40, 2):  # every second one becomes its neighbour with 0 ... 9 bits changed
        looks[place + 1] = looks[place]
        for bit in random.choice(64, place // 4, replace=False):
            looks[place + 1] ^= np.uint64(1 << int(bit))
    expected = [
        [left, right]
        for left in range(60)
        for right in range(left + 1, 60)
        if bin(int(looks[left]) ^ int(looks[right])).count("1") <= max_bits
    ]
    assert len(expected) >= 2
    assert find_close(looks, max_bits=max_bits).tolist() == expected


def test_the_digest_tells_pixels_apart_and_shapes_too() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    assert digest_pixels(pixels) == digest_pixels(pixels.copy())
    assert digest_pixels(pixels) != digest_pixels(pixels.reshape(6, 4, 3))
    changed = pixels.copy()
    changed[2, 3, 1] = 1
    assert digest_pixels(pixels) != digest_pixels(changed)


def test_another_size_compression_or_exposure_is_the_same_picture() -> None:
    original = scene(1)
    copies = [
        original.resize((80, 60), Image.Resampling.BILINEAR),
        compressed(original, 30),
        ImageEnhance.Brightness(original).enhance(0.9),
    ]
    others = [scene(seed) for seed in range(2, 40)]
    assert groups_of([original, *others, *copies]) == [[0, 39, 40, 41]]


def test_different_pictures_are_not_alike() -> None:
    assert groups_of([scene(seed) for seed in range(200)]) == []


def test_the_same_shape_in_another_colour_is_another_picture() -> None:
    original = scene(1)
    red, green, blue = original.split()
    assert groups_of([original, Image.merge("RGB", (blue, red, green))]) == []


def test_images_that_show_nothing_are_not_compared() -> None:
    flat = [Image.new("RGB", (64, 64), (shade, shade, shade)) for shade in range(60, 120, 3)]
    assert groups_of(flat) == []


def test_among_images_that_are_alike_by_nature_only_the_closest_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garments of one cut on black: nearly all resemble each other, and only true copies matter."""
    base = np.asarray(scene(1), np.float64)
    garments = []
    for seed in range(30):
        change = np.asarray(scene(100 + seed), np.float64) - 128
        garments.append(Image.fromarray(np.clip(base + 0.1 * change, 0, 255).astype(np.uint8)))
    everything = [*garments, compressed(garments[3], 95)]
    assert groups_of(everything) == [[3, 30]]
    monkeypatch.setattr(duplicates, "_FEW_KIN", 1000)
    assert len(groups_of(everything)[0]) > 2


def test_more_images_of_one_look_than_are_compared_with_each_other_are_still_one_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "_MAX_NEIGHBOURS", 3)
    looks, thumbnails = fingerprints([scene(1)] * 50)
    assert len(find_close(looks, max_bits=7)) == 49 + 48 + 47
    assert [len(group) for group in group_alike(looks, thumbnails=thumbnails, among=np.arange(len(looks)))] == [50]


def test_the_search_stops_where_all_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MAX_PAIRS", 100)
    looks = np.full(50, 12345, np.uint64)
    assert 100 < len(find_close(looks, max_bits=7)) < 50 * 49 // 2


def test_no_images_have_no_look_alikes() -> None:
    none = np.empty(0, np.int64)
    assert group_alike(np.empty(0, np.uint64), thumbnails=np.empty((0, 16, 16, 3), np.uint8), among=none) == []
