"""Translation (thesis 4.3.5), and our own recipe for a few ten thousand sentences on a laptop."""

from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.translate.settings import (
    NetworkSettings,
    TextEvaluationSettings,
    TextModelSettings,
    TextSettings,
    TranslateRecipe,
)

# Joint byte-pair encodings of Ott et al. 2018, whose setup the thesis follows; the dropout of 4.3.5.
_VOCABULARY = {"de": 32_000, "fr": 40_000}
_DROPOUT = {"de": 0.15, "fr": 0.1}
_STEPS, _BATCH = 100_000, 50_000  # neither is in the thesis: those of the base transformer of Vaswani et al. 2017
_AVERAGED = 10  # the last checkpoints, as Ott et al. average them
_PER_EPOCH = {"de": 0.3, "fr": 0.04}  # between two of them, about 1,500 steps


def translate_small() -> Recipe:
    """A small sequence-to-sequence ResMLP for a few ten thousand pairs of sentences.

    Command: vitrail train translate_small data=FOLDER out=runs/translate
    Cost: about 25 minutes of one core (AVX-512, bf16) for 29,000 pairs.
    Published: nothing, it is ours. model=seq2seq_transformer is its twin with self-attention.
    Ours: 34.8 and 34.7 BLEU on the test of multi30k, English to German, its twin 36.3 and 36.4 (docs/log.md).
    """
    return TranslateRecipe(
        name="translate_small",
        epochs=10.0,
        batch_size=3000,
        network=NetworkSettings(
            dim=160, depth=4, mlp_dim=640, num_heads=4, norm="layer", layer_scale=1.0, activation="relu"
        ),
        text=TextSettings(vocabulary=5000, max_length=128, piece=1500),
        optimizer=OptimizerSettings(lr=3e-3, weight_decay=0.01, clip=1.0, betas=(0.9, 0.98)),
        schedule=ScheduleSettings(warmup_epochs=1.0, min_lr=1e-5),
        regularisation=RegularisationSettings(dropout=0.2),
        evaluation=TextEvaluationSettings(every=4.0),
    )


def resmlp_wmt14(target: str, depth: str = "6") -> Recipe:
    """The sequence-to-sequence ResMLP on WMT14, from English.

    Command: vitrail train resmlp_wmt14_en_de data=FOLDER out=runs/resmlp_wmt14_en_de
    Cost: not run; the thesis prints none.
    Published: tokenized BLEU on newstest2014 (thesis table 4.5): 6 layers en-de {seq2seq_resmlp_6: WMT14 en-de},
        en-fr {seq2seq_resmlp_6: WMT14 en-fr}; 12 layers en-de {seq2seq_resmlp_12: WMT14 en-de}, en-fr
        {seq2seq_resmlp_12: WMT14 en-fr}. Batch and number of steps are not printed.
    Ours: not run.
    """
    return TranslateRecipe(
        name=f"resmlp_wmt14_en_{target}{'' if depth == '6' else f'_{depth}'}",
        steps=_STEPS,
        batch_size=_BATCH,
        network=NetworkSettings(depth=int(depth)),
        text=TextSettings(target=target, vocabulary=_VOCABULARY[target], coverage=0.9999, piece=3584),
        optimizer=OptimizerSettings(name="adagrad", lr=0.2, weight_decay=0.0),
        schedule=ScheduleSettings(kind="constant", warmup_steps=32_000),
        regularisation=RegularisationSettings(dropout=_DROPOUT[target], average_last=_AVERAGED),
        evaluation=TextEvaluationSettings(every=_PER_EPOCH[target]),
    )


def transformer_wmt14(target: str) -> Recipe:
    """The transformer that ResMLP is compared with on WMT14, from English.

    Command: vitrail train transformer_wmt14_en_de data=FOLDER out=runs/transformer_wmt14_en_de
    Cost: not run; Vaswani et al. 2017 name 12 hours on 8 P100 for theirs.
    Published: tokenized BLEU on newstest2014 (thesis table 4.5): en-de {seq2seq_transformer: WMT14 en-de}, en-fr
        {seq2seq_transformer: WMT14 en-fr}, of a network that normalises behind the sums; ours does before the branches.
    Ours: not run.
    """
    return TranslateRecipe(
        name=f"transformer_wmt14_en_{target}",
        steps=_STEPS,
        batch_size=_BATCH,
        model=TextModelSettings(name="seq2seq_transformer"),
        network=NetworkSettings(norm="layer", layer_scale=1.0, activation="relu"),
        text=TextSettings(target=target, vocabulary=_VOCABULARY[target], coverage=0.9999, piece=3584),
        # The highest rate of Vaswani et al.: (512 * 4000) ** -0.5.
        optimizer=OptimizerSettings(lr=7e-4, weight_decay=0.0, betas=(0.9, 0.98), eps=1e-9),
        schedule=ScheduleSettings(kind="inverse_sqrt", warmup_steps=4000),
        regularisation=RegularisationSettings(dropout=0.1, average_last=_AVERAGED),
        evaluation=TextEvaluationSettings(every=_PER_EPOCH[target]),
    )
