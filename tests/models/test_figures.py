import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from vitrail.models.figures import FIGURES, OTHERS, SCORES, SETUPS, Figures, Result, Variant, find_figure
from vitrail.models.figures.speeds import SPEEDS

EVERY_MODEL = pytest.mark.parametrize("name", FIGURES)
PLACE = re.compile(
    r"\b(thesis|Three things|CaiT|CaiT supplement) (tables?|sections?) (A\.)?[0-9]|^the authors' page of \w"
)


def rows_of(name: str) -> list[Result | Variant]:
    return rows_in(FIGURES[name])


def rows_in(figures: Figures) -> list[Result | Variant]:
    return [*figures.results, *figures.variants]


def find(name: str, training: str, image_size: int = 224) -> Result:
    """The first row of that training, which is the paper's main one where several papers print it."""
    rows = [row for row in FIGURES[name].results if row.training == training and row.image_size == image_size]
    assert rows, f"{name} has no row for {training!r} at {image_size}"
    return rows[0]


@EVERY_MODEL
def test_counts_are_decimal_literals_in_a_sane_range(name: str) -> None:
    figures = FIGURES[name]
    for parameters in (
        figures.parameters,
        *figures.resized_parameters.values(),
        *(v.parameters for v in figures.variants),
    ):
        assert parameters is None or 5 <= Decimal(parameters) <= 1100
    for flops in (*figures.flops.values(), *(variant.flops for variant in figures.variants)):
        assert flops is None or 1 <= Decimal(flops) <= 400


@EVERY_MODEL
def test_multiply_adds_grow_with_the_image_between_linearly_and_quadratically_in_its_area(name: str) -> None:
    counts = sorted((size, float(count)) for size, count in FIGURES[name].flops.items())
    for (small, few), (large, many) in pairwise(counts):
        area_ratio = (large / small) ** 2
        assert 0.98 * area_ratio <= many / few <= area_ratio**2


@EVERY_MODEL
def test_accuracies_are_percentages_with_v2_below_and_real_above_top1(name: str) -> None:
    for row in rows_of(name):
        assert 50 <= row.top1 <= 95
        assert row.real is None or row.top1 < row.real <= 95
        assert row.v2 is None or 40 <= row.v2 < row.top1


@EVERY_MODEL
def test_regularisation_is_in_the_range_the_papers_use(name: str) -> None:
    figures = FIGURES[name]
    assert figures.drop_path is None or 0 <= figures.drop_path <= 0.5
    assert figures.layer_scale in (None, 0.1, 1e-4, 1e-5, 1e-6)


@EVERY_MODEL
def test_every_figure_names_its_table_or_section(name: str) -> None:
    for source in (FIGURES[name].source, *(row.source for row in rows_of(name))):
        assert PLACE.search(source), source


@EVERY_MODEL
def test_rows_are_distinct_and_say_what_was_done(name: str) -> None:
    figures = FIGURES[name]
    results = Counter((row.image_size, row.training, row.source) for row in figures.results)
    variants = Counter(variant.setting for variant in figures.variants)
    assert max([*results.values(), *variants.values()], default=1) == 1
    for row in figures.results:
        assert row.training.startswith("ImageNet-")
        assert row.image_size % 16 == 0


@EVERY_MODEL
def test_notes_are_sentences_about_figures_that_are_there(name: str) -> None:
    figures = FIGURES[name]
    for sentence in (*figures.contradictions, *figures.doubts.values()):
        assert sentence.endswith(".")
    printed = {"parameters"} if figures.parameters else set()
    printed |= {f"parameters {size}" for size in figures.resized_parameters}
    printed |= {f"flops {size}" for size in figures.flops}
    assert figures.doubts.keys() <= printed


def test_a_larger_model_of_a_family_has_more_parameters_and_costs_more() -> None:
    families = (
        ("deit_tiny", "deit_small", "deit_base"),
        ("deit3_tiny", "deit3_small", "deit3_base", "deit3_large", "deit3_huge"),
        ("vit_ti12", "vit_s12", "vit_s48", "vit_b36", "vit_l24"),
        (
            "cait_xxs24",
            "cait_xxs36",
            "cait_xs24",
            "cait_xs36",
            "cait_s24",
            "cait_s36",
            "cait_s48",
            "cait_m24",
            "cait_m36",
        ),
        ("resmlp_s12", "resmlp_s24", "resmlp_b24", "resmlp_b24_p8"),
        ("patchconvnet_s60", "patchconvnet_s120", "patchconvnet_b60", "patchconvnet_b120"),
    )
    for family in families:
        parameters = [float(FIGURES[name].parameters or "nan") for name in family]
        flops = [float(FIGURES[name].flops[224]) for name in family]
        assert parameters == sorted(set(parameters)), family
        assert flops == sorted(set(flops)), family


