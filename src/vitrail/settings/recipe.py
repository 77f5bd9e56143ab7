"""The recipe: everything that decides a training run, as data. Frozen, typed, and read from YAML without code.

The sentence below each field is its description: `vitrail recipes show` prints it beside the key.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

ImageSize = PositiveInt | tuple[PositiveInt, PositiveInt]


class Section(BaseModel):
    """A group of settings: unknown keys and wrong types are errors, and nothing changes once it is made."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def refuse_what_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic would take true for 1, and infinity for a number of epochs."""
        assert info.field_name is not None
        field = cls.model_fields[info.field_name]
        if isinstance(field.default, Section):  # it looks at its own
            return value
        items = value if isinstance(value, (list, tuple)) else (value,)
        if field.annotation is not bool and any(isinstance(item, bool) for item in items):
            raise PydanticCustomError("no_number", "true and false are no values of it")
        if isinstance(value, Mapping) and _has_infinite(value):  # of other fields pydantic sees to it
            raise PydanticCustomError("no_number", "numbers must be finite")
        return value


def _has_infinite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_infinite, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_infinite, value))
    return isinstance(value, float) and not math.isfinite(value)


class ModelSettings(Section):
    """What is trained."""

    name: str = "deit_small"
    """a name of `vitrail models`, or timm/NAME"""
    init: str | None = None
    """weights to start from: a run, a saved model, a file of official or timm weights, hf://OWNER/NAME"""
    train_only: str = "all"
    """parts that learn besides the head: attention, ffn, norm, positions, stem, blocks.18+, several with commas"""
    position_resize: Literal["bicubic", "bilinear"] = "bicubic"
    """how weights to start from are fitted to another image size"""
    settings: dict[str, Any] = {}
    """further settings of the model, such as {depth: 6, patch_size: 4}"""


class DataSettings(Section):
    """What it is trained on."""

    spec: str | None = None
    """a folder, a manifest, or the name of a data set; usually given on the command line"""
    val: str | None = None
    """other data to evaluate on; null: the val split of the same"""
    level: str | None = None
    """which labels, where there are several, such as coarse; null: the first"""
    val_share: float = Field(default=0.1, gt=0.0, lt=1.0)
    """of the training images, set aside where there is no val split"""
    quarantine: str | None = None
    """a quarantine.csv of `vitrail check`: the samples in it are left out"""
    max_broken: float = Field(default=0.05, ge=0.0, le=1.0)
    """the share of samples that may turn out unreadable before the run stops"""
    balanced: bool = False
    """draw every class equally often"""
    clusters: PositiveInt | None = Field(default=None, ge=2)
    """train on so many clusters of images in the place of their labels (ClusterFit)"""
    clusters_of: str | None = None
    """the run or saved model whose features are clustered"""
    workers: NonNegativeInt | None = None
    """processes that read and augment; null: by the number of cores"""


