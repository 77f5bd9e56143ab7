"""`draw_maps`: pictures of an image, what the model looked at in it, and what it took it for (CaiT figure D.1, D.2)."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.data.geometry import Crop
from vitrail.explain.canvas import (
    INK,
    PAPER,
    Rectangle,
    colour,
    frame,
    line_height,
    overlay,
    show_kept,
    write,
)
from vitrail.explain.maps import AttentionMaps
from vitrail.explain.sheet import MapRow, Sheet
from vitrail.explain.thresholds import keep_mass

PROBABLE = 0.1  # classes above this are written (figure D.2)
MAX_SIDE = 1600  # pixels of the longer side; larger images are reduced to it
_LEAST_SIDE = 224  # of the shorter side; smaller images are enlarged by a whole number
_MANY_LAYERS = 4  # of more than these only the mean of the heads is drawn
_MOST_ROWS = 6  # central patches of a cross-patch matrix (figure 4.2)


def draw_maps(
    maps: AttentionMaps | Sequence[AttentionMaps],
    images: Sequence[Image.Image | Tensor | np.ndarray] | Tensor,
    *,
    crops: Sequence[Crop] | None = None,
    class_names: Sequence[str] | None = None,
    max_side: int = MAX_SIDE,
    keep: float | None = None,
) -> list[Image.Image]:
    """One picture an image: the image itself, the overview of the maps over it, and every layer's heads.

    Several maps of the same images stand side by side. `images` are the originals: Pillow images, or uint8
    [3, height, width]. `crops` say which part of each the model saw (`EvaluationView.plan` makes them); without them it
    saw all. Colours go from the least to the greatest value of each map, with what speaks against a class as nothing.
    The classes above 10 % are written below. Images keep their size unless it is tiny or above `max_side`. With `keep`
    each map is also thresholded: a panel shows the image in the patches that hold that share of the map, and the small
    maps are such masks.
    """
    several = [maps] if isinstance(maps, AttentionMaps) else list(maps)
    if not several or any(each.kind == "mixing" for each in several):
        raise ValueError("rows of a cross-patch matrix are of no image: draw them with vitrail explain kind=mixing")
    for count in {len(each.maps) for each in several} | ({len(crops)} if crops is not None else set()):
        if count != len(images):
            raise ValueError(f"every image needs its maps and its crop: there are {len(images)} images and {count}")
    return [
        _draw_sheet(
            [each.of_image(place) for each in several],
            as_picture(image),
            None if crops is None else crops[place],
            class_names=class_names,
            max_side=max_side,
            keep=keep,
        )
        for place, image in enumerate(images)
    ]


def _draw_sheet(
    several: Sequence[AttentionMaps],
    image: Image.Image,
    crop: Crop | None,
    *,
    class_names: Sequence[str] | None,
    max_side: int,
    keep: float | None,
) -> Image.Image:
    """The picture of one image."""
    seen = Rectangle(0, 0, image.height, image.width) if crop is None else find_seen(crop)
    factor: float = max(1, math.ceil(_LEAST_SIDE / min(image.size)))
    if max(image.size) > max_side:
        factor = max_side / max(image.size)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    image = image.resize(size, Image.Resampling.BICUBIC)
    sheet = Sheet(image, seen.scaled(factor))
    sheet.panels.append(("the image", frame(image, sheet.seen)))
    for maps in several:
        for title, values in zip(_name_overview(maps, class_names), maps.overview()[0], strict=True):
            shown = values.clamp(min=0) if maps.kind == "gradient" else values
            sheet.panels.append((title, overlay(image, shown, sheet.seen)))
            if keep is not None:
                kept = keep_mass(values, keep)
                title = f"{percent(keep)} of it, in {int(kept.sum())} of {kept.numel()} patches"
                sheet.panels.append((title, show_kept(image, kept, sheet.seen)))
        rows = _list_rows(maps, class_names)
        sheet.rows += rows if keep is None else [_threshold(row, keep) for row in rows]
    answers = name_classes(several[0].probabilities[0], class_names)
    sheet.text = [f"{name}  {percent(probability)}" for name, probability in answers]
    return sheet.draw()


def draw_mixing(maps: AttentionMaps, *, side: int = 42) -> Image.Image:
    """The rows of the cross-patch matrices as images, of each layer those of its central patches (figure 4.2)."""
    if maps.kind != "mixing":
        raise ValueError(f"draw_mixing draws maps of the kind mixing, not {maps.kind}")
    height, width = maps.maps.shape[-2:]
    rows, columns = min(_MOST_ROWS, height), min(_MOST_ROWS, width)
    first_row, first_column = (height - rows) // 2, (width - columns) // 2
    tile = (max(1, round(side * height / max(height, width))), max(1, round(side * width / max(height, width))))
    gap, margin, size = 2, 16, 13
    block_width, block_height = columns * (tile[1] + gap), rows * (tile[0] + gap)
    per_line = min(len(maps.layers), 4)
    lines = -(-len(maps.layers) // per_line)
    step = (block_width + margin, block_height + margin + line_height(size))
    canvas = Image.new("RGB", (margin + per_line * step[0], margin + lines * step[1]), PAPER)
    draw = ImageDraw.Draw(canvas)
    for place, layer in enumerate(maps.layers):
        left, top = margin + place % per_line * step[0], margin + place // per_line * step[1]
        top = write(draw, (left, top), [f"layer {layer}"], size=size, ink=INK)
        for row in range(rows):
            for column in range(columns):
                patch = (first_row + row) * width + first_column + column
                picture = colour(maps.maps[0, place, patch], size=tile)
                canvas.paste(picture, (left + column * (tile[1] + gap), top + row * (tile[0] + gap)))
    return canvas


def as_picture(image: Image.Image | Tensor | np.ndarray) -> Image.Image:
    """An RGB image of Pillow, from one or from uint8 pixels [3, height, width]."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    pixels = image.cpu().numpy() if isinstance(image, Tensor) else image
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[0] != 3:
        raise ValueError(
            f"pictures are drawn on Pillow images or uint8 [3, height, width], not {pixels.dtype} {list(pixels.shape)}"
        )
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def find_seen(crop: Crop) -> Rectangle:
    """The part of the original image that a crop shows, clipped to it."""
    vertical, horizontal = crop.source.height / crop.resized[0], crop.source.width / crop.resized[1]
    top, left = crop.source.top + crop.window.top * vertical, crop.source.left + crop.window.left * horizontal
    return Rectangle(top, left, crop.window.height * vertical, crop.window.width * horizontal)


