import os
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from isolated import run_isolated
from PIL import Image, ImageChops, ImageFile, ImageOps, features
from torch import Tensor

from vitrail.data.augment import Augmentation, EvaluationView
from vitrail.data.decode import (
    BrokenImageError,
    ImageTooLargeError,
    library_lines,
    open_image,
    opened,
    take_library_lines,
)
from vitrail.data.decode.library_lines import LIBRARY_LINES
from vitrail.data.draws import Draws
from vitrail.settings.images import AugmentationSettings

WIDTH, HEIGHT = 96, 64
RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 200, 40), (20, 40, 210), (255, 255, 255)
COLOURS = (RED, GREEN, BLUE, WHITE)  # top left, top right, bottom left, bottom right

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="Pillow was built without AVIF")


def draw_quadrants(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    image = Image.new("RGB", (width, height))
    for place, colour in enumerate(COLOURS):
        left, top = place % 2 * width // 2, place // 2 * height // 2
        image.paste(colour, (left, top, left + width // 2, top + height // 2))
    return image


def draw_noise(seed: int = 0, width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(levels)


def encode(image: Image.Image, name: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, name, **options)
    return buffer.getvalue()


def make_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def insert_segment(jpeg: bytes, code: int, content: bytes) -> bytes:
    return jpeg[:2] + bytes([0xFF, code]) + struct.pack(">H", len(content) + 2) + content + jpeg[2:]


def make_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def make_png(width: int, height: int, *, depth: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = make_chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + extra + pixels + make_chunk(b"IEND", b"")


def levels_of(pixels: Tensor) -> np.ndarray:
    return pixels.permute(1, 2, 0).numpy().astype(int)


def assert_quadrants(
    pixels: Tensor, colours: tuple[tuple[int, int, int], ...] = COLOURS, *, tolerance: int = 0
) -> None:
    height, width = pixels.shape[1:]
    for place, colour in enumerate(colours):
        found = pixels[:, height // 4 + place // 2 * height // 2, width // 4 + place % 2 * width // 2]
        assert np.abs(found.numpy().astype(int) - np.array(colour)).max() <= tolerance, (place, found.tolist(), colour)


def assert_broken(data: bytes, match: str = "is cut off or damaged", *, shrink: int = 1) -> None:
    with pytest.raises(BrokenImageError, match=match):
        open_image(data).pixels(shrink=shrink)


# Formats and modes


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("PPM", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("GIF", {}, 4),
        ("JPEG2000", {}, 2),
        ("JPEG", {"quality": 95}, 4),
        ("JPEG", {"quality": 95, "subsampling": 0}, 4),
        ("JPEG", {"quality": 95, "progressive": True}, 4),
        ("JPEG", {"quality": 95, "keep_rgb": True}, 4),
        pytest.param("AVIF", {"quality": 95}, 8, marks=needs_avif),
    ],
)
def test_every_format_keeps_its_colours_and_their_places(name: str, options: dict[str, Any], tolerance: int) -> None:
    image = open_image(encode(draw_quadrants(), name, **options))
    assert (image.format, image.height, image.width, image.is_animated) == (name, HEIGHT, WIDTH, False)
    assert image.mode == ("P" if name == "GIF" else "RGB")
    pixels = image.pixels()
    assert pixels.shape == (3, HEIGHT, WIDTH)
    assert_quadrants(pixels, tolerance=tolerance)


@pytest.mark.parametrize(
    "data", [encode(draw_quadrants(), "JPEG"), encode(draw_quadrants(), "PNG"), np.array(draw_quadrants())]
)
def test_pixels_are_channels_last_writable_and_the_callers_own(data: bytes | np.ndarray) -> None:
    image = open_image(data)
    before = bytes(data) if isinstance(data, bytes) else data.copy()
    pixels = image.pixels()
    assert pixels.dtype == torch.uint8
    assert pixels.permute(1, 2, 0).is_contiguous()
    expected = pixels.clone()
    pixels.fill_(7)
    assert torch.equal(image.pixels(), expected)
    assert np.array_equal(data, before) if isinstance(data, np.ndarray) else data == before


@pytest.mark.parametrize("name", ["PNG", "JPEG", "TIFF"])
def test_greyscale_becomes_three_equal_channels(name: str) -> None:
    image = open_image(encode(draw_quadrants().convert("L"), name))
    assert image.mode == "L"
    pixels = image.pixels()
    assert torch.equal(pixels[0], pixels[1])
    assert torch.equal(pixels[0], pixels[2])
    grey = [draw_quadrants().convert("L").getpixel((x, y)) for y in (16, 48) for x in (24, 72)]
    assert_quadrants(pixels, tuple((level, level, level) for level in grey), tolerance=2)  # type: ignore[misc]


def test_one_bit_is_black_and_white() -> None:
    image = open_image(encode(Image.new("1", (9, 5), 1), "PNG"))
    assert image.mode == "1"
    assert (image.pixels() == 255).all()


def test_colours_behind_alpha_are_laid_on_white() -> None:
    image = draw_quadrants().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    opened = open_image(encode(image, "PNG"))
    assert opened.mode == "RGBA"
    colours, alpha = np.array(image)[..., :3].astype(float), np.array(image)[..., 3:] / 255.0
    assert np.abs(levels_of(opened.pixels()) - (colours * alpha + 255.0 * (1.0 - alpha))).max() <= 1.0


def test_grey_with_alpha_is_laid_on_white() -> None:
    opened = open_image(encode(Image.merge("LA", [Image.new("L", (8, 8), 0), Image.new("L", (8, 8), 64)]), "PNG"))
    assert opened.mode == "LA"
    assert np.abs(levels_of(opened.pixels()) - 191).max() <= 1


@pytest.mark.parametrize("transparency", [0, b"\x00\xff\xff\xff"], ids=["one colour", "a list"])
def test_a_transparent_palette_colour_becomes_white(transparency: int | bytes) -> None:
    places = np.repeat(np.repeat(np.array([[0, 1], [2, 3]], dtype=np.uint8), 8, axis=0), 8, axis=1)
    image = Image.fromarray(places).convert("P")
    image.putpalette([level for colour in COLOURS for level in colour])
    opened = open_image(encode(image, "PNG", transparency=transparency))
    assert opened.mode == "P"
    assert_quadrants(opened.pixels(), (WHITE, GREEN, BLUE, WHITE))


def test_a_transparent_colour_of_an_rgb_png_becomes_white() -> None:
    opened = open_image(encode(draw_quadrants(), "PNG", transparency=BLUE))
    assert opened.mode == "RGB"
    assert_quadrants(opened.pixels(), (RED, GREEN, WHITE, WHITE))


def test_cmyk_of_a_tiff_and_of_an_adobe_jpeg_become_rgb() -> None:
    image = draw_quadrants().convert("CMYK")
    for name, tolerance in (("TIFF", 1), ("JPEG", 8)):
        opened = open_image(encode(image, name))
        assert opened.mode == "CMYK"
        assert_quadrants(opened.pixels(), tolerance=tolerance)


def test_adobe_ycck_jpeg_becomes_rgb() -> None:
    cyan, magenta, yellow, black = draw_quadrants().convert("CMYK").split()
    stored = [*Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split(), ImageChops.invert(black)]
    plain = encode(Image.merge("CMYK", [ImageChops.invert(band) for band in stored]), "JPEG", quality=95)
    place = plain.index(b"Adobe") + 11  # the colour transform: 0 is CMYK, 2 is YCCK
    assert plain[place] == 0
    opened = open_image(plain[:place] + b"\x02" + plain[place + 1 :])
    assert opened.mode == "CMYK"
    assert_quadrants(opened.pixels(), tolerance=8)


@pytest.mark.parametrize(("name", "mode"), [("PNG", "I;16"), ("TIFF", "I;16"), ("TIFF", "I;16B")])
def test_16_bit_grey_is_scaled_not_clipped(name: str, mode: str) -> None:
    ramp = np.arange(256).reshape(16, 16)
    order = ">u2" if mode == "I;16B" else "<u2"
    image = Image.frombytes(mode, (16, 16), (ramp * 257).astype(order).tobytes())
    opened = open_image(encode(image, name))
    assert opened.mode in (mode, "I")
    assert np.array_equal(levels_of(opened.pixels()), np.repeat(ramp[..., None], 3, axis=2))


def test_16_bit_colour_is_scaled() -> None:
    row = b"\0" + b"".join(struct.pack(">HHH", *(level * 257 for level in colour)) for colour in (RED, BLUE))
    pixels = open_image(make_png(2, 1, depth=16, colour=2, rows=row)).pixels()
    assert pixels[:, 0].T.tolist() == [list(RED), list(BLUE)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.2, 1.0]], dtype=np.float32), [0, 51, 255]),
        (np.array([[0.0, 20.0, 200.0]], dtype=np.float32), [0, 20, 200]),
        (np.array([[-10.0, 0.0, 10.0]], dtype=np.float32), [0, 128, 255]),
        (np.array([[-5.0, -5.0, -5.0]], dtype=np.float32), [0, 0, 0]),
        (np.array([[np.nan, 51.0, np.inf]], dtype=np.float32), [0, 51, 0]),
        (np.array([[0, 257 * 9, 65535]], dtype=np.int32), [0, 9, 255]),
        (np.array([[0, 500_000, 1_000_000]], dtype=np.int32), [0, 128, 255]),
    ],
)
def test_32_bit_grey_is_scaled_by_the_range_that_holds_it(values: np.ndarray, expected: list[int]) -> None:
    opened = open_image(encode(Image.fromarray(values), "TIFF"))
    assert opened.mode in ("F", "I")
    assert opened.pixels()[1].tolist() == [expected]


