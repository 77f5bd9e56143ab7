"""What ImageNet's classes are called: words for people, and WordNet's ids, as timm ships them."""

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class ImageNetClasses:
    """The classes of one of ImageNet's subsets, in the order that all weights use."""

    words: tuple[str, ...]  # the first name of each that no other class has
    ids: tuple[str, ...]  # such as n01440764
    others: Mapping[str, int]  # the index of each class by its id and by its full description


@functools.cache
def imagenet_classes(subset: str = "imagenet-1k") -> ImageNetClasses:
    """The classes of a subset, under timm's name of it."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo(subset)
    ids = tuple(info.label_names())
    descriptions = [info.index_to_description(index) for index in range(len(ids))]
    words = unique_words(descriptions, ids)
    taken = Counter(descriptions)
    others = {text: index for index, text in enumerate(descriptions) if taken[text] == 1}
    return ImageNetClasses(words, ids, others | {name: index for index, name in enumerate(ids)})


def unique_words(descriptions: list[str], ids: tuple[str, ...]) -> tuple[str, ...]:
    """Of each description, names with commas between them, as many as tell the class from all others; the id last."""
    found = [description.split(", ")[0] for description in descriptions]
    for longer in (descriptions, [f"{text} ({name})" for text, name in zip(descriptions, ids, strict=True)]):
        taken = Counter(found)
        found = [word if taken[word] == 1 else more for word, more in zip(found, longer, strict=True)]
    return tuple(found)
