"""Show where a model looks in images, a picture each and a page of all; with --score measure whether it is so."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.predict import find_images
from vitrail.cli.together import refuse_several
from vitrail.inference.passes import MODEL_HELP, join_init_of, open_data, read_whole, seeing, show_progress

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.evaluation.together import Together
    from vitrail.explain.maps import AttentionMaps
    from vitrail.explain.maps_page import MapPicture
    from vitrail.inference.trained import Loaded, Trained

SUMMARY = "show where a model looks in images, and measure it"

_MAP_KEYS = ("kind", "layer", "head", "class", "image_size", "crop_ratio", "device", "trunk")
_DRAW_KEYS = ("out", "max_side", "keep", *_MAP_KEYS)
_SCORE_KEYS = ("data", "split", "masks", "foreground", "limit", "steps", "batch_size", *_MAP_KEYS)
_INCOMPLETE, _NOTHING = 1, 2  # exit codes: some images, or all, could not be read
_NUM_CLASSES = 3  # maps where every class has one (figure 5.6)
_LIMIT = 200  # images that are scored
_MEANINGS = {
    "attention": "how strongly the special tokens look at each patch, from the least (blue) to the most (yellow).",
    "rollout": "attention followed through all layers.",
    "gradient": "what each patch adds to the score of a class where patches are pooled.",
    "likeness": "cosines of the last features of the patches with their mean, and small with those of single patches.",
    "mixing": "weights with which the central patches gather all patches, layer by layer; the same for every image.",
}
_DENSE_MEANINGS = {
    "gradient": "what each patch adds, in the maps that the head reads, to the pixels or objects that are said to be "
    "of a class. Beside a class: its share of the pixels, or the probability of its most probable object."
}
_HEADINGS = {
    "deletion": "deletion (less is better)",
    "insertion": "insertion (more is better)",
    "pointing": "pointing game",
    "energy": "energy in mask",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail explain` takes."""
    parser.add_argument("model", metavar="RUN|MODEL", help=MODEL_HELP)
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="IMAGE|key=value",
        help=f"images or folders of them (sentences for a model that translates), and any of {', '.join(_DRAW_KEYS)}; "
        f"with --score no images but any of {', '.join(_SCORE_KEYS)}",
    )
    parser.add_argument("--score", action="store_true", help="measure the maps on data=SPEC instead of drawing them")
    parser.add_argument(
        "--window", action="store_true", help="draw one row: the photo, its patches, and one map of them"
    )
    parser.add_argument("--json", action="store_true", help="print what was drawn or measured as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Draw maps of images, or with --score measure maps."""
    arguments.model, *given = join_init_of(arguments.model, arguments.settings)
    words, settings = _read_words(given, _SCORE_KEYS if arguments.score else _DRAW_KEYS)
    if arguments.score and arguments.window:
        raise ValueError("--window draws and --score measures: ask for one of them")
    if arguments.score and words:
        raise ValueError(f"--score takes data=SPEC and no images such as {words[0]!r}")
    if not arguments.score:
        refuse_several(arguments.world, "explain without --score")
    if not arguments.score and not settings.get("out"):
        raise ValueError("say where the pictures go: add out=DIR")

    from vitrail.evaluation.predict import choose_device
    from vitrail.inference.trained import Loaded, load_whatever

    device = choose_device(str(settings.get("device", "auto")))
    trunk = settings.get("trunk")
    found = load_whatever(arguments.model, trunk=None if trunk is None else str(trunk))
    if isinstance(found, Loaded):
        return _explain_other(found, words, settings, is_json=arguments.json)
    found.model.require_inside()
    if found.model.is_dense:  # it says something of all parts of an image: none is to be cut off
        settings = {"crop_ratio": 1.0, **settings}
    trained = seeing(found, settings)
    trained = trained if trained.model.is_dense else trained.of_trunk()
    if arguments.score:
        trained.require_classifier(arguments.model, of_images=True)
    trained.model.to(device)
    look = _Look(trained, settings, top=1 if arguments.score else _NUM_CLASSES)
    if arguments.score:
        return _score(arguments.model, trained, look, settings, world=arguments.world, is_json=arguments.json)
    return _draw(trained, look, words, settings, is_window=arguments.window, is_json=arguments.json)


def _explain_other(loaded: "Loaded", words: Sequence[str], settings: Mapping[str, Any], *, is_json: bool) -> int:
    """Pictures of a model that takes no images, as its task draws them."""
    from vitrail.tasks import find_task

    if others := [key for key in settings if key != "out"]:
        raise ValueError(f"{loaded.label} takes {loaded.model.takes}, which has no {others[0]}: leave it out")
    written = find_task(loaded.task).explain(loaded, words, folder=Path(str(settings["out"])).expanduser())
    print(json.dumps([str(path) for path in written]) if is_json else "\n".join(map(str, written)))
    return 0


def _read_words(words: Sequence[str], keys: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Images, and settings by their keys; a file whose name has "=" in it is an image."""
    from vitrail.settings.text import parse_assignments

    paths, assignments = [], []
    for word in words:
        key, sign, _ = word.partition("=")
        if sign and key in keys:
            assignments.append(word)
        elif sign and not os.path.exists(word):
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(keys)}"
            raise ValueError(f"unknown key {key!r}; {hint}")
        else:
            paths.append(word)
    return paths, parse_assignments(assignments)


class _Look:
    """The maps that the settings ask for: of one kind, or of all that say something about an image."""

    def __init__(self, trained: "Trained", settings: Mapping[str, Any], *, top: int) -> None:
        from vitrail.explain.attention_rows import find_gaze
        from vitrail.explain.maps import choose_kind, kinds_of

        self.model = trained.model
        asked = settings.get("kind")
        gaze = None if self.model.is_dense else find_gaze(self.model)
        if asked is None:
            # Likeness of patches is what a backbone without classifier has to show; of a classifier it is on request.
            kinds = kinds_of(self.model)
            left_out = {"mixing", "likeness"} if "gradient" in kinds else {"mixing"}
            self.kinds = tuple(kind for kind in kinds if kind not in left_out)
        else:
            self.kinds = tuple(choose_kind(self.model, str(kind)) for kind in _as_list(asked))
        by_class = {"gradient", "attention"} if gaze is not None and gaze.is_per_class else {"gradient"}
        self.options: dict[str, dict[str, Any]] = {kind: {} for kind in self.kinds}
        for name, value, fitting in (
            ("layer", settings.get("layer"), {"attention", "mixing"}),
            ("head", settings.get("head"), {"attention"}),
            ("class_index", _find_classes(trained, settings.get("class")), by_class),
            ("top", min(top, trained.num_classes), by_class if self.model.is_dense else by_class & {"attention"}),
        ):
            # An option is for the kinds it fits. One that fits none goes to all of them, and they refuse it.
            for kind in fitting.intersection(self.kinds) or (self.kinds if name != "top" else ()):
                self.options[kind][name] = value

    def __call__(self, images: "Tensor") -> "list[AttentionMaps]":
        from vitrail.explain.maps import attention_maps

        return [attention_maps(self.model, images, kind=kind, **self.options[kind]) for kind in self.kinds]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _find_classes(trained: "Trained", asked: Any) -> list[int] | None:
    """Indices of classes that are given by number or by name."""
    if asked is None:
        return None
    found = []
    for each in _as_list(asked):
        if isinstance(each, str) and each not in trained.class_names:
            near = difflib.get_close_matches(each, trained.class_names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "give its name or its number"
            raise ValueError(f"the model knows no class {each!r}: {hint}")
        found.append(trained.class_names.index(each) if isinstance(each, str) else each)
    return found


def _draw(
    trained: "Trained",
    look: _Look,
    words: Sequence[str],
    settings: Mapping[str, Any],
    *,
    is_window: bool,
    is_json: bool,
) -> int:
    """A picture for each image, and a page that shows them all."""
    from vitrail.explain.drawing import MAX_SIDE
    from vitrail.explain.maps_page import write_maps_page
    from vitrail.explain.thresholds import check_share

    is_mixing = look.kinds == ("mixing",)
    if "mixing" in look.kinds and not is_mixing:
        raise ValueError("rows of a cross-patch matrix are of no image: ask for kind=mixing alone")
    if not is_mixing and not words:
        raise ValueError("say what to look at: give images or folders of them")
    keep = settings.get("keep")
    if is_mixing and keep is not None:
        raise ValueError("rows of a cross-patch matrix are not thresholded: leave keep out")
    if is_window and (is_mixing or keep is not None):
        raise ValueError("--window draws one map of an image: leave keep= and kind=mixing out")
    if keep is not None:
        check_share(keep)
    paths = [] if is_mixing else find_images(words)
    max_side = read_whole(settings.get("max_side", MAX_SIDE), "max_side")
    folder = Path(str(settings["out"])).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    entries = [_draw_matrices(trained, look, folder)] if is_mixing else []
    num_unread = 0
    with show_progress("explain", total=len(paths)) as advance:
        for number, path in enumerate(paths, start=1):
            try:
                start = folder / f"{number:04d}"
                entries.append(
                    _draw_image(trained, look, path, start, max_side=max_side, keep=keep, is_window=is_window)
                )
            except _UnreadError as error:
                num_unread += 1
                print(f"vitrail: {path}: {error}", file=sys.stderr)
            advance(1)
    if not entries:
        return _NOTHING
    meanings = _MEANINGS | (_DENSE_MEANINGS if trained.model.is_dense else {})
    notes = [f"{kind.capitalize()}: {meanings[kind]}" for kind in look.kinds]
    if keep is not None:
        notes.append(f"In colour: the fewest patches that hold {keep:.0%} of a map (keep={keep}).")
    page = write_maps_page(folder, title=f"Where {trained.model.name} looks", notes=notes, entries=entries)
    if is_json:
        print(json.dumps({"page": str(page), "kinds": look.kinds, "pictures": [entry._asdict() for entry in entries]}))
    else:
        print(f"{len(entries)} {'picture' if len(entries) == 1 else 'pictures'} of {', '.join(look.kinds)}: {page}")
    return _INCOMPLETE if num_unread else 0


class _UnreadError(Exception):
    """An image can't be read."""


def _draw_image(
    trained: "Trained",
    look: _Look,
    path: str,
    start: Path,
    *,
    max_side: int,
    keep: float | None,
    is_window: bool,
) -> "MapPicture":
    """Write the picture of one image into a file whose path begins with `start`."""
    from vitrail.data.decode import open_image
    from vitrail.data.regular_files import read_regular_file
    from vitrail.data.stored import printable
    from vitrail.explain.drawing import draw_maps
    from vitrail.explain.maps_page import MapPicture
    from vitrail.explain.window import draw_window

    try:
        image = open_image(read_regular_file(path))
        crop = trained.view.plan((image.height, image.width))
        picture, original = crop.apply(image), image.pixels()
    except (OSError, ValueError) as error:
        raise _UnreadError(str(error)) from None
    device = next(trained.model.parameters()).device
    maps = look(trained.normalize(picture[None].to(device)))
    if is_window:
        drawn = draw_window(maps[0], original, crop=crop, class_names=trained.classes)
    else:
        names = trained.classes
        (drawn,) = draw_maps(maps, [original], crops=[crop], class_names=names, max_side=max_side, keep=keep)
    file = f"{start.name}_{_plain(Path(path).stem)}.png"
    drawn.save(start.with_name(file))
    values, indices = maps[0].probabilities[0].topk(min(_NUM_CLASSES, trained.num_classes))
    answers = [(trained.class_names[at], value) for at, value in zip(indices.tolist(), values.tolist(), strict=True)]
    return MapPicture(file, printable(path), answers)


def _draw_matrices(trained: "Trained", look: _Look, folder: Path) -> "MapPicture":
    """Draw the cross-patch matrices (thesis figure 4.2); no image plays a part."""
    import torch

    from vitrail.explain.drawing import draw_mixing
    from vitrail.explain.maps_page import MapPicture

    config = trained.model.config
    device = next(trained.model.parameters()).device
    (maps,) = look(torch.zeros(1, config.in_channels, *config.size, device=device))
    draw_mixing(maps).save(folder / "mixing.png")
    return MapPicture("mixing.png", "rows of the cross-patch matrices", [])


def _plain(stem: str) -> str:
    """A name that any file system and web page takes."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in stem)[:80]


def _score(
    source: str,
    trained: "Trained",
    look: _Look,
    settings: Mapping[str, Any],
    *,
    world: "Together",
    is_json: bool,
) -> int:
    """The mean of every measure, for the model's maps and for the floors."""
    from vitrail.data.turns import cut_evenly
    from vitrail.explain.masks import find_masks
    from vitrail.explain.measure import choose_places, measure
    from vitrail.explain.score import NUM_STEPS, Scores
    from vitrail.inference.folding import as_folded

    if "mixing" in look.kinds:
        raise ValueError("rows of a cross-patch matrix say nothing about an image: score kind=gradient")
    data, _ = open_data(source, settings, trained)
    foreground = settings.get("foreground")
    masks = settings.get("masks")
    find_mask = find_masks(
        data,
        None if masks is None else str(masks),
        foreground=[foreground] if isinstance(foreground, int) else foreground,
    )
    places = choose_places(len(data), limit=read_whole(settings.get("limit", _LIMIT), "limit"))
    steps = read_whole(settings.get("steps", NUM_STEPS), "steps")
    own = cut_evenly(len(places), world.ranks)
    unread: list[tuple[str, str]] = []

    def note_unread(place: str, detail: str) -> None:
        unread.append((place, detail))

    with show_progress("score", total=len(places)) as advance:
        scores = measure(
            as_folded(trained.model),  # the curves ask it hundreds of times an image; maps are of the model itself
            data,
            look=look,
            view=trained.view,
            normalize=trained.normalize,
            places=places[own.start : own.stop],
            find_mask=find_mask,
            steps=steps,
            batch_size=read_whole(settings.get("batch_size", 32), "batch_size"),
            note_unread=note_unread,
            advance=lambda count: advance(count * world.num_ranks),
        )
    scores = Scores.joined(world.gather(scores))
    unread = [one for part in world.gather(unread) for one in part]
    for place, detail in unread:
        print(f"vitrail: {place}: {detail}", file=sys.stderr)
    count = len(places) - len(unread)
    if not count:
        return _NOTHING
    report = {"model": trained.model.name, "data": data.name, "split": data.split, "count": count, "steps": steps}
    results = dict(scores.results())
    print(json.dumps(report | {"scores": results}, indent=2) if is_json else "\n".join(_show(report, results)))
    return _INCOMPLETE if unread else 0


def _show(report: Mapping[str, Any], results: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield f"{report['model']} on {report['count']:,} images of {report['split']} of {report['data']}"
    yield ""
    yield " " * 26 + "".join(f"{name:>12}" for name in results)
    for measure, heading in _HEADINGS.items():
        if all(measure in row for row in results.values()):
            yield f"{heading:<26}" + "".join(f"{row[measure]:12.3f}" for row in results.values())
    share = next(iter(results.values())).get("mask")
    if share is not None:
        yield ""
        yield f"The masks cover {share:.1%} of the pictures: what an even map would get."
