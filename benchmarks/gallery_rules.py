"""What a gallery answers by neighbours, by the means of classes and by both, for classes it has and that are added.

Of the classes of labelled data some are in the gallery from the start (with all their images or fewer), some are added
from five pictures each, one at a time or all at once, and some never. Rule and threshold are chosen as `gallery build`
does it, on the gallery's own images, each held out, before anything is added. Images of val are asked about. "As
before" are the neighbours with a threshold for the nearest image, as galleries without a rule answer. Figures are in
percent, means over seeds with the standard deviation of the recall of added classes.

python benchmarks/gallery_rules.py --data SPEC [--model deit_tiny] [--image-size 224] [--per-class 0 20 5] [--seeds 5]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from measure import machine
from torch import Tensor
from torch.nn import functional

import vitrail
from vitrail.evaluation.features import embed
from vitrail.evaluation.knn import THESIS_CHOICES, fit_neighbours
from vitrail.evaluation.probe_data import Labelled, label
from vitrail.gallery.answer_rules import AUTO, Held, choose_rule
from vitrail.gallery.building import set_threshold
from vitrail.gallery.folder_files import State
from vitrail.gallery.folder_table import FolderTable
from vitrail.gallery.gallery_answers import Contents
from vitrail.gallery.gallery_manifest import Manifest, ModelEntry, PartEntry
from vitrail.gallery.part_files import StoredPart
from vitrail.inference.passes import Passes, load_seeing, make_extraction

FEW = 5  # pictures that a class is added from
ADDED_SHARE, NEVER_SHARE = 0.25, 0.15  # of the classes
FALSE_REJECT = 0.05


class Figures(NamedTuple):
    """Shares in percent of images of val."""

    known: float  # right answers for classes that were there, `unknown` aside
    added: float  # and for those that were added
    known_unknown: float  # answered `unknown`
    added_unknown: float
    never_unknown: float


class Classes(NamedTuple):
    """Which classes are there from the start, added, and never there."""

    known: Tensor
    added: Tensor
    never: Tensor


def load(source: str, data: str, split: str, *, image_size: int, cache: str | None) -> Labelled:
    """Embeddings of length 1 and labels of a split."""
    images = vitrail.open_dataset(data, split)
    trained = load_seeing(source, {"image_size": image_size})
    found = embed(make_extraction(trained, Passes(images, None, {})), images, cache=cache)
    labelled = label(found, images.level())
    return Labelled(functional.normalize(labelled.vectors, dim=1), labelled.targets, labelled.num_classes)


def draw_classes(num_classes: int, *, generator: torch.Generator) -> Classes:
    order = torch.randperm(num_classes, generator=generator)
    num_added, num_never = round(ADDED_SHARE * num_classes), round(NEVER_SHARE * num_classes)
    return Classes(order[num_added + num_never :], order[:num_added], order[num_added : num_added + num_never])


def take(train: Labelled, classes: Tensor, *, limit: int, order: Tensor) -> Labelled:
    """At most so many images of each of these classes, in this order; 0: all of them."""
    places = [order[train.targets[order] == number][: limit or None] for number in classes.tolist()]
    return train.choose(torch.cat(places))


def make_contents(images: Labelled, manifest: Manifest) -> Contents:
    """A gallery in memory."""
    nothing = torch.zeros(0, dtype=torch.uint8)
    part = StoredPart(
        images.vectors,
        images.targets[:, None].int(),
        tuple(map(str, range(len(images)))),
        nothing,
        torch.zeros(len(images), dtype=torch.int64),
    )
    return Contents(FolderTable(State(Path("."), manifest, (part,))))


def make_manifest(images: Labelled) -> Manifest:
    """What `gallery build` writes for these images."""
    neighbours = 10
    if len(images) > max(THESIS_CHOICES):
        neighbours = int(fit_neighbours(images, choices=THESIS_CHOICES).setting["neighbours"])
    rows = torch.arange(len(images))
    held = Held(images.vectors, images.targets, rows, "each in turn")
    vectors, labels, num_classes = images.vectors, images.targets, images.num_classes
    return Manifest(
        generation=1,
        model=ModelEntry(source=None, name="", key="", image_size=1, crop_ratio=1.0),
        dim=vectors.shape[1],
        levels={"label": tuple(map(str, range(num_classes)))},
        coarse=None,
        neighbours=neighbours,
        threshold=set_threshold(vectors, labels, held, num_classes=num_classes, false_reject=FALSE_REJECT),
        rule=choose_rule(AUTO, vectors, labels, held, num_classes=num_classes, neighbours=neighbours),
        parts=(PartEntry(file="part-0.safetensors", count=len(images), size=0),),
    )


def as_before(manifest: Manifest) -> Manifest:
    assert manifest.threshold is not None
    threshold = manifest.threshold.model_copy(update={"class_cosine": None})
    return manifest.model_copy(update={"rule": None, "threshold": threshold})


def measure(contents: Contents, asked: Labelled, classes: Classes, *, rule: str | None) -> Figures:
    """Ask about all images of val whose class is there or never was."""
    judged = contents.judge(asked.vectors, rule=rule)
    is_right = judged.probabilities.argmax(dim=1) == asked.targets
    of = [torch.isin(asked.targets, own) for own in classes]
    shares = [is_right[of[0]], is_right[of[1]], *(judged.is_unknown[which] for which in of)]
    return Figures(*(100.0 * share.double().mean().item() for share in shares))


def compare(train: Labelled, val: Labelled, *, limit: int, seed: int, is_single: bool) -> Iterator[tuple[str, Figures]]:
    """The figures of every rule, once for all added classes or for each alone."""
    generator = torch.Generator().manual_seed(seed)
    classes = draw_classes(train.num_classes, generator=generator)
    order = torch.randperm(len(train), generator=generator)
    known = take(train, classes.known, limit=limit, order=order)
    manifest = make_manifest(known)
    for added in classes.added.split(1 if is_single else len(classes.added)):
        more = take(train, added, limit=FEW, order=order)
        images = Labelled(
            torch.cat([known.vectors, more.vectors]), torch.cat([known.targets, more.targets]), train.num_classes
        )
        own = Classes(classes.known, added, classes.never)
        asked = val.choose(torch.isin(val.targets, torch.cat(own)))
        yield "as before", measure(make_contents(images, as_before(manifest)), asked, own, rule=None)
        contents = make_contents(images, manifest)
        for rule in ("neighbours", "means", "mix"):
            yield rule, measure(contents, asked, own, rule=rule)
        yield "auto", measure(contents, asked, own, rule=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="deit_tiny")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--per-class", type=int, nargs="+", default=[0, 20, 5])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache", help="a folder for the embeddings")
    arguments = parser.parse_args()
    words = {"image_size": arguments.image_size, "cache": arguments.cache}
    train, val = (load(arguments.model, arguments.data, split, **words) for split in ("train", "val"))
    print(f"{machine()}\n{arguments.model} at {arguments.image_size} px, {len(train):,} + {len(val):,} images\n")
    print("| images a class | added | rule | known | added | unknown: known | added | never there |")
    print("|---|---|---|---|---|---|---|---|")
    for limit in arguments.per_class:
        for is_single in (True, False):
            found: dict[str, list[list[Figures]]] = {}
            for seed in range(arguments.seeds):
                rows: dict[str, list[Figures]] = {}
                for name, figures in compare(train, val, limit=limit, seed=seed, is_single=is_single):
                    rows.setdefault(name, []).append(figures)
                for name, own in rows.items():
                    found.setdefault(name, []).append(own)
            for name, seeds in found.items():
                table = torch.stack([torch.tensor(own).mean(dim=0) for own in seeds])
                spread = table[:, 1].std(unbiased=False).item()
                known, added, *unknown = table.mean(dim=0).tolist()
                how = "one" if is_single else "all at once"
                cells = [str(limit or "all"), how, name, f"{known:.1f}", f"{added:.1f} ± {spread:.1f}"]
                print(f"| {' | '.join([*cells, *(f'{share:.1f}' for share in unknown)])} |", flush=True)


if __name__ == "__main__":
    main()
