"""Translation: a network for parallel text, with a vocabulary of its own, measured by BLEU."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.storage import read_json_object
from vitrail.tasks.contract import (
    EvaluationRequest,
    Initial,
    Loaders,
    Objective,
    RunReader,
    StepContext,
    StepSampler,
    Task,
)
from vitrail.tasks.results import Evaluation, Evaluator, Measure
from vitrail.tasks.translate.evaluator import TranslationEvaluator
from vitrail.tasks.translate.objective import NextToken
from vitrail.tasks.translate.report_sections import sentence_sections
from vitrail.tasks.translate.settings import TRANSFORMER, TranslateRecipe
from vitrail.tasks.translate.trained_scores import compare_translators, evaluate_translator
from vitrail.translation.network import Seq2Seq, Seq2SeqConfig
from vitrail.translation.parallel_text import HELD_OUT, Pairs, open_train_and_val
from vitrail.translation.pictures import explain_sentences
from vitrail.translation.token_batches import Sentences, TokenBatch, TokenLoader, TokenSampler, make_batch
from vitrail.translation.translator import Translator
from vitrail.translation.vocabulary import Vocabulary

_TASK_FILE = "task.json"
_USUAL_LENGTH = 24  # tokens of a sentence of noise


@dataclass(frozen=True, eq=False)
class TextData:
    """Pairs of both splits, as text and as tokens."""

    train: Pairs
    val: Pairs | None
    vocabulary: Vocabulary
    languages: tuple[str, str]
    source: Sentences  # of train
    target: Sentences

    @property
    def num_train(self) -> int:
        return len(self.train)

    @property
    def num_val(self) -> int:
        return 0 if self.val is None else len(self.val)

    def locate(self, index: int) -> str:
        """Where a training pair is."""
        return self.train.locate(index)

    def describe(self) -> dict[str, Any]:
        """Languages and vocabulary, for task.json."""
        return {
            "source": self.languages[0],
            "target": self.languages[1],
            "num_train": self.num_train,
            "num_val": self.num_val,
            "vocabulary": self.vocabulary.as_text(),
        }


class Translate(Task[TokenBatch]):
    """From sentences of one language to those of another."""

    Recipe: ClassVar[type[Recipe]] = TranslateRecipe
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("bleu", "BLEU", unit="", chart="BLEU on val"),
        Measure("chrf", "chrF", unit="", is_headline=True, chart="chrF on val"),
        Measure("val_loss", "loss on val", unit="", is_higher_better=False, digits=3, chart="Loss on val, a token"),
        Measure("tokenized_bleu", "tokenized BLEU", unit=""),
    )
    counted: ClassVar[str] = "tokens"
    counts_of_sample: ClassVar[int] = 2 * _USUAL_LENGTH
    recipe: TranslateRecipe
    data: TextData
    model: Seq2Seq

    def check(self) -> None:
        """Refuse settings that have no meaning for text."""
        recipe = self.recipe
        for section, name in ((recipe.data, "data"), (recipe.model, "model")):
            for key in section.unused():
                if getattr(section, key) != type(section).model_fields[key].get_default(call_default_factory=True):
                    raise ValueError(f"{name}.{key} is for images: leave it out of a recipe of translation")
        if recipe.regularisation.drop_path:
            raise ValueError("regularisation.drop_path is for images: a recipe of translation has dropout")
        self.make_config(recipe.text.vocabulary)

    def make_config(self, vocabulary_size: int) -> Seq2SeqConfig:
        """What the model of the recipe is built from, for a vocabulary of that size."""
        network, text = self.recipe.network, self.recipe.text
        has_attention = self.recipe.model.name == TRANSFORMER
        return Seq2SeqConfig(
            vocabulary_size=vocabulary_size,
            mixing="attention" if has_attention else "linear",
            dim=network.dim,
            depth=network.depth,
            mlp_dim=network.mlp_dim,
            num_heads=network.num_heads,
            norm=network.norm,
            layer_scale=network.layer_scale,
            activation=network.activation,
            positions=has_attention if network.positions is None else network.positions,
            dropout=self.recipe.regularisation.dropout or 0.0,
            max_length=text.max_length,
        )

    def open(self) -> TextData:
        """Read both splits; train the vocabulary, unless the run has one."""
        self.check()
        recipe, text = self.recipe, self.recipe.text
        if recipe.data.spec is None:
            raise ValueError("no data given: add data=FOLDER with files such as train.en.gz and train.de.gz")
        train, val = open_train_and_val(
            recipe.data.spec,
            recipe.data.val,
            source=text.source,
            target=text.target,
            val_share=recipe.data.val_share,
        )
        if val is not None and val.split == HELD_OUT:
            self.site.reporter.say(
                f"there is no val: {len(val):,} pairs of train are set aside for it (data.val_share)"
            )
        vocabulary = self._find_vocabulary(train)
        sides = [Sentences.encoded(lines, vocabulary) for lines in (train.source, train.target)]
        is_short = (sides[0].lengths <= text.max_length) & (sides[1].lengths <= text.max_length)
        if not is_short.all():
            kept = is_short.nonzero()[0]
            if not len(kept):
                raise ValueError(f"no pair of {recipe.data.spec} has at most {text.max_length} tokens: text.max_length")
            self.site.reporter.say(
                f"{len(train) - len(kept):,} of {len(train):,} pairs are longer than text.max_length="
                f"{text.max_length} tokens and left out"
            )
            train = train.chosen(kept)
            sides = [Sentences([side[index] for index in kept]) for side in sides]
        self.data = TextData(train, val, vocabulary, (text.source, text.target), *sides)
        return self.data

    def _find_vocabulary(self, train: Pairs) -> Vocabulary:
        """The vocabulary of the run, or a new one; all processes have the same."""
        text, world, folder = self.recipe.text, self.site.world, self.site.folder
        written: str | None = None
        failure: str | None = None
        if world.is_main:
            try:
                written = self._read_vocabulary(folder)
                if written is None:
                    sentences = (line for side in (train.source, train.target) for line in side)
                    written = Vocabulary.trained(sentences, size=text.vocabulary, coverage=text.coverage).as_text()
            except ValueError as error:
                failure = str(error)
        written, failure = world.share((written, failure))
        if failure is not None:
            raise ValueError(failure)
        return Vocabulary.from_text(written)

    def _read_vocabulary(self, folder: Path | None) -> str | None:
        """The vocabulary in the task.json of the run that goes on, or of the one that weights are taken from."""
        init = self.recipe.model.init
        for place in (folder, None if init is None else Path(init).expanduser()):
            if place is not None and (place / _TASK_FILE).is_file():
                content = read_json_object(place / _TASK_FILE, remedy="restore it")
                if "vocabulary" in content:
                    return str(content["vocabulary"])
        return None

    def make_model(self, description: Mapping[str, Any]) -> Seq2Seq:
        """Encoder and decoder with initial weights, which the seed decides."""
        torch.manual_seed(self.recipe.seed)
        model = Seq2Seq(self.make_config(len(Vocabulary.from_text(description.get("vocabulary")))))
        model.name = self.recipe.model.name
        return model

    def load_initial(self, model: Seq2Seq, source: str | Initial, *, description: Mapping[str, Any]) -> None:
        """Take the weights of a run or a saved model of the same sizes and vocabulary."""
        if isinstance(source, Initial):
            weights: Mapping[str, Tensor] = source.weights
            before: Mapping[str, Any] = source.description
        else:
            from vitrail.inference.trained import load_parts

            loaded = load_parts(source)
            weights, before = loaded.model.state_dict(), loaded.description or {}
        if before.get("vocabulary") != description["vocabulary"]:
            raise ValueError(f"init={source if isinstance(source, str) else 'the stage before'} has another vocabulary")
        wanted = {name: value.shape for name, value in model.state_dict().items()}
        if wanted != {name: value.shape for name, value in weights.items()}:
            raise ValueError("init= is a network of other sizes: set network and text as that run has them")
        model.load_state_dict(dict(weights))

    def attach(self, model: Seq2Seq) -> None:
        """Remember the model."""
        self.model = model

    def make_loaders(self, *, num_parts: int, listing: Path | None) -> Loaders[TokenLoader]:
        """Batches of train, and of val for its loss."""
        recipe, data = self.recipe, self.data
        train = TokenSampler(
            data.source.lengths,
            data.target.lengths,
            batch_size=recipe.batch_size,
            piece_size=recipe.text.piece,
            seed=self.site.seed,
            ranks=self.site.world.ranks,
            num_micro_batches=num_parts,
        )
        return Loaders(TokenLoader(data.source, data.target, sampler=train), self._load_val())

    def _load_val(self) -> TokenLoader:
        val = self.data.val
        lines = ([], []) if val is None else (val.source, val.target)
        longest = self.recipe.text.max_length
        sides = [Sentences.encoded(side, self.data.vocabulary).cut(longest) for side in lines]
        size = self.recipe.evaluation.batch_size or self.recipe.batch_size
        sampler = TokenSampler(
            sides[0].lengths,
            sides[1].lengths,
            batch_size=size,
            piece_size=size,
            ranks=self.site.world.ranks,
            is_training=False,
        )
        return TokenLoader(*sides, sampler=sampler)

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> NextToken:
        """The label-smoothed cross-entropy of the next token."""
        return NextToken(smoothing=self.recipe.objective.smoothing)

    def prepare(self, batch: TokenBatch, at: StepContext) -> TokenBatch:
        """The batch on the device."""
        return batch.to(self.site.device, non_blocking=True)

    def example(self, count: int) -> TokenBatch:
        """Noise of about that many tokens, in sentences of usual length."""
        length = min(_USUAL_LENGTH, self.recipe.text.max_length)
        number, size = max(1, count // (2 * length)), len(self.data.vocabulary)
        pieces = torch.randint(4, size, (2, number, length)).numpy()
        return make_batch(list(pieces[0]), list(pieces[1]), torch.arange(number).numpy())

    def respond(self, model: nn.Module, batch: TokenBatch) -> Any:
        """Logits of the next tokens."""
        return model(batch.source, batch.lengths, batch.target, batch.places)

    def make_evaluators(self, objective: Objective[TokenBatch], loaders: Loaders[Any]) -> Sequence[Evaluator]:
        """Loss, BLEU and chrF on val."""
        return [TranslationEvaluator(self, loaders.val)]

    @classmethod
    def evaluate(cls, request: EvaluationRequest) -> Evaluation:
        """Translate a split and score it."""
        return evaluate_translator(request)

    @classmethod
    def compare(cls, requests: Sequence[EvaluationRequest]) -> Evaluation:
        """Score several models on one split, with the paired bootstrap."""
        return compare_translators(requests)

    @classmethod
    def explain(cls, loaded: Any, words: Sequence[str], *, folder: Path) -> list[Path]:
        """Cross-attention of sentences, and the matrices A."""
        translator = Translator.of(loaded.model, loaded.description, label=loaded.label)
        return explain_sentences(translator, words, folder)

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """The best and the worst sentences."""
        yield from sentence_sections(run)

    def count_step(self, data: Any) -> int:
        """Tokens of a step."""
        total = int(data.source.lengths.sum() + data.target.lengths.sum())
        return min(self.recipe.batch_size, total)

    def count_batch(self, batch: TokenBatch) -> int:
        """Tokens of both languages."""
        return batch.num_tokens

    def share_of(self, batch: TokenBatch, *, sampler: StepSampler, num_ranks: int) -> float:
        """Tokens that are to be answered, of those of the step."""
        return len(batch.answers) * num_ranks / batch.num_of_step

    def first_of(self, batch: TokenBatch, *, place: int, sampler: StepSampler) -> int:
        """The place of the batch's first pair in the global batch."""
        return batch.first

    def count_measured(self, data: Any) -> int:
        """Tokens that an evaluation looks at, each read once and written about as often again."""
        return data.num_val * self.counts_of_sample
