"""`vitrail shards make`: the same shards however often it was stopped, and the data they were made of."""

import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from object_stores import S3_ENVIRONMENT, put_objects, s3_server
from tiny_runs import finish, run_in, start, wait_for_step
from warm import WarmProcess

import vitrail
from vitrail.cli import main
from vitrail.data.contract import Dataset
from vitrail.data.datasets import open_source
from vitrail.data.decode import open_image
from vitrail.data.remote.objects import forget_stores
from vitrail.data.shard_making import ShardMaking, make_shards

SPEC = "shapes:size=16,count=60,val=24"


def datasets_of(spec: str) -> list[Dataset]:
    source = open_source(spec)
    return [source.open(split) for split in source.splits]


def content_of(folder: Path) -> dict[str, bytes]:
    """Everything but what a file system notes."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".tar", ".json")}
    for path in folder.glob("*.index"):
        index = json.loads(path.read_text())
        found[path.name] = json.dumps({key: index[key] for key in index if key != "modified"}).encode()
    return found


@pytest.mark.parametrize("spec", [SPEC, "fashion"])
def test_shards_hold_the_data_they_were_made_of(tmp_path: Path, spec: str) -> None:
    datasets = datasets_of(spec)
    if spec == "fashion":  # a few are enough
        from vitrail.data.stored import Subset

        datasets = [Subset(dataset, np.arange(0, len(dataset), 100)) for dataset in datasets]
    made = make_shards(datasets, out=str(tmp_path / "out"), how=ShardMaking(samples=7))
    source = open_source(f"shards:{tmp_path}/out/shards.json")
    for original in datasets:
        copy = source.open(original.split)
        assert len(copy) == len(original) == made.num_samples[original.split]
        assert copy.level().classes == original.level().classes
        numbers = [int(copy.locate(index).rpartition("!")[2].partition(".")[0]) for index in range(len(copy))]
        assert sorted(numbers) == list(range(len(original)))
        assert numbers != sorted(numbers), "classes must be mixed over the shards"
        for index, number in enumerate(numbers):
            assert copy.level().labels[index] == original.level().labels[number]
            for level in set(original.levels) - {next(iter(original.levels))}:
                mine, theirs = copy.level(level), original.level(level)
                assert mine.classes[mine.labels[index]] == theirs.classes[theirs.labels[number]]
            pixels = [
                open_image(dataset.read(place)).pixels() for dataset, place in ((copy, index), (original, number))
            ]
            assert (pixels[0] == pixels[1]).all()


def test_encoded_images_keep_their_bytes_and_other_programs_read_the_tars(tmp_path: Path) -> None:
    first = make_shards(datasets_of(SPEC), out=str(tmp_path / "first"), how=ShardMaking(samples=20))
    again = datasets_of(f"shards:{tmp_path}/first/shards.json")
    make_shards(again, out=str(tmp_path / "second"), how=ShardMaking(samples=20, shuffle=False))
    assert sum(first.num_shards.values()) == 5
    with tarfile.open(tmp_path / "second" / "train-000000.tar") as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert members["000000000.png"] == again[0].read(0)
    assert members["000000000.cls"] == str(again[0].level().labels[0]).encode()


def test_the_number_of_workers_changes_no_byte(tmp_path: Path) -> None:
    for workers in (1, 3):
        make_shards(datasets_of(SPEC), out=str(tmp_path / str(workers)), how=ShardMaking(samples=7, workers=workers))
    assert content_of(tmp_path / "1") == content_of(tmp_path / "3")


def test_what_was_killed_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    words = ["shards", "make", "data=shapes:size=16,count=100,val=4", "samples=4", "workers=1"]
    out = tmp_path / "killed"
    process = WarmProcess([*words, f"out={out}"])
    while len(list(out.glob("*.index"))) < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (out / "shards.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*.tar") if Path(f"{path}.index").exists()}
    assert main([*words, f"out={out}"]) == 0
    assert all(path.stat().st_mtime_ns == changed for path, changed in kept.items()), (
        "what is there is not written again"
    )
    assert main([*words, f"out={tmp_path / 'whole'}"]) == 0
    assert content_of(out) == content_of(tmp_path / "whole")
    assert len(list(out.glob("*.tar"))) == 26


def test_shards_of_other_data_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = f"out={tmp_path / 'out'}"
    assert main(["shards", "make", f"data={SPEC}", out, "samples=30"]) == 0
    before = content_of(tmp_path / "out")
    capsys.readouterr()
    assert main(["shards", "make", f"data={SPEC}", out, "samples=10"]) == 2
    assert "holds other data, or was made with other settings: give another out=" in capsys.readouterr().err
    assert content_of(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "data= is missing"),
        ([f"data={SPEC}"], "out= is missing"),
        ([f"data={SPEC}", "out=x", "sampels=3"], "unknown key 'sampels'"),
        ([f"data={SPEC}", "out=x", "samples=0"], "samples must be a whole number of at least 1"),
        ([f"data={SPEC}", "out=x", "megabytes=-1"], "megabytes must be a number above 0"),
        ([f"data={SPEC}", "out=x", "workers=0"], "workers must be a whole number"),
        ([f"data={SPEC}", "out=x", "splits=[none]"], "has no split 'none'"),
        ([f"data={SPEC}", "out=file:///x"], "can't be read from file://"),
        (
            [f"data={SPEC}", "out=https://127.0.0.1:1/x"],
            "nothing can be written to https://127.0.0.1:1/x: give a folder",
        ),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["shards", "make", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_image_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "1.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(
        ValueError, match=r"a/1.png can't be read \(No such file or directory\): repair it, or leave it"
    ):
        make_shards(datasets_of_folder(tmp_path / "data"), out=str(tmp_path / "out"), how=ShardMaking(samples=2))


def datasets_of_folder(folder: Path) -> list[Dataset]:
    source = open_source(str(folder), val_share=0.0)
    return [source.open(split) for split in source.splits]


def test_images_without_labels_become_shards_without_labels(tmp_path: Path) -> None:
    dataset = open_source(SPEC, labels="ignored").open("train")
    make_shards([dataset], out=str(tmp_path / "out"), how=ShardMaking(samples=30))
    spec = f"shards:{tmp_path}/out/shards.json"
    assert open_source(spec, labels="optional", val_share=0.0).open("train").levels == {}
    with pytest.raises(ValueError, match="no sample has both an image and a label"):
        open_source(spec)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    for name, value in {**S3_ENVIRONMENT, "VITRAIL_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    with s3_server() as endpoint:
        put_objects(endpoint, {})
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        forget_stores()
        yield "s3://bucket/made"
    forget_stores()


def test_shards_are_made_in_a_bucket_and_a_run_from_them_goes_on_after_a_kill(bucket: str, tmp_path: Path) -> None:
    words = ["shards", "make", "data=shapes:size=16,count=48,val=24", "samples=12", f"out={bucket}"]
    assert main(words) == 0
    local = make_shards(
        datasets_of("shapes:size=16,count=48,val=24"), out=str(tmp_path / "here"), how=ShardMaking(samples=12)
    )
    assert sum(local.num_shards.values()) == 6
    spec, killed = f"data=shards:{bucket}/shards.json", tmp_path / "killed"
    process = start(killed, spec, "epochs=3", "run.save_minutes=0.0001", "data.workers=1")
    wait_for_step(process, killed, 4)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (killed / "model").exists()
    finish(start(killed, spec, "epochs=3"))  # which reads in the process itself
    run_in(tmp_path / "whole", f"data=shards:{tmp_path}/here/shards.json")
    one, other = (vitrail.load_model(tmp_path / name / "model").state_dict() for name in ("killed", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)
