"""The mean of a model's weights at the last evaluations of a stage, as Vaswani et al. 2017 average checkpoints."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.storage import remove, replacing
from vitrail.storage.tensors import read_tensors, write_tensors
from vitrail.training.parallel.distributed import World

_NAME = re.compile(r"stage_(\d+)_step_(\d{9,})\.safetensors")


class LastWeights:
    """Files of the weights at the last `count` evaluations; which these are follows from the steps alone."""

    def __init__(self, folder: Path, *, count: int, stage: int, world: World) -> None:
        self.folder, self.count, self.stage, self.world = folder, count, stage, world

    def forget(self) -> None:
        """Begin anew: what another beginning of the stage has left goes."""
        if self.world.is_main:
            for path in self._steps().values():
                remove(path)

    def note(self, model: nn.Module, *, step: int) -> None:
        """Keep the weights as they are; the main process writes."""
        if not self.world.is_main:
            return
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"stage_{self.stage}_step_{step:09d}.safetensors"
        with replacing(path) as draft:
            write_tensors({name: value.detach().cpu().contiguous() for name, value in model.named_parameters()}, draft)
        earlier = [other for number, other in sorted(self._steps().items()) if number <= step]
        for other in earlier[: -self.count]:
            remove(other)

    @torch.no_grad()
    def copy_to(self, model: nn.Module, *, step: int) -> None:
        """Make the mean of what was kept up to a step the weights of the model, in every process."""
        mean = self.world.share(self._mean(step) if self.world.is_main else None)
        for name, value in model.named_parameters():
            value.copy_(mean[name])

    @contextlib.contextmanager
    def applied_to(self, model: nn.Module, *, step: int) -> Iterator[None]:
        """The model with the mean for weights inside the block; its own come back after it, bit by bit."""
        own = [value.detach().clone() for value in model.parameters()]
        self.copy_to(model, step=step)
        try:
            yield
        finally:
            with torch.no_grad():
                for value, saved in zip(model.parameters(), own, strict=True):
                    value.copy_(saved)

    def _mean(self, step: int) -> dict[str, Tensor]:
        paths = [path for number, path in sorted(self._steps().items()) if number <= step][-self.count :]
        sums: dict[str, Tensor] = {}
        for path in paths:
            for name, value in read_tensors(path, label=f"{path}")[0].items():
                sums[name] = sums.get(name, 0.0) + value.double()
        return {name: (value / len(paths)).float() for name, value in sums.items()}

    def _steps(self) -> dict[int, Path]:
        """The files of this stage by their step."""
        if not self.folder.is_dir():
            return {}
        found = ((path, _NAME.fullmatch(path.name)) for path in self.folder.iterdir())
        return {int(match[2]): path for path, match in found if match and int(match[1]) == self.stage}
