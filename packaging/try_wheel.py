"""Build the wheel, check it, install it alone in a fresh virtual environment, and use it from an empty folder: train,
export, build a gallery, serve all three and ask the server everything that it offers.

python packaging/try_wheel.py [--resolve] [--keep FOLDER] [--wheel FILE]

The tools (build, hatchling, twine) come from PyPI into an environment of their own. The wheel is installed without what
it depends on: a .pth file lends the fresh environment the packages of the Python that runs this script, so that nothing
large is fetched, and vitrail itself comes from the wheel. With --resolve nothing is lent: pip finds all that the wheel
depends on, by constraints.txt, once for the wheel alone and once with extras, which fetches gigabytes. Ends with the
first step that fails.
"""

import argparse
import base64
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("build", "hatchling", "twine")
PATIENCE = 300.0  # seconds for a server to begin
TINY = (
    *("model=deit_tiny", "model.settings={patch_size: 8, dim: 24, depth: 1, num_heads: 2}"),
    *("data=shapes:size=16,count=32,val=16", "image_size=16", "batch_size=16", "epochs=1"),
)


def run(command: Sequence[str | Path], *, cwd: Path) -> str:
    """What a command prints; its failure ends the script."""
    done = start(command, cwd=cwd)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def start(command: Sequence[str | Path], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    print("$", " ".join(map(str, command)), flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VITRAIL_CACHE")}
    environment |= {"VITRAIL_CACHE": str(cwd / "cache"), "NO_COLOR": "1"}
    return subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)


def make_environment(folder: Path) -> Path:
    """A fresh virtual environment; its Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def build(folder: Path) -> Path:
    """The wheel of the sources, which twine finds right."""
    python = make_environment(folder / "tools")
    run([python, "-m", "pip", "install", "--quiet", *TOOLS], cwd=folder)
    run([python, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT], cwd=folder)
    made = sorted((folder / "dist").iterdir())
    print(run([python, "-m", "twine", "check", "--strict", *made], cwd=folder).strip())
    return next(path for path in made if path.suffix == ".whl")


def install(wheel: Path, folder: Path) -> Path:
    """The `vitrail` of an environment that has the wheel, and all else from here."""
    python = make_environment(folder / "fresh")
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], cwd=folder)
    own = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=folder).strip())
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    place = run([python, "-c", "import vitrail; print(vitrail.__file__)"], cwd=folder).strip()
    if not Path(place).is_relative_to(own):
        sys.exit(f"vitrail is imported from {place}, not from the wheel")
    return python.with_name("vitrail")


def install_resolved(wheel: Path, folder: Path, *, extras: str = "") -> Path:
    """The `vitrail` of an environment in which pip has found all that the wheel and these extras need."""
    python = make_environment(folder)
    asked = f"vitrail{extras} @ {wheel.as_uri()}"
    run([python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", asked], cwd=folder)
    run([python, "-m", "pip", "check"], cwd=folder)
    return python.with_name("vitrail")


def use_alone(vitrail: Path, folder: Path) -> None:
    """What is there without extras, and how those that are missing are named."""
    expect("usage: vitrail", run([vitrail, "--help"], cwd=folder))
    tiny = ("model.settings={patch_size: 8, dim: 24, depth: 1, num_heads: 2}", "image_size=32", "batch_size=64")
    run([vitrail, "train", "small", "data=fashion", "model=deit_tiny", *tiny, "epochs=2", "out=run"], cwd=folder)
    expect("<html", (folder / "run" / "report.html").read_text())
    for words, extra in ((("serve", "run"), "serve"), (("export", "run", "--to", "onnx", "out=shipped"), "export")):
        done = start([vitrail, *words], cwd=folder)
        told = done.stderr.strip()
        check(done.returncode == 2 and len(told.splitlines()) == 1, f"exit code {done.returncode}: {told}")
        expect(f"pip install 'vitrail[{extra}]'", told)
        print(told, flush=True)


def use(vitrail: Path, folder: Path) -> None:
    """What a newcomer does, from an empty folder."""
    expect("usage: vitrail", run([vitrail, "--help"], cwd=folder))
    expect("small", run([vitrail, "recipes"], cwd=folder))
    expect("epochs", run([vitrail, "recipes", "show", "small"], cwd=folder))
    expect("deit_small", run([vitrail, "models"], cwd=folder))
    count = "from vitrail.data.datasets import open_dataset as o; print('images:', len(o('fashion', 'val')))"
    expect("images: 1000\n", run([vitrail.with_name("python"), "-c", count], cwd=folder))  # they are in the wheel
    run([vitrail, "train", "small", *TINY, "out=run"], cwd=folder)
    expect("<html", (folder / "run" / "report.html").read_text())
    run([vitrail, "export", "run", "--to", "eager", "out=shipped"], cwd=folder)
    expect("<html", (folder / "shipped" / "certificate.html").read_text())
    run([vitrail, "gallery", "build", "run", "data=shapes:size=16,count=16,val=8", "out=gallery"], cwd=folder)
    serve(vitrail, folder)


def serve(vitrail: Path, folder: Path) -> None:
    """The server and all files of its page."""
    port = "8765"
    print(f"$ vitrail serve run shipped gallery --port {port}", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(vitrail), "serve", "run", "shipped", "gallery", "--port", port]
    with open(folder / "serve.log", "w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                expect("<html", fetch(port, ""))
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > until:
                    sys.exit(f"the server does not answer: {(folder / 'serve.log').read_text()[-2000:]}")
                time.sleep(0.5)
        for name in ("page.js", "drawing.js", "camera.js", "page.css", "pages.css"):
            expect("", fetch(port, f"static/{name}"))
        try_requests(port)
    finally:
        server.terminate()
        server.wait(60.0)
    if server.returncode:
        sys.exit(
            f"told to stop, the server ended with {server.returncode}: {(folder / 'serve.log').read_text()[-2000:]}"
        )


def try_requests(port: str) -> None:
    """Ask everything that the server offers, and look at the answers."""
    served = ask(port, "v1/models")
    check([one["name"] for one in served["models"]] == ["run", "shipped"], served)
    check(served["galleries"] == ["gallery"], served)
    pictures = [paint(number) for number in range(5)]
    try_model(port, pictures[:2])
    try_gallery(port, pictures)
    broken = ask(port, "v1/models/run/predict", {"images": [encode(paint(0)[:-20])]}, status=422)
    check("damaged" in broken["error"]["message"] and "/" not in broken["error"]["message"], broken)
    told = fetch(port, "metrics")
    expect('vitrail_requests_total{name="run",route="/v1/models/{name}/predict",status="200"} 2.0', told)
    expect('vitrail_requests_total{name="run",route="/v1/models/{name}/predict",status="422"} 1.0', told)
    expect('vitrail_gallery_images{name="gallery"} 16.0', told)
    print("all requests are answered as they should be", flush=True)


def try_model(port: str, pictures: list[bytes]) -> None:
    """A model and its export: predictions, an embedding, a map, and the Open Inference Protocol."""
    both, alone = (
        ask(port, "v1/models/run/predict", {"images": list(map(encode, given)), "top": 3})["predictions"]
        for given in (pictures, pictures[:1])
    )
    answers = both[0]["answers"]
    check(len(both) == 2 and len(answers) == 3 and is_alike(answers, alone[0]["answers"]), both)
    check(1.0 > answers[0]["probability"] >= answers[1]["probability"] > 0.0, answers)
    shipped = ask(port, "v1/models/shipped/predict", {"image": encode(pictures[0]), "top": 3})
    check(is_alike(answers, shipped["predictions"][0]["answers"]), [answers, shipped])
    vectors = ask(port, "v1/models/run/embed", {"images": list(map(encode, pictures))})["embeddings"]
    check(len(vectors) == 2 and len(vectors[0]) == 24 and vectors[0] != vectors[1], vectors)
    drawn = ask(port, "v1/models/run/explain", {"image": encode(pictures[0]), "format": "json", "kind": "attention"})
    check(base64.b64decode(drawn["png"]).startswith(b"\x89PNG\r\n") and drawn["layer"] == 0, drawn)
    described = ask(port, "v2/models/run")
    check([one["name"] for one in described["inputs"]] == ["image", "pixels"], described)
    check(ask(port, "v2/health/ready") == {"ready": True}, "it is not ready")
    image = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [encode(pictures[0])]}
    wanted = {"inputs": [image], "outputs": [{"name": "probabilities"}, {"name": "label"}]}
    probabilities, label = ask(port, "v2/models/run/infer", wanted)["outputs"]
    check(label["data"] == [answers[0]["class"]], [label, answers])
    check(abs(max(probabilities["data"]) - answers[0]["probability"]) < 1e-4, [probabilities, answers])
    print(f"$ predict: {answers[0]['class']}, embed, explain, /v2: as they should be", flush=True)


def try_gallery(port: str, pictures: list[bytes]) -> None:
    """A search, whose answer changes when a class is added and again when it is removed."""

    def search() -> Any:
        return ask(port, "v1/galleries/gallery/search", {"image": encode(pictures[0]), "top": 4})["results"][0]

    before = search()
    check(len(before["hits"]) == 4 and base64.b64decode(before["hits"][0]["thumbnail"])[:2] == b"\xff\xd8", before)
    check(before["label"] != "one of my own", before)
    given = {"images": list(map(encode, pictures[1:])), "label": "one of my own"}
    added = ask(port, "v1/galleries/gallery/images", given, status=201)
    check((added["added"], added["images_of_label"]) == (4, 4), added)
    after = search()
    check(after["label"] == "one of my own" and not after["is_unknown"], after)
    check({one["labels"]["label"] for one in after["hits"]} == {"one of my own"}, after)
    check(ask(port, "v1/galleries/gallery")["images"] == 20, "there are not 16 + 4 images")
    removed = ask(port, "v1/galleries/gallery/images?label=one%20of%20my%20own", method="DELETE")
    check(removed["removed"] == 4 and search() == before, removed)
    print(f"$ search: {before['label'] or 'unknown'}, and of the class that was added: {after['label']}", flush=True)


def paint(seed: int) -> bytes:
    """A PNG of about one colour, which no picture of the gallery is."""
    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 12, (16, 16, 3))
    Image.fromarray((np.array((240, 230, 10)) + noise).clip(0, 255).astype("uint8")).save(file, "PNG")
    return file.getvalue()


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def is_alike(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether two answers name the same classes with about the same probabilities."""
    pairs = list(zip(one, other, strict=True))
    return all(a["class"] == b["class"] and abs(a["probability"] - b["probability"]) < 1e-3 for a, b in pairs)


def fetch(port: str, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30.0) as answer:
        return str(answer.read().decode())


def ask(port: str, path: str, content: object = None, *, status: int = 200, method: str | None = None) -> Any:
    """The JSON that the server answers with, which must have that status."""
    body = None if content is None else json.dumps(content).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60.0) as answer:
            found, told = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        found, told = error.code, error.read()
    check(found == status, f"{path}: {found} instead of {status}: {told[:500]!r}")
    return json.loads(told)


