"""What a recipe of translation says beside what every recipe does."""

from collections.abc import Set
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from vitrail.settings.data import DataSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.running import EvaluationSettings
from vitrail.settings.section import Section

RESMLP, TRANSFORMER = "seq2seq_resmlp", "seq2seq_transformer"


class TextDataSettings(DataSettings):
    """Data to train and evaluate on."""

    spec: str | None = None
    """parallel text: a folder with files such as train.en.gz and train.de.gz, their prefix, or a .tsv of both"""
    val: str | None = None
    """other text to evaluate on; null: the val split of the training text; none: no evaluations"""
    val_share: float = Field(default=0.02, gt=0.0, lt=1.0)
    """share of the training pairs that is set aside for val where there is none"""

    def unused(self) -> Set[str]:
        """What is read where data are images."""
        return {"level", "quarantine", "max_broken", "balanced", "workers"}


class TextModelSettings(ModelSettings):
    """Model to train."""

    name: Literal["seq2seq_resmlp", "seq2seq_transformer"] = "seq2seq_resmlp"
    """network: linear layers across positions, or (seq2seq_transformer) self-attention in their place"""
    init: str | None = None
    """weights to start from: a run or a saved model of the same network and vocabulary"""

    def unused(self) -> Set[str]:
        """What is read where a model takes images."""
        return {"head_start", "layer_scale_of", "train_only", "position_resize", "settings"}


class NetworkSettings(Section):
    """Sizes of encoder and decoder."""

    dim: PositiveInt = 512
    """width of a token"""
    depth: PositiveInt = 6
    """layers of the encoder, and as many of the decoder"""
    mlp_dim: PositiveInt = 2048
    """hidden width of the feed-forward network"""
    num_heads: PositiveInt = 8
    """heads of attention, of which the ResMLP has that to the encoder alone"""
    norm: Literal["affine", "layer"] = "affine"
    """normalisation before each branch: ResMLP's Aff, or LayerNorm"""
    layer_scale: NonNegativeFloat = 0.2
    """initial value of the scale after each branch (LayerScale)"""
    activation: Literal["gelu", "relu", "silu", "hardswish"] = "gelu"
    """activation of the feed-forward network"""
    positions: bool | None = None
    """sinusoids added to the embeddings; null: where there is self-attention, which sees no order without"""


class TextSettings(Section):
    """Languages and vocabulary."""

    source: str = "en"
    """language to translate from, as files are called"""
    target: str = "de"
    """language to translate to, as files are called"""
    vocabulary: int = Field(default=32_000, ge=8)
    """pieces of the joint byte-pair encoding, which the run trains and keeps"""
    coverage: float = Field(default=1.0, gt=0.9, le=1.0)
    """share of the characters of the text that the vocabulary covers; others are unknown to the model"""
    max_length: int = Field(default=256, ge=8, le=4096)
    """tokens of the longest sentence, with its end; training leaves longer pairs out"""
    piece: PositiveInt = 1024
    """tokens of sentences of like length that stay together; a step takes pieces of all lengths by chance"""


class TranslationObjectiveSettings(Section):
    """What is minimised."""

    smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    """label smoothing: the share of each target that is spread over the vocabulary"""


class TextEvaluationSettings(EvaluationSettings):
    """How the run is measured."""

    batch_size: PositiveInt | None = None
    """tokens evaluated at a time, for the loss; null: the batch size of training"""
    beam: PositiveInt = 4
    """beam of the search at the end of the run"""
    beam_while_training: PositiveInt = 1
    """beam of the search at each evaluation before; 1: greedy"""
    length_penalty: NonNegativeFloat = 0.6
    """exponent of the length penalty, ((5 + length) / 6) ** penalty"""


class TranslateRecipe(Recipe):
    """A recipe of translation."""

    task: str = "translate"
    batch_size: PositiveInt = 25_000
    """tokens of one optimizer step, of both languages, over all devices"""
    model: TextModelSettings = TextModelSettings()
    network: NetworkSettings = NetworkSettings()
    data: TextDataSettings = TextDataSettings()
    text: TextSettings = TextSettings()
    objective: TranslationObjectiveSettings = TranslationObjectiveSettings()
    evaluation: TextEvaluationSettings = TextEvaluationSettings()
