"""The pages of a gallery: what is in it, and groups of its images for a person to name."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from vitrail.gallery.gallery_answers import Contents
from vitrail.gallery.suggesting import Group
from vitrail.pages.bars import draw_bar
from vitrail.pages.frame import Page, PageSection, render_page
from vitrail.pages.pictures import embed_image, render_image
from vitrail.pages.words import text
from vitrail.storage import write_text

_PER_CLASS = 10  # pictures of a class
_MAX_PICTURES = 1200  # of a page: about 4 MB
_KICKER = "vitrail gallery"


def write_gallery_page(contents: Contents, path: Path) -> Path:
    """The classes with their counts and first pictures, below each coarse class where there are such."""
    manifest = contents.state.manifest
    cards = [(f"{len(contents):,}", "images")]
    cards += [(f"{len(contents.counts(level)):,}", f"classes of {level}") for level in manifest.levels]
    cards.append((str(manifest.neighbours), "neighbours answer"))
    lead = [f"Embeddings of {manifest.model.name}, {manifest.dim} numbers an image."]
    if manifest.threshold is not None:
        cards.append((f"{manifest.threshold.cosine:.3f}", "cosine below which it is unknown"))
        lead.append(
            f"{manifest.threshold.false_reject:.1%} of {manifest.threshold.num_held_out:,} held-out images "
            f"({manifest.threshold.held_out}) lie below the threshold of unknown."
        )
    title = f"Gallery {contents.state.folder.name}"
    return _write(path, Page(title, _KICKER, _class_sections(contents), lead=lead, cards=cards))


def write_groups_page(contents: Contents, groups: Sequence[Group], path: Path, *, title: str, command: str) -> Path:
    """Groups with example pictures, and how each is given a name."""
    largest = max(group.count for group in groups)
    sections = [
        PageSection(
            f"group {number}",
            f"{draw_bar(group.count / largest)}{_show_pictures(contents, group.examples)}"
            f'<p class="more">{text(", ".join(f"{name} {count:,}" for name, count in group.labels[:4]))}. '
            f"Name it: <code>{text(command.format(number=number))}</code></p>",
            aside=f"<small>{group.count:,} images, cosine to their centre {group.cosine:.3f}</small>",
        )
        for number, group in enumerate(groups, start=1)
    ]
    cards = [(str(len(groups)), "groups"), (f"{sum(group.count for group in groups):,}", "images")]
    lead = ["Images that are alike, for a person to name."]
    return _write(path, Page(title, _KICKER, sections, lead=lead, cards=cards))


def _class_sections(contents: Contents) -> list[PageSection]:
    """A section for each coarse class, or one for all classes where there are none."""
    manifest = contents.state.manifest
    fine, coarse = manifest.fine, manifest.coarse
    rows: dict[tuple[int, int], list[int]] = {}
    of = contents.labels[fine] * 0 - 1 if coarse is None else contents.labels[coarse]
    for row, key in enumerate(zip(of.tolist(), contents.labels[fine].tolist(), strict=True)):
        rows.setdefault(key, []).append(row)
    if not rows:
        return [PageSection("Classes", "<p>The gallery is empty.</p>")]
    largest = max(map(len, rows.values()))
    per_class = max(1, min(_PER_CLASS, _MAX_PICTURES // len(rows)))
    left = _MAX_PICTURES
    bodies: dict[int, list[str]] = {}
    for (group, label), own in sorted(rows.items()):
        name = contents.classes(fine)[label] if label >= 0 else "unnamed"
        shown = [row for row in own[:200] if contents.thumbnail(row)][: min(per_class, left)]
        left -= len(shown)
        bodies.setdefault(group, []).append(
            f"<h3>{text(name)} <small>{len(own):,}</small></h3>"
            f"{draw_bar(len(own) / largest)}{_show_pictures(contents, shown)}"
        )
    if coarse is None:
        return [PageSection("Classes", "".join(body)) for body in bodies.values()]
    return [
        PageSection(contents.classes(coarse)[group] if group >= 0 else f"no {coarse}", "".join(body))
        for group, body in bodies.items()
    ]


def _show_pictures(contents: Contents, rows: Iterable[int]) -> str:
    pictures = (
        render_image(embed_image(picture), title=contents.path(row))
        for row in rows
        if (picture := contents.thumbnail(row))
    )
    return f'<div class="strip">{"".join(pictures)}</div>'


def _write(path: Path, page: Page) -> Path:
    try:
        write_text(path, render_page(page))
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from None
    return path
