"""How the official repository and timm name the parameters we have, as tables that read in both directions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

VITRAIL, OFFICIAL, TIMM = "vitrail", "official", "timm"

# The first whose pattern occurs in a name of the weights. Where the official repository and timm agree it is OFFICIAL.
DIALECTS = (
    (VITRAIL, r"\bbranches\.\d"),
    (TIMM, r"\.ls[12](\.gamma)?$|\.(attns|ffns)\.\d|\.linear_tokens\."),
    (OFFICIAL, r"^(patch_embed|blocks|blocks_token_only|cls_token|pos_embed)\b"),
)

# Which family the weights are of, whatever their dialect; the first that matches.
FAMILY_MARKS = (
    ("patchconvnet", r"\.qkv_pos\.|\.mix\.spatial\."),
    (
        "resmlp",
        r"^norm\.alpha$|\.linear_tokens\.|^blocks\.\d+\.attn\.weight$|\.mix\.(linear|feed_forward|convolution)\.",
    ),
    ("cait", r"^(blocks_token_only|class_stage)\."),
    ("vit", r"\bqkv\.weight$"),
)

PLACES = {
    "block": r"\d+",
    "layer": r"\d+",
    "branch": r"\d+",
    "extra": r"[1-9]\d*",  # a branch beside the first
    "part": "weight|bias|running_mean|running_var|num_batches_tracked",
}


@dataclass(frozen=True)
class Rule:
    """One of their names and ours for it; `{block}` and the other PLACES stand for the same text on both sides."""

    theirs: str
    ours: str
    ones: tuple[int, int] = (0, 0)  # dimensions of size one their tensor has before and after ours

    def below(self, theirs: str, ours: str) -> "Rule":
        """The same rule with a prefix on either side."""
        return Rule(f"{theirs}.{self.theirs}", f"{ours}.{self.ours}", self.ones)


@cache
def pattern_of(template: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", template)
    literal, places = pieces[::2], pieces[1::2]
    named = [f"(?P<{place}>{PLACES[place]})" for place in places]
    return re.compile("".join(re.escape(text) + place for text, place in zip(literal, [*named, ""], strict=True)))


def find_rule(name: str, rules: Iterable[Rule], *, to_ours: bool) -> tuple[str, Rule] | None:
    """What `name` is called on the other side, with the rule that says so."""
    for rule in rules:
        source, target = (rule.theirs, rule.ours) if to_ours else (rule.ours, rule.theirs)
        match = pattern_of(source).fullmatch(name)
        if match:
            return target.format(**match.groupdict()), rule
    return None


def recognize_dialect(names: Iterable[str]) -> str | None:
    """VITRAIL, TIMM or OFFICIAL; None where the names are of no model we know."""
    names = list(names)
    return next((dialect for dialect, mark in DIALECTS if any(re.search(mark, name) for name in names)), None)


def recognize_family(names: Iterable[str]) -> str | None:
    """The family that has such names, None where it can't be told."""
    names = list(names)
    return next((family for family, mark in FAMILY_MARKS if any(re.search(mark, name) for name in names)), None)


def residual_rules(
    ours: str, *, norm: str, mix: str, scale: str, parts: Sequence[Rule], norm_parts: Sequence[Rule] = ()
) -> tuple[Rule, ...]:
    """Rules for one branch: the norm, the layers of what it mixes, the scale."""
    return (
        *(rule.below(norm, f"{ours}.norm") for rule in norm_parts or (Rule("{part}", "{part}"),)),
        *(rule.below(mix, f"{ours}.mix") for rule in parts),
        Rule(scale, f"{ours}.scale.weight"),
    )


def block_rules(rules: Iterable[Rule], *, theirs: str = "blocks", ours: str = "blocks") -> tuple[Rule, ...]:
    return tuple(rule.below(f"{theirs}.{{block}}", f"{ours}.{{block}}") for rule in rules)


