"""The optimizer's groups and the parts that can be frozen, of every family, pinned parameter by parameter."""

import hashlib
from functools import partial

import pytest
import torch
from shrunk import NUM_CLASSES, small_model

import vitrail
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.models.contract import Model
from vitrail.training.loop.freezing import freeze
from vitrail.training.loop.optimizer import parameter_groups

_TIMM_VIT = "timm/vit_tiny_patch16_224"


def _embedding(trunk: str) -> Model:
    made = (
        vitrail.create_model(trunk, num_classes=0) if trunk.startswith("timm/") else small_model(trunk, num_classes=0)
    )
    return EmbeddingModel(made, EmbeddingSettings(dim=8, hidden_dim=16, num_classes=NUM_CLASSES))


MODELS = {
    "vit": partial(small_model, "deit_tiny"),
    "vit, distilled": partial(small_model, "deit_tiny_distilled"),
    "vit, average": partial(small_model, "deit_tiny", pool="average"),
    "vit, parallel": partial(small_model, "vit_s12x2"),
    "vit, fixup": partial(small_model, "deit_tiny", residual="fixup"),
    "vit, gates": partial(small_model, "deit_tiny", residual="exclusive_gating"),
    "vit, hmlp": partial(small_model, "deit_tiny", stem="hmlp_bn"),
    "cait": partial(small_model, "cait_xxs24"),
    "cait, distilled": partial(small_model, "cait_xxs24", distilled=True),
    "cait, average": partial(small_model, "cait_xxs24", class_depth=0),
    "resmlp": partial(small_model, "resmlp_s12"),
    "resmlp, class mlp": partial(small_model, "resmlp_s12", pool="class_mlp"),
    "resmlp, mlp": partial(small_model, "resmlp_s12", communication="mlp"),
    "resmlp, none": partial(small_model, "resmlp_s12", communication="none"),
    "patchconvnet": partial(small_model, "patchconvnet_s20"),
    "patchconvnet, token per class": partial(small_model, "patchconvnet_s20", per_class_tokens=True, qkv_bias=False),
    "patchconvnet, average": partial(small_model, "patchconvnet_s20", pool="average"),
    "timm vit": partial(vitrail.create_model, _TIMM_VIT, num_classes=NUM_CLASSES),
    "timm resnet": partial(vitrail.create_model, "timm/resnet18", num_classes=NUM_CLASSES),
    "timm resnet, attention": partial(vitrail.create_model, "timm/resnet18", num_classes=NUM_CLASSES, pool="attention"),
    "timm resnet, distilled": partial(vitrail.create_model, "timm/resnet18", num_classes=NUM_CLASSES, distilled=True),
    "embedding of a vit": partial(_embedding, "deit_tiny"),
    "embedding of a cait": partial(_embedding, "cait_xxs24"),
    "embedding of a timm vit": partial(_embedding, _TIMM_VIT),
    "embedding of a timm resnet": partial(_embedding, "timm/resnet18"),
}

# Without layer-wise decay: decayed/not. With it: from the lowest layer up. Then the digest of both.
EXPECTED: dict[str, tuple[str, str, str]] = {
    "vit": ("10/23", "1/4 4/8 4/8 1/3", "88ab918629a0f7a9"),
    "vit, distilled": ("11/24", "1/4 4/8 4/8 2/4", "4e244a2ccfb50506"),
    "vit, average": ("10/21", "1/2 4/8 4/8 1/3", "7235d067be019bbb"),
    "vit, parallel": ("18/38", "1/3 8/16 8/16 1/3", "156fdc055200ebae"),
    "vit, fixup": ("10/37", "1/4 4/15 4/15 1/3", "a4b382c3a86603a8"),
    "vit, gates": ("14/27", "1/4 6/10 6/10 1/3", "da50b7403651379d"),
    "vit, hmlp": ("12/31", "3/12 4/8 4/8 1/3", "c6913fe104973cb6"),
    "cait": ("26/54", "1/2 6/12 6/12 6/13 6/12 1/3", "b47c9a3b94d48501"),
    "cait, distilled": ("27/55", "1/2 6/12 6/12 6/13 6/12 2/4", "dfe0c7324f58633e"),
    "cait, average": ("14/29", "1/2 6/12 6/12 1/3", "99c885cf055e83a1"),
    "resmlp": ("8/22", "1/1 3/9 3/9 1/3", "492516862f2407e2"),
    "resmlp, class mlp": ("14/41", "1/1 3/9 3/9 3/10 3/9 1/3", "01b1bfdd8ffc3a13"),
    "resmlp, mlp": ("10/24", "1/1 4/10 4/10 1/3", "774c6807d418e477"),
    "resmlp, none": ("6/14", "1/1 2/5 2/5 1/3", "ab9897873900ebe0"),
    "patchconvnet": ("21/32", "4/0 5/8 5/8 6/13 1/3", "3021f1cf151accca"),
    "patchconvnet, token per class": ("21/29", "4/0 5/8 5/8 6/10 1/3", "479bb8b071b10109"),
    "patchconvnet, average": ("15/19", "4/0 5/8 5/8 1/3", "f1965044a9d927e8"),
    "timm vit": ("50/102", "1/3 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/10 1/1", "22340b058004864f"),
    "timm resnet": ("21/41", "1/2 2/4 2/4 3/6 2/4 3/6 2/4 3/6 2/4 1/1", "ed210ce486f7fd11"),
    "timm resnet, attention": ("27/53", "1/2 2/4 2/4 3/6 2/4 3/6 2/4 3/6 2/4 6/10 1/3", "5134ee7e28f7f40f"),
    "timm resnet, distilled": ("22/42", "1/2 2/4 2/4 3/6 2/4 3/6 2/4 3/6 2/4 2/2", "6f1599640ea4b199"),
    "embedding of a vit": ("14/29", "1/4 4/8 4/8 5/9", "559d319c199ca1ac"),
    "embedding of a cait": ("30/60", "1/2 6/12 6/12 6/13 6/12 5/9", "40d23611d1dd9bd7"),
    "embedding of a timm vit": ("54/108", "1/3 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 4/8 9/17", "649b258235c08a0c"),
    "embedding of a timm resnet": ("25/47", "1/2 2/4 2/4 3/6 2/4 3/6 2/4 3/6 7/11", "ef8e82759a1eec82"),
}