def name_classes(probabilities: Tensor, class_names: Sequence[str] | None) -> list[tuple[str, float]]:
    """The classes above 10 %, or the first where none is, with their probabilities."""
    if not len(probabilities):
        return []
    values, indices = probabilities.sort(descending=True)
    pairs = list(zip(indices.tolist()[:10], values.tolist()[:10], strict=True))
    chosen = [pair for pair in pairs if pair[1] > PROBABLE] or pairs[:1]
    return [(_name(index, class_names), probability) for index, probability in chosen]


def _name(index: int, class_names: Sequence[str] | None) -> str:
    return f"class {index}" if class_names is None else class_names[index]


def _name_overview(maps: AttentionMaps, class_names: Sequence[str] | None) -> list[str]:
    """A title for each map of the overview."""
    if maps.classes is not None:
        probabilities = maps.probabilities[0]
        return [
            f"{maps.kind}: {_name(index, class_names)} {percent(float(probabilities[index]))}"
            for index in maps.classes[0].tolist()
        ]
    if maps.kind == "likeness":
        return ["likeness: to the mean of all patches"]
    if maps.kind != "attention":
        return [f"{maps.kind}: all layers"]
    heads = f"head {maps.heads[0]}" if len(maps.heads) == 1 else f"mean of {len(maps.heads)} heads"
    return [f"attention: layer {maps.layers[maps.shown_place]}, {heads}"]


def _list_rows(maps: AttentionMaps, class_names: Sequence[str] | None) -> list[MapRow]:
    """Rows of small maps, where they say more than the overview: heads of each layer and token, likeness to patches.

    Of many layers each one's mean, and the heads of the layer that the overview shows.
    """
    own = maps.maps[0]
    if maps.kind == "rollout" and len(maps.tokens) > 1:
        return [MapRow("rollout of each token", list(zip(maps.tokens, own, strict=True)))]
    if maps.kind == "likeness":
        return [MapRow("likeness to one patch", list(zip(maps.tokens[1:], own[1:], strict=True)))]
    if maps.kind != "attention" or own.shape[:3].numel() == 1:
        return []
    if len(maps.layers) <= _MANY_LAYERS:
        return [row for place in range(len(maps.layers)) for row in _list_heads(maps, place, class_names)]
    means = [(f"layer {layer}", of_layer.mean(dim=(0, 1))) for layer, of_layer in zip(maps.layers, own, strict=True)]
    by_layer = MapRow("attention, mean of the heads of each layer", means)
    return [by_layer, *_list_heads(maps, maps.shown_place, class_names)]


def _threshold(row: MapRow, keep: float) -> MapRow:
    """A row of masks instead of maps."""
    items = [(label, keep_mass(values, keep)) for label, values in row.items]
    return MapRow(f"{row.title}: {percent(keep)} of each", items)


def _list_heads(maps: AttentionMaps, place: int, class_names: Sequence[str] | None) -> list[MapRow]:
    """The heads of one layer, a row for each token; none where one head of a class is all there is."""
    if len(maps.heads) == 1 and maps.classes is not None:
        return []
    if maps.classes is None:
        names = [f"{token} token" for token in maps.tokens]
    else:
        names = [_name(index, class_names) for index in maps.classes[0].tolist()]
    rows = []
    for name, of_token in zip(names, maps.maps[0, place], strict=True):
        heads = [(f"head {head}", values) for head, values in zip(maps.heads, of_token, strict=True)]
        rows.append(MapRow(f"attention, layer {maps.layers[place]}, {name}", heads))
    return rows


def percent(probability: float) -> str:
    """A probability as people read it."""
    return "under 1 %" if probability < 0.01 else f"{100 * probability:.0f} %"
