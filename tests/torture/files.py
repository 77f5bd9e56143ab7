"""Files of runs, models and packs that a disk, a hand or a stranger has changed: one line, or a right answer."""

import contextlib
import functools
import io
import json
import logging
import random
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from tiny_runs import run_in

from vitrail import load_trained
from vitrail.cli import main
from vitrail.storage import replacing_files
from vitrail.storage.tensors import hash_tensors
from vitrail.weights.pack import write_pack

AREA = "files"
NUM_TESTED = 12
_DATA = "data=shapes:size=16,count=48,val=24"
_SETTINGS = ("model=deit_tiny", "model.settings={patch_size: 8, dim: 8, depth: 1, num_heads: 2}", "epochs=2")
_TEXTS = ("recipe.yaml", "plan.json", "task.json", "metrics.jsonl", "model/config.json", "model/task.json")
_WRONG: tuple[Any, ...] = (
    *(None, True, "x", "", -1, 0, 2.5, 1e308, 10**30, 2**50, [], {}, [1, "x"], {"x": 1}, "../../x", "os:getcwd"),
    *(float("nan"), float("inf"), "\ud83d\ude00", "9" * 5000, [[]] * 3, {"": None}),
)


@functools.cache
def _originals() -> Path:
    """A run that has ended, one that has not, a pack, and the hash of the weights, made once."""
    place = Path(tempfile.mkdtemp(prefix="torture-files-"))
    run = run_in(place / "run", *_SETTINGS)
    shutil.copytree(run.path, place / "unfinished")
    shutil.rmtree(place / "unfinished" / "model")
    (place / "unfinished" / "checkpoints" / "step_000000006.pt").unlink()
    trained = load_trained(run.path)
    state = trained.model.state_dict()
    write_pack(place / "pack", model=trained.model, trunk=state, source=str(place / "run" / "model"))
    (place / "hash").write_text(_read(run.model))
    return place


def _read(folder: Path) -> str:
    """A hash of the weights that are loaded, of which all answers are functions."""
    return hash_tensors(load_trained(folder).model.state_dict())


def attempt(rng: random.Random, folder: Path) -> str | None:
    """Change one file, then use it."""
    kind = rng.choice((_weights, _weights, _text, _text, _text, _checkpoint, _checkpoint, _archive, _packed, _draft))
    return kind(rng, folder)


def _weights(rng: random.Random, folder: Path) -> str | None:
    """A bit of the weights flips, or they end too early."""
    model, place = folder / "changed_folder", rng.choice(("run/model", "pack"))
    shutil.copytree(_originals() / place, model)
    file = next(model.glob("*.safetensors"))
    what = _damage(rng, file)
    try:
        same = _read(model) == (_originals() / "hash").read_text()
    except ValueError as error:
        return None if _is_told(str(error), model) else f"{what}: the error names no file: {error}"
    return None if same else f"{what}: other weights, without a word"


def _damage(rng: random.Random, file: Path) -> str:
    """Flip a bit, cut the end off, or add to it."""
    content = bytearray(file.read_bytes())
    place = rng.randrange(len(content))
    form = rng.choice(("flip", "flip", "flip", "cut", "longer", "zeros"))
    if form == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif form == "cut":
        del content[place:]
    elif form == "longer":
        content += rng.randbytes(rng.randrange(1, 64))
    else:
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    file.write_bytes(bytes(content))
    return f"{form} at {place} of {file.name}"


def _text(rng: random.Random, folder: Path) -> str | None:
    """A value of a JSON or YAML file is another, is missing, or the text is none."""
    run, name = folder / "changed_folder", rng.choice(_TEXTS)
    shutil.copytree(_originals() / "run", run)
    what = _spoil(rng, run / name)
    if name != "recipe.yaml" and rng.random() < 0.3:  # an ended run goes on: it must say so, or what is wrong
        return _tried(["train", f"out={run}"], run, f"{name}: {what}")
    return _tried(["evaluate", str(run), _DATA, "device=cpu"], run, f"{name}: {what}")


def _packed(rng: random.Random, folder: Path) -> str | None:
    """A value of a pack.json is another."""
    shutil.copytree(_originals() / "pack", folder / "changed_folder")
    what = _spoil(rng, folder / "changed_folder" / "pack.json")
    return _tried(["evaluate", str(folder / "changed_folder"), _DATA, "device=cpu"], folder / "changed_folder", what)


