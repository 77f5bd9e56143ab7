"""What the parts of an inspection are called and what they mean."""

from typing import NamedTuple


class Text(NamedTuple):
    """Title and meaning of one part."""

    title: str
    meaning: str  # what is measured, and how to read it


TEXTS = {
    "ratios": Text(
        "What residual branches add",
        "The norm of what a residual branch adds, over the norm of what passes by it: ||g(x)|| / ||x|| (CaiT figure 4, "
        "thesis figure 3.6), the mean over images. In the paper's network with LayerScale it is even, and 0.2 on "
        "average. A layer close to 0 does little; one far above the others dominates.",
    ),
    "parallel": Text(
        "Sequential against parallel",
        "How much the answer of a layer r' changes if the layer r before it is left out of its input: "
        "||r'(x + r(x)) - r'(x)|| / ||r'(x + r(x))||, the mean over images. Where it is near 0 the two could as well "
        "stand side by side (Three things, section 3.2); where it is near 1 or above, their order matters.",
    ),
    "layer_scale": Text(
        "LayerScale",
        "The learned weight λ of each channel on the output of a branch (CaiT eq. 4), or the one weight of ReZero and "
        "its kin. The line is the mean absolute value; the band goes from the least to the greatest weight.",
    ),
    "attention_distance": Text(
        "How far patches look",
        "The distance from the centre of a patch to the centres of those it looks at, in pixels of the picture that "
        "the model sees, weighted by attention: the mean over patches and images, for each head. The dashed line is "
        "what attention to all patches alike would come to.",
    ),
    "class_attention_spread": Text(
        "How many patches class-attention sees",
        "exp(entropy) of the weights that special tokens put on patches: 1 if they look at a single one, the number of "
        "patches if at all of them alike. The mean over tokens and images, for each head.",
    ),
    "tokens": Text(
        "Class and distillation token",
        "The cosine of the two tokens as learned, after each block and after the final norm, the mean over images. In "
        "the thesis it goes from 0.06 to 0.93 for DeiT-B: they become alike but not the same (3.3).",
    ),
    "sparsity": Text(
        "Sparsity of the matrices",
        "The share of components whose absolute value is below 5 % of the matrix's greatest (thesis 4.4, figure 4.3). "
        "ResMLP's A mixes patches; B and C are the first and the second matrix of the feed-forward network.",
    ),
    "energy": Text(
        "Energy of principal components",
        "The share of the variance of the embeddings (summary tokens) that the first principal components hold. A "
        "lower curve tells of a richer representation, which a few components can't sum up (thesis figure 2.1). There "
        "are fewer components than images: compare curves of equally many images only.",
    ),
}
