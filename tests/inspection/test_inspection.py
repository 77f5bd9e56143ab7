"""`inspect_model`: every family has its parts, and the page shows them without a network."""

import csv
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from shrunk import images_for, randomize, small_model

import vitrail
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.inspection.branches import branch_ratios
from vitrail.inspection.inspection import Inspection
from vitrail.pages.charts import draw_document

PRESENT = {
    "deit_tiny": {"ratios", "parallel", "attention_distance", "sparsity", "energy"},
    "deit_tiny_distilled": {"ratios", "parallel", "attention_distance", "tokens", "sparsity", "energy"},
    "cait_xxs24": {
        *("ratios", "parallel", "layer_scale", "attention_distance", "class_attention_spread", "sparsity", "energy"),
    },
    "resmlp_s12": {"ratios", "parallel", "layer_scale", "sparsity", "energy"},
    "patchconvnet_s60": {"ratios", "parallel", "layer_scale", "class_attention_spread", "sparsity", "energy"},
    "vit_b12x2": {"ratios", "parallel", "attention_distance", "sparsity", "energy"},
}
HISTORY = [
    {"kind": "layers", "stage": 0, "step": step, "epoch": float(step), "ratios": {"self-attention": [0.1, 0.2]}}
    for step in (1, 2)
]


def found_in(inspection: Inspection) -> set[str]:
    return {part.name for part in inspection.parts if not part.missing}