def convolution_rules(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for a 1x1 convolution there that is a linear layer here."""
    return Rule(f"{theirs}.weight", f"{ours}.weight", (0, 2)), Rule(f"{theirs}.bias", f"{ours}.bias")


COMMUNICATION, FEED_FORWARD = "communication.branches", "feed_forward.branches"

ATTENTION = (
    Rule("qkv.{part}", "qkv.{part}"),
    Rule("proj.{part}", "proj.{part}"),
    Rule("proj_l.{part}", "before_softmax.{part}"),
    Rule("proj_w.{part}", "after_softmax.{part}"),
)
CLASS_ATTENTION = (
    Rule("q.{part}", "query.{part}"),
    Rule("k.{part}", "key.{part}"),
    Rule("v.{part}", "value.{part}"),
    Rule("proj.{part}", "proj.{part}"),
)
CONVOLUTION = (
    *convolution_rules("qkv_pos.0", "expand"),
    Rule("qkv_pos.2.{part}", "spatial.{part}"),
    *convolution_rules("qkv_pos.4.conv_reduce", "squeeze_excite.reduce"),
    *convolution_rules("qkv_pos.4.conv_expand", "squeeze_excite.expand"),
    *convolution_rules("qkv_pos.5", "contract"),
)
ACROSS_PATCHES = (Rule("{part}", "linear.{part}"),)
MLP = (Rule("fc1.{part}", "expand.{part}"), Rule("fc2.{part}", "contract.{part}"))
AFFINE = (Rule("alpha", "weight"), Rule("beta", "bias"))
TIMM_AFFINE = (Rule("alpha", "weight", (2, 0)), Rule("beta", "bias", (2, 0)))

LINEAR_STEM = (Rule("patch_embed.proj.{part}", "stem.layers.0.{part}"),)
OFFICIAL_STEMS = (
    *LINEAR_STEM,
    Rule("patch_embed.proj.{layer}.{part}", "stem.layers.{layer}.{part}"),  # hMLP
    Rule("patch_embed.proj.{layer}.0.{part}", "stem.layers.{layer}.{part}"),  # convolutional
)
ENDING = (
    Rule("norm.{part}", "norm.{part}"),
    Rule("head.{part}", "head.linear.{part}"),
    Rule("head_dist.{part}", "head.distilled.{part}"),
)
CLASS_BLOCKS = block_rules(
    (
        *residual_rules(f"{COMMUNICATION}.0", norm="norm1", mix="attn", scale="gamma_1", parts=CLASS_ATTENTION),
        *residual_rules(f"{FEED_FORWARD}.0", norm="norm2", mix="mlp", scale="gamma_2", parts=MLP),
    ),
    theirs="blocks_token_only",
    ours="class_stage.blocks",
)
OFFICIAL_TRUNK = block_rules(
    (
        *residual_rules(f"{COMMUNICATION}.0", norm="norm1", mix="attn", scale="gamma_1", parts=ATTENTION),
        *residual_rules(f"{FEED_FORWARD}.0", norm="norm2", mix="mlp", scale="gamma_2", parts=MLP),
        *residual_rules(
            f"{COMMUNICATION}.{{extra}}",
            norm="norm1{extra}",
            mix="attn{extra}",
            scale="gamma_1_{extra}",
            parts=ATTENTION,
        ),
        *residual_rules(
            f"{FEED_FORWARD}.{{extra}}",
            norm="norm2{extra}",
            mix="mlp{extra}",
            scale="gamma_2_{extra}",
            parts=MLP,
        ),
    )
)
OFFICIAL_RESMLP = block_rules(
    (
        *residual_rules(
            f"{COMMUNICATION}.0",
            norm="norm1",
            mix="attn",
            scale="gamma_1",
            parts=ACROSS_PATCHES,
            norm_parts=AFFINE,
        ),
        *residual_rules(f"{FEED_FORWARD}.0", norm="norm2", mix="mlp", scale="gamma_2", parts=MLP, norm_parts=AFFINE),
    )
)
OFFICIAL_PATCHCONVNET = block_rules(
    residual_rules("branches.0", norm="norm1", mix="attn", scale="gamma_1", parts=CONVOLUTION)
)
TIMM_TRUNK = block_rules(
    (
        *residual_rules(f"{COMMUNICATION}.0", norm="norm1", mix="attn", scale="ls1.gamma", parts=ATTENTION[:2]),
        *residual_rules(f"{FEED_FORWARD}.0", norm="norm2", mix="mlp", scale="ls2.gamma", parts=MLP),
    )
)
TIMM_PARALLEL_TRUNK = block_rules(
    (
        *residual_rules(
            f"{COMMUNICATION}.{{branch}}",
            norm="attns.{branch}.norm",
            mix="attns.{branch}.attn",
            scale="attns.{branch}.ls.gamma",
            parts=ATTENTION[:2],
        ),
        *residual_rules(
            f"{FEED_FORWARD}.{{branch}}",
            norm="ffns.{branch}.norm",
            mix="ffns.{branch}.mlp",
            scale="ffns.{branch}.ls.gamma",
            parts=MLP,
        ),
    )
)
TIMM_RESMLP = block_rules(
    (
        *residual_rules(
            f"{COMMUNICATION}.0",
            norm="norm1",
            mix="linear_tokens",
            scale="ls1",
            parts=ACROSS_PATCHES,
            norm_parts=TIMM_AFFINE,
        ),
        *residual_rules(
            f"{FEED_FORWARD}.0",
            norm="norm2",
            mix="mlp_channels",
            scale="ls2",
            parts=MLP,
            norm_parts=TIMM_AFFINE,
        ),
    )
)

RULES: dict[tuple[str, str], tuple[Rule, ...]] = {
    (OFFICIAL, "vit"): (*OFFICIAL_STEMS, *OFFICIAL_TRUNK, *ENDING),
    (OFFICIAL, "cait"): (*OFFICIAL_STEMS, *OFFICIAL_TRUNK, *CLASS_BLOCKS, *ENDING),
    (OFFICIAL, "resmlp"): (
        *OFFICIAL_STEMS,
        *OFFICIAL_RESMLP,
        *(rule.below("norm", "norm") for rule in AFFINE),
        *ENDING[1:],
    ),
    (OFFICIAL, "patchconvnet"): (*OFFICIAL_STEMS, *OFFICIAL_PATCHCONVNET, *CLASS_BLOCKS, *ENDING),
    (TIMM, "vit"): (*LINEAR_STEM, *TIMM_TRUNK, *ENDING),
    (TIMM, "parallel_vit"): (*LINEAR_STEM, *TIMM_PARALLEL_TRUNK, *ENDING),
    (TIMM, "cait"): (*LINEAR_STEM, *OFFICIAL_TRUNK, *CLASS_BLOCKS, *ENDING),
    (TIMM, "resmlp"): (
        Rule("stem.proj.{part}", "stem.layers.0.{part}"),
        *TIMM_RESMLP,
        *(rule.below("norm", "norm") for rule in TIMM_AFFINE),
        *ENDING[1:],
    ),
}
