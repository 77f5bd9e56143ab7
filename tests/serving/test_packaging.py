"""The container file, the unit of systemd and the manifest of Kubernetes: parsed, and what they start is understood."""

import argparse
import ast
import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from served import save_tiny, serving

import vitrail
from vitrail.cli import main, serve
from vitrail.serving.guard import scope_of
from vitrail.serving.running import check_place

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging"
IMAGE = f"vitrail:{vitrail.__version__}"


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """What `vitrail serve` has understood of its command lines, instead of serving."""
    seen: list[argparse.Namespace] = []

    def note(arguments: argparse.Namespace) -> int:
        seen.append(arguments)
        return 0

    monkeypatch.setattr(serve, "run", note)
    return seen


def understand(words: list[str], understood: list[argparse.Namespace]) -> argparse.Namespace:
    """What the command line makes of words that must be right, and let others reach the server."""
    assert main(words) == 0
    arguments = understood[-1]
    check_place(arguments.host, has_keys=arguments.keys is not None)
    assert arguments.host == "0.0.0.0"
    return arguments


@pytest.fixture
def container() -> dict[str, str]:
    """The last instruction of each kind in the container file; variables by their names."""
    lines = (FOLDER / "Containerfile").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#"))
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        found[word] = rest.strip()
        if word == "ARG":
            name, _, value = rest.partition("=")
            found[name] = value
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    """What the deployment starts."""
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    template = deployment["spec"]["template"]
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    assert (
        deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"] == service["spec"]["selector"]
    )
    assert "annotations" not in template["metadata"]  # by which /metrics, which takes a key, would be asked without one
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in [one["name"] for one in template["spec"]["containers"][0]["ports"]]
    return dict(template["spec"])


def test_the_container_starts_the_server(container: dict[str, str], understood: list[argparse.Namespace]) -> None:
    program, *words = json.loads(container["ENTRYPOINT"])
    arguments = understand([*words, *json.loads(container["CMD"])], understood)
    assert (program, arguments.settings) == ("vitrail", ["/srv/vitrail/model"])
    assert str(arguments.port) == container["EXPOSE"]
    assert container["STOPSIGNAL"] == "SIGTERM"
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in extras for extra in container["EXTRAS"].split(","))


def test_the_container_is_run_as_its_file_says(container: dict[str, str], understood: list[argparse.Namespace]) -> None:
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"podman build .*?-t (\S+) \.", text)) == {IMAGE}
    (line,) = re.findall(r"^#   podman run (.*)", text, flags=re.MULTILINE)
    options, _, words = line.partition(f" {IMAGE} ")
    _, *entry = json.loads(container["ENTRYPOINT"])
    arguments = understand([*entry, *shlex.split(words)], understood)
    assert f"-p 8000:{arguments.port}" in options
    source, owner, mode = re.findall(r"--secret (\w+),uid=(\d+),mode=(\d+)", options)[0]
    assert arguments.keys == f"/run/secrets/{source}"
    assert (owner, int(mode, 8) & 0o007) == (container["USER"], 0)  # the server refuses keys that everybody can read
    assert arguments.settings[0].startswith("/srv/vitrail/")
    assert ":/srv/vitrail" in options


def test_probes_ask_what_is_there_and_open(container: dict[str, str], pod: dict[str, Any], tmp_path: Path) -> None:
    words = json.loads(container["HEALTHCHECK"].partition(" CMD ")[2])
    assert words[:2] == ["python", "-c"]
    ast.parse(words[2])
    (runner,) = pod["containers"]
    paths = [runner[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")]
    paths += re.findall(r"http://127\.0\.0\.1:8000(/[^']*)", words[2])
    assert len(paths) == 4
    with serving(str(save_tiny(tmp_path / "pets"))) as server, server.client() as client:
        for path in paths:
            assert (client.get(path).status_code, scope_of("GET", path)) == (200, "open")


def test_kubernetes_starts_the_server(
    container: dict[str, str], pod: dict[str, Any], understood: list[argparse.Namespace]
) -> None:
    (runner,) = pod["containers"]
    _, *entry = json.loads(container["ENTRYPOINT"])
    arguments = understand([*entry, *runner["args"]], understood)
    assert runner["image"] == IMAGE
    assert arguments.settings == ["pets=/srv/vitrail/pets"]
    assert arguments.port == runner["ports"][0]["containerPort"]
    assert str(pod["securityContext"]["runAsUser"]) == container["USER"]
    mounts = {one["mountPath"]: one["name"] for one in runner["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert set(mounts.values()) == set(volumes)
    secret = volumes[mounts[str(Path(arguments.keys).parent)]]["secret"]
    assert secret["defaultMode"] & 0o007 == 0
    _, pause = runner["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > float(pause) + arguments.drain


def test_systemd_starts_the_server(understood: list[argparse.Namespace]) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(FOLDER / "vitrail.service", encoding="utf-8")
    started = unit["Service"]
    program, *words = shlex.split(started["ExecStart"])
    arguments = understand(words, understood)
    assert Path(program).name == "vitrail"
    assert "-HUP $MAINPID" in started["ExecReload"]
    assert started["Restart"] == "always"  # a SIGHUP of the first moment ends it, which systemd takes for its will
    assert float(started["TimeoutStopSec"]) > arguments.drain
    places = [word.partition("=")[2] for word in arguments.settings]
    assert started["ReadWritePaths"] in places
    assert all(place.startswith(started["WorkingDirectory"]) for place in places)