@pytest.mark.parametrize(("name", "options"), [("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})])
def test_the_first_frame_of_an_animation_is_taken(name: str, options: dict[str, Any]) -> None:
    others = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("black", "orange")]
    image = open_image(encode(draw_quadrants(), name, save_all=True, append_images=others, duration=50, **options))
    assert image.is_animated
    assert_quadrants(image.pixels(), tolerance=4)


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("JPEG", {"quality": 95}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        pytest.param("AVIF", {}, marks=needs_avif),
    ],
)
def test_exif_orientation_is_applied(name: str, options: dict[str, Any], orientation: int) -> None:
    data = encode(draw_quadrants(), name, exif=make_exif(orientation), **options)
    with Image.open(BytesIO(data)) as image:
        expected = np.array(ImageOps.exif_transpose(image).convert("RGB")).astype(int)
    opened = open_image(data)
    pixels = opened.pixels()
    assert (opened.height, opened.width) == expected.shape[:2] == tuple(pixels.shape[1:])
    assert (opened.height > opened.width) == (orientation >= 5)
    assert opened.orientation == orientation
    assert pixels.permute(1, 2, 0).is_contiguous()
    assert np.abs(levels_of(pixels) - expected).max() <= 2


def test_orientation_of_big_endian_exif_is_read() -> None:
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)
    assert open_image(insert_segment(encode(draw_quadrants(), "JPEG"), 0xE1, exif)).height == WIDTH


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II*\0",
        b"what is this",
        b"II*\0" + struct.pack("<I", 0xFFFFFFF0),
        b"II*\0" + struct.pack("<IH", 8, 60000),
        b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 99, 0),
        b"MM\0*" + bytes(200),
    ],
)
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_leaves_the_image_as_it_is(name: str, exif: bytes) -> None:
    if name == "JPEG":
        data = insert_segment(encode(draw_quadrants(), name), 0xE1, b"Exif\0\0" + exif)
    else:
        data = encode(draw_quadrants(), name, exif=b"Exif\0\0" + exif)
    image = open_image(data)
    assert (image.height, image.width, image.orientation) == (HEIGHT, WIDTH, 1)
    for shrink in (1, 2):
        assert_quadrants(image.pixels(shrink=shrink), tolerance=16)


