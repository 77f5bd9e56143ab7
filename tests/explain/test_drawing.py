"""draw_maps: where colours lie on the original image, what is written, and what can't be drawn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import bright_at, plant
from shrunk import images_for, randomize, small_model

import vitrail
from vitrail.data.augment import EvaluationView
from vitrail.data.decode import open_image
from vitrail.explain.canvas import Rectangle, cividis, overlay, scale_to_unit, show_kept, wrap
from vitrail.explain.drawing import draw_mixing, find_seen
from vitrail.explain.maps_page import MapPicture, write_maps_page
from vitrail.explain.window import draw_window


def is_yellow(picture: Image.Image) -> np.ndarray:
    """Where the colour of the greatest values is strong, [height, width]."""
    pixels = np.asarray(picture).astype(int)
    return (pixels[..., 0] - pixels[..., 2] > 60) & (pixels[..., 1] - pixels[..., 2] > 60)


def test_the_greatest_value_is_yellow_at_its_place_and_outside_the_crop_is_grey() -> None:
    image = Image.new("RGB", (120, 80), (128, 128, 128))
    values = torch.zeros(4, 4)
    values[0, 3] = 1.0
    seen = Rectangle(10, 30, 60, 60)
    pixels = np.asarray(overlay(image, values, seen)).astype(int)
    rows, columns = np.nonzero(is_yellow(overlay(image, values, seen)))
    assert abs(rows.mean() - (10 + 7.5)) < 4  # the middle of the upper right cell of the part that was seen
    assert abs(columns.mean() - (30 + 52.5)) < 4
    outside = np.concatenate([pixels[:, :30].reshape(-1, 3), pixels[:10].reshape(-1, 3), pixels[70:].reshape(-1, 3)])
    assert (outside == outside[:, :1]).all()
    assert outside.max() < 128


def test_patches_that_are_kept_have_their_colours_and_the_rest_is_grey_and_dark() -> None:
    image = Image.new("RGB", (120, 80), (200, 40, 40))
    kept = torch.zeros(4, 4, dtype=torch.bool)
    kept[0, 3] = True
    pixels = np.asarray(show_kept(image, kept, Rectangle(10, 30, 60, 60)))
    rows, columns = np.nonzero((pixels == (200, 40, 40)).all(axis=2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (10, 23, 76, 89)  # less the light edge
    others = pixels[30:]
    assert (others == others[..., :1]).all()
    assert others.max() < 80


def test_a_thresholded_map_has_a_panel_of_its_own() -> None:
    model = plant("cait_xxs24", size=(32, 32))
    images = bright_at((1, 2), size=(32, 32))
    maps = vitrail.attention_maps(model, images, kind="gradient")
    photos = (images * 0 + 90).to(torch.uint8)
    (plain,), (kept,) = vitrail.draw_maps(maps, photos), vitrail.draw_maps(maps, photos, keep=0.6)
    assert kept.width - plain.width > 224
    with pytest.raises(ValueError, match="share of a map to keep"):
        vitrail.draw_maps(maps, photos, keep=1.5)


def test_the_part_that_was_seen_is_that_of_the_evaluation_view() -> None:
    """Of 60 x 90 pixels the short side becomes 40 and the middle 30 x 30 is kept: 45 of 60 pixels."""
    crop = EvaluationView(image_size=30, crop_ratio=0.75).plan((60, 90))
    assert find_seen(crop) == Rectangle(7.5, 22.5, 45.0, 45.0)
    square = np.zeros((60, 90, 3), dtype=np.uint8)
    square[8:52, 23:67] = 255
    assert crop.apply(open_image(square)).float().mean() > 230  # what lies in it is what the model sees


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_a_picture_shows_the_bright_patch_in_yellow(size: tuple[int, int]) -> None:
    model = plant("cait_xxs24", size=size)
    images = bright_at((1, 2), (2, 0), size=size)
    maps = vitrail.attention_maps(model, images)
    pictures = vitrail.draw_maps(maps, (images * 0 + 90).to(torch.uint8))
    assert len(pictures) == 2
    factor = -(-224 // min(size))
    height, width = size[0] * factor, size[1] * factor
    for picture, (row, column) in zip(pictures, [(1, 2), (2, 0)], strict=True):
        yellow = is_yellow(picture)
        first_row = int(np.nonzero((np.asarray(picture) == 90).all(axis=2).any(axis=1))[0][0])
        margin = (picture.width - 2 * width) // 3
        left = 2 * margin + width
        panel = yellow[first_row : first_row + height, left : left + width]
        assert yellow[:, : margin + width][: first_row + height].sum() == 0  # the image itself keeps its colours
        rows, columns = np.nonzero(panel)
        assert int(rows.mean() / factor / 8) == row
        assert int(columns.mean() / factor / 8) == column


def test_tiny_and_large_images_keep_their_shape() -> None:
    model = randomize(small_model("deit_tiny"))
    maps = vitrail.attention_maps(model, images_for(model, batch=1))
    small, large = (vitrail.draw_maps(maps, [Image.new("RGB", size, (9, 9, 9))])[0] for size in ((20, 30), (900, 600)))
    assert small.width > 2 * 240  # enlarged 12 times
    assert large.width > 2 * 900
    assert large.width < 2 * 900 + 200
    reduced = vitrail.draw_maps(maps, [Image.new("RGB", (900, 600))], max_side=300)[0]
    assert 2 * 300 < reduced.width < 2 * 300 + 100


def test_several_maps_stand_side_by_side() -> None:
    model = randomize(small_model("patchconvnet_s60", per_class_tokens=True))
    images = images_for(model, batch=1)
    attention = vitrail.attention_maps(model, images, top=3)
    gradient = vitrail.attention_maps(model, images, kind="gradient")
    photo = Image.new("RGB", (224, 224))
    one, both = (vitrail.draw_maps(maps, [photo])[0] for maps in (attention, [attention, gradient]))
    assert one.width > 4 * 224  # the image and three classes
    assert both.width - one.width > 224


def test_figure_4_2_is_drawn_of_the_matrices() -> None:
    model = randomize(small_model("resmlp_s12", image_size=(64, 96)))
    maps = vitrail.attention_maps(model, torch.zeros(1, 3, 64, 96), kind="mixing")
    picture = draw_mixing(maps)
    assert picture.width > 2 * 6 * 40
    with pytest.raises(ValueError, match="of no image"):
        vitrail.draw_maps(maps, [picture])
    with pytest.raises(ValueError, match="have no overview"):
        maps.overview()


def test_what_does_not_fit_is_an_error() -> None:
    model = small_model("deit_tiny")
    maps = vitrail.attention_maps(model, images_for(model))
    with pytest.raises(ValueError, match="there are 1 images and 2"):
        vitrail.draw_maps(maps, [Image.new("RGB", (20, 20))])
    with pytest.raises(ValueError, match=r"Pillow images or uint8 \[3, height, width\], not float32"):
        vitrail.draw_maps(maps, torch.zeros(2, 3, 8, 8))
    with pytest.raises(ValueError, match="draws maps of the kind mixing, not attention"):
        draw_mixing(maps)


def test_values_are_scaled_from_least_to_greatest() -> None:
    assert scale_to_unit(torch.tensor([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert scale_to_unit(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]
    assert cividis().shape == (256, 3)
    assert cividis()[-1].tolist() == [254, 232, 56]


def test_long_names_are_broken_and_very_long_words_cut() -> None:
    assert wrap("American Staffordshire terrier", size=16, width=120) == ["American", "Staffordshire", "terrier"]
    assert wrap("American Staffordshire terrier", size=16, width=2000) == ["American Staffordshire terrier"]
    assert wrap("x" * 200, size=16, width=120)[0].endswith("…")


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names(tmp_path: Path) -> None:
    page = write_maps_page(
        tmp_path, title="A <b>", notes=["what & why"], entries=[MapPicture("1 a.png", "<x>.jpg", [("c<t", 0.5)])]
    )
    text = page.read_text(encoding="utf-8")
    assert "http" not in text
    assert 'src="1%20a.png"' in text
    assert "<figcaption>&lt;x&gt;.jpg</figcaption>" in text
    assert '<span class="pill know">c&lt;t 50%</span>' in text
    assert "what &amp; why" in text


def test_a_window_shows_photo_patches_and_one_map() -> None:
    torch.manual_seed(0)
    model = vitrail.create_model("deit_tiny", depth=1, image_size=64, num_classes=3).eval()
    maps = vitrail.attention_maps(model, torch.rand(1, 3, 64, 64), kind="attention")
    pixels = torch.full((3, 64, 64), 200, dtype=torch.uint8)
    drawn = np.asarray(draw_window(maps, pixels, class_names=("cat", "dog", "cow")))
    side = 4 * (448 // 4)
    assert drawn.shape[1] == 3 * side + 2 * 24
    panels = [drawn[:side, start : start + side] for start in (0, side + 24, 2 * (side + 24))]
    assert (panels[0] == 200).all()
    assert (panels[1][56, 56] == 200).all()
    assert panels[1][0, 56].max() < 50, "lead"
    centres = panels[2][56::112, 56::112]
    assert len({tuple(pane) for row in centres for pane in row}) > 8, "one colour a patch"
    assert (panels[2][20:100, 20:100] == centres[0, 0]).all()
