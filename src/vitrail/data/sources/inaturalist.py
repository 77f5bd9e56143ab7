"""iNaturalist 2018 and 2019 with all seven levels, from species to kingdom (used in Grafit, section 4)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.contract import Dataset, Level, Note, Source
from vitrail.data.sources.official import hold_out
from vitrail.data.stored import FileDataset, OpenedSource
from vitrail.storage import read_json

RANKS = ("genus", "family", "order", "class", "phylum", "kingdom")  # above the species
_PAGE = "https://github.com/visipedia/inat_comp"


def open_inaturalist(root: Path, *, year: int, val_share: float = 0.1, seed: int = 0) -> Source:
    """The files of the competition: `train2018.json`, `val2018.json`, and the images where these say, in `root`.

    The first level, `label`, is the species; genus, family, order, class, phylum and kingdom follow. The published
    lists of 2018 name no taxonomy: `categories.json`, from the same page, is used where it is there. Classes come in
    the order of the category numbers; a name that two branches of the tree share counts as one class.
    """
    name = f"inaturalist{year}"
    lists = {split: root / f"{split}{year}.json" for split in ("train", "val")}
    present = {split: path for split, path in lists.items() if path.is_file()}
    if not present:
        raise ValueError(
            f"{name} is not in {root}: unpack train_val{year}.tar.gz, train{year}.json.tar.gz, val{year}.json.tar.gz "
            f"and categories.json.tar.gz of {_PAGE} there"
        )
    contents = {split: read_json(path, remedy="unpack it anew") for split, path in present.items()}
    categories, place = _read_categories(root, contents, present)
    tables, notes = _tabulate(categories, place)
    parts: list[Dataset] = []
    for split, content in contents.items():
        paths, rows = _read_samples(content, path=present[split], rows=_rows(categories))
        if not (root / paths[0]).is_file():
            raise ValueError(f"{root / paths[0]} is missing: unpack train_val{year}.tar.gz of {_PAGE} in {root}")
        levels = {level: Level(classes, table[rows]) for level, (classes, table) in tables.items()}
        parts.append(FileDataset(name=name, split=split, root=root, paths=paths, levels=levels))
    if "val" not in present:
        train = parts[0]
        assert isinstance(train, FileDataset)
        parts, more = hold_out(train, train.paths, share=val_share, seed=seed)
        notes += more
    return OpenedSource(parts, notes=notes)


def _read_categories(
    root: Path, contents: Mapping[str, Any], present: Mapping[str, Path]
) -> tuple[list[dict[str, Any]], Path]:
    """The categories in the order of their numbers, and the file that lists them."""
    place = root / "categories.json"
    if place.is_file():
        content = read_json(place, remedy="unpack it anew")
        found = content.get("categories") if isinstance(content, dict) else content
    else:
        split, place = next(iter(present.items()))
        found = contents[split].get("categories") if isinstance(contents[split], dict) else None
    if not isinstance(found, list) or not all(isinstance(row, dict) and {"id", "name"} <= row.keys() for row in found):
        raise ValueError(f"{place} holds no list of categories with id and name: get it anew from {_PAGE}")
    return sorted(found, key=lambda row: row["id"]), place


def _rows(categories: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    return {category["id"]: row for row, category in enumerate(categories)}


def _tabulate(
    categories: Sequence[Mapping[str, Any]], place: Path
) -> tuple[dict[str, tuple[tuple[str, ...], np.ndarray]], list[Note]]:
    """For every level its classes and the class of each category."""
    species = [str(category["name"]) for category in categories]
    if len(set(species)) < len(species):  # a name without its genus may come twice
        species = [f"{category['name']} ({category['id']})" for category in categories]
    tables = {"label": (tuple(species), np.arange(len(species), dtype=np.int64))}
    notes: list[Note] = []
    for rank in RANKS:
        if not all(category.get(rank) for category in categories):
            detail = f"{place.name} does not name it for all categories: put categories.json of {_PAGE} beside it"
            notes.append(Note("level missing", rank, detail, is_serious=False))
            continue
        names = [str(category[rank]) for category in categories]
        classes = {name: index for index, name in enumerate(dict.fromkeys(names))}
        tables[rank] = (tuple(classes), np.array([classes[name] for name in names], dtype=np.int64))
    return tables, notes


def _read_samples(content: Any, *, path: Path, rows: Mapping[int, int]) -> tuple[list[str], np.ndarray]:
    """The path and the category's row of every image."""
    try:
        labels = {entry["image_id"]: rows[entry["category_id"]] for entry in content["annotations"]}
        images = [(str(image["file_name"]), labels[image["id"]]) for image in content["images"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a list of images and annotations that fit its categories ({error})") from error
    if not images:
        raise ValueError(f"{path} lists no images")
    return [name for name, _ in images], np.array([row for _, row in images], dtype=np.int64)
