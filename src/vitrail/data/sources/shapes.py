"""The data set `shapes`: pictures drawn from a seed, with fine and coarse labels, masks and boxes, at any size."""

import difflib
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from vitrail.data.contract import Dataset, Level, Source
from vitrail.data.draws import Draws
from vitrail.data.stored import OpenedSource

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross")
TEXTURES = ("plain", "striped", "dotted", "checked")
CLASSES = tuple(f"{texture} {shape}" for shape in SHAPES for texture in TEXTURES)

Color = tuple[float, float, float]  # 0 ... 255
Direction = tuple[float, float]  # a unit vector

# Ranges of luminance far enough from each other that the background and an object's two colours are always tellable.
BANDS = ((0.08, 0.20), (0.42, 0.56), (0.80, 0.94))
COSINE_36, COSINE_72 = (math.sqrt(5.0) + 1.0) / 4.0, (math.sqrt(5.0) - 1.0) / 4.0
SINE_36, SINE_72 = math.sqrt(1.0 - COSINE_36**2), math.sqrt(1.0 - COSINE_72**2)


@dataclass(frozen=True)
class ShapesSettings:
    """What may be chosen: `size=64,count=2000,val=500,seed=0,max_objects=1`."""

    size: int = 64  # pixels of a side
    count: int = 2000  # images to train on
    val: int = 500  # images to validate on
    seed: int = 0
    max_objects: int = 1  # the object that gives the label, and up to so many less one small distractors

    def __post_init__(self) -> None:
        for name, low, high in (("size", 16, 4096), ("count", 1, 10**8), ("val", 1, 10**8), ("max_objects", 1, 16)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"shapes: {name}={value} is out of range; it must lie between {low} and {high}")


class ShapeAnnotation(NamedTuple):
    """Where the objects of one picture are. The object that gives the picture its label comes first."""

    mask: np.ndarray  # uint8 [size, size]: 0 for the background, 1 + the coarse class for an object
    boxes: np.ndarray  # float64 [objects, 4]: left, top, right, bottom in pixels, right and bottom exclusive
    labels: np.ndarray  # int64 [objects]: coarse classes


@dataclass(frozen=True)
class DrawnObject:
    """One object, in units of the picture's side."""

    label: int  # fine class
    x: float
    y: float
    radius: float
    turn: Direction
    texture_turn: Direction  # relative to the object
    pitch: float  # of the texture, in radii
    phase: tuple[float, float]  # of the texture, in pitches
    color: Color
    texture_color: Color

    @property
    def shape(self) -> int:
        """The object's coarse class."""
        return self.label // len(TEXTURES)


@dataclass(frozen=True, eq=False)
class Scene:
    """All that decides a picture but its size."""

    objects: tuple[DrawnObject, ...]
    background: tuple[Color, Color]
    relief: np.ndarray  # [rows, columns] of 0 ... 1: where the background has which of its two colours


