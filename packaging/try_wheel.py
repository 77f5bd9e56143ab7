"""Build the wheel, check it, install it alone in a fresh virtual environment, and use it from an empty folder.

python packaging/try_wheel.py [--keep FOLDER] [--wheel FILE]

The tools (build, hatchling, twine) come from PyPI into an environment of their own. The wheel is installed without what
it depends on: a .pth file lends the fresh environment the packages of the Python that runs this script, so that nothing
large is fetched, and vitrail itself comes from the wheel. Ends with the first step that fails.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("build", "hatchling", "twine")
PATIENCE = 300.0  # seconds for a server to begin
TINY = (
    *("model=deit_tiny", "model.settings={patch_size: 8, dim: 24, depth: 1, num_heads: 2}"),
    *("data=shapes:size=16,count=32,val=16", "image_size=16", "batch_size=16", "epochs=1"),
)


def run(command: Sequence[str | Path], *, cwd: Path) -> str:
    """What a command prints; its failure ends the script."""
    print("$", " ".join(map(str, command)), flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VITRAIL_CACHE")}
    environment |= {"VITRAIL_CACHE": str(cwd / "cache"), "NO_COLOR": "1"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


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
    print(f"$ vitrail serve run gallery --port {port}", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(vitrail), "serve", "run", "gallery", "--port", port]
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
        expect('"gallery"', fetch(port, "v1/models"))
    finally:
        server.terminate()
        server.wait(60.0)


def fetch(port: str, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30.0) as answer:
        return str(answer.read().decode())


def expect(text: str, found: str) -> None:
    if text not in found or not found:
        sys.exit(f"{text!r} is missing in what was printed or written:\n{found[:2000]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="an empty folder to work in, which is left behind")
    parser.add_argument("--wheel", type=Path, help="one that is built already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitrail-wheel-") as name:
        folder = Path(name) if arguments.keep is None else arguments.keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wheel = build(folder) if arguments.wheel is None else arguments.wheel.resolve()
        work = folder / "work"
        work.mkdir()
        use(install(wheel, folder), work)
    print(f"{wheel.name} works alone")


if __name__ == "__main__":
    main()
