"""Where a run is started, here or as a job of a scheduler: no part of a recipe, since nothing learnt depends on it."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field, PositiveInt, ValidationError

from vitrail.settings.section import Section

LAUNCHERS = ("here", "slurm", "local")


class SlurmSettings(Section):
    """A job of Slurm that trains, saves before its time is up, and is queued again until the run has ended."""

    partition: str | None = None
    """partition of the cluster"""
    account: str | None = None
    """account that pays"""
    qos: str | None = None
    """quality of service"""
    constraint: str | None = None
    """features that machines must have"""
    minutes: PositiveInt = 1440
    """minutes until the job ends; the run is saved before and goes on in the next one"""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs of each machine; null: as many as `devices`, or none where run.device=cpu"""
    cpus: PositiveInt | None = None
    """cores of each machine; null: the cluster's own choice"""
    memory: str | None = None
    """memory of each machine, such as 200GB"""
    save_seconds: PositiveInt = 180
    """seconds before the end at which the run is told to save and stop"""
    requeues: PositiveInt = 100
    """times that a job whose time is up is queued again"""
    name: str = "vitrail"
    """name of the job"""


def take_launcher(words: Sequence[str]) -> tuple[str, SlurmSettings, list[str]]:
    """Where a command line says that it is started, how, and its words without that."""
    from vitrail.settings.text import parse

    launcher, settings, left = "here", {}, []
    for word in words:
        key, sign, text = word.partition("=")
        if key == "launcher" and sign:
            launcher = text
        elif key.startswith("slurm.") and sign:
            settings[key.removeprefix("slurm.")] = _as_text(key, parse(text, label=key))
        else:
            left.append(word)
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher cannot be {launcher!r}: it is one of {', '.join(LAUNCHERS)}")
    if settings and launcher == "here":
        raise ValueError(f"slurm.{next(iter(settings))} is given without launcher=slurm: add it, or leave both out")
    try:
        return launcher, SlurmSettings.model_validate(settings), left
    except ValidationError as error:
        first = error.errors()[0]
        key = "slurm." + ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = ", ".join(f"slurm.{name}" for name in SlurmSettings.model_fields)
            raise ValueError(f"unknown key {key}; there are: {known}") from None
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise ValueError(f"{key} cannot be {first['input']!r}: {message}") from None


def _as_text(key: str, value: Any) -> Any:
    """A value as it was written, where the setting is a text: an account may be a number."""
    kind = SlurmSettings.model_fields.get(key.removeprefix("slurm."))
    is_text = kind is not None and kind.annotation in (str, str | None)
    return str(value) if is_text and value is not None else value
