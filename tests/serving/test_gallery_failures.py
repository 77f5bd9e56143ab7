"""What a served gallery says where its store fails, and where a client asks for what there is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from served import build_gallery, save_tiny
from tiny_galleries import COLOURS, paint

from vitrail.gallery.folder_table import FolderTable
from vitrail.gallery.gallery_manifest import MANIFEST_FILE
from vitrail.gallery.milvus_client import GoneError
from vitrail.gallery.store import StateReplacedError
from vitrail.inference.trained import load_trained
from vitrail.serving.refusals import RefusedError
from vitrail.serving.served_gallery import ServedGallery
from vitrail.serving.served_model import ServedModel

RED = paint(COLOURS["red"], seed=77)


@pytest.fixture
def gallery(tmp_path: Path) -> ServedGallery:
    model = save_tiny(tmp_path / "pets")
    place = build_gallery(tmp_path / "shades", model, "red", "orange", "blue")
    return ServedGallery("shades", str(place), ServedModel("pets", load_trained(model), device=torch.device("cpu")))


def status_of(ask: Callable[[], object]) -> int:
    with pytest.raises(RefusedError) as caught:
        ask()
    return caught.value.status


@pytest.mark.parametrize("name", ["damaged", "no gallery", "the database of", "can't be written", "changes faster"])
def test_the_name_of_a_class_does_not_make_a_wrong_question_a_failure(gallery: ServedGallery, name: str) -> None:
    gallery.add("red", [RED], coarse=None)
    gallery.add(name, [RED], coarse="warm")
    vector = [torch.ones(24)]
    assert status_of(lambda: gallery.search(vector, top=1, coarse=name)) == 400
    assert status_of(lambda: gallery.add(name, [RED], coarse=f"not {name}")) == 400


@pytest.mark.parametrize("content", [b"{}", b"{", b"\xff", None])
def test_a_gallery_that_is_damaged_or_gone_is_a_failure(
    gallery: ServedGallery, tmp_path: Path, content: bytes | None
) -> None:
    manifest = tmp_path / "shades" / MANIFEST_FILE
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    assert status_of(gallery.describe) == 503
    assert status_of(lambda: gallery.add("red", [RED])) == 503
    assert status_of(lambda: gallery.remove("red")) == 503


@pytest.mark.parametrize("error", [GoneError("it does not answer"), OSError("no space left")])
def test_a_store_that_can_not_be_changed_is_a_failure(
    gallery: ServedGallery, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(gallery._gallery.store, "writing", fail)
    assert status_of(lambda: gallery.add("red", [RED])) == 503
    assert status_of(lambda: gallery.remove("red")) == 503


def test_a_store_that_fails_after_images_were_added_is_a_failure(
    gallery: ServedGallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gallery._gallery.add

    def add_and_lose(*arguments: Any, **settings: Any) -> Any:
        added = whole(*arguments, **settings)
        monkeypatch.setattr(FolderTable, "label_sets", fail)
        return added

    def fail(table: FolderTable) -> Any:
        raise GoneError("it does not answer")

    monkeypatch.setattr(gallery._gallery, "add", add_and_lose)
    assert status_of(lambda: gallery.add("red", [RED])) == 503


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