def _spoil(rng: random.Random, file: Path) -> str:
    """Change a file of text; what was done to it."""
    text = file.read_text(encoding="utf-8")
    form = rng.choice(("value", "value", "value", "drop", "deep", "bytes", "empty", "aliases"))
    if form == "deep":
        depth = rng.choice((60, 900, 5000, 100_000))
        file.write_text("[" * depth + "]" * depth)
    elif form == "bytes":
        return _damage(rng, file)
    elif form == "empty":
        file.write_text("")
    elif form == "aliases" and file.suffix == ".yaml":
        lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
        file.write_text("\n".join(lines))
    elif file.suffix == ".jsonl":
        lines = text.splitlines()
        place = rng.randrange(len(lines))
        lines[place] = json.dumps(rng.choice((*_WRONG, {"stage": 0, "step": 1, "kind": rng.choice(_WRONG)})))
        file.write_text("\n".join(lines))
    else:
        is_yaml = file.suffix == ".yaml"
        content = yaml.safe_load(text) if is_yaml else json.loads(text)
        form = _change_value(rng, content, drops=form == "drop")
        file.write_text(yaml.safe_dump(content) if is_yaml else json.dumps(content))
    return form


def _change_value(rng: random.Random, content: Any, *, drops: bool) -> str:
    """Put something wrong in any place of nested values, or take something away; what and where."""
    places: list[tuple[Any, Any, str]] = []
    found = [(content, "")]
    while found:
        outer, path = found.pop()
        keys = list(outer) if isinstance(outer, dict) else range(len(outer)) if isinstance(outer, list) else ()
        for key in keys:
            places.append((outer, key, f"{path}.{key}"))
            found.append((outer[key], f"{path}.{key}"))
    outer, key, path = rng.choice(places)
    if drops:
        del outer[key]
        return f"{path} is missing"
    outer[key] = rng.choice(_WRONG)
    return f"{path} is {str(outer[key])[:40]!r}"


def _checkpoint(rng: random.Random, folder: Path) -> str | None:
    """A checkpoint that is whole lacks a part, or has one that is wrong."""
    run = folder / "changed_folder"
    shutil.copytree(_originals() / "unfinished", run)
    (file,) = (run / "checkpoints").glob("step_*.pt")
    state = torch.load(file, weights_only=True)
    inner = rng.random() < 0.5
    place = state[rng.choice(("optimizer", "average", "best", "model", "data"))] if inner else state
    key = rng.choice(list(place))
    what = f"{key} is missing"
    if rng.random() < 0.4:
        del place[key]
    else:
        place[key] = rng.choice(
            (None, 7, -1, "x", [], {}, {"x": 1}, 1e30, torch.zeros(2), torch.zeros(1).expand(10**9))
        )
        what = f"{key} is {type(place[key])!s}"
    torch.save(state, file)
    verb = rng.choice((["train", f"out={run}"], ["evaluate", str(run), _DATA, "device=cpu"]))
    return _tried(verb, run, f"checkpoint: {what}, {verb[0]}")


def _archive(rng: random.Random, folder: Path) -> str | None:
    """A checkpoint whose archive is compressed, damaged or no archive."""
    run = folder / "changed_folder"
    shutil.copytree(_originals() / "unfinished", run)
    (file,) = (run / "checkpoints").glob("step_*.pt")
    what = "compressed"
    if rng.random() < 0.5:
        with zipfile.ZipFile(file) as old:
            parts = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
            for name, content in parts.items():
                new.writestr(name, content + bytes(rng.choice((0, 1 << 20))))
    else:
        what = _damage(rng, file)
    return _tried(["evaluate", str(run), _DATA, "device=cpu"], run, f"archive: {what}")


def _draft(rng: random.Random, folder: Path) -> str | None:
    """A model with an update that asks for files elsewhere: nothing outside is touched."""
    model, outside = folder / "changed_folder", folder / "outside.txt"
    shutil.copytree(_originals() / "run" / "model", model)
    outside.write_text("mine")
    with contextlib.suppress(RuntimeError), replacing_files(model, keeps_others=True) as draft:
        shutil.copytree(draft, model / ".update")
        raise RuntimeError
    names = rng.choice((["../outside.txt"], [str(outside)], ["config.json/../../outside.txt"], {"x": 1}, [1], "x"))
    (model / ".update" / ".leaving.json").write_text(json.dumps(names))
    told = _tried(["evaluate", str(model), _DATA, "device=cpu"], model, f"leaving {names}")
    return told or (None if outside.exists() else f"leaving {names}: a file outside of the folder was removed")


def _tried(words: list[str], folder: Path, what: str) -> str | None:
    """Run a command; None where it ended well, or with exit code 2 and one line that names what it is about."""
    code, output = _run(words)
    if "Traceback" in output:
        return f"{what}: a traceback was printed"
    if code == 0:
        return None
    lines = [line for line in output.splitlines() if line.startswith("vitrail: error:")]
    if code != 2 or len(lines) != 1:
        return f"{what}: exit code {code} and {len(lines)} lines of error: {output[-300:]}"
    return None if _is_told(lines[0], folder) else f"{what}: the error names no file: {lines[0]}"


def _run(words: list[str]) -> tuple[int, str]:
    output, level = io.StringIO(), logging.root.level
    run: Callable[[list[str]], int] = main
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = run(words)
    logging.root.setLevel(level)
    return code, output.getvalue()


def _is_told(line: str, folder: Path) -> bool:
    return folder.name in line or "task.json" in line  # what a model knows, and lacks, is in its task.json