@pytest.mark.parametrize(("sequential", "parallel"), [("vit_s48", "vit_s24x2"), ("vit_b36", "vit_b18x2")])
def test_parallel_models_cost_what_their_sequential_twins_do(sequential: str, parallel: str) -> None:
    assert FIGURES[sequential].parameters == FIGURES[parallel].parameters
    assert FIGURES[sequential].flops == FIGURES[parallel].flops


def test_the_hmlp_stem_adds_less_than_one_percent_of_compute() -> None:
    linear, hmlp = (float(FIGURES[name].flops[224]) for name in ("vit_b12", "vit_b12_hmlp"))
    assert linear < hmlp < 1.01 * linear


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_distillation_through_a_token_and_longer_training_help_deit(size: str) -> None:
    plain = find(f"deit_{size}", "ImageNet-1k, 300 epochs")
    distilled = find(f"deit_{size}_distilled", "ImageNet-1k, 300 epochs, distilled")
    longer = find(f"deit_{size}_distilled", "ImageNet-1k, 1000 epochs, distilled")
    assert plain.top1 < distilled.top1 < longer.top1


def test_fine_tuning_at_384_helps_every_ablation_of_deit() -> None:
    compared = 0
    for name in ("deit_base", "deit_base_distilled"):
        accuracies = {variant.setting: variant.top1 for variant in FIGURES[name].variants}
        for setting in accuracies.keys() & {f"{setting}, fine-tuned at 384" for setting in accuracies}:
            assert accuracies[setting.removesuffix(", fine-tuned at 384")] < accuracies[setting]
            compared += 1
    assert compared == 17


@pytest.mark.parametrize("name", [name for name in FIGURES if re.fullmatch(r"cait_(xx?s|s|m)(24|36)|cait_s48", name)])
def test_fine_tuning_at_384_and_distillation_help_every_cait(name: str) -> None:
    plain, distilled = "ImageNet-1k, 400 epochs", "ImageNet-1k, 400 epochs, distilled"
    fine_tuned = ", fine-tuned at 384"
    assert find(name, plain).top1 < find(name, distilled).top1
    assert find(name, plain).top1 < find(name, plain + fine_tuned, 384).top1
    assert find(name, distilled).top1 < find(name, distilled + fine_tuned, 384).top1
    assert find(name, plain + fine_tuned, 384).top1 < find(name, distilled + fine_tuned, 384).top1


def test_batch_norm_is_better_than_layer_norm_for_every_patchconvnet_that_has_both() -> None:
    compared = 0
    for name, figures in FIGURES.items():
        for variant in figures.variants:
            if name.startswith("patchconvnet_") and variant.setting == "BatchNorm":
                assert variant.top1 > find(name, "ImageNet-1k, 400 epochs").top1
                compared += 1
    assert compared == 7


def test_more_data_and_larger_models_help_deit3() -> None:
    sizes = ("deit3_small", "deit3_base", "deit3_large")
    from_1k = [find(name, "ImageNet-1k, 400 epochs").top1 for name in sizes]
    from_21k = [find(name, "ImageNet-21k, 240 epochs -> 1k").top1 for name in sizes]
    assert from_1k == sorted(from_1k)
    assert from_21k == sorted(from_21k)
    assert all(less < more for less, more in zip(from_1k, from_21k, strict=True))


def test_figures_compare_by_value_and_cannot_be_changed() -> None:
    figures = FIGURES["vit_b36"]
    assert figures == Figures(**vars(figures))
    with pytest.raises(AttributeError, match="cannot assign"):
        figures.parameters = "1"  # type: ignore[misc]


def test_importing_the_figures_does_not_import_torch() -> None:
    program = "import sys, vitrail.models.figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_models_outside_the_catalogue_and_other_measures_name_their_place() -> None:
    place = re.compile(PLACE.pattern + r"|ResNet strikes back|curve published by the authors")
    assert not set(OTHERS) & set(FIGURES)
    for row in [row for figures in OTHERS.values() for row in rows_in(figures)]:
        assert place.search(row.source), row
        assert 50 <= row.top1 <= 95
    for scores in SCORES.values():
        assert len({score.what for score in scores}) == len(scores)
        for score in scores:
            assert place.search(score.source), score
            assert 0 < score.value < (5000 if score.unit in ("M parameters", "G multiply-adds") else 100)


def test_a_figure_is_found_by_what_was_done_and_at_which_size() -> None:
    found = find_figure("patchconvnet_s60", "ImageNet-21k -> 1k", image_size=384)
    assert found is not None
    assert (found.digits, found.unit, found.source) == ("84.6", "% top-1", "thesis table 5.2")
    variant = find_figure("deit_small", "16 heads")
    assert variant is not None
    assert variant.digits == "80.04"
    score = find_figure("timm/resnet50", "Grafit, cifar100, mAP")
    assert score is not None
    assert (score.digits, score.unit) == ("55.7", "mAP")
    assert find_figure("patchconvnet_s60", "ImageNet-21k -> 1k", image_size=999) is None
    assert find_figure("nothing", "ImageNet-1k") is None


