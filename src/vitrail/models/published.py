"""The table of published weights: of each model of the catalogue which there are, and where. It imports no torch."""

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.models.catalog import CATALOG, TIMM_PREFIX
from vitrail.models.figures.published_weights import PUBLISHED_TOP1

IMAGE_SIZE = 224  # of the weights that a name alone stands for, where there are such
PLAIN_TAG = "in1k"  # trained on ImageNet-1k and nothing else
AUTHORS_ADDRESS = "https://dl.fbaipublicfiles.com/deit/"
_SHORT_TAGS = {
    "fb_in1k": "in1k",
    "fb_dist_in1k": "distilled",
    "fb_distilled_in1k": "distilled",
    "fb_dino": "dino",
    "fb_in22k_ft_in1k": "in22k",
    "fb_in21k_ft_in1k": "in21k",
    "fb_in1k_finetuned": "finetuned",
    "fb_in1k_scratch": "scratch",
}
_SAME_TAGS = {"in21k": "in22k", "in22k": "in21k", "dist": "distilled"}  # other spellings
_INIT = " init="


@dataclass(frozen=True)
class PublishedWeights:
    """One file of weights that the authors of a model published."""

    model: str  # a name of the catalogue
    tag: str  # how they were trained, as timm writes it
    image_size: int
    file: str  # at the authors' address
    timm_name: str | None = None  # of the same weights on the hub
    crop_ratio: float | None = None  # of the test picture; None: that of the catalogue's row
    num_classes: int = 1000

    @property
    def repository(self) -> str | None:
        """The repository on the hub."""
        return None if self.timm_name is None else f"{TIMM_PREFIX}{self.timm_name}.{self.tag}"

    @property
    def url(self) -> str:
        """The authors' address."""
        return AUTHORS_ADDRESS + self.file

    @property
    def short_tag(self) -> str:
        """How they were trained, in one word."""
        return _SHORT_TAGS[self.tag]

    @property
    def top1(self) -> float | None:
        """Accuracy on ImageNet's val, as the authors state it with the file."""
        return PUBLISHED_TOP1.get(self.text)

    @property
    def uses_21k(self) -> bool:
        """Whether the weights were trained on ImageNet-21k first."""
        return "2" in self.short_tag

    def describe(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "name": self.text,
            "tag": self.tag,
            "image_size": self.image_size,
            "num_classes": self.num_classes,
            "crop_ratio": self.crop_ratio,
            "top1": self.top1,
            "hub": self.repository,
            "url": self.url,
        }

    @property
    def text(self) -> str:
        """The shortest text that stands for these weights and no others."""
        size, tag = str(self.image_size), self.short_tag
        for parts in ((), (size,), (tag,)):
            if _prefer(_filter(self.model, parts)) == [self]:
                return name_parts(self.model, parts)
        return name_parts(self.model, (size, tag))


def _cait() -> Iterable[PublishedWeights]:
    for name, sizes in {
        "xxs24": (224, 384),
        "xxs36": (224, 384),
        "xs24": (384,),
        "s24": (224, 384),
        "s36": (384,),
        "m36": (384,),
        "m48": (448,),
    }.items():
        for size in sizes:
            yield PublishedWeights(
                f"cait_{name}", "fb_dist_in1k", size, f"{name.upper()}_{size}.pth", f"cait_{name}_{size}", 1.0
            )


def _deit() -> Iterable[PublishedWeights]:
    for name, size, digits in (
        ("deit_tiny", 224, "a1311bcf"),
        ("deit_small", 224, "cd65a155"),
        ("deit_base", 224, "b5f2ef4d"),
        ("deit_base", 384, "8de9b5d1"),
        ("deit_tiny_distilled", 224, "b40b3cf7"),
        ("deit_small_distilled", 224, "649709d9"),
        ("deit_base_distilled", 224, "df68dfff"),
        ("deit_base_distilled", 384, "d0272ac0"),
    ):
        timm_name = f"{name}_patch16_{size}"
        crop_ratio = 0.9 if size == IMAGE_SIZE else 1.0
        yield PublishedWeights(name, "fb_in1k", size, f"{timm_name}-{digits}.pth", timm_name, crop_ratio)


def _deit3() -> Iterable[PublishedWeights]:
    for name, sizes, patch_size in (
        ("small", (224, 384), 16),
        ("medium", (224,), 16),
        ("base", (224, 384), 16),
        ("large", (224, 384), 16),
        ("huge", (224,), 14),
    ):
        for size in sizes:
            for tag, data in (("fb_in1k", "1k"), ("fb_in22k_ft_in1k", "21k")):
                version = "_v1" if (name, data) == ("huge", "21k") else ""
                crop_ratio = 0.9 if (size, data) == (IMAGE_SIZE, "1k") else 1.0
                file = f"deit_3_{name}_{size}_{data}{version}.pth"
                yield PublishedWeights(
                    f"deit3_{name}", tag, size, file, f"deit3_{name}_patch{patch_size}_{size}", crop_ratio
                )


def _resmlp() -> Iterable[PublishedWeights]:
    files = {"fb_in1k": "no_dist", "fb_distilled_in1k": "dist", "fb_dino": "dino", "fb_in22k_ft_in1k": "22k"}
    for name, stem, timm_name, more in (
        ("resmlp_s12", "resmlp_12", "resmlp_12_224", ("fb_dino",)),
        ("resmlp_s24", "resmlp_24", "resmlp_24_224", ("fb_dino",)),
        ("resmlp_s36", "resmlp_36", "resmlp_36_224", ()),
        ("resmlp_b24_p8", "resmlpB_24", "resmlp_big_24_224", ("fb_in22k_ft_in1k",)),
    ):
        for tag in ("fb_in1k", "fb_distilled_in1k", *more):
            num_classes = 0 if tag == "fb_dino" else 1000
            yield PublishedWeights(name, tag, 224, f"{stem}_{files[tag]}.pth", timm_name, num_classes=num_classes)


