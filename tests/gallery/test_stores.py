"""One contract for folders and Milvus: the same answers, the same changes, the same errors."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from milvus_places import new_place
from tiny_galleries import COLOURS, colour_gallery, colours, paint, save_colour, tiny_viewer

from vitrail.data.contract import Level
from vitrail.gallery.adding import add_data
from vitrail.gallery.building import Choices
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_answers import GalleryAnswer, Hit

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")

KINDS = ("folder", "milvus")
PURPLE = (150, 20, 160)
ODD = 'it\'s "odd" \\ {x} %_ \n été 紫 <b> and label_0 >= 0'  # what filters, formats and pages might trip over


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"milvus:{tmp_path_factory.mktemp('milvus') / 'all.db'}#"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, database: str) -> dict[str, Gallery]:
    """The same gallery in both stores, which tests do not change."""
    folder = tmp_path_factory.mktemp("pair")
    return {kind: colour_gallery(new_place(kind, folder, database=database)) for kind in KINDS}


@pytest.fixture(params=KINDS)
def gallery(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Iterator[Gallery]:
    """A gallery of its own, to change."""
    made = colour_gallery(new_place(request.param, tmp_path, database=database), count=3)
    yield made
    made.store.remove()


def as_numbers(hits: list[Hit]) -> tuple[list[object], torch.Tensor]:
    names = [(hit.path, tuple(hit.labels.items())) for hit in hits]
    return list(names), torch.tensor([[hit.cosine, hit.score] for hit in hits], dtype=torch.float64)


def assert_alike(first: GalleryAnswer, second: GalleryAnswer) -> None:
    assert (first.label, first.is_unknown) == (second.label, second.is_unknown)
    assert dict(first.probabilities) == pytest.approx(dict(second.probabilities), abs=1e-5)
    assert first.cosine == pytest.approx(second.cosine, abs=1e-6)
    assert first.class_cosine == pytest.approx(second.class_cosine, abs=1e-6)


@pytest.mark.parametrize(
    "words",
    [{}, {"top": 24}, {"rank": "conditional", "top": 24}, {"rank": "conditional", "top": 3}, {"coarse": "cold"}],
    ids=str,
)
def test_exact_searches_find_the_same(pair: dict[str, Gallery], words: dict[str, object]) -> None:
    queries = [paint(colour, seed=700 + seed) for seed, colour in enumerate((*COLOURS.values(), PURPLE))]
    vectors = pair["folder"].embed(queries)
    found = {kind: gallery.search_vectors(vectors, **words) for kind, gallery in pair.items()}  # type: ignore[arg-type]
    for hits, others in zip(found["folder"], found["milvus"], strict=True):
        (names, numbers), (other_names, other_numbers) = as_numbers(hits), as_numbers(others)
        assert names == other_names
        assert torch.allclose(numbers, other_numbers, atol=2e-6)


@pytest.mark.parametrize("rule", [None, "means", "neighbours", "mix"])
@pytest.mark.parametrize("coarse", [None, "warm"])
def test_answers_are_the_same(pair: dict[str, Gallery], rule: str | None, coarse: str | None) -> None:
    queries = [paint(colour, seed=800 + seed) for seed, colour in enumerate((*COLOURS.values(), PURPLE))]
    vectors = pair["folder"].embed(queries)
    found = [gallery.classify_vectors(vectors, rule=rule, coarse=coarse) for gallery in pair.values()]
    assert {answer.is_unknown for answer in found[0]} == {True, False} or coarse
    for first, second in zip(*found, strict=True):
        assert_alike(first, second)


def test_figures_groups_and_what_is_told_are_the_same(pair: dict[str, Gallery]) -> None:
    first, second = pair.values()
    assert first.manifest.plain() == second.manifest.plain()
    assert first.counts() == second.counts()
    assert first.counts("coarse") == second.counts("coarse")
    data = colours(split="test", first_seed=500)
    assert first.evaluate(data) == second.evaluate(data)
    groups, others = first.suggest("warm", groups=2), second.suggest("warm", groups=2)
    assert [(group.count, set(group.paths), group.labels) for group in groups] == [
        (group.count, set(group.paths), group.labels) for group in others
    ]
    assert list(first.contents.paths()) == list(second.contents.paths())
    rows = first.contents.rows.tolist()
    assert first.contents.table.thumbnails_of(rows) == second.contents.table.thumbnails_of(rows)
    assert all(first.contents.table.thumbnails_of(rows))


def test_pages_show_the_same(pair: dict[str, Gallery], tmp_path: Path) -> None:
    texts = [
        gallery.report(tmp_path / f"{kind}.html").read_text().replace(gallery.store.title, "NAME")
        for kind, gallery in pair.items()
    ]
    assert texts[0] == texts[1]
    assert texts[1].count("data:image/jpeg;base64,") == 24


def test_classes_come_and_go(gallery: Gallery) -> None:
    queries = [paint(PURPLE, seed=seed) for seed in range(100, 106)]
    added = gallery.add("purple", [paint(PURPLE, seed=seed) for seed in range(5)], coarse="cold")
    assert (added.count, added.coarse, added.unread) == (5, "cold", ())
    assert [gallery.classify(query, rule="means").probabilities[0][0] for query in queries] == ["purple"] * 6
    assert gallery.counts("coarse") == {"warm": 6, "cold": 11}
    assert gallery.add("red", [paint(COLOURS["red"], seed=50)]).coarse == "warm"
    with pytest.raises(ValueError, match="'red' is of coarse 'warm', not 'cold'"):
        gallery.add("red", [paint(COLOURS["red"], seed=51)], coarse="cold")
    assert gallery.remove("purple") == 5
    assert "purple" not in gallery.counts()
    assert all(gallery.classify(query).probabilities[0][0] != "purple" for query in queries)
    with pytest.raises(ValueError, match="no label and no image 'oranje' in the gallery; did you mean 'orange'"):
        gallery.remove("oranje")
    for name in list(gallery.counts()):
        gallery.remove(name)
    assert len(gallery) == 0
    with pytest.raises(ValueError, match="the gallery is empty"):
        gallery.search(queries[0])
    gallery.add("red", [queries[0]])
    assert [name for name, _ in gallery.classify(queries[0]).probabilities] == ["red"]


def test_labelled_data_is_added_page_by_page_and_goes_on(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    data = colours("blue", "cyan", "red", split="more", first_seed=300)
    data.levels = {**data.levels, "label": Level(("blue", "teal", "red"), data.levels["label"].labels)}
    monkeypatch.setattr("vitrail.gallery.gallery.add_data", functools.partial(add_data, page=5))
    come: list[int] = []

    def stop(count: int) -> None:
        come.append(count)
        if sum(come) >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gallery.add_data(data, advance=stop)
    assert len(Gallery(gallery.store)) == 17  # the first page
    assert gallery.add_data(data) == (13, ())
    assert gallery.add_data(data) == (0, ())
    assert gallery.counts() == {"red": 9, "orange": 3, "blue": 9, "cyan": 3, "teal": 6}
    assert gallery.counts("coarse") == {"warm": 12, "cold": 18}
    hit = gallery.search(data.images[8], top=1)[0]
    assert (hit.path, dict(hit.labels)) == (data.locate(8), {"label": "teal", "coarse": "cold"})
    assert gallery.contents.thumbnail(hit.row)
    data.levels = {"genus": data.levels["label"]}
    with pytest.raises(ValueError, match="has the labels label, coarse, of which colours has none: it has genus"):
        gallery.add_data(data)


def test_an_image_that_can_not_be_read_does_not_keep_data_from_going_on(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = colours("blue", split="more", first_seed=300)
    pixels, broken = data.read, [1]
    monkeypatch.setattr(data, "read", lambda index: b"no image" if index in broken else pixels(index))
    monkeypatch.setattr("vitrail.gallery.gallery.add_data", functools.partial(add_data, page=3))

    def stop(count: int) -> None:
        come.append(count)
        if sum(come) >= 5:
            raise KeyboardInterrupt

    come: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        gallery.add_data(data, advance=stop)
    for num_added in (3, 0):  # of the first page the broken image alone is wanted again
        count, unread = gallery.add_data(data)
        assert (count, [problem.path for problem in unread]) == (num_added, [data.locate(1)])
    assert gallery.counts()["blue"] == 3 + 5
    broken.clear()
    assert gallery.add_data(data) == (1, ())
    broken += range(len(data))
    data.split = "other"
    with pytest.raises(ValueError, match="none of the 6 images of colours could be read: colours/other/0 "):
        gallery.add_data(data)


def test_an_image_that_is_added_again_is_there_once(gallery: Gallery, tmp_path: Path) -> None:
    path = save_colour(tmp_path / "new.png", "red", seed=8)
    gallery.add("red", [path, path])
    assert gallery.counts()["red"] == 4
    gallery.add("scarlet", [path])
    assert (gallery.counts()["red"], gallery.counts()["scarlet"]) == (3, 1)
    assert gallery.search(path, top=1)[0].labels["label"] == "scarlet"
    assert gallery.remove(str(path)) == 1
    assert str(path) not in set(gallery.contents.paths())


def test_names_are_data_and_never_part_of_a_filter_or_a_page(gallery: Gallery, tmp_path: Path) -> None:
    path = tmp_path / 'it\'s "odd" \\ été 紫.png'
    save_colour(path, "red", seed=8)
    gallery.add(ODD, [path, paint(PURPLE, seed=1)], coarse=f"{ODD}!")
    gallery.add("' or id >= 0 or '", [paint(PURPLE, seed=2)])
    assert gallery.counts()[ODD] == 2
    assert gallery.search(path, top=1)[0].labels == {"label": ODD, "coarse": f"{ODD}!"}
    assert {hit.labels["label"] for hit in gallery.search(path, top=2, coarse=f"{ODD}!")} == {ODD}
    assert gallery.classify(paint(PURPLE, seed=1), coarse=f"{ODD}!").probabilities[0][0] == ODD
    assert len(gallery.suggest(f"{ODD}!", groups=1)[0].paths) == 2
    page = gallery.report(tmp_path / "page.html").read_text()
    assert "&lt;b&gt;" in page
    assert "<b> and" not in page
    assert gallery.remove(str(path)) == 1
    assert gallery.remove("' or id >= 0 or '") == 1
    assert gallery.remove(ODD) == 1
    assert len(gallery) == 12


def test_groups_get_names(gallery: Gallery) -> None:
    paths = [hit.path for hit in gallery.search(paint(COLOURS["blue"], seed=1), top=3)]
    before = {row: gallery.contents.thumbnail(row) for row in gallery.contents.rows.tolist()}
    assert gallery.rename(paths, "navy") == 3
    assert gallery.counts() == {"red": 3, "orange": 3, "cyan": 3, "navy": 3}
    assert gallery.counts("coarse") == {"warm": 6, "cold": 6}
    hit = gallery.search(paint(COLOURS["blue"], seed=1), top=1)[0]
    assert hit.labels == {"label": "navy", "coarse": "cold"}
    assert gallery.contents.thumbnail(hit.row) in before.values()
    with pytest.raises(ValueError, match="none of these 1 images is in the gallery"):
        gallery.rename(["nowhere"], "navy")


def test_one_that_is_opened_again_answers_the_same(gallery: Gallery) -> None:
    query = paint(COLOURS["cyan"], seed=3)
    gallery.add("purple", [paint(PURPLE, seed=seed) for seed in range(3)])
    gallery.remove("red")
    again = Gallery(gallery.store, model=tiny_viewer())
    assert again.search(query) == gallery.search(query)
    assert_alike(again.classify(query), gallery.classify(query))
    gallery.store.write_note("suggestions.json", "[[]]")
    assert again.store.read_note("suggestions.json") == "[[]]"
    assert again.store.read_note("nothing.json") is None


def test_means_after_changes_are_those_of_the_images(gallery: Gallery) -> None:
    gallery.add("purple", [paint(PURPLE, seed=seed) for seed in range(4)], coarse="cold")
    gallery.remove("orange")
    gallery.remove(gallery.search(paint(PURPLE, seed=0), top=1)[0].path)
    contents = gallery.contents
    means = contents.table.means()
    for place, name in enumerate(contents.classes("label")):
        own = contents.vectors[contents.labels["label"] == place].float()
        assert means.counts[place] == len(own) == gallery.counts().get(name, 0)
        assert torch.allclose(means.sums[place], own.sum(dim=0), atol=1e-5)


def test_half_of_the_thumbnails_is_what_was_asked_for(tmp_path: Path, database: str) -> None:
    for kind in KINDS:
        place = new_place(kind, tmp_path, database=database)
        gallery = colour_gallery(place, "red", "blue", choices=Choices(thumbnails=2), count=4)
        pictures = gallery.contents.table.thumbnails_of(gallery.contents.rows.tolist())
        assert [bool(picture) for picture in pictures] == [True, True, False, False] * 2


def test_a_place_that_holds_a_gallery_is_refused(gallery: Gallery) -> None:
    with pytest.raises(ValueError, match="holds a gallery already"):
        colour_gallery(gallery.store)
    assert len(gallery) == 12
