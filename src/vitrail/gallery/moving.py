"""Galleries from one store to another, such as from a folder to a database: all images, answers and settings.

The images go in pages, and the new place keeps how far they have come: an attempt that is killed goes on there. The old
gallery is removed only when the new one is complete and has as many images.
"""

from collections.abc import Callable

from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.store import GalleryStore, ImageTable
from vitrail.storage import hash_text

_PAGE = 20_000  # images that go at a time, at least
_MOST_PAGES = 30  # of a gallery: as many files as a folder keeps
_NOTES = ("suggestions.json",)


def move_gallery(
    source: GalleryStore,
    target: GalleryStore,
    *,
    index: str | None = None,
    keep: bool = False,
    page: int | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> int:
    """Bring a gallery to another place, with `keep` as a copy; how many images it has.

    `index` is the kind of index there, its own unless told, and exact where the new store does not have that.
    """
    if source.place == target.place:
        raise ValueError(f"{source.place} is the place where the gallery is: choose another one")
    with source.writing() as writer:
        table = writer.table
        facts = _fit(table.facts, target, index=index, num_images=len(table))
        if not _is_there(target, table):
            origin = f"{source.place} {hash_text(repr(sorted(table.facts.plain().items())))}"
            with target.building(facts, origin=origin) as builder:
                size = page or max(_PAGE, -(-len(table) // _MOST_PAGES))
                for last_row, rows in table.pages(after=builder.last_row, size=size):
                    builder.add(rows, last_row=last_row)
                    advance(len(rows))
                builder.finish()
        for name in _NOTES:
            note = source.read_note(name)
            if note is not None:
                target.write_note(name, note)
        count = len(target.read())
        if count != len(table):
            raise ValueError(
                f"{target.place} has {count:,} images and {source.place} {len(table):,}: nothing was removed; remove "
                f"{target.place} and move again"
            )
        if not keep:
            source.remove()
    return count


def _fit(facts: GalleryFacts, target: GalleryStore, *, index: str | None, num_images: int) -> GalleryFacts:
    """The facts of the gallery as the new store may have them."""
    try:
        kind = target.choose_index(index or facts.wanted_index, num_images=num_images)
    except ValueError:
        if index is not None:
            raise
        kind = target.choose_index("exact", num_images=num_images)
    return GalleryFacts(**{**facts.plain(), "wanted_index": kind})


def _is_there(target: GalleryStore, table: ImageTable) -> bool:
    """Whether the very gallery is in its new place: an attempt was ended before the old one was removed."""
    try:
        found = target.read()
    except ValueError:
        return False
    index = {"wanted_index": table.facts.wanted_index}
    is_same = {**found.facts.plain(), **index} == table.facts.plain()
    return is_same and dict(found.label_sets()) == dict(table.label_sets())
