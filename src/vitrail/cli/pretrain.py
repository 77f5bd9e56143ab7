"""Learn from images without labels: a recipe such as dino_small, a folder of photos and a folder for the run.

`vitrail pretrain dino_small data=PHOTOS out=RUN`; then `vitrail train deit_tiny init=RUN data=LABELLED out=NEXT` goes
on with labels. The same command again goes on where it stopped.
"""

import argparse

from vitrail.cli import train

SUMMARY = "learn from images without labels"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail pretrain` takes: what `vitrail train` does."""
    train.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train by a recipe that needs no labels, and say where the report is."""
    return train.begin(arguments, verb="pretrain")
