"""What the pages say can be done: links lead somewhere, commands are valid recipes, the example of a task trains."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import SETTINGS

from vitrail.cli import main
from vitrail.recipes import RECIPES, find_recipe
from vitrail.settings.launching import take_launcher
from vitrail.settings.text import change, parse_assignments

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """What a link to a part of the page may say."""
    content = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", content, flags=re.MULTILINE)
    named = set(re.findall(r'id="([^"]+)"', content))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    content = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", content):
        place, _, anchor = link.partition("#")
        if place.startswith(("http://", "https://")):
            continue
        target = page.parent / place if place else page
        assert target.exists(), f"{link} is no file"
        assert not anchor or anchor in anchors_of(target), f"{link} is no part of that page"


def documented_trainings() -> Iterator[tuple[str, list[str]]]:
    """Each `vitrail train` or `pretrain` in a block of commands: the page, and the words after the verb."""
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language not in ("sh", "bash"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                place = words.index("vitrail") + 1 if "vitrail" in words else len(words)
                if words[place : place + 1] in (["train"], ["pretrain"]):
                    yield page.name, words[place + 1 :]


# Of recipes that are there, without code of a reader's own.
TRAININGS = [
    (page, words)
    for page, words in documented_trainings()
    if words[0] in RECIPES and not any("=mine:" in word for word in words)
]


@pytest.mark.parametrize(("page", "words"), TRAININGS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_commands_are_valid_recipes(page: str, words: list[str]) -> None:
    _, _, (name, *settings) = take_launcher(words)
    changes = parse_assignments(settings)
    assert changes.pop("out"), f"{page}: a run needs a folder"
    change(find_recipe(name), changes)


def test_there_are_commands_to_check() -> None:
    assert {"README.md", "training.md", "distillation.md", "grafit.md"} <= {page for page, _ in TRAININGS}


def test_the_example_of_a_task_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    [example] = [block for language, block in BLOCK.findall(page) if language == "python" and "Confident(" in block]
    (tmp_path / "documented_task.py").write_text(example.replace("mine:", "documented_task:"))
    monkeypatch.chdir(tmp_path)
    words = [*SETTINGS, "epochs=1", "task=documented_task:Confident", "confidence.weight=0.3"]
    assert main(["train", "small", *words, "out=run"]) == 0
    assert '"loss_entropy"' in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert main(["train", "out=run", "task=documented_task:Confident"]) == 0
    assert main(["evaluate", "run/model", "data=shapes:size=16,count=48,val=24"]) == 0
    assert "top-1" in capsys.readouterr().out
