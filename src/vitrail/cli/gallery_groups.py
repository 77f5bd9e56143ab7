"""Groups inside a gallery: what `vitrail gallery suggest` proposes, and `name` names."""

import argparse
import json
from pathlib import Path

from vitrail.cli.gallery_text import group_lines, show
from vitrail.inference.passes import split_words

_GROUPS_FILE, _GROUPS_PAGE = "suggestions.json", "suggestions.html"


def suggest(arguments: argparse.Namespace) -> int:
    """Propose groups, and keep them for `name_group`."""
    words, settings = split_words(arguments.settings, keys=("out",))
    if len(words) != 1:
        raise ValueError("write `vitrail gallery suggest G --coarse NAME`")
    from vitrail.gallery.gallery import Gallery
    from vitrail.gallery.gallery_page import write_groups_page

    gallery = Gallery(words[0])
    groups = gallery.suggest(arguments.coarse, groups=arguments.groups)
    page = Path(str(settings.get("out", gallery.folder / _GROUPS_PAGE))).expanduser()
    title = f"Groups of {arguments.coarse or gallery.store.title}"
    write_groups_page(
        gallery.contents, groups, page, title=title, command=f"vitrail gallery name {words[0]} {{number}} LABEL"
    )
    report = {
        "coarse": arguments.coarse,
        "page": str(page),
        "groups": [
            {
                "group": number,
                "count": group.count,
                "cosine": group.cosine,
                "labels": dict(group.labels),
                "examples": gallery.contents.table.paths_of(group.examples),
            }
            for number, group in enumerate(groups, start=1)
        ],
    }
    gallery.store.write_note(_GROUPS_FILE, json.dumps([group.paths for group in groups]))
    show(report, is_json=arguments.json, lines=group_lines)
    return 0


def name_group(arguments: argparse.Namespace) -> int:
    """Give the images of a group that was suggested their name."""
    words, _ = split_words(arguments.settings, keys=())
    if len(words) != 3:
        raise ValueError("write `vitrail gallery name G GROUP LABEL`")
    from vitrail.gallery.gallery import Gallery
    from vitrail.storage import parse_json

    folder, number, label = words
    gallery = Gallery(folder)
    kept = gallery.store.read_note(_GROUPS_FILE)
    if kept is None:
        raise ValueError(f"no groups were suggested for {folder}: `vitrail gallery suggest {folder}` first")
    label_of = f"{_GROUPS_FILE} of {folder}"
    remedy = f"write it anew with `vitrail gallery suggest {folder}`"
    try:
        groups = parse_json(kept)
    except ValueError as error:
        raise ValueError(f"{label_of} can't be read ({error}): {remedy}") from None
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ValueError(f"{label_of} must hold a list of lists: {remedy}")
    if not number.isdecimal() or not 1 <= int(number) <= len(groups):
        raise ValueError(f"there are groups 1 to {len(groups)}, and not {number!r}")
    count = gallery.rename(list(map(str, groups[int(number) - 1])), label)
    report = {"label": label, "named": count}
    show(report, is_json=arguments.json, lines=lambda _: [f"{count:,} images are {label} now"])
    return 0
