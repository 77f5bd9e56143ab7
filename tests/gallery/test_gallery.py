"""The gallery: searches and their rankings, classes that are added and removed, `unknown`, other models, and errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_galleries import COLOURS, colour_gallery, colours, paint, save_colour, tiny_viewer

import vitrail
from vitrail.data.contract import Level
from vitrail.data.datasets import open_source
from vitrail.data.stored import without_labels
from vitrail.gallery.building import Choices
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_images import AllSplits, embed_unit

PURPLE = (150, 20, 160)


def test_the_nearest_images_come_first_with_their_labels(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    hits = gallery.search(paint(COLOURS["blue"], seed=77), top=6)
    assert [hit.labels["label"] for hit in hits] == ["blue"] * 6
    assert hits[0].labels["coarse"] == "cold"
    assert [hit.cosine for hit in hits] == sorted((hit.cosine for hit in hits), reverse=True)
    assert hits[0].path.startswith("colours/train/")
    assert len(gallery.search(paint(COLOURS["blue"], seed=77), top=1000)) == len(gallery) == 24


def test_files_pixels_and_pictures_are_the_same_query(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    path = save_colour(tmp_path / "red.png", "red", seed=5)
    pixels = paint(COLOURS["red"], seed=5)
    found = [[hit.path for hit in gallery.search(image)] for image in (path, str(path), pixels, Image.open(path))]
    assert all(paths == found[0] for paths in found)


def test_a_gallery_opened_again_answers_the_same(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    again = Gallery(tmp_path / "g", model=tiny_viewer())
    query = paint(COLOURS["cyan"], seed=3)
    assert again.search(query) == gallery.search(query)
    assert again.classify(query) == gallery.classify(query)
    assert vitrail.Gallery is Gallery


def test_half_precision_halves_the_embeddings_and_keeps_the_answers(tmp_path: Path) -> None:
    half = colour_gallery(tmp_path / "half", choices=Choices(is_half=True))
    assert half.contents.vectors.dtype == torch.float16
    assert half.classify(paint(COLOURS["orange"], seed=9)).label == "orange"
    half.add("purple", [paint(PURPLE, seed=seed) for seed in range(5)])
    assert half.contents.vectors.dtype == torch.float16


def test_five_pictures_are_a_new_class_at_once(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    queries = [paint(PURPLE, seed=seed) for seed in range(100, 110)]
    assert all(gallery.classify(query).label != "purple" for query in queries)
    added = gallery.add("purple", [paint(PURPLE, seed=seed) for seed in range(5)], coarse="cold")
    assert (added.count, added.coarse, added.unread) == (5, "cold", ())
    answers = [gallery.classify(query).label for query in queries]
    assert answers.count("purple") >= 8  # a few may lie beyond the threshold, and none is taken for another colour
    assert set(answers) <= {"purple", "unknown"}
    assert gallery.counts()["purple"] == 5
    assert Gallery(tmp_path / "g").counts("coarse") == {"warm": 12, "cold": 17}


def test_more_images_of_a_class_take_its_coarse_class(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    assert gallery.add("red", [paint(COLOURS["red"], seed=50)]).coarse == "warm"
    with pytest.raises(ValueError, match="'red' is of coarse 'warm', not 'cold'"):
        gallery.add("red", [paint(COLOURS["red"], seed=51)], coarse="cold")


def test_an_image_that_is_added_again_is_there_once(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    path = save_colour(tmp_path / "new.png", "red", seed=8)
    gallery.add("red", [path, path])
    assert gallery.counts()["red"] == 7
    gallery.add("scarlet", [path])
    assert (gallery.counts()["red"], gallery.counts()["scarlet"]) == (6, 1)


def test_a_class_or_an_image_is_removed(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    path = save_colour(tmp_path / "new.png", "red", seed=8)
    gallery.add("red", [path])
    assert gallery.remove(str(path)) == 1
    assert gallery.remove("red") == 6
    assert "red" not in gallery.counts()
    assert gallery.classify(paint(COLOURS["red"], seed=1)).label != "red"
    with pytest.raises(ValueError, match="no label and no image 'oranje' in the gallery; did you mean 'orange'"):
        gallery.remove("oranje")
    for name in ("orange", "blue", "cyan"):
        gallery.remove(name)
    assert len(gallery) == 0
    with pytest.raises(ValueError, match="the gallery is empty"):
        gallery.search(path)
    gallery.add("red", [path])
    assert [name for name, _ in gallery.classify(path).probabilities] == ["red"]


def test_what_is_far_from_everything_is_unknown(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", "red", "orange", choices=Choices(false_reject=0.0))
    threshold = gallery.manifest.threshold
    assert threshold is not None
    assert (threshold.false_reject, threshold.num_held_out, threshold.held_out) == (0.0, 12, "val of colours")
    assert gallery.classify(paint(COLOURS["red"], seed=1000)).label == "red"
    answer = gallery.classify(paint(COLOURS["cyan"], seed=2))
    assert (answer.label, answer.is_unknown) == ("unknown", True)
    assert answer.cosine < threshold.cosine
    assert answer.probabilities  # what it would have been


def test_the_threshold_turns_away_the_share_that_it_states(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", choices=Choices(false_reject=0.25))
    found = gallery.evaluate(colours(split="val", first_seed=1000))
    assert gallery.manifest.threshold is not None
    assert gallery.manifest.threshold.false_reject == 0.25
    assert found["false_reject"] == 25.0


def test_without_held_out_images_each_of_the_gallery_is_held_out_in_turn(tmp_path: Path) -> None:
    gallery, _ = Gallery.build(tiny_viewer(), colours(), folder=tmp_path / "g")
    assert gallery.manifest.threshold is not None
    assert gallery.manifest.threshold.num_held_out == 24
    assert gallery.manifest.threshold.cosine < 1.0


def test_held_out_images_that_are_in_the_gallery_are_no_neighbours_of_their_own(tmp_path: Path) -> None:
    data, choices = colours(), Choices(false_reject=0.25)
    gallery, _ = Gallery.build(tiny_viewer(), data, folder=tmp_path / "g", held_out=data, choices=choices)
    alone, _ = Gallery.build(tiny_viewer(), data, folder=tmp_path / "alone", choices=choices)
    assert gallery.manifest.threshold is not None
    assert alone.manifest.threshold is not None
    assert gallery.manifest.threshold.cosine == alone.manifest.threshold.cosine < 1.0
    one = colours("red", count=1)
    single, _ = Gallery.build(tiny_viewer(), one, folder=tmp_path / "one", held_out=one)
    assert single.manifest.threshold is None


def test_evaluation_is_of_what_classify_answers_while_names_are_missing(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", choices=Choices(level="coarse", coarse="coarse"))
    gallery.rename(
        [path for path in gallery.contents.paths() if int(path.rpartition("/")[2]) in (0, *range(12, 18))], "x"
    )
    data = colours(split="test", first_seed=500)
    data.levels = {"fine": Level(("x", "y"), (data.levels["label"].labels == 1).astype(np.int64))}
    found = gallery.evaluate(data)
    assert found["num_unnamed"] == 17
    answers = gallery.classify_vectors(gallery.embed(list(data.images)))
    is_x = data.levels["fine"].labels == 0
    right = np.mean([answer.probabilities[0][0] == "x" for answer, own in zip(answers, is_x, strict=True) if own])
    levels = found["levels"]
    assert isinstance(levels, dict)
    assert levels["fine"]["top1"] == pytest.approx(100 * right)
    assert right < 1.0


def test_a_known_coarse_class_comes_first_and_bounds_the_answers(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    query = paint(COLOURS["red"], seed=4)
    hits = gallery.search(query, top=24, coarse="cold")
    assert [hit.labels["coarse"] for hit in hits] == ["cold"] * 12 + ["warm"] * 12
    assert all(abs(hit.score - hit.cosine - 4.0) < 1e-5 for hit in hits[:12])
    assert {name for name, _ in gallery.classify(query, coarse="cold").probabilities} <= {"blue", "cyan"}


def test_the_conditional_ranking_prefers_the_coarse_class_that_is_predicted(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    hits = gallery.search(paint(COLOURS["red"], seed=4), top=24, rank="conditional")
    assert [hit.labels["coarse"] for hit in hits] == ["warm"] * 12 + ["cold"] * 12


def test_evaluation_is_of_every_level_and_matches_classes_by_name(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", "orange", "blue", "cyan")
    found = gallery.evaluate(colours("cyan", "red", "blue", split="test", first_seed=500))
    levels = found["levels"]
    assert isinstance(levels, dict)
    assert list(levels) == ["label", "coarse"]
    assert (levels["label"]["num_images"], found["num_images"], found["num_new"]) == (12, 18, 6)
    assert levels["label"]["top1"] == 100.0
    assert levels["label"]["map_oracle"] >= levels["label"]["map_cosine"] > 50.0
    assert "map_oracle" not in levels["coarse"]  # it would be the answer


def test_coarse_labels_alone_make_a_gallery_whose_groups_get_names(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", choices=Choices(level="coarse", coarse="coarse"))
    assert list(gallery.manifest.levels)[:2] == ["fine", "coarse"]
    assert gallery.classify(paint(COLOURS["red"], seed=4)).label == "unnamed"
    groups = gallery.suggest("warm", groups=2)
    assert [group.count for group in groups] == [6, 6]
    assert all(group.labels == (("unnamed", 6),) for group in groups)
    rows = [[int(path.rpartition("/")[2]) // 6 for path in group.paths] for group in groups]
    assert all(len(set(own)) == 1 for own in rows)  # each is one colour
    for group, own in zip(groups, rows, strict=True):
        assert gallery.rename(group.paths, ("red", "orange")[own[0]]) == 6
    assert gallery.classify(paint(COLOURS["red"], seed=4)).label == "red"
    assert gallery.counts() == {"red": 6, "orange": 6}
    assert gallery.counts("coarse") == {"warm": 12, "cold": 12}


def test_a_coarse_class_of_a_gallery_without_labels_says_what_to_do(tmp_path: Path) -> None:
    gallery, _ = Gallery.build(tiny_viewer(), without_labels(colours()), folder=tmp_path / "g")
    with pytest.raises(ValueError, match="no image has a label yet: suggest without coarse groups all of them"):
        gallery.suggest("warm")
    assert sum(group.count for group in gallery.suggest(groups=2)) == 24


def test_the_number_of_groups_suits_the_images(tmp_path: Path) -> None:
    groups = colour_gallery(tmp_path / "g").suggest()
    assert [group.count for group in groups] == [6, 6, 6, 6]
    assert all(len(group.labels) == 1 for group in groups)


def test_a_page_shows_every_class_and_needs_no_network(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    gallery.add("<b>odd</b>", [paint(PURPLE, seed=1)])
    page = gallery.report().read_text(encoding="utf-8")
    assert all(f"{name} <small>6</small>" in page for name in COLOURS)
    assert "&lt;b&gt;odd&lt;/b&gt; <small>1</small>" in page
    assert "right had the class been added from five pictures" in page
    assert page.count("data:image/jpeg;base64,") == 25
    assert "http://" not in page
    assert "https://" not in page


def test_embeddings_of_another_model_are_refused(tmp_path: Path) -> None:
    colour_gallery(tmp_path / "g")
    with pytest.raises(ValueError, match="holds embeddings of another model"):
        Gallery(tmp_path / "g", model=tiny_viewer(seed=1))
    with pytest.raises(ValueError, match="opened without its model"):
        Gallery(tmp_path / "g").search(paint(PURPLE, seed=1))


def test_a_build_removes_its_own_embeddings_alone(tmp_path: Path) -> None:
    for seed, name in enumerate(COLOURS):
        (tmp_path / "images" / name).mkdir(parents=True)
        save_colour(tmp_path / "images" / name / "0.png", name, seed=seed)
    data, place = AllSplits(open_source(tmp_path / "images")), tmp_path / "g.embeddings"
    kept = embed_unit(tiny_viewer(), data, cache=str(place))[0]  # a cache that happens to have this name
    (place / "notes.txt").write_text("mine")
    before = sorted(path.name for path in place.iterdir())
    Gallery.build(tiny_viewer(), data, folder=tmp_path / "g")
    assert sorted(path.name for path in place.iterdir()) == before
    assert torch.equal(embed_unit(tiny_viewer(), data, cache=str(place))[0], kept)
    Gallery.build(tiny_viewer(), data, folder=tmp_path / "h")
    assert not (tmp_path / "h.embeddings").exists()


def test_images_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    good = save_colour(tmp_path / "good.png", "red", seed=1)
    added = gallery.add("red", [broken, good])
    assert added.count == 1
    assert added.unread[0].path == str(broken)
    with pytest.raises(ValueError, match=r"none of the 1 images can be read: .*broken\.png"):
        gallery.add("red", [broken])
    with pytest.raises(ValueError, match=r"gone\.png can't be read"):
        gallery.search(tmp_path / "gone.png")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rank": "best"}, "rank must be one of"),
        ({"rank": "oracle"}, "needs the coarse class of the image"),
        ({"rank": "cosine", "coarse": "warm"}, "leave it out, or rank oracle"),
        ({"coarse": "wram"}, "did you mean 'warm'"),
        ({"top": 0}, "top must be at least 1"),
    ],
)
def test_mistakes_in_a_search_are_one_line(tmp_path: Path, words: dict[str, object], message: str) -> None:
    gallery = colour_gallery(tmp_path / "g")
    with pytest.raises(ValueError, match=message):
        gallery.search_vectors(gallery.embed([paint(PURPLE, seed=0)]), **words)  # type: ignore[arg-type]


def test_rankings_need_coarse_labels(tmp_path: Path) -> None:
    data = colours()
    data.levels = {"label": data.levels["label"]}
    gallery, _ = Gallery.build(tiny_viewer(), data, folder=tmp_path / "g")
    with pytest.raises(ValueError, match="has no coarse labels to rank by"):
        gallery.search(paint(PURPLE, seed=0), rank="conditional")


def test_images_without_a_coarse_class_are_neither_preferred_nor_held_back(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    gallery.add("purple", [paint(PURPLE, seed=0)])
    (hit,) = gallery.search(paint(PURPLE, seed=0), top=1, rank="cosine")
    conditional = {found.path: found for found in gallery.search(paint(PURPLE, seed=0), top=25, rank="conditional")}
    assert hit.labels == {"label": "purple", "coarse": None}
    added = {found.labels["coarse"]: found.score - found.cosine for found in conditional.values()}
    assert min(added["warm"], added["cold"]) <= added[None] <= max(added["warm"], added["cold"])


def test_thumbnails_are_kept_as_asked(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", choices=Choices(thumbnails=2))
    kept = np.array([bool(gallery.contents.thumbnail(row)) for row in range(24)])
    assert kept.reshape(4, 6).sum(axis=1).tolist() == [2, 2, 2, 2]


def test_embeddings_of_any_length_are_queries_and_other_shapes_are_told(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    vectors = gallery.embed([paint(PURPLE, seed=0)])
    assert gallery.search_vectors(3 * vectors)[0][0].cosine == pytest.approx(
        gallery.search_vectors(vectors)[0][0].cosine
    )
    for wrong in (vectors[0], vectors[:, :3]):
        with pytest.raises(ValueError, match=r"embeddings are \[images, 24\]"):
            gallery.search_vectors(wrong)
        with pytest.raises(ValueError, match=r"embeddings are \[images, 24\]"):
            gallery.classify_vectors(wrong)
    with pytest.raises(ValueError, match="top must be at least 1"):
        gallery.classify_vectors(vectors, top=0)


def test_a_list_of_images_is_asked_for(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g")
    path = save_colour(tmp_path / "red.png", "red", seed=1)
    with pytest.raises(ValueError, match="images are a list"):
        gallery.add("red", str(path))
    with pytest.raises(ValueError, match="no images given"):
        gallery.embed([])


@pytest.mark.parametrize("name", ["unknown", "unnamed"])
def test_an_answer_is_no_class(tmp_path: Path, name: str) -> None:
    gallery = colour_gallery(tmp_path / "g")
    with pytest.raises(ValueError, match="is an answer of galleries"):
        gallery.add(name, [paint(PURPLE, seed=1)])
    with pytest.raises(ValueError, match="is an answer of galleries"):
        gallery.rename(list(gallery.contents.paths())[:1], name)
