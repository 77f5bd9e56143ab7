"""A page that shows a gallery, or groups of its images: one file with all pictures in it, for any browser."""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitrail.data.page import render_cards, render_page, text
from vitrail.gallery.answers import Contents
from vitrail.gallery.suggesting import Group
from vitrail.storage import write_text

_PER_CLASS = 10  # pictures of a class
_MAX_PICTURES = 1200  # of a page: about 4 MB
_STYLE = """
:root { --line: #8884; --soft: #8882; --accent: #2563eb; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1 { margin: 0; font-size: 1.7rem; } h2 { margin: 2rem 0 .3rem; font-size: 1.2rem; }
p.lead { margin: .2rem 0 1rem; opacity: .75; overflow-wrap: anywhere; }
.cards { display: flex; flex-wrap: wrap; gap: .6rem; margin-bottom: 1.2rem; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem .9rem; }
.card b { display: block; font-size: 1.25rem; } .card span { opacity: .7; font-size: .85rem; }
section { border-top: 1px solid var(--line); padding: .7rem 0; }
section h3 { margin: 0; font-size: 1rem; display: flex; gap: .7rem; align-items: baseline; }
section h3 small { font-weight: normal; opacity: .7; }
.bar { height: 4px; border-radius: 2px; background: var(--accent); margin: .25rem 0 .5rem; min-width: 3px; }
.pictures { display: flex; flex-wrap: wrap; gap: .35rem; }
.pictures img { height: 84px; border-radius: .3rem; background: var(--soft); image-rendering: auto; }
code { background: var(--soft); padding: .1rem .3rem; border-radius: .25rem; }
"""


def write_page(contents: Contents, path: Path) -> Path:
    """The classes with their counts and first pictures, below each coarse class where there are such."""
    manifest = contents.state.manifest
    cards = [(f"{len(contents):,}", "images")]
    cards += [(f"{len(contents.counts(level)):,}", f"classes of {level}") for level in manifest.levels]
    cards.append((str(manifest.neighbours), "neighbours answer"))
    lead = f"Embeddings of {manifest.model.name}, {manifest.dim} numbers an image. "
    if manifest.threshold is not None:
        cards.append((f"{manifest.threshold.cosine:.3f}", "cosine below which it is unknown"))
        lead += (
            f"{manifest.threshold.false_reject:.1%} of {manifest.threshold.num_held_out:,} held-out images "
            f"({manifest.threshold.held_out}) lie below the threshold of unknown. "
        )
    return _write(path, title=f"Gallery {contents.state.folder.name}", lead=lead, cards=cards, body=_classes(contents))


def write_groups(contents: Contents, groups: Sequence[Group], path: Path, *, title: str, command: str) -> Path:
    """Groups with example pictures, and how each is given a name."""
    largest = max(group.count for group in groups)
    body = []
    for number, group in enumerate(groups, start=1):
        known = ", ".join(f"{name} {count:,}" for name, count in group.labels[:4])
        head = f"group {number} <small>{group.count:,} images, cosine to their centre {group.cosine:.3f}</small>"
        line = f"<small>{text(known)}. Name it: <code>{text(command.format(number=number))}</code></small>"
        body.append(_section(head, group.count / largest, _pictures(contents, group.examples), below=line))
    cards = [(str(len(groups)), "groups"), (f"{sum(group.count for group in groups):,}", "images")]
    return _write(path, title=title, lead="Images that are alike, for a person to name.", cards=cards, body=body)


def _classes(contents: Contents) -> Iterable[str]:
    manifest = contents.state.manifest
    fine, coarse = manifest.fine, manifest.coarse
    rows: dict[tuple[int, int], list[int]] = {}
    of = contents.labels[fine] * 0 - 1 if coarse is None else contents.labels[coarse]
    for row, key in enumerate(zip(of.tolist(), contents.labels[fine].tolist(), strict=True)):
        rows.setdefault(key, []).append(row)
    if not rows:
        yield "<p>The gallery is empty.</p>"
        return
    largest = max(map(len, rows.values()))
    per_class = max(1, min(_PER_CLASS, _MAX_PICTURES // len(rows)))
    left, last = _MAX_PICTURES, None
    for (group, label), own in sorted(rows.items()):
        if coarse is not None and group != last:
            last = group
            yield f"<h2>{text(contents.classes(coarse)[group] if group >= 0 else f'no {coarse}')}</h2>"
        name = contents.classes(fine)[label] if label >= 0 else "unnamed"
        shown = [row for row in own[:200] if contents.thumbnail(row)][: min(per_class, left)]
        left -= len(shown)
        yield _section(f"{text(name)} <small>{len(own):,}</small>", len(own) / largest, _pictures(contents, shown))


def _section(head: str, share: float, pictures: str, *, below: str = "") -> str:
    bar = f'<div class="bar" style="width:{100 * share:.1f}%"></div>'
    return f'<section><h3>{head}</h3>{bar}<div class="pictures">{pictures}</div>{below}</section>'


def _pictures(contents: Contents, rows: Iterable[int]) -> str:
    return "".join(
        f'<img src="data:image/jpeg;base64,{base64.b64encode(picture).decode()}" alt="" '
        f'title="{text(contents.path(row))}">'
        for row in rows
        if (picture := contents.thumbnail(row))
    )


def _write(path: Path, *, title: str, lead: str, cards: Sequence[tuple[str, str]], body: Iterable[str]) -> Path:
    head = f'<h1>{text(title)}</h1><p class="lead">{text(lead)}</p>'
    content = render_page(title, "\n".join([head, render_cards(cards), *body]), style=_STYLE)
    try:
        write_text(path, content)
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from None
    return path
