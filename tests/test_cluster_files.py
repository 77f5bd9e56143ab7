"""The files for SkyPilot and Kubernetes in docs/distributed.md: YAML, and of the fields that those programs read."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.settings.overriding import override
from vitrail.settings.text import parse_assignments
from vitrail.training.parallel.launch import PREEMPTED, USER_ERROR

PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"


@pytest.fixture(scope="module")
def files() -> dict[str, Any]:
    """What each YAML block of the page holds, by the heading above it."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^### (SkyPilot|Kubernetes)\n\n```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return {name: yaml.safe_load(content) for name, content in found}


def check_command(words: list[str]) -> None:
    """A command must be one that the command line reads: a recipe that there is, and its settings."""
    from vitrail.recipes import find_recipe

    assert words[:2] == ["vitrail", "train"]
    changes = parse_assignments([word.replace("$SKYPILOT", "1 #$SKYPILOT") for word in words[3:]])
    assert str(changes.pop("out")).startswith("/runs/")
    override(find_recipe(words[2]), changes)


def test_skypilot(files: dict[str, Any]) -> None:
    content = files["SkyPilot"]
    assert set(content) == {"name", "resources", "num_nodes", "file_mounts", "setup", "run"}
    assert content["resources"]["use_spot"] is True
    assert content["resources"]["job_recovery"]["recover_on_exit_codes"] == [PREEMPTED]
    assert content["file_mounts"]["/runs"]["mode"] == "MOUNT"
    exports, command = content["run"].split("\n", 1)
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        assert f"{name}=" in exports
    check_command(shlex.split(command.replace("\\\n", " ")))


def test_kubernetes(files: dict[str, Any]) -> None:
    content = files["Kubernetes"]
    assert (content["apiVersion"], content["kind"]) == ("batch/v1", "Job")
    rules = content["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"Ignore": [PREEMPTED], "FailJob": [USER_ERROR]}
    pod = content["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "podFailurePolicy needs it"
    assert pod["terminationGracePeriodSeconds"] >= 60
    [container] = pod["containers"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    check_command([*container["command"], *container["args"]])
