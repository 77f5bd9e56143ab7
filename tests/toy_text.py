"""A language of twenty words whose translation is another word for each, backwards; and tiny runs on it."""

import random
from pathlib import Path

from vitrail.settings.text import change, parse_assignments
from vitrail.tasks.translate.settings import TranslateRecipe

_PAIRS = (
    "red-rot blue-blau green-gruen old-alt young-jung man-mann dog-hund cat-katze runs-rennt sits-sitzt near-bei "
    "the-der a-ein big-gross tree-baum house-haus river-fluss sings-singt sees-sieht two-zwei"
)
WORDS, OTHERS = zip(*(pair.split("-") for pair in _PAIRS.split()), strict=True)

SETTINGS = (
    "network={dim: 16, depth: 2, mlp_dim: 32, num_heads: 2, norm: layer, layer_scale: 1.0}",
    "text={source: en, target: de, vocabulary: 90, max_length: 32, piece: 150}",
    "batch_size=300",
    "epochs=2",
    "lr=3e-3",
    "schedule.warmup_epochs=0.5",
    "regularisation.dropout=0.2",
    "run.device=cpu",
    "run.threads=1",
    "run.micro_batch=150",
)


def make_pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs of three to eight words."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(count):
        places = [chance.randrange(len(WORDS)) for _ in range(chance.randint(3, 8))]
        pairs.append((" ".join(WORDS[place] for place in places), " ".join(OTHERS[place] for place in places[::-1])))
    return pairs


def write_text(folder: Path, *, train: int = 60, val: int = 12) -> Path:
    """A folder of parallel text."""
    folder.mkdir(exist_ok=True)
    for number, (split, count) in enumerate((("train", train), ("val", val))):
        pairs = make_pairs(count, seed=number)
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return folder


def toy_recipe(*words: str) -> TranslateRecipe:
    """A recipe of a tiny network."""
    settings: dict[str, object] = {}
    for key, value in parse_assignments(SETTINGS).items():
        settings |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    recipe = change(change(TranslateRecipe(), settings), parse_assignments(words))
    assert isinstance(recipe, TranslateRecipe)
    return recipe
