"""Pictures of what a network for translation looks at: cross-attention, and the matrices A as in figure 4.2."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.storage import write_whole
from vitrail.translation.network import Seq2Seq
from vitrail.translation.position_layers import PositionLinear
from vitrail.translation.token_batches import make_batch
from vitrail.translation.translator import SearchSettings, Translator
from vitrail.translation.vocabulary import END

_NUM_ROWS = 32  # of A
_LONGEST_NAME = 40  # characters of a file's name


def explain_sentences(translator: Translator, sentences: Sequence[str], folder: Path) -> list[Path]:
    """Draw the cross-attention of each sentence to its translation, and the matrices A where the network has them."""
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[Path] = {folder / "mixing.png"}
    for sentence in dict.fromkeys(sentences):
        taken.add(path := _find_name(sentence, folder=folder, taken=taken))
        draw_attention(translator, sentence, path=path)
    written = sorted(taken - {folder / "mixing.png"})
    mixing = draw_mixing(translator.model, folder / "mixing.png")
    return written + ([] if mixing is None else [mixing])


def _find_name(sentence: str, *, folder: Path, taken: set[Path]) -> Path:
    """A file named after a sentence, which no other has taken."""
    name = re.sub(r"[^\w-]+", "_", sentence).strip("_")[:_LONGEST_NAME] or "sentence"
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(path for name in names if (path := folder / f"{name}.png") not in taken)


def draw_attention(translator: Translator, sentence: str, *, path: Path) -> None:
    """A picture of how much each piece of the translation reads from each of the sentence, a panel a layer."""
    [encoded] = translator.vocabulary.encode([sentence])
    longest = translator.model.config.max_length
    if len(encoded) > longest:
        raise ValueError(f"a sentence of {len(encoded)} tokens is too long for a picture: the model takes {longest}")
    [[best, *_]] = translator.search([encoded], SearchSettings())
    answer = [*best.pieces, END]
    weights = find_attention(translator.model, encoded.tolist(), answer)
    show = translator.vocabulary.show
    _draw_panels(
        weights,
        [f"layer {number}" for number in range(1, len(weights))] + ["mean"],
        path,
        title=f"{sentence}\n{translator.vocabulary.decode(best.pieces)}",
        marks=(show(encoded.tolist()), show(answer)),
    )


@torch.no_grad()
def find_attention(model: Seq2Seq, source: Sequence[int], target: Sequence[int]) -> list[Tensor]:
    """Cross-attention of each layer, its heads averaged, [target, source]; the mean of all layers is the last."""
    import numpy as np

    batch = make_batch([np.array(source)], [np.array(target)], np.array([0]))
    found = [layer[0].mean(dim=0) for layer in model.cross_attention(batch.source, batch.lengths, batch.target)]
    return [*found, torch.stack(found).mean(dim=0)]


def draw_mixing(model: Seq2Seq, path: Path) -> Path | None:
    """The first rows of A of every layer, of the encoder above and of the decoder below; None without such layers."""
    parts: dict[str, Any] = {"encoder": model.encoder["blocks"], "decoder": model.decoder["blocks"]}
    panels: list[Tensor] = []
    titles: list[str] = []
    for name, blocks in parts.items():
        for number, block in enumerate(blocks, start=1):
            mix = block.communication.mix
            if not isinstance(mix, PositionLinear):
                return None
            weight = mix.weight.detach().cpu()[:_NUM_ROWS, :_NUM_ROWS]
            panels.append(weight.tril() if mix.is_causal else weight)
            titles.append(f"{name}, layer {number}")
    _draw_panels(
        panels,
        titles,
        path,
        title=f"The matrix A of every layer: the first {len(panels[0])} positions, one row each",
        columns=len(panels) // 2,
        is_signed=True,
    )
    return path


def _draw_panels(
    panels: Sequence[Tensor],
    titles: Sequence[str],
    path: Path,
    *,
    title: str,
    marks: tuple[Sequence[str], Sequence[str]] | None = None,
    columns: int | None = None,
    is_signed: bool = False,
) -> None:
    """Maps side by side; with `marks`, what columns and rows stand for is written beside the last one."""
    from matplotlib.figure import Figure

    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    side = 2.4 if marks is None else max(2.6, 0.24 * max(len(marks[0]), len(marks[1])))
    room = 0.8 if marks is None else 1.3  # for the title, and for what columns stand for
    figure = Figure(figsize=(max(5.5, columns * side), rows * side + room), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for place, (panel, name) in enumerate(zip(panels, titles, strict=True)):
        limit = float(panel.abs().quantile(0.995)) or 1.0
        colours = {"cmap": "RdBu", "vmin": -limit, "vmax": limit} if is_signed else {"cmap": "viridis", "vmin": 0.0}
        axes[place].imshow(panel.numpy(), aspect="equal", interpolation="nearest", **colours)
        axes[place].set_title(name, fontsize=9)
        axes[place].set_xticks([])
        axes[place].set_yticks([])
        if marks is not None:
            axes[place].set_xticks(range(len(marks[0])), [_plain(mark) for mark in marks[0]], rotation=90, fontsize=8)
            if place % columns == 0:
                axes[place].set_yticks(range(len(marks[1])), [_plain(mark) for mark in marks[1]], fontsize=8)
    write_whole(path, lambda file: figure.savefig(file, format="png"))


def _plain(piece: str) -> str:
    """A piece as text that is drawn as it is, with a dot where a word begins."""
    return piece.replace("\u2581", "\u00b7").replace("$", r"\$")