class AugmentationSettings(Section):
    """How training images are varied."""

    crop: Literal["resized", "simple", "evaluation"] = "resized"
    """resized: RandomResizedCrop; simple: DeiT III's Simple Random Crop; evaluation: the centre"""
    scale: tuple[float, float] = (0.08, 1.0)
    """part of the image's area, for resized"""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """width over height, for resized"""
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    """filter of the resizing"""
    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    """probability of mirroring"""
    policy: Literal["three", "rand", "auto", "trivial"] | None = None
    """three: 3-Augment; rand: RandAugment; auto: AutoAugment; trivial: TrivialAugment"""
    magnitude: NonNegativeFloat = 9.0
    """of RandAugment"""
    magnitude_noise: NonNegativeFloat = 0.5
    """standard deviation of RandAugment's magnitude"""
    colour_jitter: NonNegativeFloat = 0.0
    """strength for brightness, contrast and saturation"""
    erasing: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability of random erasing"""
    repeats: PositiveInt = 1
    """repeated augmentation: views of an image in a batch"""
    views: PositiveInt = 1
    """views of an image that are compared with each other, for the instance and triplet losses of embedding"""


class BlendSettings(Section):
    """How images and labels are mixed."""

    mixup: NonNegativeFloat = 0.0
    """alpha of mixup"""
    cutmix: NonNegativeFloat = 0.0
    """alpha of CutMix"""
    switch: float = Field(default=0.5, ge=0.0, le=1.0)
    """how often CutMix where both are on"""
    probability: float = Field(default=1.0, ge=0.0, le=1.0)
    """how often anything is mixed"""
    per: Literal["batch", "pair"] = "batch"
    """one draw for all of a batch, or one for each pair"""


class ObjectiveSettings(Section):
    """What is minimised."""

    loss: Literal["cross_entropy", "bce"] = "cross_entropy"
    """bce: every class mixed in counts in full"""
    smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    """label smoothing"""
    class_weights: bool = False
    """weigh rare classes up in the loss"""


class EmbeddingSettings(Section):
    """What is learnt in the place of a classifier: an embedding to search by (Grafit and its kin)."""

    projector: Literal["none", "linear", "mlp"] | None = None
    """between trunk and embedding; null: no embedding is learnt"""
    dim: PositiveInt = 256
    """numbers of a projection"""
    hidden_dim: PositiveInt = 4096
    """width inside mlp, and inside the predictor of the instance loss"""
    retrieve: Literal["projection", "trunk"] = "projection"
    """what an image is found by"""
    knn: NonNegativeFloat = 1.0
    """weight of the neighbour loss on the labels"""
    instance: NonNegativeFloat = 1.0
    """weight of the instance loss, for which augmentation.views must be 2 or more"""
    cross_entropy: NonNegativeFloat = 0.0
    """weight of the loss of a classifier on the trunk, which is then what the run is measured by"""
    triplet: NonNegativeFloat = 0.0
    """weight of the triplet loss between views"""
    temperature: PositiveFloat = 0.05
    """of the neighbour loss"""
    margin: PositiveFloat = 0.2
    """of the triplet loss"""
    memory_momentum: float = Field(default=0.5, ge=0.0, lt=1.0)
    """of an old embedding in the memory when its image is seen again"""
    target_decay: float = Field(default=0.996, ge=0.0, le=1.0)
    """of the moving average that the instance loss predicts"""
    target_schedule: Literal["constant", "byol"] = "constant"
    """byol: that decay grows to 1"""

    @property
    def is_learnt(self) -> bool:
        """Whether the run learns an embedding."""
        return self.projector is not None

    @property
    def has_memory(self) -> bool:
        """Whether the embeddings of all training images are kept: for the neighbour loss, or to measure the run by."""
        return self.is_learnt and (self.knn > 0.0 or self.cross_entropy == 0.0)


class TeacherSettings(Section):
    """Who it learns from besides the labels."""

    model: str | None = None
    """a run, a saved model, timm/NAME, timm/NAME@WEIGHTS, FILE.onnx or module:function; several with commas"""
    kind: Literal["soft", "hard", "token"] = "hard"
    """soft: the teacher's probabilities; hard: its answer; token: its answer, by a distillation token and head"""
    weight: float | None = Field(default=None, ge=0.0, le=1.0)
    """of the teacher's part of the loss; null: 0.1 for soft, 0.5 for hard and token"""
    temperature: PositiveFloat = 3.0
    """of soft"""
    image_size: ImageSize | None = None
    """the teacher sees images of this size; null: of its own"""
    classes: str | None = None
    """a JSON file {class: the teacher's class}, for a teacher of other classes"""
    cache: str | None = Field(default=None, pattern=r"^views:[1-9]\d*$")
    """views:8 keeps the teacher's answers to eight fixed views of each image; null: asked at every step"""
    cache_folder: str | None = None
    """where answers are kept; null: ~/.cache/vitrail"""
    cache_top: PositiveInt = 10
    """classes an answer keeps; the others share what is left"""

    @property
    def num_views(self) -> int | None:
        """Fixed views of an image, where answers are cached."""
        return None if self.cache is None else int(self.cache.removeprefix("views:"))


class OptimizerSettings(Section):
    """How the weights move."""

    name: Literal["adamw", "lamb", "sgd"] = "adamw"
    """the optimizer"""
    lr: PositiveFloat = 1e-3
    """the highest learning rate; for `reference_batch` images where that is given"""
    reference_batch: PositiveInt | None = None
    """batch for which lr is meant: it grows in proportion to the batch; null: lr holds for any batch"""
    weight_decay: NonNegativeFloat = 0.05
    """of matrices; norms, biases, tokens, positions and LayerScale have none"""
    betas: tuple[float, float] | None = None
    """of adamw and lamb; null: 0.9 and 0.999"""
    eps: PositiveFloat | None = None
    """of adamw and lamb; null: 1e-8 and 1e-6"""
    momentum: float | None = None
    """of sgd, with Nesterov; null: 0.9"""
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """each layer learns at this times the rate of the one above it"""
    clip: PositiveFloat | None = None
    """largest norm of the gradient"""