class ShapesDataset(Dataset):
    """One object on a mottled ground, at any place, size, turn and colour; its texture makes the fine class.

    A picture depends on nothing but seed, split, index and size. All arithmetic is of the kind that IEEE 754 defines to
    the last bit (no sine, exponential or matrix product), so that every machine draws the same bytes. Of another size
    it is the same scene in other pixels; with more objects the first one stays where it was.
    """

    def __init__(self, *, split: str, count: int, settings: ShapesSettings) -> None:
        self.name, self.split, self.settings = "shapes", split, settings
        self._drawn = labels = _balanced_labels(count, seed=settings.seed, split=split)
        self.levels = {"label": Level(CLASSES, labels), "coarse": Level(SHAPES, labels // len(TEXTURES))}

    def __len__(self) -> int:
        return len(self._drawn)

    def read(self, index: int) -> np.ndarray:
        """The picture, uint8 [size, size, 3]."""
        draws, scene = self._scene(index)
        size = self.settings.size
        planes = _paint_background(scene, size=size)
        for item in reversed(scene.objects):
            _paint_object(planes, item)
        grain = _draw_grain(draws, size=size)
        pixels = np.empty((size, size, 3), dtype=np.uint8)
        for channel, plane in enumerate(planes):
            plane += grain
            pixels[..., channel] = plane  # truncated: the grain's mean stands for the half that rounds
        return pixels

    def locate(self, index: int) -> str:
        """The picture's number."""
        return f"{self.name}/{self.split}/{index}"

    def annotation(self, index: int) -> ShapeAnnotation:
        """The picture's mask and boxes: a pixel belongs to an object that covers at least half of it."""
        size = self.settings.size
        mask = np.zeros((size, size), dtype=np.uint8)
        boxes, labels = [], []
        for top, left, inside, label in self.outlines(index):
            height, width = inside.shape
            mask[top : top + height, left : left + width][inside] = 1 + label
            boxes.append((left, top, left + width, top + height))
            labels.append(label)
        return ShapeAnnotation(mask, np.array(boxes, dtype=np.float64), np.array(labels, dtype=np.int64))

    def outlines(self, index: int) -> Iterator[tuple[int, int, np.ndarray, int]]:
        """Each object's top and left, its pixels in the smallest window that holds them, bool, and its coarse class."""
        _, scene = self._scene(index)
        size = self.settings.size
        for item in scene.objects:
            window = _window(item, size=size)
            inside = _distance(item, *_local_coordinates(item, window, size=size)) <= 0.0
            rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
            if len(rows):  # else a distractor smaller than a pixel
                part = inside[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
                yield window[0].start + int(rows[0]), window[1].start + int(columns[0]), part, item.shape

    def _scene(self, index: int) -> tuple[Draws, Scene]:
        draws = Draws("shapes", self.settings.seed, self.split, index)
        return draws, _draw_scene(draws, label=int(self._drawn[index]), settings=self.settings)


def open_shapes(settings: str = "") -> Source:
    """Pictures drawn on the fly, with the levels `label` (texture and shape) and `coarse` (shape).

    The settings are a text such as `size=32,count=5000`; see `ShapesSettings`.
    """
    chosen = parse_settings(settings)
    counts = {"train": chosen.count, "val": chosen.val}
    return OpenedSource([ShapesDataset(split=split, count=count, settings=chosen) for split, count in counts.items()])


def parse_settings(text: str, *, otherwise: ShapesSettings | None = None) -> ShapesSettings:
    """Settings of a text; what it does not say is `otherwise`."""
    names = [field.name for field in fields(ShapesSettings)]
    chosen: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise ValueError(f"shapes has no setting {name!r}; did you mean {nearest!r}? It has: {', '.join(names)}")
        try:
            chosen[name] = int(value)
        except ValueError:
            raise ValueError(f"shapes: {name}={value} is not a whole number; write for example {name}=64") from None
    return replace(otherwise or ShapesSettings(), **chosen)


def _balanced_labels(count: int, *, seed: int, split: str) -> np.ndarray:
    """Every class once in each run of 24 samples, so that a label does not depend on how many samples there are."""
    blocks = -(-count // len(CLASSES))
    labels = [Draws("shapes", seed, split, "labels", block).shuffled(range(len(CLASSES))) for block in range(blocks)]
    return np.array(labels, dtype=np.int64).reshape(-1)[:count]


# The scene: every random choice.


def _draw_scene(draws: Draws, *, label: int, settings: ShapesSettings) -> Scene:
    bands = draws.shuffled(BANDS)
    radius = draws.uniform(0.27, 0.42)
    x, y = draws.uniform(radius, 1.0 - radius), draws.uniform(radius, 1.0 - radius)
    objects = [_draw_object(draws, label=label, place=(x, y, radius), bands=bands)]
    low, high = bands[0]
    background = (_draw_color(draws, low, vividness=0.6), _draw_color(draws, high, vividness=0.6))
    rows = 3 + draws.integer(6)
    relief = np.array([draws.uniform() for _ in range(rows * rows)]).reshape(rows, rows)
    for _ in range(draws.integer(settings.max_objects)):
        place = _find_place(draws, objects)
        distractor = draws.integer(len(CLASSES))
        if place is not None:
            objects.append(_draw_object(draws, label=distractor, place=place, bands=bands))
    return Scene(objects=tuple(objects), background=background, relief=relief)


def _draw_object(
    draws: Draws, *, label: int, place: tuple[float, float, float], bands: list[tuple[float, float]]
) -> DrawnObject:
    x, y, radius = place
    return DrawnObject(
        label=label,
        x=x,
        y=y,
        radius=radius,
        turn=_draw_direction(draws),
        texture_turn=_draw_direction(draws),
        pitch=draws.uniform(0.50, 0.62),
        phase=(draws.uniform(), draws.uniform()),
        color=_draw_color(draws, draws.uniform(*bands[1]), vividness=draws.uniform(0.7, 1.0)),
        texture_color=_draw_color(draws, draws.uniform(*bands[2]), vividness=draws.uniform(0.7, 1.0)),
    )


def _find_place(draws: Draws, objects: list[DrawnObject]) -> tuple[float, float, float] | None:
    """A free place for a distractor, if twenty tries find one."""
    for _ in range(20):
        radius = draws.uniform(0.08, 0.14)
        x, y = draws.uniform(radius, 1.0 - radius), draws.uniform(radius, 1.0 - radius)
        if all((x - its.x) ** 2 + (y - its.y) ** 2 > (radius + its.radius) ** 2 for its in objects):
            return x, y, radius
    return None


def _draw_direction(draws: Draws) -> Direction:
    """A uniform direction: a point of the unit disc, made a unit vector."""
    while True:
        x, y = draws.uniform(-1.0, 1.0), draws.uniform(-1.0, 1.0)
        square = x * x + y * y
        if 0.01 < square <= 1.0:
            length = math.sqrt(square)
            return x / length, y / length


def _draw_color(draws: Draws, luminance: float, *, vividness: float) -> Color:
    """A colour of any hue with that luminance."""
    place = draws.uniform(0.0, 6.0)  # on the way round: red, yellow, green, cyan, blue, magenta
    pure = [min(max(abs((place + shift) % 6.0 - 3.0) - 1.0, 0.0), 1.0) for shift in (0.0, 4.0, 2.0)]
    own = 0.30 * pure[0] + 0.59 * pure[1] + 0.11 * pure[2]
    if own > luminance:
        bright = [value * luminance / own for value in pure]
    else:
        bright = [value + (1.0 - value) * (luminance - own) / (1.0 - own) for value in pure]
    # The grain adds up to 15 of 255.
    red, green, blue = (240.0 * (luminance + (value - luminance) * vividness) for value in bright)
    return red, green, blue


def _draw_grain(draws: Draws, *, size: int) -> np.ndarray:
    """Noise of 0 ... 15 for every pixel: a hash stretched to the length, which is faster than a new generator."""
    stretched = hashlib.shake_128(str(draws.integer(2**53)).encode()).digest(size * size)
    return (np.frombuffer(stretched, dtype=np.uint8) >> 4).reshape(size, size)


# The picture: distances to edges make areas, a pixel's share of an area softens its edge.


def _paint_background(scene: Scene, *, size: int) -> np.ndarray:
    """The two colours mixed by the relief, smoothly from knot to knot; float64 [3, size, size]."""
    knots = len(scene.relief)
    place = (np.arange(size) + 0.5) * ((knots - 1) / size)
    before = place.astype(np.int64)
    share = place - before
    ease = share * share * (3.0 - 2.0 * share)
    rows = scene.relief[before] + (scene.relief[before + 1] - scene.relief[before]) * ease[:, None]
    columns = np.ascontiguousarray(rows.T)
    field = columns[before] + (columns[before + 1] - columns[before]) * ease[:, None]
    planes = np.empty((3, size, size))
    for plane, first, second in zip(planes, *scene.background, strict=True):
        np.multiply(field, second - first, out=plane)
        plane += first
    return planes


def _paint_object(planes: np.ndarray, item: DrawnObject) -> None:
    size = planes.shape[-1]
    window = _window(item, size=size)
    across, along = _local_coordinates(item, window, size=size)
    cover = _share(_distance(item, across, along), size=size)
    marks = _texture_distance(item, across, along)
    drawn = None if marks is None else _share(marks, size=size)
    for plane, color, texture_color in zip(planes, item.color, item.texture_color, strict=True):
        part = plane[window]
        paint = color if drawn is None else color + (texture_color - color) * drawn
        part += (paint - part) * cover


def _window(item: DrawnObject, *, size: int) -> tuple[slice, slice]:
    """The rows and columns that the object may touch."""
    reach = item.radius * size + 1.0
    rows, columns = (
        slice(max(math.floor(middle * size - reach), 0), min(math.ceil(middle * size + reach), size))
        for middle in (item.y, item.x)
    )
    return rows, columns


def _local_coordinates(item: DrawnObject, window: tuple[slice, slice], *, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels' centres as the object sees them, in units of the picture's side."""
    down, right = (
        (np.arange(part.start, part.stop) + 0.5) / size - middle
        for part, middle in zip(window, (item.y, item.x), strict=True)
    )
    return _turned(right[None, :], down[:, None], item.turn)


def _turned(x: np.ndarray, y: np.ndarray, turn: Direction) -> tuple[np.ndarray, np.ndarray]:
    cosine, sine = turn
    return cosine * x + sine * y, cosine * y - sine * x


def _share(distance: np.ndarray, *, size: int) -> np.ndarray:
    """How much of a pixel lies within an area, by the signed distance of its centre from the edge."""
    return np.clip(0.5 - distance * size, 0.0, 1.0)


def _distance(item: DrawnObject, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The signed distance to the object's outline, negative inside. No outline leaves the circle of `radius`."""
    radius = item.radius
    match SHAPES[item.shape]:
        case "circle":
            return np.sqrt(x * x + y * y) - 0.88 * radius
        case "ring":
            return abs(np.sqrt(x * x + y * y) - 0.72 * radius) - 0.26 * radius
        case "square":
            return np.maximum(abs(x), abs(y)) - 0.70 * radius
        case "cross":
            x, y = abs(x), abs(y)
            return np.maximum(np.minimum(x, y) - 0.30 * radius, np.maximum(x, y) - 0.95 * radius)
        case "triangle":
            return np.maximum(0.5 * math.sqrt(3.0) * abs(x) - 0.5 * y, y) - 0.5 * radius
        case "star":
            return _star_distance(x, y, radius)
        case unknown:
            raise AssertionError(unknown)


def _star_distance(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    """Five points: mirrors fold the plane to the tenth between a point and the notch beside it, which has one edge."""
    x = abs(x)
    x, y = _folded(x, y, (COSINE_72, SINE_72))
    x = abs(x)
    x, y = _folded(x, y, (COSINE_36, SINE_36))
    # The edge from the point (0, radius) to the notch, whose direction is 36 degrees off.
    notch_x, notch_y = 0.5 * radius * SINE_36, 0.5 * radius * COSINE_36
    length = math.sqrt(notch_x**2 + (radius - notch_y) ** 2)
    return (x * (radius - notch_y) + (y - radius) * notch_x) / length


def _folded(x: np.ndarray, y: np.ndarray, mirror: Direction) -> tuple[np.ndarray, np.ndarray]:
    """What lies beyond a mirror through the origin, reflected; the mirror leaves the y axis by the angle given."""
    cosine, sine = mirror
    beyond = 2.0 * np.maximum(cosine * x - sine * y, 0.0)
    return x - beyond * cosine, y + beyond * sine


def _texture_distance(item: DrawnObject, x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """The signed distance to the edge of the texture's marks, or None where it has none."""
    texture = TEXTURES[item.label % len(TEXTURES)]
    if texture == "plain":
        return None
    pitch = item.pitch * item.radius
    x, y = _turned(x, y, item.texture_turn)
    x = _sawtooth(x / pitch + item.phase[0])
    if texture == "striped":
        return (x - 0.25) * pitch
    y = _sawtooth(y / pitch + item.phase[1])
    if texture == "dotted":
        return (np.sqrt(x * x + y * y) - 0.27) * pitch
    # Checked: in one set of stripes or the other, but not in both.
    return np.maximum(np.minimum(x, y) - 0.25, 0.25 - np.maximum(x, y)) * pitch


def _sawtooth(place: np.ndarray) -> np.ndarray:
    """The distance to the nearest middle of a unit cell: 0 ... 0.5."""
    return abs(place - np.floor(place) - 0.5)
