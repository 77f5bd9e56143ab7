"""A pass over data that scores a model's maps against two floors: a random map and one that favours the centre."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Dataset
from vitrail.data.decode import OpenedImage, open_image
from vitrail.data.geometry import Crop
from vitrail.explain.maps import AttentionMaps
from vitrail.explain.masks import FindMask
from vitrail.explain.score import NUM_STEPS, Scores, centre_maps, find_curves, random_maps
from vitrail.models.contract import Model


def choose_places(count: int, *, limit: int) -> list[int]:
    """Up to `limit` places of `count` samples, evenly spread, for data may be sorted by class."""
    number = min(limit, count)
    return [place * count // number for place in range(number)]


def measure(
    model: Model,
    data: Dataset,
    *,
    look: Callable[[Tensor], Sequence[AttentionMaps]],
    view: EvaluationView,
    normalize: Normalize,
    places: Sequence[int],
    find_mask: FindMask | None = None,
    steps: int = NUM_STEPS,
    batch_size: int = 32,
    note_unread: Callable[[str, str], object],
    advance: Callable[[int], object],
) -> Scores:
    """Scores of the maps that `look` finds, under their kinds, and of "random" and "centre".

    Curves follow the class that the map is of: where maps are the same for all, the most probable one.
    """
    device = next(model.parameters()).device
    scores = Scores()
    for place in places:
        try:
            image = open_image(data.read(place))
            crop = view.plan((image.height, image.width))
            images = normalize(crop.apply(image)[None].to(device))
        except (OSError, ValueError) as error:
            note_unread(data.locate(place), str(error))
            advance(1)
            continue
        masks = None if find_mask is None else _cut_mask(find_mask(place), image, crop, data.locate(place)).to(device)
        rivals = {found.kind: (found.overview()[:, 0], _class_of(found)) for found in look(images)}
        some, classes = next(iter(rivals.values()))
        rivals |= {"random": (random_maps(some, seed=place), classes), "centre": (centre_maps(some), classes)}
        for name, (maps, of) in rivals.items():
            curves = find_curves(model, images, maps, classes=of, steps=steps, batch_size=batch_size)
            scores.add(name, curves, maps, masks)
        advance(1)
    return scores


def _class_of(found: AttentionMaps) -> Tensor:
    """The class whose probability a map should explain, [batch]."""
    return found.logits.argmax(dim=1) if found.classes is None else found.classes[:, 0]


def _cut_mask(mask: Tensor, image: OpenedImage, crop: Crop, name: str) -> Tensor:
    """The part of a mask that the model saw, bool [1, height, width]."""
    if tuple(mask.shape) != (image.height, image.width):
        raise ValueError(
            f"the mask of {name} has {mask.shape[0]}x{mask.shape[1]} pixels and the image "
            f"{image.height}x{image.width}: they must be alike"
        )
    return crop.apply_to_mask(mask)[None].to(torch.bool)
