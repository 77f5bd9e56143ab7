"""Batch normalisation of several processes: the statistics, outputs and gradients of one that has all images."""

import copy
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from timm.layers import BatchNormAct2d
from tiny_runs import run_in, run_two
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import vitrail
from vitrail.layers.norm import ChannelsLastBatchNorm
from vitrail.training.parallel.batch_norm import is_synchronized, synchronize_statistics

NUM_RANKS, CUT = 2, 3  # the first process has 3 of 8 images, the second the rest


def layers() -> nn.Sequential:
    """One of each kind: torch's, with timm's activation, without parameters, on tokens, on vectors."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        BatchNormAct2d(4, act_layer=nn.GELU, inplace=False),
        nn.BatchNorm2d(4, affine=False, momentum=None),
        ChannelsLastBatchNorm(6),
        nn.Flatten(1),
        nn.BatchNorm1d(144),
        nn.Linear(144, 5),
    )


def images_and_targets() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = 100.0 + 3.0 * torch.randn(8, 3, 8, 8, generator=generator)
    return images, torch.arange(8) % 5


def train_a_part(rank: int, port: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=NUM_RANKS)
    model = layers()
    synchronize_statistics(model)
    assert is_synchronized(copy.deepcopy(model))
    parallel = DistributedDataParallel(model)
    images, targets = images_and_targets()
    part = slice(0, CUT) if rank == 0 else slice(CUT, None)
    own = images[part].clone().requires_grad_()
    loss = nn.functional.cross_entropy(parallel(own), targets[part], reduction="sum") * NUM_RANKS / 8
    loss.backward()
    assert own.grad is not None
    model.eval()
    answers = model(images)  # every process for itself, without waiting for others
    torch.save(
        {
            "gradients": {name: value.grad for name, value in model.named_parameters()},
            "buffers": {name: value.clone() for name, value in model.named_buffers()},
            "images": own.grad / NUM_RANKS,
            "answers": answers.detach(),
            "bf16": model.train()[1](torch.randn(2, 4, 3, 3).bfloat16()).dtype,
        },
        folder / f"{rank}.pt",
    )
    dist.destroy_process_group()


def test_two_processes_compute_what_one_does_with_all_images(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.start_processes(
        train_a_part, args=(port, tmp_path), nprocs=NUM_RANKS, start_method="forkserver"
    )
    model = layers()
    images, targets = images_and_targets()
    images.requires_grad_()
    nn.functional.cross_entropy(model(images), targets).backward()
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(NUM_RANKS)]
    for part in parts:
        assert part["buffers"].keys() == dict(model.named_buffers()).keys(), "the names are those of the plain layers"
        for name, value in model.named_buffers():
            torch.testing.assert_close(part["buffers"][name], value, rtol=1e-5, atol=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(part["gradients"][name], parameter.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(part["answers"], model.eval()(images), rtol=1e-4, atol=1e-5)
        assert part["bf16"] == torch.bfloat16
    assert images.grad is not None
    torch.testing.assert_close(torch.cat([part["images"] for part in parts]), images.grad, rtol=1e-4, atol=1e-6)


# What moves the biases below a normalisation is rounding alone, which Adam would make as large as any other step.
WORDS = (
    "model=vit_b12_hmlp",
    "model.settings={dim: 16, depth: 2, num_heads: 2}",
    "data=shapes:size=32,count=48,val=17",
    "image_size=32",
    "optimizer.name=sgd",
    "lr=0.1",
    "regularisation.drop_path=0",
    "regularisation.ema=null",
    "epochs=2",
)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of one process, with two micro-batches of 8 images a step."""
    run = run_in(tmp_path_factory.mktemp("runs") / "whole", *WORDS, "run.micro_batch=8")
    return vitrail.load_model(run.model).state_dict()


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_a_run_of_two_processes_saves_the_statistics_of_one(
    tmp_path: Path, whole_run: dict[str, torch.Tensor], sharding: str
) -> None:
    """The processes compute 4 images at a time each: the 8 together are those of one process."""
    run_two(tmp_path / "run", *WORDS, f"run.sharding={sharding}", "run.micro_batch=4")
    weights = vitrail.load_model(tmp_path / "run" / "model").state_dict()
    assert sum("running" in name for name in weights) == 6
    assert all(torch.allclose(weights[name], whole_run[name], rtol=1e-4, atol=1e-6) for name in whole_run)