class ScheduleSettings(Section):
    """How the learning rate goes."""

    kind: Literal["cosine", "step", "constant"] = "cosine"
    """its course after the warmup"""
    warmup_epochs: NonNegativeFloat = 5.0
    """of linear growth; at most half of the run"""
    warmup_lr: NonNegativeFloat = 1e-6
    """where the warmup begins"""
    min_lr: NonNegativeFloat = 1e-5
    """where the cosine ends"""
    decay_epochs: PositiveFloat | None = None
    """of step: epochs between two decays"""
    decay_rate: PositiveFloat | None = None
    """of step: factor of a decay; null: 0.1"""


class RegularisationSettings(Section):
    """What keeps it from learning by heart."""

    drop_path: float | None = Field(default=None, ge=0.0, lt=1.0)
    """stochastic depth; null: the model's own"""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """of ViT and CaiT: on single numbers instead of whole branches; null: the model's own, which is none"""
    ema: float | None = Field(default=None, gt=0.0, lt=1.0)
    """decay of the moving average of the weights, which is then what is evaluated and saved"""
    early_stop: PositiveInt | None = None
    """epochs without a better val accuracy after which to stop"""


class EvaluationSettings(Section):
    """How it is measured."""

    every: PositiveFloat = 1.0
    """epochs between two evaluations"""
    image_size: ImageSize | None = None
    """of evaluation; null: that of training"""
    crop_ratio: float | None = Field(default=None, gt=0.0, le=1.0)
    """of the centre crop; null: the model's own"""
    batch_size: PositiveInt | None = None
    """images at a time; null: as in training"""
    layers: bool = False
    """also write down how much each residual branch adds, which `vitrail inspect` draws over the epochs"""


class RunSettings(Section):
    """How it is computed; none of this changes what is learnt, but for rounding."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where the device is fast at it, else fp32"""
    device: str = "auto"
    """cpu, cuda, mps; auto: the best there is"""
    devices: PositiveInt = 1
    """processes on this machine, one a GPU"""
    nodes: PositiveInt = 1
    """machines"""
    sharding: Literal["none", "full"] = "none"
    """none: DDP; full: FSDP2, for models that do not fit one GPU"""
    micro_batch: PositiveInt | None = None
    """images at a time on a device; null: found by measurement"""
    checkpointing: bool = False
    """recompute activations in the backward pass: less memory, more time"""
    compile: bool = False
    """torch.compile"""
    save_minutes: PositiveFloat = 10.0
    """between two checkpoints, besides one at each evaluation"""
    keep: PositiveInt = 2
    """newest checkpoints kept; the best is kept beside them"""
    on_nan: Literal["stop", "skip"] = "stop"
    """what to do when loss or gradients are not finite"""
    threads: PositiveInt | None = Field(default=None, le=1024)
    """of torch on a CPU; null: torch's choice"""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """where metrics are sent besides metrics.jsonl"""


class Recipe(Section):
    """Everything that decides a run."""

    name: str = "custom"
    """of the recipe"""
    image_size: ImageSize = 224
    """of training: side, or height and width"""
    epochs: PositiveFloat = 300.0
    """passes over the training images"""
    steps: PositiveInt | None = None
    """optimizer steps; takes the place of epochs"""
    batch_size: PositiveInt = 1024
    """of one optimizer step, over all devices"""
    seed: NonNegativeInt = 0
    """of every random choice"""
    against: str | None = None
    """published curves to compare the run with"""
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    blend: BlendSettings = BlendSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    teacher: TeacherSettings = TeacherSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    run: RunSettings = RunSettings()
    stages: tuple[dict[str, Any], ...] = ()
    """changes for each stage as {key: value}; each stage starts from the weights of the one before"""

    @property
    def lr(self) -> float:
        """The highest learning rate at this batch size."""
        reference = self.optimizer.reference_batch
        return self.optimizer.lr * (self.batch_size / reference if reference else 1.0)

    @property
    def num_stages(self) -> int:
        """A recipe without stages is its own only one."""
        return max(1, len(self.stages))


# What the command line may say in short.
SHORT_KEYS: Mapping[str, str] = {
    "model": "model.name",
    "init": "model.init",
    "train_only": "model.train_only",
    "data": "data.spec",
    "teacher": "teacher.model",
    "lr": "optimizer.lr",
    "workers": "data.workers",
    "devices": "run.devices",
    "nodes": "run.nodes",
    "precision": "run.precision",
    "compile": "run.compile",
    "sharding": "run.sharding",
}
