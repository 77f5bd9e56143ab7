"""Build a searchable gallery of images, search it by images, and teach it classes from a few pictures."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.gallery_data import open_gallery_data, open_held_out
from vitrail.cli.gallery_groups import name_group, suggest
from vitrail.cli.gallery_text import (
    answer_line,
    describe,
    describe_lines,
    evaluation_lines,
    hit_line,
    hit_record,
    show,
)
from vitrail.cli.predict import find_images
from vitrail.cli.together import refuse_several
from vitrail.inference.passes import (
    KEYS,
    Passes,
    keep_source,
    load_seeing,
    make_extraction,
    open_asked,
    read_whole,
    share_of_val,
    show_progress,
    split_words,
)

if TYPE_CHECKING:
    from vitrail.data.contract import Dataset
    from vitrail.evaluation.features import Extraction
    from vitrail.evaluation.together import Together
    from vitrail.gallery.gallery import Gallery

SUMMARY = "search images by images, and add classes from a few pictures"

_COMPUTE = ("batch_size", "workers", "precision", "device")
_MILVUS = ("index_params", "search_params", "consistency", "partition", "files")  # of new galleries there
_BUILD = (*KEYS, "out", "coarse", "held_out", "false_reject", "index", "half", "thumbnails", "rule", "cache", *_MILVUS)
_USE = ("model", "trunk", *_COMPUTE)
_NAMED = 10  # images that could not be read
_INCOMPLETE = 1  # exit code: some images could not be read
_RANKINGS = ("cosine", "conditional", "oracle")
_ACTIONS = {
    "build": ("RUN key=value...", f"make a gallery of data; keys: {', '.join(_BUILD)}"),
    "add": ("G LABEL IMAGE...|data=SPEC", "add images of one class, new or known, or labelled data"),
    "remove": ("G LABEL|PATH", "remove a class, or one image"),
    "search": ("G IMAGE...", "the images that are most like these"),
    "classify": ("G IMAGE...", "what images show; rule=means, neighbours or mix instead of the gallery's own"),
    "evaluate": ("G... data=SPEC", "measure on labelled images; several galleries side by side; lists=FILE.png draws"),
    "report": ("G [out=FILE]", "write a page that shows the gallery"),
    "suggest": ("G [out=FILE]", "groups inside a coarse class, for a person to name"),
    "name": ("G GROUP LABEL", "give a suggested group its name"),
    "move": ("G PLACE", f"bring a gallery to another folder or database; keys: index, keep, {', '.join(_MILVUS)}"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail gallery` takes."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for name, (words, help_text) in _ACTIONS.items():
        action = actions.add_parser(name, help=help_text, description=f"{help_text[:1].upper()}{help_text[1:]}.")
        action.add_argument("settings", nargs="*", metavar="WORD", help=words)
        action.add_argument("--json", action="store_true", help="print JSON")
        if name in ("search", "classify"):
            action.add_argument("--top", type=int, default=10 if name == "search" else 5, help="how many")
        if name == "search":
            action.add_argument("--rank", choices=_RANKINGS, help="how to rank (default: cosine)")
        if name in ("add", "search", "classify", "suggest"):
            action.add_argument("--coarse", metavar="NAME", help="the coarse class")
        if name == "suggest":
            action.add_argument("--groups", type=int, help="how many (default: as many as suit the images)")


def run(arguments: argparse.Namespace) -> int:
    """Do what the action says."""
    if arguments.action not in ("build", "add"):
        refuse_several(arguments.world, f"gallery {arguments.action}")
    actions: Mapping[str, Callable[[argparse.Namespace], int]] = {
        "build": _build,
        "add": _add,
        "remove": _remove,
        "search": _search,
        "classify": _classify,
        "evaluate": _evaluate,
        "report": _report,
        "suggest": suggest,
        "name": name_group,
        "move": _move,
    }
    return actions[arguments.action](arguments)


def _build(arguments: argparse.Namespace) -> int:
    words, settings = split_words(arguments.settings, keys=_BUILD)
    if len(words) != 1 or "data" not in settings or "out" not in settings:
        raise ValueError("write `vitrail gallery build RUN data=SPEC out=PLACE`")
    from vitrail.gallery.building import Choices, Origin, build_gallery, choose_levels
    from vitrail.gallery.gallery import Gallery
    from vitrail.gallery.stores import open_store

    world = arguments.world
    store = open_store(str(settings["out"]), **_of_milvus(settings))
    if world.is_main:
        store.check_new()
    choices = Choices(
        level=_text(settings.get("level")),
        coarse=_text(settings.get("coarse")),
        index=str(settings.get("index", "exact")),
        is_half=_flag(settings, "half"),
        false_reject=_number(settings, "false_reject", Choices.false_reject),
        thumbnails=read_whole(settings["thumbnails"], "thumbnails", least=0) if "thumbnails" in settings else None,
        rule=str(settings.get("rule", Choices.rule)),
        cache=_text(settings.get("cache")),
    )
    share = share_of_val(words)
    data = open_gallery_data(settings, share)
    trained = load_seeing(words[0], settings)
    choose_levels(data, choices, trained_on=trained.level)  # what is wrong shows before the work begins
    if world.is_main:
        store.choose_index(choices.index, num_images=len(data))
    held_out = open_held_out(words[0], settings, data, share)
    total = len(data) + (0 if held_out is None else len(held_out))
    with show_progress("embeddings", total=total) as advance:
        unread = build_gallery(
            _extraction(trained, data, settings, world=world),
            data,
            store=store,
            held_out=held_out,
            choices=choices,
            origin=Origin(source=keep_source(words[0]), trunk=_text(settings.get("trunk")), level=trained.level),
            advance=advance,
        )
    _name_unread(unread)
    show(describe(Gallery(store)), is_json=arguments.json, lines=describe_lines)
    return _INCOMPLETE if unread else 0


def _add(arguments: argparse.Namespace) -> int:
    words, settings = split_words(arguments.settings, keys=(*_USE, "data", "split", "thumbnails"))
    if "data" in settings:
        return _add_data(arguments, words, settings)
    refuse_several(arguments.world, "gallery add without data=")
    if len(words) < 3:
        raise ValueError("write `vitrail gallery add G LABEL IMAGE...`, or `vitrail gallery add G data=SPEC`")
    if "split" in settings or "thumbnails" in settings:
        raise ValueError("split= and thumbnails= are of data=")
    folder, label, *places = words
    gallery = _open(folder, settings)
    level = gallery.manifest.coarse
    is_new = arguments.coarse is not None and level is not None and arguments.coarse not in gallery.counts(level)
    hint = gallery.contents.hint(str(level), arguments.coarse) if is_new else ""
    added = gallery.add(label, find_images(places), coarse=arguments.coarse)
    _name_unread(added.unread)
    if is_new:
        print(f"{added.coarse!r} is a new class of {level} ({hint})", file=sys.stderr)
    report = {"label": label, "coarse": added.coarse, "added": added.count, "images_of_label": gallery.counts()[label]}
    of = f" ({added.coarse})" if added.coarse else ""
    line = f"{added.count:,} added to {label}{of}, now {report['images_of_label']:,} in all"
    show(report, is_json=arguments.json, lines=lambda _: [line])
    return _INCOMPLETE if added.unread else 0


def _add_data(arguments: argparse.Namespace, words: Sequence[str], settings: Mapping[str, Any]) -> int:
    """Add labelled data."""
    if len(words) != 1 or arguments.coarse is not None:
        raise ValueError("write `vitrail gallery add G data=SPEC`: labels are those of the data")
    from vitrail.gallery.adding import help_adding
    from vitrail.gallery.gallery import Gallery

    world = arguments.world
    source, seen = world.share(_find_model(words[0], settings) if world.is_main else None)
    data = open_gallery_data(settings, share_of_val([source]))
    thumbnails = "thumbnails" not in settings or _flag(settings, "thumbnails")
    extraction = _extraction(load_seeing(source, seen), None, settings, world=world)
    if not world.is_main:
        help_adding(extraction, data)
        return 0
    gallery = Gallery(words[0], model=extraction)
    with show_progress("images", total=len(data)) as advance:
        count, unread = gallery.add_data(data, thumbnails=thumbnails, advance=advance)
    _name_unread(unread)
    report = {"added": count, "there_before": len(data) - count - len(unread), "num_images": len(gallery)}
    line = f"{count:,} added, {report['there_before']:,} were there before, now {len(gallery):,} in all"
    show(report, is_json=arguments.json, lines=lambda _: [line])
    return _INCOMPLETE if unread else 0


def _remove(arguments: argparse.Namespace) -> int:
    words, _ = split_words(arguments.settings, keys=())
    if len(words) != 2:
        raise ValueError("write `vitrail gallery remove G LABEL|PATH`")
    from vitrail.gallery.gallery import Gallery

    count = Gallery(words[0]).remove(words[1])
    show({"removed": count}, is_json=arguments.json, lines=lambda _: [f"{count:,} removed"])
    return 0


def _search(arguments: argparse.Namespace) -> int:
    gallery, paths, vectors, _ = _embed(arguments)
    found = gallery.search_vectors(vectors, top=arguments.top, rank=arguments.rank, coarse=arguments.coarse)
    report = [
        {"image": path, "hits": [hit_record(hit) for hit in hits]} for path, hits in zip(paths, found, strict=True)
    ]
    lines = [line for path, hits in zip(paths, found, strict=True) for line in (path, *map(hit_line, hits))]
    show(report, is_json=arguments.json, lines=lambda _: lines)
    return 0


def _classify(arguments: argparse.Namespace) -> int:
    gallery, paths, vectors, settings = _embed(arguments, "rule")
    if not any(gallery.manifest.levels.values()):
        raise ValueError(
            f"{gallery.folder} has no classes: search it with `vitrail gallery search`, or teach it one with `vitrail "
            "gallery add G NAME IMAGE...`"
        )
    rule = _text(settings.get("rule"))
    answers = gallery.classify_vectors(vectors, top=arguments.top, coarse=arguments.coarse, rule=rule)
    pairs = list(zip(paths, answers, strict=True))
    report = [{"image": path, **dataclasses.asdict(answer)} for path, answer in pairs]
    for record in report:
        record["probabilities"] = [{"label": name, "probability": p} for name, p in record["probabilities"]]
    show(report, is_json=arguments.json, lines=lambda _: [answer_line(path, answer) for path, answer in pairs])
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    keys = ("data", "split", "rule", "cache", "lists", *_USE)
    words, settings = split_words(arguments.settings, keys=keys)
    if not words or "data" not in settings:
        raise ValueError("write `vitrail gallery evaluate G data=SPEC`")
    if len(words) > 1 and ("lists" in settings or "model" in settings):
        raise ValueError("lists= and model= are of one gallery: evaluate it alone")
    from vitrail.evaluation.ranked_lists import check_picture

    lists = None
    if "lists" in settings:
        lists = Path(str(settings["lists"])).expanduser()
        check_picture(lists)
    sources = [_find_model(word, settings)[0] for word in words]
    data = open_asked(
        sources, str(settings["data"]), str(settings.get("split", "val")), val_share=share_of_val(sources)
    )
    reports = []
    for word in words:
        gallery = _open(word, settings)
        with show_progress(word, total=len(data)) as advance:
            found = gallery.evaluate(
                data, rule=_text(settings.get("rule")), cache=_text(settings.get("cache")), advance=advance
            )
        reports.append({"gallery": word, "trained_on": gallery.manifest.model.level, **found})
        if lists is not None:
            from vitrail.gallery.lists import draw_lists

            draw_lists(gallery, data, lists)
    content = reports[0] if len(reports) == 1 else reports
    show(content, is_json=arguments.json, lines=lambda _: evaluation_lines(reports))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    words, settings = split_words(arguments.settings, keys=("out",))
    if len(words) != 1:
        raise ValueError("write `vitrail gallery report G`")
    from vitrail.gallery.gallery import Gallery

    gallery = Gallery(words[0])
    page = gallery.report(_text(settings.get("out")))
    report = {**describe(gallery), "classes": gallery.counts(), "page": str(page)}
    show(report, is_json=arguments.json, lines=lambda _: [*describe_lines(report), f"the page is {page}"])
    return 0


def _move(arguments: argparse.Namespace) -> int:
    words, settings = split_words(arguments.settings, keys=("index", "keep", *_MILVUS))
    if len(words) != 2:
        raise ValueError("write `vitrail gallery move G PLACE`")
    from vitrail.gallery.moving import move_gallery
    from vitrail.gallery.stores import open_store

    source, target = open_store(words[0]), open_store(words[1], **_of_milvus(settings))
    keep = _flag(settings, "keep")
    with show_progress("images", total=len(source.read())) as advance:
        count = move_gallery(source, target, index=_text(settings.get("index")), keep=keep, advance=advance)
    report = {"gallery": target.place, "num_images": count, "kept": source.place if keep else None}
    line = f"{count:,} images are in {target.place} now{f', and in {source.place} as before' if keep else ''}"
    show(report, is_json=arguments.json, lines=lambda _: [line])
    return 0


def _of_milvus(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in _MILVUS if name in settings}


def _open(folder: str, settings: Mapping[str, Any]) -> "Gallery":
    """A gallery with its model, from where it was when the gallery was made or where model= says."""
    from vitrail.gallery.gallery import Gallery
    from vitrail.gallery.stores import open_store

    trained = load_seeing(*_find_model(folder, settings))
    return Gallery(open_store(folder), model=_extraction(trained, None, settings))


def _find_model(folder: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where the model of a gallery is, and the pictures it sees."""
    from vitrail.gallery.stores import open_store
    from vitrail.inference.export_record import is_exported

    entry = open_store(folder).read_facts().model
    source = str(settings.get("model", entry.source or ""))
    if not source:
        raise ValueError(f"the gallery {folder} does not say where its model ({entry.name}) is: add model=PLACE")
    size = list(entry.image_size) if isinstance(entry.image_size, tuple) else entry.image_size
    seen = {"image_size": size, "crop_ratio": entry.crop_ratio}
    is_moved = "model" in settings and is_exported(Path(source).expanduser())  # an export holds its trunk
    trunk = settings.get("trunk", None if is_moved else entry.trunk)
    return source, {**seen, **({} if trunk is None else {"trunk": trunk})}


