"""All pages come out of one frame, and none of them needs a network."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shrunk import images_for, randomize, small_model
from tiny_galleries import colour_gallery

import vitrail
from vitrail.data.augment import EvaluationView
from vitrail.data.datasets import open_source
from vitrail.data.doctor import check
from vitrail.data.doctor.check_files import write_files
from vitrail.explain.maps_page import MapPicture, write_maps_page
from vitrail.gallery.gallery_page import write_groups_page
from vitrail.inference.exporting import ExportSettings, export_trained
from vitrail.inference.proof_images import gather_images
from vitrail.inference.trained import make_trained
from vitrail.pages.frame import read_style
from vitrail.preview.preview_page import write_preview
from vitrail.preview.training_views import TrainingViews
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.training.runs.report import write_report


def report(folder: Path) -> Path:
    (folder / "metrics.jsonl").write_text('{"kind": "train", "stage": 0, "step": 1, "epoch": 1, "loss": 2.0}\n')
    return write_report(folder)


def checked(folder: Path) -> Path:
    for name in ("a", "b"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    source = open_source(str(folder / "photos"))
    return write_files(check(source), source, folder=folder)


def inspected(folder: Path) -> Path:
    model = randomize(small_model("deit_tiny")).eval()
    return vitrail.inspect_model(model, images_for(model)).write(folder)


def explained(folder: Path) -> Path:
    return write_maps_page(folder, title="Where it looks", notes=["how"], entries=[MapPicture("1.png", "a.jpg", [])])


def plotted(folder: Path) -> Path:
    vitrail.plot_models(folder / "models.html", models=["deit_tiny", "deit_base"])
    return folder / "models.html"


def shown(folder: Path) -> Path:
    return colour_gallery(folder / "gallery").report()


def grouped(folder: Path) -> Path:
    gallery = colour_gallery(folder / "gallery")
    path = folder / "groups.html"
    return write_groups_page(gallery.contents, gallery.suggest(groups=2), path, title="Groups", command="name {number}")


def previewed(folder: Path) -> Path:
    recipe = ImageRecipe(image_size=16, batch_size=4)
    views = TrainingViews(recipe, vitrail.open_dataset("shapes:size=16,count=24", "train"), "label", seed=0)
    return write_preview(folder, views, evaluation_view=EvaluationView(16), num_images=1, num_views=1)[-1]


def certified(folder: Path) -> Path:
    torch.manual_seed(0)
    trained = make_trained(randomize(small_model("deit_tiny")).eval(), None, label="small")
    images = gather_images(trained, "small", {}, limit=4)
    settings = ExportSettings(engine="eager")
    out = folder / "out"
    return export_trained(trained, settings, images=images, source="small", out=out).folder / "certificate.html"


@pytest.mark.parametrize("make", [report, checked, inspected, explained, plotted, shown, grouped, previewed, certified])
def test_every_page_has_the_frame_and_needs_no_network(make: Callable[[Path], Path], tmp_path: Path) -> None:
    page = make(tmp_path).read_text(encoding="utf-8")
    assert re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL) == [read_style()]
    head = re.search(r'<header>\n<p class="kicker">vitrail \w+[^<]*</p>\n<h1>[^<]+</h1>\n', page)
    assert head is not None
    assert re.search(r"</header>\n<main>\n(<section[ >].*?\n</section>\n)+</main>\n<footer>", page, flags=re.DOTALL)
    assert 'name="viewport"' in page
    assert page.count("<h1>") == 1
    assert not re.search(r"https?:|<script|<link|<iframe|@import|url\(|src=\"//", page)
    defined = set(re.findall(r"(--[\w-]+):", read_style()))
    assert set(re.findall(r"var\((--[\w-]+)\)", page)) <= defined