def check(is_right: bool, found: object) -> None:
    if not is_right:
        sys.exit(f"the server answers wrongly: {str(found)[:2000]}")


def expect(text: str, found: str) -> None:
    if text not in found or not found:
        sys.exit(f"{text!r} is missing in what was printed or written:\n{found[:2000]}")


def try_resolved(wheel: Path, folder: Path) -> None:
    """The wheel alone, then with extras, each in an environment that is removed afterwards."""
    use_alone(install_resolved(wheel, folder / "alone"), make_folder(folder / "work-alone"))
    shutil.rmtree(folder / "alone")
    vitrail = install_resolved(wheel, folder / "extras", extras="[serve,export]")
    work = make_folder(folder / "work-extras")
    use(vitrail, work)
    run([vitrail, "export", "run", "--to", "onnx", "out=onnx"], cwd=work)
    expect("<html", (work / "onnx" / "certificate.html").read_text())
    shutil.rmtree(folder / "extras")


def make_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--resolve", action="store_true", help="let pip find what the wheel needs, with extras and without"
    )
    parser.add_argument("--keep", type=Path, help="an empty folder to work in, which is left behind")
    parser.add_argument("--wheel", type=Path, help="one that is built already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitrail-wheel-") as name:
        folder = Path(name) if arguments.keep is None else arguments.keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wheel = build(folder) if arguments.wheel is None else arguments.wheel.resolve()
        if arguments.resolve:
            try_resolved(wheel, folder)
        else:
            use(install(wheel, folder), make_folder(folder / "work"))
    print(f"{wheel.name} works alone")


if __name__ == "__main__":
    main()