def test_every_paper_that_figures_cite_is_in_the_references() -> None:
    page = (Path(__file__).parents[2] / "docs" / "references.md").read_text(encoding="utf-8")
    for paper in ("thesis", "CaiT", "Three things", "ResNet strikes back"):
        assert re.search(rf"^\| <a id=\"[\w-]+\"></a>{paper} \| \*", page, flags=re.MULTILINE), paper


def test_every_speed_is_of_a_model_and_says_how_it_was_measured() -> None:
    assert set(SPEEDS) <= {*FIGURES, *OTHERS}
    for name, rows in SPEEDS.items():
        assert ({**FIGURES, **OTHERS})[name].speeds == rows
        assert len({(row.image_size, row.setup, row.source) for row in rows}) == len(rows)
        for row in rows:
            assert row.setup in SETUPS
            assert PLACE.search(row.source)
            assert row.throughput is not None or row.memory is not None
            assert 1 <= Decimal(row.throughput or 1) <= 4000
            assert 100 <= Decimal(row.memory or 100) <= 13000


def test_larger_images_are_slower_and_take_more_memory() -> None:
    for rows in SPEEDS.values():
        for small, large in combinations(rows, 2):
            if small.setup == large.setup and small.source == large.source and small.image_size < large.image_size:
                assert Decimal(small.throughput or 0) > Decimal(large.throughput or 0)
                assert Decimal(small.memory or 0) <= Decimal(large.memory or 0)


def test_the_page_has_every_transfer() -> None:
    page = (Path(__file__).parents[2] / "docs/catalogue.md").read_text(encoding="utf-8")
    rows = {
        (name, *values.split(" | "))
        for name, values in re.findall(r"^\| `(\w+)` \| ((?:\d\d\.\d \| ){5}\d\d\.\d)", page, re.M)
    }
    printed: dict[tuple[str, str], list[str]] = {}
    for model, scores in SCORES.items():
        for score in scores:
            method, _, data = score.what.partition("fine-tuned on ")
            if data and not model.startswith("timm/"):
                printed.setdefault((model, method), []).append(str(score.value))
    assert rows == {(model, *values) for (model, _), values in printed.items()}


@pytest.mark.parametrize(
    ("model", "what", "digits", "source"),
    [
        ("deit3_base", "grey and blur of 3-Augment, 400 epochs", "82.7", "thesis table 6.2"),
        ("deit3_large", "ImageNet-21k, 90 epochs -> 1k, RandAugment", "86.5", "thesis table 6.5"),
        ("timm/resnet50", "3-Augment", "79.4", "thesis table 6.3"),
        ("timm/resnet50", "Grafit, MLP classifier, fine-tuned on inat18", "69.8", "thesis table 2.16"),
        (
            "timm/resnet50",
            "Grafit, instance loss times 0.4, cifar100, not conditioned, mAP",
            "49.6",
            "thesis table 2.11",
        ),
        ("timm/resnet50", "SNCA+, imagenet, fine to coarse, fine-tuned", "87.2", "thesis table 2.13"),
        (
            "timm/resnet18",
            "cross-entropy, halves of coarse classes of cifar100, conditioned",
            "54.5",
            "thesis table 2.1",
        ),
        ("timm/regnety_080", "Grafit, fine-tuned on flowers", "99.1", "thesis table 2.10"),
        ("timm/resnet50", "ClusterFit+, inat18, no labels to kingdom, kNN", "70.9", "thesis table 2.5"),
        ("timm/resnet50", "SNCA+, inat18, kingdom to order, mAP", "9.09", "thesis table 2.6"),
        ("timm/resnet50", "Grafit, inat18, genus to species, mAP", "55.4", "thesis table 2.6"),
    ],
)
def test_ablations_of_the_thesis_are_there(model: str, what: str, digits: str, source: str) -> None:
    found = find_figure(model, what)
    assert found is not None
    assert (found.digits, found.source) == (digits, source)


def test_tables_that_repeat_a_figure_agree() -> None:
    pairs = [
        ("Grafit, {data}, kNN", "Grafit, {data}, coarse to fine, kNN"),
        ("SNCA+, {data}, kNN", "SNCA+, {data}, coarse to fine, kNN"),
        ("Baseline, {data}, kNN", "Baseline, {data}, coarse to fine, kNN"),
    ]
    for data in ("imagenet", "cifar100"):
        for one, other in pairs:
            first, second = (find_figure("timm/resnet50", what.format(data=data)) for what in (one, other))
            assert first is not None
            assert second is not None
            assert first.value == second.value
