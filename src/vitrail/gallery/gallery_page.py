"""The pages of a gallery: what is in it, and groups of its images for a person to name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitrail.gallery.answer_rules import override
from vitrail.gallery.gallery_answers import Contents
from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.suggesting import Group
from vitrail.pages.bars import BarRow, draw_bar, draw_bars
from vitrail.pages.frame import Page, PageSection, render_page
from vitrail.pages.pictures import embed_image, render_image
from vitrail.pages.tables import render_table
from vitrail.pages.words import text
from vitrail.storage import write_text

_PER_CLASS = 10  # pictures of a class
_LOOKED_AT = 200  # images of a class that may have one
_MAX_PICTURES = 1200  # of a page: about 4 MB
_KICKER = "vitrail gallery"
_RULE_WORDS = {
    "neighbours": "the {neighbours} nearest images vote",
    "means": "the nearest mean of a class answers",
    "mix": "means of classes and the {neighbours} nearest images answer together",
}


def write_gallery_page(contents: Contents, path: Path, *, name: str) -> Path:
    """How the gallery answers, and the classes with their counts and first pictures, below each coarse class."""
    manifest = contents.facts
    cards = [(f"{len(contents):,}", "images")]
    cards += [(f"{len(contents.counts(level)):,}", f"classes of {level}") for level in manifest.levels]
    cards.append(
        {
            "neighbours": (str(manifest.neighbours), "neighbours answer"),
            "means": ("means", "of classes answer"),
            "mix": ("mix", "of means and neighbours answers"),
        }[override(manifest.rule, None).name]
    )
    if manifest.threshold is not None:
        of_class = manifest.threshold.class_cosine
        to = "any image" if of_class is None else "every class"
        cosine = manifest.threshold.cosine if of_class is None else of_class
        cards.append((f"{cosine:.3f}", f"cosine to {to} below which it is unknown"))
    title = f"Gallery {name}"
    lead = [f"Embeddings of {manifest.model.name}, {manifest.dim} numbers an image."]
    sections = [_answer_section(manifest), *_count_section(contents), *_class_sections(contents)]
    return _write(path, Page(title, _KICKER, sections, lead=lead, cards=cards))


def _answer_section(manifest: GalleryFacts) -> PageSection:
    """The rule that answers, what it was compared with, and the threshold."""
    rule, threshold = override(manifest.rule, None), manifest.threshold
    facts: list[tuple[str, str]] = [("rule", _RULE_WORDS[rule.name].format(neighbours=manifest.neighbours))]
    if threshold is not None:
        share = threshold.false_reject if threshold.class_false_reject is None else threshold.class_false_reject
        held = f"{threshold.num_held_out:,} held-out images ({threshold.held_out})"
        facts.append(("unknown", f"{share:.1%} of {held} lie below the threshold"))
    facts += [("index", manifest.wanted_index), ("model", manifest.model.source or manifest.model.name)]
    body = render_table(facts, style="facts")
    if rule.known is not None and rule.added is not None:
        rows = [(name, f"{rule.known[name]:.1%}", f"{rule.added[name]:.1%}") for name in rule.known]
        columns = ("rule", "right as the gallery was", "right had the class been added from five pictures")
        body += render_table(rows, columns=columns, style="numbers")
        body += f'<p class="more">{text(f"Of {rule.num_held_out:,} held-out images ({rule.held_out}).")}</p>'
    return PageSection("How it answers", body)


def _count_section(contents: Contents) -> list[PageSection]:
    """Bars of how many images each class has, the largest first."""
    fine = contents.facts.fine
    counts = sorted(contents.counts(fine).items(), key=lambda pair: -pair[1])
    if not counts:
        return []
    rows = [BarRow(name, [count], f"{count:,}") for name, count in counts]
    return [PageSection(f"Images of each {fine}", draw_bars(rows, most=counts[0][1], noun="classes"))]


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
    manifest = contents.facts
    fine, coarse = manifest.fine, manifest.coarse
    column = None if coarse is None else list(manifest.levels).index(coarse)
    counts: dict[tuple[int, int], int] = {}
    for labels, count in contents.table.label_sets().items():
        key = (-1 if column is None else labels[column], labels[0])
        counts[key] = counts.get(key, 0) + count
    if not counts:
        return [PageSection("Classes", "<p>The gallery is empty.</p>")]
    per_class = max(1, min(_PER_CLASS, _MAX_PICTURES // len(counts)))
    left = _MAX_PICTURES
    bodies: dict[int, list[str]] = {}
    for (group, label), count in sorted(counts.items()):
        name = contents.classes(fine)[label] if label >= 0 else "unnamed"
        of = {fine: label} if coarse is None else {fine: label, coarse: group}
        shown = _find_pictures(contents, of, most=min(per_class, left)) if left else []
        left -= len(shown)
        bodies.setdefault(group, []).append(
            f"<h3>{text(name)} <small>{count:,}</small></h3>{_show_pictures(contents, shown)}"
        )
    if coarse is None:
        return [PageSection("Classes", "".join(body)) for body in bodies.values()]
    return [
        PageSection(contents.classes(coarse)[group] if group >= 0 else f"no {coarse}", "".join(body))
        for group, body in bodies.items()
    ]


def _find_pictures(contents: Contents, labels: Mapping[str, int], *, most: int) -> list[int]:
    """The first rows with these labels that have a picture."""
    rows = contents.table.find_rows(labels, limit=_LOOKED_AT).tolist()
    pairs = zip(rows, contents.table.thumbnails_of(rows), strict=True)
    return [row for row, picture in pairs if picture][:most]


def _show_pictures(contents: Contents, rows: Sequence[int]) -> str:
    lines = zip(contents.table.thumbnails_of(rows), contents.table.paths_of(rows), strict=True)
    pictures = (render_image(embed_image(picture), title=path) for picture, path in lines if picture)
    return f'<div class="strip">{"".join(pictures)}</div>'


def _write(path: Path, page: Page) -> Path:
    try:
        write_text(path, render_page(page))
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from None
    return path
