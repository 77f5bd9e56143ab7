"""Approximate indexes: chosen by size, near to exact, kept up with changes, and an error where faiss is missing."""

import sys
from pathlib import Path

import pytest
import torch
from tiny_galleries import COLOURS, colour_gallery, index_of, listed, paint
from torch.nn import functional

from vitrail.evaluation.knn import find_neighbours
from vitrail.gallery.building import Choices
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.index import ApproximateIndex, choose_index, write_index


def need_faiss() -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_approximate_index_finds_nearly_all_that_is_near(tmp_path: Path, kind: str) -> None:
    need_faiss()
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(40, 16, generator=generator)
    vectors = centres.repeat(50, 1) + 0.3 * torch.randn(2000, 16, generator=generator)
    vectors = functional.normalize(vectors, dim=1)
    write_index(kind, vectors, tmp_path / "index.faiss")
    index = ApproximateIndex(tmp_path / "index.faiss", count=2000, dim=16)
    cosines, places = index.search(vectors[:50], count=10)
    exact_cosines, exact = find_neighbours(vectors[:50], vectors, count=10)
    recall = (places[:, :, None] == exact[:, None]).any(dim=2).float().mean()
    assert recall > 0.9
    assert torch.allclose(cosines[:, 0], exact_cosines[:, 0], atol=1e-5)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_as_many_are_found_as_are_asked_for(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need_faiss()
    monkeypatch.setattr("vitrail.gallery.index._SEARCH_EFFORT", 8)
    monkeypatch.setattr("vitrail.gallery.index._LEAST_PROBED", 1)
    monkeypatch.setattr("vitrail.gallery.index._PER_LIST", 5)
    gallery = colour_gallery(tmp_path / "g", choices=Choices(index=kind), count=40)
    vectors = gallery.embed([paint(COLOURS["blue"], seed=700)])
    index = ApproximateIndex(next(gallery.folder.glob("*.faiss")), count=160, dim=24)
    assert bool((index.search(vectors, count=160)[1] < 0).any())  # the index alone finds fewer
    assert len({hit.path for hit in gallery.search_vectors(vectors, top=160)[0]}) == 160


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_gallery_with_an_index_keeps_up_with_changes(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_faiss()
    gallery = colour_gallery(tmp_path / "g", choices=Choices(index=kind), count=40)
    exact = colour_gallery(tmp_path / "exact", count=40)
    query = paint(COLOURS["blue"], seed=700)
    assert [hit.path for hit in gallery.search(query, top=3)] == [hit.path for hit in exact.search(query, top=3)]
    first = index_of(gallery)
    gallery.add("purple", [paint((150, 20, 160), seed=seed) for seed in range(5)])
    assert index_of(gallery) == first  # the few new ones are searched beside it
    assert gallery.search(paint((150, 20, 160), seed=0), top=1)[0].labels["label"] == "purple"
    gallery.remove("blue")
    assert index_of(gallery) != first
    assert "blue" not in {hit.labels["label"] for hit in gallery.search(query, top=100)}
    monkeypatch.setattr("vitrail.gallery.folder_changes._UNCOVERED_LEAST", 1)
    before = index_of(gallery)
    gallery.add("pink", [paint((250, 150, 200), seed=seed) for seed in range(20)])
    assert index_of(gallery) != before
    again = Gallery(gallery.folder)
    assert index_of(again).parts == tuple(part.file for part in listed(again).parts)


def test_the_index_is_chosen_by_size() -> None:
    need_faiss()
    assert choose_index("exact", num_images=10**7) == "exact"
    assert [choose_index("auto", num_images=count) for count in (1000, 500_000, 10**7)] == ["exact", "hnsw", "ivf"]
    with pytest.raises(ValueError, match="index must be one of exact, ivf, hnsw, auto, not 'tree'"):
        choose_index("tree", num_images=5)


def test_without_faiss_exact_works_and_the_others_say_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert choose_index("auto", num_images=10**7) == "exact"
    with pytest.raises(ValueError, match=r"needs faiss: pip install 'vitrail\[gallery\]', or use index=exact"):
        colour_gallery(tmp_path / "g", choices=Choices(index="hnsw"))
    assert not (tmp_path / "g").exists()
    assert colour_gallery(tmp_path / "g").search(paint(COLOURS["red"], seed=1), top=1)[0].labels["label"] == "red"


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    need_faiss()
    gallery = colour_gallery(tmp_path / "g", choices=Choices(index="hnsw"))
    (gallery.folder / index_of(gallery).file).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"is damaged: index-\w+\.faiss: it has 7 bytes instead of"):
        Gallery(gallery.folder).search_vectors(torch.zeros(1, 24))


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_reader_answers_as_it_was_opened_though_the_index_is_replaced_before_its_first_search(
    tmp_path: Path, kind: str
) -> None:
    need_faiss()
    gallery = colour_gallery(tmp_path / "g", choices=Choices(index=kind), count=40)
    reader, vectors = Gallery(gallery.folder), gallery.embed([paint(COLOURS["red"], seed=700)])
    wanted = [hit.path for hit in gallery.search_vectors(vectors, top=3)[0]]
    gallery.remove("red")  # and with it the index
    assert not (reader.folder / index_of(reader).file).exists()
    assert [hit.path for hit in reader.search_vectors(vectors, top=3)[0]] == wanted
    reader.refresh()
    assert reader.search_vectors(vectors, top=1)[0][0].labels["label"] != "red"


def test_an_index_that_is_listed_and_missing_is_damage(tmp_path: Path) -> None:
    need_faiss()
    gallery = colour_gallery(tmp_path / "g", choices=Choices(index="hnsw"))
    (gallery.folder / index_of(gallery).file).unlink()
    with pytest.raises(ValueError, match=r"is damaged: index-\w+\.faiss is missing"):
        Gallery(gallery.folder).search_vectors(torch.zeros(1, 24))
