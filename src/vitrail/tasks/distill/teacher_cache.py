"""A teacher's answers about classes on disk: its most likely ones, and the probability of the rest."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.tasks.teaching.answer_store import AnswerStore, check_counts, open_place

_FORMAT = 1  # of the files; part of the key
_LOWEST = -6e4  # the logarithm of a probability of zero, in float16


class TeacherCache(AnswerStore):
    """What a teacher said about each view of each sample: its most likely classes and the probability of the rest.

    It takes logits [batch, classes] and gives log-probabilities, in float16. The most likely classes are as stored;
    what is left is spread evenly over the others.
    """

    def __init__(self, folder: Path, *, shape: tuple[int, int], num_classes: int, top: int) -> None:
        self.num_classes = num_classes
        super().__init__(folder, shape=shape, record=_record_of(num_classes, top))

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        teacher: str,
        data: str,
        augmentation: str,
        num_samples: int,
        num_views: int,
        num_classes: int,
        top: int = 10,
    ) -> "TeacherCache":
        """The cache in a subfolder of `folder` that all of these decide; an empty one where there is none yet.

        `teacher`, `data` and `augmentation` are fingerprints: with any other one nothing old is ever read.
        """
        counts = {"num_samples": num_samples, "num_views": num_views, "num_classes": num_classes, "top": top}
        check_counts(**counts)
        top = min(top, num_classes)
        parts: dict[str, Any] = {"format": _FORMAT, "teacher": teacher, "data": data, "augmentation": augmentation}
        parts |= counts | {"top": top}
        place = open_place(folder, parts, num_answers=num_samples * num_views, record=_record_of(num_classes, top))
        return cls(place, shape=(num_samples, num_views), num_classes=num_classes, top=top)

    def encode(self, answers: Tensor) -> np.ndarray:
        """The most likely classes of logits, their log-probabilities, and behind them that of all others together."""
        if answers.ndim != 2 or answers.shape[1] != self.num_classes:
            wanted = [len(answers), self.num_classes]
            raise ValueError(f"the cache takes a teacher's answers {wanted}, not {list(answers.shape)}")
        logs = answers.detach().float().log_softmax(dim=-1)
        if logs.isnan().any():
            raise ValueError("the teacher's answers are not finite: they are not kept, and can't be learnt from")
        top, classes = logs.topk(self.record["classes"].shape[0], dim=-1)
        rest = logs.scatter(1, classes, -torch.inf).logsumexp(dim=-1, keepdim=True)
        records = np.zeros(len(answers), dtype=self.record)
        records["classes"] = classes.cpu().numpy()
        records["log_probabilities"] = torch.cat([top, rest], dim=-1).clamp(min=_LOWEST).cpu().numpy()
        return records

    def decode(self, records: np.ndarray, device: torch.device) -> Tensor:
        """Log-probabilities of all classes."""
        classes = torch.from_numpy(records["classes"].astype(np.int64)).to(device)
        logs = torch.from_numpy(records["log_probabilities"].astype(np.float32)).to(device)
        top, rest = logs[:, :-1], logs[:, -1:]
        num_others = max(self.num_classes - top.shape[1], 1)
        # None of them is likelier than the least of those that are stored; rounding could say otherwise.
        others = torch.minimum(rest - float(np.log(num_others)), top[:, -1:])
        return others.repeat(1, self.num_classes).scatter_(1, classes, top)


def _record_of(num_classes: int, top: int) -> np.dtype:
    """How an answer is stored: the classes, their log-probabilities and, behind them, that of all others together."""
    number = np.uint16 if num_classes <= 2**16 else np.int32
    return np.dtype([("classes", number, (top,)), ("log_probabilities", np.float16, (top + 1,))])