def _extraction(
    trained: Any, data: "Dataset | None", settings: Mapping[str, Any], *, world: "Together | None" = None
) -> "Extraction":
    from vitrail.gallery.gallery_images import GivenImages

    return make_extraction(trained, Passes(GivenImages([]) if data is None else data, "label", settings, world=world))


def _embed(arguments: argparse.Namespace, *keys: str) -> "tuple[Gallery, list[str], Any, Mapping[str, Any]]":
    words, settings = split_words(arguments.settings, keys=(*_USE, *keys))
    if len(words) < 2:
        raise ValueError(f"write `vitrail gallery {arguments.action} G IMAGE...`")
    gallery = _open(words[0], settings)
    paths = find_images(words[1:])
    return gallery, paths, gallery.embed(paths), settings


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _flag(settings: Mapping[str, Any], key: str) -> bool:
    value = settings.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, not {value!r}")
    return value


def _number(settings: Mapping[str, Any], key: str, default: float) -> float:
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} must be a number, not {value!r}")
    return value


def _name_unread(unread: Sequence[Any]) -> None:
    for problem in unread[:_NAMED]:
        print(f"left out: {problem.path} {problem.detail}", file=sys.stderr)
    if len(unread) > _NAMED:
        print(f"and {len(unread) - _NAMED:,} more", file=sys.stderr)
