"""What a served gallery says where its store fails, and where a client asks for what there is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from served import build_gallery, encode, save_tiny

from vitrail.gallery.folder_table import FolderTable
from vitrail.gallery.gallery_manifest import MANIFEST_FILE
from vitrail.gallery.milvus_client import GoneError
from vitrail.gallery.store import StateReplacedError
from vitrail.inference.trained import load_trained
from vitrail.serving.decoding import make_new
from vitrail.serving.refusals import RefusedError
from vitrail.serving.served_gallery import ServedGallery
from vitrail.serving.served_model import ServedModel


@pytest.fixture
def gallery(tmp_path: Path) -> ServedGallery:
    model = save_tiny(tmp_path / "pets")
    place = build_gallery(tmp_path / "shades", model, "red", "orange", "blue")
    return ServedGallery("shades", str(place), ServedModel("pets", load_trained(model), device=torch.device("cpu")))


def add(gallery: ServedGallery, label: str, *, coarse: str | None = None) -> object:
    """What comes of adding a red picture."""
    new, seen = make_new(encode("red", seed=77), gallery.viewer.trained.view, 10**6)
    return gallery.add(label, [new], gallery.viewer.compute_embeddings([seen]), coarse=coarse)


def status_of(ask: Callable[[], object]) -> int:
    with pytest.raises(RefusedError) as caught:
        ask()
    return caught.value.status


@pytest.mark.parametrize("name", ["damaged", "no gallery", "the database of", "can't be written", "changes faster"])
def test_the_name_of_a_class_does_not_make_a_wrong_question_a_failure(gallery: ServedGallery, name: str) -> None:
    add(gallery, "red")
    add(gallery, name, coarse="warm")
    vector = [torch.ones(24)]
    assert status_of(lambda: gallery.search(vector, top=1, coarse=name)) == 400
    assert status_of(lambda: add(gallery, name, coarse=f"not {name}")) == 400


@pytest.mark.parametrize("content", [b"{}", b"{", b"\xff", None])
def test_a_gallery_that_is_damaged_or_gone_is_a_failure(
    gallery: ServedGallery, tmp_path: Path, content: bytes | None
) -> None:
    manifest = tmp_path / "shades" / MANIFEST_FILE
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    assert status_of(gallery.describe) == 503
    assert status_of(lambda: add(gallery, "red")) == 503
    assert status_of(lambda: gallery.remove("red")) == 503


@pytest.mark.parametrize("error", [GoneError("it does not answer"), OSError("no space left")])
def test_a_store_that_can_not_be_changed_is_a_failure(
    gallery: ServedGallery, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(gallery._gallery.store, "writing", fail)
    assert status_of(lambda: add(gallery, "red")) == 503
    assert status_of(lambda: gallery.remove("red")) == 503


def test_a_store_that_fails_after_images_were_added_is_a_failure(
    gallery: ServedGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gallery._gallery.add_embedded

    def add_and_lose(*arguments: Any, **settings: Any) -> Any:
        added = whole(*arguments, **settings)
        monkeypatch.setattr(FolderTable, "label_sets", fail)
        return added

    def fail(table: FolderTable) -> Any:
        raise GoneError("it does not answer")

    monkeypatch.setattr(gallery._gallery, "add_embedded", add_and_lose)
    assert status_of(lambda: add(gallery, "red")) == 503


def test_a_state_that_is_replaced_while_an_image_is_looked_for_is_asked_anew(
    gallery: ServedGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = gallery.search([torch.ones(24)], top=1)
    whole, failures = FolderTable.paths_of, [StateReplacedError()]

    def look(table: FolderTable, rows: list[int]) -> list[str]:
        if failures:
            raise failures.pop()
        return whole(table, rows)

    monkeypatch.setattr(FolderTable, "paths_of", look)
    assert gallery.remove_image(found["hits"][0]["id"]) == {"removed": 1}


def test_a_store_that_fails_while_an_image_is_looked_for_is_a_failure(
    gallery: ServedGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(table: FolderTable, rows: list[int]) -> list[str]:
        raise GoneError("it does not answer")

    monkeypatch.setattr(FolderTable, "paths_of", look)
    assert status_of(lambda: gallery.remove_image("0" * 16)) == 503


def test_a_gallery_of_another_model_in_its_place_is_a_failure(gallery: ServedGallery, tmp_path: Path) -> None:
    place, others = tmp_path / "shades", build_gallery(tmp_path / "others", save_tiny(tmp_path / "zoo", seed=5))
    place.rename(tmp_path / "former")
    others.rename(place)
    vector = [torch.ones(24)]
    assert status_of(lambda: gallery.search(vector, top=1)) == 503
    assert status_of(gallery.describe) == 503
    assert status_of(lambda: add(gallery, "red")) == 503
    assert status_of(lambda: gallery.remove("red")) == 503
    place.rename(others)
    (tmp_path / "former").rename(place)
    assert len(gallery.search(vector, top=1)) == 1


@pytest.mark.parametrize("place", ["my data/catalogue", "red"])
def test_a_refusal_names_the_gallery_instead_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = save_tiny(tmp_path / "pets")
    build_gallery(place, model, "red", "blue")
    gallery = ServedGallery("shades", place, ServedModel("pets", load_trained(model), device=torch.device("cpu")))

    def refuse(table: FolderTable) -> Any:
        raise ValueError(f"no reddish image in {place}: look at {place}/part-1")

    monkeypatch.setattr(FolderTable, "label_sets", refuse)
    with pytest.raises(RefusedError, match=r"^no reddish image in shades: look at shades/part-1$"):
        gallery.describe()