@pytest.mark.parametrize("name", PRESENT)
def test_every_family_has_its_parts_and_is_left_as_it_was(name: str) -> None:
    model = randomize(small_model(name)).eval()
    images = images_for(model, batch=5)
    before = model(images)
    found = vitrail.inspect_model(model, images, batch_size=2)
    assert found_in(found) == PRESENT[name]
    assert torch.equal(model(images), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    for part in found.parts:
        if part.missing:
            assert "\n" not in part.missing
        else:
            assert part.finding
            assert part.table is not None
            assert part.table.rows
            assert part.chart is not None


@pytest.mark.parametrize("name", ["deit_tiny", "cait_xxs24", "patchconvnet_s60", "resmlp_s12"])
def test_images_need_not_be_square_nor_of_one_batch(name: str) -> None:
    settings: dict[str, Any] = {"image_size": (32, 64)} if name == "resmlp_s12" else {}
    model = randomize(small_model(name, **settings)).eval()
    found = vitrail.inspect_model(model, torch.randn(3, 3, 32, 64))
    assert found.image_size == (32, 64)
    assert found_in(found) == PRESENT[name]


def test_the_table_holds_what_the_function_finds() -> None:
    model = randomize(small_model("cait_xxs24")).eval()
    images = images_for(model, batch=4)
    table = vitrail.inspect_model(model, images, batch_size=3).part("ratios").table
    expected = branch_ratios(model, images)
    assert table is not None
    assert table.columns == ("layer", "self-attention", "feed-forward", "class-attention", "class feed-forward")
    assert [row[0] for row in table.rows] == ["block 1", "block 2", "class block 1", "class block 2"]
    assert [row[1] for row in table.rows[:2]] == pytest.approx(expected["self-attention"], rel=1e-5)
    assert [row[3] for row in table.rows[2:]] == pytest.approx(expected["class-attention"], rel=1e-5)
    assert [row[1] for row in table.rows[2:]] == [row[3] for row in table.rows[:2]] == [None, None]


def test_a_timm_backbone_says_in_a_line_what_it_does_not_show() -> None:
    model = vitrail.create_model("timm/resnet18", image_size=32, num_classes=3)
    found = vitrail.inspect_model(model, torch.randn(4, 3, 32, 32))
    assert found_in(found) == {"energy"}
    assert found.part("ratios").missing == "timm/resnet18 is a backbone of timm, whose layers are not open to this"


def test_an_embedding_model_shows_its_trunk_and_the_energy_of_its_embedding() -> None:
    trunk = randomize(small_model("deit_tiny", num_classes=0)).eval()
    model = EmbeddingModel(trunk, EmbeddingSettings(projector="linear", dim=6)).eval()
    found = vitrail.inspect_model(model, images_for(trunk, batch=4))
    assert found_in(found) == PRESENT["deit_tiny"]
    assert "of 6 components" in found.part("energy").finding


def test_one_image_has_no_energy_and_all_the_rest() -> None:
    model = randomize(small_model("deit_tiny")).eval()
    found = vitrail.inspect_model(model, images_for(model, batch=1))
    assert found.part("energy").missing == "all 1 features are the same: they have no principal components"
    assert found_in(found) == PRESENT["deit_tiny"] - {"energy"}


def test_the_page_opens_offline_and_the_tables_lie_beside_it(tmp_path: Path) -> None:
    model = randomize(small_model("cait_xxs24", distilled=True)).eval()
    found = vitrail.inspect_model(model, images_for(model, batch=4), records=HISTORY)
    page = found.write(tmp_path / "new" / "folder", source="<a run>", data="val of photos")
    text = page.read_text(encoding="utf-8")
    assert page.name == "report.html"
    assert len(text) < 1_000_000
    assert "&lt;a run&gt;" in text
    assert "<script" not in text
    assert 'src="http' not in text
    assert text.count("<svg") == sum(len(row) for part in found.parts for row in part.chart or ())
    for path in page.parent.glob("*.svg"):
        picture = path.read_text(encoding="utf-8")
        ElementTree.fromstring(picture)  # well-formed
        assert "var(" not in picture  # other programs than browsers know no stylesheet
    files = {path.name for path in page.parent.iterdir()}
    assert {f"{part.name}.{ending}" for part in found.parts for ending in ("csv", "svg")} <= files
    with (page.parent / "layer_scale.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["layer"] == "block 1"
    first = model.blocks[0].communication.branches[0].scale.weight
    assert float(rows[0]["mean |λ|"]) == pytest.approx(first.abs().mean().item(), rel=1e-5)


def test_the_course_of_a_run_is_drawn_an_epoch_a_curve(tmp_path: Path) -> None:
    model = randomize(small_model("deit_tiny")).eval()
    images = images_for(model)
    part = vitrail.inspect_model(model, images, records=HISTORY).part("ratios")
    assert part.chart is not None
    picture = draw_document(part.chart)
    assert all(f">{name}<" in picture for name in ("epoch 1", "epoch 2", "these weights"))
    assert part.more["ratios_by_epoch"].as_csv().splitlines() == [
        "stage,step,epoch,branch,block,ratio",
        "1,1,1,self-attention,1,0.1",
        "1,1,1,self-attention,2,0.2",
        "1,2,2,self-attention,1,0.1",
        "1,2,2,self-attention,2,0.2",
    ]
    alone = vitrail.inspect_model(model, images).part("ratios")
    assert alone.chart is not None
    assert "epoch" not in draw_document(alone.chart)
    assert draw_document(alone.chart) == draw_document(alone.chart)  # nothing by chance, nothing of the clock


def test_what_can_not_be_inspected_is_an_error_of_one_line(tmp_path: Path) -> None:
    model = small_model("deit_tiny")
    images = images_for(model)
    with pytest.raises(ValueError, match="a folded model has no branches of its own any more"):
        vitrail.inspect_model(vitrail.fold(model), images)
    with pytest.raises(ValueError, match="there are no images to look at: give at least 1"):
        vitrail.inspect_model(model, images[:0])
    with pytest.raises(ValueError, match="inspect_model takes a model made by create_model or load_model, not str"):
        vitrail.inspect_model("deit_tiny", images)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected images of shape \[batch, 3, height, width\]"):
        vitrail.inspect_model(model, images[0])
    with pytest.raises(ValueError, match="there is no part 'ratio': there are ratios, parallel"):
        vitrail.inspect_model(model, images).part("ratio")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="can't be written"):
        vitrail.inspect_model(model, images).write(tmp_path / "file")