# PNG: the short way


@pytest.mark.parametrize("size", [(1, 1), (101, 77), (32, 32)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_header_of_a_plain_png_is_read_as_pillow_reads_it(mode: str, size: tuple[int, int]) -> None:
    image = draw_noise(width=size[0], height=size[1]).convert(mode)
    opened = open_image(encode(image, "PNG"))
    assert (opened.width, opened.height, opened.mode) == (*image.size, image.mode)
    assert (opened.format, opened.is_animated, opened.orientation) == ("PNG", False, 1)
    assert np.array_equal(levels_of(opened.pixels()), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("colour", [0, 2])
@pytest.mark.parametrize("rows", [b"", b"\0" * 5, b"\x07" * 100], ids=["none", "few", "no filter"])
def test_a_png_that_lacks_pixels_is_broken_though_its_check_sums_are_right(
    colour: int, rows: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_broken(make_png(8, 8, depth=8, colour=colour, rows=rows), match="damaged|cannot be decoded")
    assert capfd.readouterr().err == ""


# JPEG: the fast way, and smaller than stored


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"restart_marker_rows": 1}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_is_decoded_as_pillow_decodes_it(mode: str, options: dict[str, Any]) -> None:
    data = encode(draw_noise(width=101, height=77).convert(mode), "JPEG", quality=92, **options)
    with Image.open(BytesIO(data)) as image:
        expected = np.array(image.convert("RGB")).astype(int)
    assert np.abs(levels_of(open_image(data).pixels()) - expected).max() <= 2


def test_without_torchvisions_decoder_a_jpeg_comes_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(draw_noise(), "JPEG", exif=make_exif(6))
    fast = levels_of(open_image(data).pixels())
    monkeypatch.setattr("vitrail.data.decode.jpeg._find_torchvision_decoder", lambda: None)
    assert np.abs(levels_of(open_image(data).pixels()) - fast).max() <= 2
    assert_broken(data[:-100])


@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"exif": make_exif(6)}])
def test_a_jpeg_can_be_decoded_smaller(options: dict[str, Any], shrink: int) -> None:
    image = open_image(encode(draw_quadrants(403, 301), "JPEG", quality=95, **options))
    pixels = image.pixels(shrink=shrink)
    assert pixels.shape == (3, -(-image.height // shrink), -(-image.width // shrink))
    assert pixels.permute(1, 2, 0).is_contiguous()
    colours = (BLUE, RED, WHITE, GREEN) if "exif" in options else COLOURS
    assert_quadrants(pixels, colours, tolerance=4)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_jpegs_can_be_decoded_smaller(mode: str) -> None:
    data = encode(draw_quadrants(400, 300).convert(mode), "JPEG", quality=95)
    assert open_image(data).pixels(shrink=4).shape == (3, 75, 100)


def test_a_jpeg_smaller_than_the_shrink_still_has_pixels() -> None:
    assert open_image(encode(draw_quadrants(6, 4), "JPEG")).pixels(shrink=8).shape[0] == 3


def test_other_formats_come_in_full_whatever_the_shrink() -> None:
    assert open_image(encode(draw_quadrants(), "PNG")).pixels(shrink=8).shape == (3, HEIGHT, WIDTH)
    assert open_image(np.array(draw_quadrants())).pixels(shrink=8).shape == (3, HEIGHT, WIDTH)


def test_a_shrink_that_no_jpeg_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="shrink is 3"):
        open_image(encode(draw_quadrants(), "JPEG")).pixels(shrink=3)


def test_what_a_phone_appends_to_a_jpeg_is_ignored() -> None:
    data = encode(draw_quadrants(), "JPEG", quality=95)
    for tail in (b"\0" * 3000, b"ftypmp42" + bytes(range(256)) * 20, data, data[:200]):
        for shrink in (1, 2):
            assert_quadrants(open_image(data + tail).pixels(shrink=shrink), tolerance=4)


def test_stray_and_filling_bytes_between_the_parts_of_a_jpeg_are_skipped() -> None:
    data = encode(draw_quadrants(), "JPEG", quality=95)
    assert_quadrants(open_image(data[:2] + b"\xff\xff\xff" + data[2:]).pixels(), tolerance=4)
    place = data.index(b"\xff\xdb")
    assert open_image(data[:place] + b"stray" + data[place:]).width == WIDTH


def test_a_whole_jpeg_that_ends_in_mid_grey_is_no_suspect() -> None:
    for options in ({}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}):
        data = encode(Image.new("RGB", (WIDTH, HEIGHT), (128, 128, 128)), "JPEG", quality=95, **options)
        for shrink in (1, 8):
            assert (open_image(data).pixels(shrink=shrink) == 128).all()


