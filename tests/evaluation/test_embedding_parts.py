"""Embeddings of several processes: each image once, in order, with the bits of one, and going on after a stop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from together import run_worlds

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Level
from vitrail.data.sampler import Ranks
from vitrail.data.stored import ArrayDataset
from vitrail.data.turns import RangeSampler, cut_evenly, cut_pieces, own_ranges
from vitrail.evaluation.embedding_files import EmbeddingParts, Embeddings, read_embeddings, write_embeddings
from vitrail.evaluation.features import Extraction, embed
from vitrail.evaluation.together import Alone, Together, leave_rest_to_main
from vitrail.storage.tensors import join_tensors, read_tensors, write_tensors


def data_of(count: int) -> ArrayDataset:
    images = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    return ArrayDataset(
        images=images, name="noise", split="all", levels={"label": Level(("a",), np.zeros(count, dtype=np.int64))}
    )


@pytest.fixture(scope="module")
def model() -> Any:
    import vitrail

    settings = {"image_size": 16, "patch_size": 8, "dim": 24, "num_heads": 2, "depth": 1, "num_classes": 3}
    return vitrail.create_model("deit_tiny", **settings).eval()


def extraction_of(model: Any, world: Together | None = None) -> Extraction:
    view, device = EvaluationView(image_size=16, crop_ratio=1.0), torch.device("cpu")
    return Extraction(model, view, Normalize(), device, batch_size=3, world=world or Alone())


@pytest.mark.parametrize("count", [1, 2, 20])
def test_three_processes_have_the_embeddings_of_one(model: Any, count: int, tmp_path: Path) -> None:
    whole = embed(extraction_of(model), data_of(count))

    def work(world: Together) -> list[Embeddings]:
        extraction, data = extraction_of(model, world), data_of(count)
        return [
            embed(extraction, data),
            embed(extraction, data, cache=tmp_path),
            embed(extraction, data, cache=tmp_path),
        ]

    main, *others = run_worlds(3, work)
    for found in main:
        assert torch.equal(found.vectors, whole.vectors)
        assert found.indices.tolist() == list(range(count))
    assert all(len(found.vectors) == 0 for many in others for found in many)
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


def test_what_is_there_is_not_computed_again(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.evaluation import features

    monkeypatch.setattr(features, "_BATCHES_OF_A_PART", 2)
    whole, seen = embed(extraction_of(model), data_of(20)), []

    def stop_after_ten(count: int) -> None:
        seen.append(count)
        if sum(seen) > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(extraction_of(model), data_of(20), cache=tmp_path, advance=stop_after_ten)
    (parts,) = tmp_path.glob("*.parts")
    assert sorted(path.name for path in parts.glob("images-*")) == ["images-0000000000-0000000006.safetensors"]
    (parts / "images-0000000006-0000000012.safetensors").write_bytes(b"torn")  # as no process of ours leaves it

    def work(world: Together) -> tuple[Embeddings, int]:
        counts: list[int] = []
        return embed(extraction_of(model, world), data_of(20), cache=tmp_path, advance=counts.append), counts[0]

    (found, num_known), _ = run_worlds(2, work)
    assert torch.equal(found.vectors, whole.vectors)
    assert num_known == 6


def test_a_range_that_no_image_of_can_be_read(tmp_path: Path) -> None:
    parts = EmbeddingParts(tmp_path, num_images=5)
    parts.write(range(3), Embeddings(torch.zeros(0, 0), torch.zeros(0, dtype=torch.int64)))
    assert parts.missing() == [range(3, 5)]
    vectors = torch.arange(8.0).view(2, 4)
    parts.write(range(3, 5), Embeddings(vectors, torch.tensor([3, 4])))
    parts.write(range(4, 5), Embeddings(vectors[1:], torch.tensor([4])))  # of another batch size
    parts.write(range(5, 9), Embeddings(vectors, torch.tensor([5, 6])))  # of none of the images
    parts.drop_damaged()
    assert parts.missing() == []
    parts.join(tmp_path / "all.safetensors")
    found = read_embeddings(tmp_path / "all.safetensors")
    assert found is not None
    assert torch.equal(found.vectors, vectors)
    assert found.indices.tolist() == [3, 4]


def test_nothing_is_embeddings_too_where_it_may_be(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(5)
    monkeypatch.setattr(data, "read", lambda index: b"no image")

    def work(world: Together) -> list[Embeddings]:
        extraction = extraction_of(model, world)
        return [embed(extraction, data, cache=cache, may_be_empty=True) for cache in (None, tmp_path, tmp_path)]

    for num_ranks in (1, 2):
        main, *_ = run_worlds(num_ranks, work)
        assert [(len(found.vectors), len(found.indices), len(found.unread)) for found in main] == [(0, 0, 5)] * 3
    with pytest.raises(ValueError, match="none of the 5 images of all of noise could be read"):
        embed(extraction_of(model), data, cache=tmp_path)


def test_joined_files_are_as_if_written_at_once(tmp_path: Path) -> None:
    tensors = {"vectors": torch.randn(7, 3), "indices": torch.arange(7)}
    write_tensors(tensors, tmp_path / "whole", metadata={"unread": "[]"})
    for name, rows in (("first", slice(0, 4)), ("second", slice(4, 7))):
        write_tensors({key: value[rows].clone() for key, value in tensors.items()}, tmp_path / name)
    join_tensors([tmp_path / "first", tmp_path / "second"], tmp_path / "joined", metadata={"unread": "[]"})
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    write_tensors({"vectors": torch.zeros(1, 2), "indices": torch.zeros(1, dtype=torch.int64)}, tmp_path / "third")
    with pytest.raises(ValueError, match=r"third: rows of vectors are \[2\], and \[3\] in others"):
        join_tensors([tmp_path / "first", tmp_path / "third"], tmp_path / "joined")
    assert read_tensors(tmp_path / "whole", label="")[0]["indices"].tolist() == list(range(7))


def test_embeddings_keep_what_could_not_be_read(tmp_path: Path) -> None:
    write_embeddings(Embeddings(torch.ones(1, 2), torch.tensor([0])), tmp_path / "file")
    found = read_embeddings(tmp_path / "file")
    assert found is not None
    assert found.unread == ()


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 64, 101])
def test_every_sample_is_one_process_s_own_and_batches_are_those_of_one(count: int, num_ranks: int) -> None:
    everyone = [own_ranges(count, batch_size=4, ranks=Ranks(rank, num_ranks)) for rank in range(num_ranks)]
    assert sorted(index for own in everyone for part in own for index in part) == list(range(count))
    samplers = [RangeSampler(count, batch_size=4, epochs=[own]) for own in everyone]
    batches = sorted([sample.index for sample in batch] for sampler in samplers for batch in sampler.epoch(0))
    assert batches == [list(range(start, min(start + 4, count))) for start in range(0, count, 4)]
    assert sum(sampler.num_batches for sampler in samplers) == len(batches)
    parts = [cut_evenly(count, Ranks(rank, num_ranks)) for rank in range(num_ranks)]
    assert [index for part in parts for index in part] == list(range(count))


def test_pieces_are_small_enough_for_every_process_to_have_one() -> None:
    assert cut_pieces([range(8)], batch_size=2, num_ranks=2, most=32) == [range(4), range(4, 8)]
    assert cut_pieces([range(4), range(6, 9)], batch_size=2, num_ranks=1, most=1) == [
        *(range(2), range(2, 4)),
        *(range(6, 8), range(8, 9)),
    ]


def test_all_but_the_main_process_end_when_nothing_is_shared() -> None:
    def work(world: Together) -> Any:
        try:
            leave_rest_to_main(world)
        except SystemExit as end:
            return end.code
        return "goes on"

    assert run_worlds(2, work) == ["goes on", 0]