def _patchconvnet() -> Iterable[PublishedWeights]:
    for name in ("s60", "s120", "b60", "b120"):
        yield PublishedWeights(f"patchconvnet_{name}", "fb_in1k", 224, f"{name}_224_1k.pth")
    for name, sizes in {"s60": (224, 384, 512), "b60": (224, 384), "b120": (224, 384)}.items():
        for size in sizes:
            yield PublishedWeights(f"patchconvnet_{name}", "fb_in21k_ft_in1k", size, f"{name}_{size}_21k.pth")
    for tag, how in (("fb_in1k_finetuned", "finetune"), ("fb_in1k_scratch", "scratch")):
        yield PublishedWeights("patchconvnet_s60_multi", tag, 224, f"s60_multi_{how}_1k.pth")


PUBLISHED: tuple[PublishedWeights, ...] = (*_deit(), *_deit3(), *_cait(), *_resmlp(), *_patchconvnet())


@dataclass(frozen=True)
class ModelText:
    """What a text such as `cait_s24@384`, `deit3_base@384,in22k` or `deit_tiny init=FILE` says."""

    name: str  # of the catalogue, or timm/NAME
    parts: tuple[str, ...] = ()  # an image size and how the weights were trained
    init: str | None = None  # a file that takes the place of the published weights

    @property
    def is_timm(self) -> bool:
        """Whether the name is one of timm's."""
        return self.name.startswith(TIMM_PREFIX)

    def __str__(self) -> str:
        return name_parts(self.name, self.parts) + ("" if self.init is None else f"{_INIT}{self.init}")


def read_model_text(text: str) -> ModelText | None:
    """The parts of a text that begins with a name of the catalogue or timm's; None where it does not."""
    named, sign, init = text.partition(_INIT)
    name, has_parts, parts = named.strip().partition("@")
    if name not in CATALOG and not (name.startswith(TIMM_PREFIX) and len(name) > len(TIMM_PREFIX)):
        return None
    if has_parts and name.startswith(TIMM_PREFIX):  # its tag is part of the name: what follows is a file
        sign, init, has_parts = has_parts, parts, ""
    if sign and not init.strip():
        raise ValueError(f"{text}: name the file of its weights, {name}{_INIT}FILE")
    if has_parts and not all(parts.split(",")):
        raise ValueError(f"{text}: write an image size or how it was trained behind the @, such as {name}@384,in22k")
    return ModelText(name, tuple(parts.split(",")) if has_parts else (), init.strip() or None)


def read_unless_there(text: str) -> ModelText | None:
    """The parts of a text that names a model; None where it does not, or where a file or folder has that name."""
    return None if os.path.exists(os.path.expanduser(text)) else read_model_text(text)


def split_model_texts(text: str) -> list[str]:
    """Texts with commas between them; what follows a comma behind an @ and is a size or a tag belongs to the name."""
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if found and "@" in found[-1] and (part.isdecimal() or part in _tag_spellings()):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def name_parts(name: str, parts: Sequence[str]) -> str:
    """A name and what is written behind its @."""
    return name + (f"@{','.join(parts)}" if parts else "")


def list_published(name: str) -> list[PublishedWeights]:
    """The published weights of a model of the catalogue."""
    return [weights for weights in PUBLISHED if weights.model == name]


def choose_published(name: str, parts: Sequence[str] = ()) -> PublishedWeights:
    """The weights of a model that an image size and a tag mean.

    Where these leave a choice, it is the weights for 224 pixels before others, and those trained on ImageNet-1k alone.
    """
    offered = list_published(name)
    if not offered:
        raise ValueError(
            f"{name} has no published weights: give a file, {name} init=FILE, or choose one of those that have "
            f"({', '.join(_nearest_published(name))} ...; `vitrail models` marks them)"
        )
    found = _prefer(_filter(name, parts))
    if len(found) == 1:
        return found[0]
    what = "no weights like that" if not found else "several weights like that"
    listed = ", ".join(name_parts(name, (str(weights.image_size), weights.short_tag)) for weights in offered)
    raise ValueError(f"{name_parts(name, parts)}: there are {what}; of {name} are published: {listed}")


def _filter(name: str, parts: Sequence[str]) -> list[PublishedWeights]:
    return [weights for weights in list_published(name) if all(_matches(weights, part) for part in parts)]


def _prefer(found: list[PublishedWeights]) -> list[PublishedWeights]:
    """Of several those for 224 pixels, and of these those trained on ImageNet-1k alone, where there are such."""
    of_size = [weights for weights in found if weights.image_size == IMAGE_SIZE] or found
    return [weights for weights in of_size if weights.short_tag == PLAIN_TAG] or of_size


def _matches(weights: PublishedWeights, part: str) -> bool:
    if part.isdecimal():
        return weights.image_size == int(part)
    return part in (weights.tag, weights.short_tag) or _SAME_TAGS.get(part) == weights.short_tag


def _tag_spellings() -> set[str]:
    return {*_SHORT_TAGS, *_SHORT_TAGS.values(), *_SAME_TAGS}


def _nearest_published(name: str) -> list[str]:
    names = list(dict.fromkeys(weights.model for weights in PUBLISHED))
    family = [known for known in names if known.partition("_")[0] == name.partition("_")[0]]
    return difflib.get_close_matches(name, names, n=3, cutoff=0.5) or family[:3] or names[:3]