# Files that are cut off or damaged


JPEG_KINDS = {
    "baseline 4:2:0": encode(draw_noise(), "JPEG", quality=85),
    "baseline 4:4:4": encode(draw_noise(), "JPEG", quality=85, subsampling=0),
    "progressive": encode(draw_noise(), "JPEG", quality=85, progressive=True),
    "restarts": encode(draw_noise(), "JPEG", quality=85, restart_marker_rows=1),
    "grey": encode(draw_noise().convert("L"), "JPEG", quality=85),
    "cmyk": encode(draw_noise().convert("CMYK"), "JPEG", quality=85),
    "exif": encode(draw_noise(), "JPEG", quality=85, exif=make_exif(8)),
}


def choose_cuts(data: bytes) -> list[int]:
    return sorted({*range(1, len(data), max(1, len(data) // 60)), *range(len(data) - 12, len(data))})


@pytest.mark.parametrize("shrink", [1, 2, 8])
@pytest.mark.parametrize("kind", JPEG_KINDS)
def test_a_jpeg_cut_off_anywhere_is_broken(kind: str, shrink: int) -> None:
    data = JPEG_KINDS[kind]
    open_image(data).pixels(shrink=shrink)
    for cut in choose_cuts(data):
        assert_broken(data[:cut], "cut off|is not an image", shrink=shrink)


@pytest.mark.parametrize("shrink", [1, 8])
@pytest.mark.parametrize("kind", [kind for kind in JPEG_KINDS if kind != "progressive"])
def test_a_jpeg_cut_off_and_closed_with_an_end_marker_is_broken(
    kind: str, shrink: int, capfd: pytest.CaptureFixture[str]
) -> None:
    data = JPEG_KINDS[kind]
    for part in (0.3, 0.5, 0.8):
        start = data.index(b"\xff\xda") + 20
        cut = start + int(part * (len(data) - start))
        assert_broken(data[:cut].rstrip(b"\xff") + b"\xff\xd9", shrink=shrink)
    capfd.readouterr()  # libjpeg complains to stderr


@pytest.mark.parametrize("shrink", [1, 8])
def test_a_jpeg_whose_end_was_lost_to_zeros_is_broken(shrink: int) -> None:
    for data in JPEG_KINDS.values():
        assert_broken(data[: len(data) // 2] + bytes(len(data) - len(data) // 2), shrink=shrink)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("PNG", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("PPM", {}),
        ("JPEG2000", {}),
        pytest.param("AVIF", {}, marks=needs_avif),
    ],
)
@pytest.mark.parametrize("accepts_truncated", [False, True])
def test_other_files_cut_off_anywhere_are_broken_whatever_pillow_was_told(
    name: str, options: dict[str, Any], accepts_truncated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", accepts_truncated)
    data = encode(draw_noise(), name, **options)
    open_image(data).pixels()
    for cut in choose_cuts(data):
        assert_broken(data[:cut], "cut off|is not an image|cannot be decoded")
    assert ImageFile.LOAD_TRUNCATED_IMAGES is accepts_truncated


@pytest.mark.parametrize("name", ["GIF", "BMP"])
def test_gif_and_bmp_cut_off_within_their_pixels_are_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = encode(draw_noise(), name)
    for cut in choose_cuts(data[:-10]):
        assert_broken(data[:cut], "cut off|is not an image|cannot be decoded")


def test_a_jpeg2000_cut_off_right_after_its_headers_is_broken() -> None:
    data = encode(draw_noise(), "JPEG2000", irreversible=True)
    for cut in range(100, 300):
        assert_broken(data[:cut], "cut off|cannot be decoded")


@pytest.mark.parametrize("part", [b"IHDR", b"PLTE", b"IDAT", b"IEND"])
def test_a_png_with_a_wrong_check_sum_is_broken(part: bytes) -> None:
    data = bytearray(encode(draw_quadrants().quantize(4), "PNG"))
    place = data.index(part)
    (length,) = struct.unpack_from(">I", data, place - 4)
    data[place + 4 + length] ^= 1
    assert_broken(bytes(data), "damaged")


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "JPEG2000"])
def test_random_damage_gives_pixels_or_the_one_error(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    whole = encode(draw_noise(width=32, height=24), name)
    random = np.random.default_rng(0)
    messages = []
    for _ in range(60):
        data = bytearray(whole)
        for place in random.integers(0, min(len(data), 400), 3):
            data[place] = random.integers(256)
        try:
            image = open_image(bytes(data), max_pixels=1_000_000)
            assert image.pixels().shape == (3, image.height, image.width)
        except BrokenImageError as error:
            messages.append(str(error))
    assert capfd.readouterr().err == ""
    assert messages
    assert all(message and "\n" not in message for message in messages)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is empty"),
        (b" <HTML><body>404</body></html>", r"^is not an image that can be read: it looks like an HTML page$"),
        (b"root:x:0:0:root:/root:/bin/bash\n" * 20, r"^is not an image that can be read$"),
        (bytes(5000), r"^is not an image that can be read: it looks like zeros$"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "fetch the file with git lfs pull"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", r"is a HEIC image: pip install 'vitrail\[heic\]' reads it, or convert"),
        (b"\xff\x0a\xfa\x1f\x01\x91", "is a JPEG XL image, which is not read: convert it to JPEG or PNG"),
        (np.random.default_rng(3).bytes(5000), "is not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "is not an image"),
        (b"\xff\xd8\xff", "cut off"),
        (b"\xff\xd8\xff\xd9", "cut off"),
        (b"\x89PNG\r\n\x1a\n", "cut off"),
        (b"GIF89a", "cut off"),
    ],
)
def test_what_is_no_image_is_said_to_be_none(data: bytes, match: str) -> None:
    assert_broken(data, match)


def test_a_12_bit_jpeg_is_refused_by_name() -> None:
    data = bytearray(encode(draw_quadrants(), "JPEG"))
    data[data.index(b"\xff\xc0") + 4] = 12
    assert_broken(bytes(data), "3 x 12 bits")


# Bombs


def test_an_image_above_the_limit_is_refused_before_it_is_decoded() -> None:
    data = make_png(20_000, 20_000, depth=8, colour=2, rows=b"")
    with pytest.raises(BrokenImageError, match=r"^has 400 megapixels, more than the limit of 100$"):
        open_image(data)
    with pytest.raises(BrokenImageError, match=r"^has 120 megapixels, more than the limit of 100$"):
        open_image(make_png(10_000, 12_000, depth=8, colour=2, rows=b""))
    jpeg = bytearray(encode(draw_quadrants(), "JPEG"))
    struct.pack_into(">HH", jpeg, jpeg.index(b"\xff\xc0") + 5, 65_500, 65_500)
    with pytest.raises(BrokenImageError, match="has 4,290 megapixels"):
        open_image(bytes(jpeg))
    gif = bytearray(encode(draw_quadrants(), "GIF"))
    struct.pack_into("<HH", gif, 6, 65_000, 65_000)
    with pytest.raises(BrokenImageError, match="megapixels"):
        open_image(bytes(gif))


def test_the_limit_can_be_set() -> None:
    for name in ("JPEG", "PNG"):
        data = encode(draw_quadrants(), name)
        assert open_image(data, max_pixels=HEIGHT * WIDTH).width == WIDTH
        with pytest.raises(BrokenImageError, match="more than the limit"):
            open_image(data, max_pixels=HEIGHT * WIDTH - 1)


def test_a_large_image_within_the_limit_opens_without_a_warning() -> None:
    assert open_image(make_png(10_000, 9_500, depth=1, colour=0, rows=b"")).height == 9_500


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP", b"iTXt"])
def test_a_bomb_in_the_texts_of_a_png_does_not_explode(kind: bytes) -> None:
    content = b"name\0" + (b"\x01\x00\0\0" if kind == b"iTXt" else b"\0") + zlib.compress(bytes(20_000_000))
    data = make_png(1, 1, depth=8, colour=2, rows=b"\0\x01\x02\x03", extra=make_chunk(kind, content))
    assert open_image(data).pixels().flatten().tolist() == [1, 2, 3]


@pytest.mark.parametrize("between", [b"", b"\xff\xe5\x00\x04\xff\xd9", b"\xff\xff\xe5\x00\x02", b"\xff\x02\x7f\xf0"])
def test_a_jpeg_of_endless_scans_is_refused(between: bytes) -> None:
    data = encode(draw_quadrants(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    assert_broken(data[:last] + between + data[last:-2] * 200 + data[-2:], "more than 100 scans")
    assert_quadrants(open_image(data + b"\xff\xda" * 200).pixels(), tolerance=16)
    thumbnail = b"\xff\xe5" + struct.pack(">H", 402) + b"\xff\xda" * 200
    assert_quadrants(open_image(data[:last] + thumbnail + data[last:]).pixels(), tolerance=16)


def test_the_larger_a_jpeg_the_fewer_scans_it_may_have() -> None:
    data = encode(draw_quadrants(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    data = data[:last] + data[last:-2] * 30 + data[-2:]
    open_image(data).pixels()
    with pytest.raises(BrokenImageError, match=rf"is a JPEG of {WIDTH} x {HEIGHT} pixels in more than 15 scans"):
        open_image(data, max_pixels=WIDTH * HEIGHT).pixels()


@pytest.mark.parametrize("size", [(99_000_000, 1), (1, 99_000_000), (100_001, 20)])
def test_a_strip_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(
        ImageTooLargeError, match=rf"is {size[0]} x {size[1]} pixels, more than the limit of 100000 a side"
    ):
        open_image(make_png(*size, depth=8, colour=2, rows=b""))


def test_the_longest_strip_that_is_taken_becomes_a_picture() -> None:
    image = open_image(make_png(100_000, 1, depth=8, colour=0, rows=bytes(100_001)))
    assert EvaluationView(224)(image, Draws(0)).shape == (3, 224, 224)
    assert Augmentation(224, AugmentationSettings(crop="simple"))(image, Draws(0)).shape == (3, 224, 224)


def test_what_needs_more_memory_than_there_is_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    assert_broken(encode(draw_quadrants(), "TIFF"), "needs more memory to be decoded than there is")


def make_tiff(*, side: int, bits: int, tile: int | None = None) -> bytes:
    """The header of a grey image of floating point, in one strip or in a tile."""
    entries = {256: side, 257: side, 258: bits, 259: 1, 262: 1, 277: 1, 339: 3}
    entries |= {273: 0, 278: side, 279: 0} if tile is None else {322: tile, 323: tile, 324: 0, 325: 0}
    listed = b"".join(
        struct.pack("<HHII", tag, 3 if tag in (258, 339) else 4, 1, value) for tag, value in sorted(entries.items())
    )
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + listed + bytes(4)


def test_a_large_image_of_32_bit_levels_takes_the_memory_of_its_levels_and_of_its_pixels() -> None:
    side = 4000
    file = BytesIO()
    Image.fromarray(np.tile(np.linspace(0, 1, side, dtype=np.float32), (side, 1))).save(
        file, format="TIFF", compression="tiff_adobe_deflate"
    )
    levels, pixels, blocks = 4 * side**2, 3 * side**2, 64_000_000

    def work(say: Callable[[str], None]) -> str | None:
        say("decoding")
        found = open_image(file.getvalue()).pixels()
        return None if found.shape == (3, side, side) and found[:, 0, -1].eq(255).all() else "other pixels"

    assert run_isolated(work, seconds=60, max_bytes=levels + pixels + blocks) is None


def test_a_tiff_is_measured_by_the_bytes_that_it_unfolds_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_image(make_tiff(side=10_000, bits=32)).mode == "F"
    with pytest.raises(ImageTooLargeError, match=r"^unfolds to 1e\+04 MB, more than the limit of 400$"):
        open_image(make_tiff(side=8, bits=32, tile=50_000))
    monkeypatch.setattr(opened, "MAX_BYTES_PER_PIXEL", 3)
    with pytest.raises(ImageTooLargeError, match=r"^unfolds to 400 MB, more than the limit of 300$"):
        open_image(make_tiff(side=10_000, bits=32))


# What decoders print


def test_lines_of_the_libraries_are_kept_for_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    take_library_lines()
    jpeg = encode(draw_noise(), "JPEG")
    open_image(jpeg[:-2] + b"\x11" * 9 + jpeg[-2:]).pixels()
    assert [line.startswith("Corrupt JPEG data: ") for line in take_library_lines()] == [True]
    tiff = bytearray(encode(draw_noise(), "TIFF", compression="tiff_deflate"))
    tiff[len(tiff) // 2] ^= 255
    assert_broken(bytes(tiff), "cannot be decoded|cut off")
    assert any("Decode" in line for line in take_library_lines())
    assert take_library_lines() == []
    assert capfd.readouterr().err == ""


def test_what_others_print_while_an_image_is_decoded_reaches_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    with LIBRARY_LINES, LIBRARY_LINES:
        os.write(2, b"epoch 3: 12 %\nCorrupt JPEG data: bad Huffman code\nepoch 3: 13 %")
    assert capfd.readouterr().err == "epoch 3: 12 %\nepoch 3: 13 %"
    assert take_library_lines() == ["Corrupt JPEG data: bad Huffman code"]


def test_much_that_is_printed_does_not_wait_for_the_last_decoder(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_lines, "_MAX_BYTES", 100)
    with LIBRARY_LINES:
        with LIBRARY_LINES:
            os.write(2, b"epoch 3: 12 %\n")
        assert capfd.readouterr().err == ""
        with LIBRARY_LINES:
            os.write(2, b"Corrupt JPEG data: bad Huffman code\n" * 3)
        assert capfd.readouterr().err == "epoch 3: 12 %\n"
        assert len(take_library_lines()) == 3
        os.write(2, b"Corrupt JPEG data: premature end\n")
    assert capfd.readouterr().err == ""
    assert take_library_lines() == ["Corrupt JPEG data: premature end"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_while_an_image_is_decoded_prints_to_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    with LIBRARY_LINES:
        child = os.fork()
        if child == 0:
            os.write(2, b"from the child")
            os._exit(0)
        os.waitpid(child, 0)
    assert capfd.readouterr().err == "from the child"


# Arrays


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3)])
def test_arrays_are_images(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = open_image(array)
    assert (image.height, image.width, image.format) == (5, 7, "pixels")
    assert image.mode == ("RGB" if shape[2:] == (3,) else "L")
    assert np.array_equal(levels_of(image.pixels()), np.broadcast_to(array.reshape(5, 7, -1), (5, 7, 3)))


def test_read_only_and_strided_arrays_are_taken() -> None:
    array = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)[::-1, ::2]
    array.setflags(write=False)
    pixels = open_image(array).pixels()
    assert np.array_equal(levels_of(pixels), array)
    pixels.add_(1)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((5, 7), dtype=np.float32),
        np.zeros((5, 7, 3), dtype=np.int64),
        np.zeros(5, dtype=np.uint8),
        np.zeros((3, 5, 7), dtype=np.uint8),
        np.zeros((5, 7, 4), dtype=np.uint8),
        np.zeros((1, 5, 7, 3), dtype=np.uint8),
        np.zeros((0, 7, 3), dtype=np.uint8),
    ],
)
def test_other_arrays_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="an image as an array is uint8"):
        open_image(array)


# Threads


def test_threads_do_not_disturb_each_other_or_the_programs_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    whole = encode(draw_noise(), "BMP")
    expected = open_image(whole).pixels()
    filters = list(warnings.filters)

    def decode_or_refuse(number: int) -> bool:
        if number % 2:
            return torch.equal(open_image(whole).pixels(), expected)
        assert_broken(whole[:5000])
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(decode_or_refuse, range(200)))
    assert warnings.filters == filters
    assert ImageFile.LOAD_TRUNCATED_IMAGES