def _sizes(model: Model, layer_decay: float) -> tuple[str, str]:
    """How many parameters each layer has, decayed/not, and a text that names all groups and their parameters."""
    groups = parameter_groups(model, lr=1.0, weight_decay=0.5, layer_decay=layer_decay)
    sizes: dict[str, list[int]] = {}
    for group in groups:
        *layer, kind = group["name"].split(".")
        assert group["weight_decay"] == (0.5 if kind == "decay" else 0.0)
        sizes.setdefault("".join(layer), [0, 0])[kind == "no_decay"] += len(group["params"])
    text = "\n".join(f"{group['name']} {group['lr_scale']} {name}" for group in groups for name, _ in group["params"])
    return " ".join(f"{decayed}/{spared}" for decayed, spared in sizes.values()), text


@pytest.mark.parametrize("case", MODELS)
def test_every_parameter_is_in_its_group(case: str) -> None:
    with torch.device("meta"):
        model = MODELS[case]()
    (plain, first), (layered, second) = (_sizes(model, layer_decay) for layer_decay in (1.0, 0.5))
    digest = hashlib.sha256(f"{first}\n{second}".encode()).hexdigest()[:16]
    assert (plain, layered, digest) == EXPECTED[case]


WORDS = ("attention", "ffn", "norm", "positions", "stem", "head", "blocks.1+")
# How many parameters learn with train_only of each of the WORDS, "-" where the model has no such part; and the digest.
PARTS: dict[str, tuple[str, str]] = {
    "vit": ("10 10 12 4 4 2 16", "f83f262257be9fa2"),
    "vit, distilled": ("12 12 14 6 6 4 18", "0bce1f7f193bb3e5"),
    "vit, average": ("10 10 12 3 4 2 16", "e44c382d8305cdc9"),
    "vit, parallel": ("18 18 20 3 4 2 28", "e54ba5af85071c11"),
    "vit, fixup": ("12 14 16 4 4 2 23", "5b57dcb65efbda00"),
    "vit, gates": ("10 10 12 4 4 2 20", "d1947d9dd276aa4e"),
    "vit, hmlp": ("10 10 18 4 14 2 16", "fa64388c454e1433"),
    "cait": ("34 18 20 3 4 2 59", "cf92818848370c3b"),
    "cait, distilled": ("36 20 22 5 6 4 61", "0fcb0e483f93b407"),
    "cait, average": ("18 10 12 3 4 2 22", "4fecf31e9e5e63d2"),
    "resmlp": ("6 10 12 - 4 2 16", "9629a86f34c0cc51"),
    "resmlp, class mlp": ("10 18 20 - 4 2 41", "1c43e6f5619b3415"),
    "resmlp, mlp": ("10 10 12 - 4 2 18", "a5aca21ce680f707"),
    "resmlp, none": ("- - 8 - 4 2 11", "2e169ed08f4ac6b0"),
    "patchconvnet": ("10 6 12 - 6 2 36", "89c64738081bc0e4"),
    "patchconvnet, token per class": ("7 6 12 - 6 2 33", "2f8eb697c0da32b1"),
    "patchconvnet, average": ("- - 8 - 6 2 17", "a602233b7ded16f3"),
    "timm vit": ("50 50 52 3 4 2 136", "e482e43ff58c0a36"),
    "timm resnet": ("- - 42 - 5 2 -", "7d1ce87ec70d77f1"),
    "timm resnet, attention": ("7 6 48 - 5 2 -", "d17231459d513ad3"),
    "timm resnet, distilled": ("- - 44 - 7 4 -", "c69f76d711998b46"),
}


def _learning(case: str, word: str) -> list[str] | None:
    with torch.device("meta"):
        model = MODELS[case]()
    try:
        freeze(model, word)
    except ValueError:
        return None
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize("case", PARTS)
def test_a_part_is_the_same_parameters(case: str) -> None:
    found = [_learning(case, word) for word in WORDS]
    digest = hashlib.sha256(str(found).encode()).hexdigest()[:16]
    assert (" ".join("-" if names is None else str(len(names)) for names in found), digest) == PARTS[case]
