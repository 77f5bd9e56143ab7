"""Embeddings in the plane by t-SNE, to look at (thesis figure 2.5)."""

import torch
from torch import Tensor

_FEWEST = 5


def check_tsne() -> None:
    """Refuse t-SNE where scikit-learn is missing, before any work."""
    try:
        import sklearn.manifold  # noqa: F401
    except ImportError:
        raise ValueError("t-SNE needs scikit-learn: pip install scikit-learn") from None


def project_to_plane(vectors: Tensor, *, perplexity: float = 30.0, seed: int = 0) -> Tensor:
    """t-SNE of vectors [images, dim] by their cosines, [images, 2]; it needs scikit-learn."""
    check_tsne()
    from sklearn.manifold import TSNE

    if len(vectors) < _FEWEST:
        raise ValueError(f"t-SNE needs at least {_FEWEST} embeddings, not {len(vectors)}")
    perplexity = min(perplexity, (len(vectors) - 1) / 3)
    places = TSNE(metric="cosine", init="random", perplexity=perplexity, random_state=seed).fit_transform(
        vectors.float().cpu().numpy()
    )
    return torch.from_numpy(places)
