"""An ONNX file as a teacher, run by onnxruntime."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.checks import as_pair
from vitrail.models.contract import IMAGENET_MEAN, IMAGENET_STD
from vitrail.settings.section import ImageSize
from vitrail.storage import hash_file, parse_json
from vitrail.tasks.teaching.teacher_sources import TeacherSource, hash_parts

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxModel:
    """A file with one input, images [batch, 3, height, width]; any number of threads may ask it at a time.

    The image size is that of the input where it is fixed. Mean and deviation are ImageNet's unless the file's metadata
    has `mean` and `std`, as JSON lists.
    """

    def __init__(self, spec: str, *, image_size: ImageSize | None, device: torch.device) -> None:
        path = Path(spec).expanduser()
        if not path.is_file():
            raise ValueError(f"the teacher {spec}: no such file")
        self.spec, self._path, self._device = spec, path, device
        self._num_threads, self._starting = torch.get_num_threads(), threading.Lock()
        self._session = _start(path, spec, device=device, num_threads=self._num_threads)
        entry = self._check_input()
        self._input_name, self._dtype = entry.name, _TYPES[entry.type]
        self._batch_size = entry.shape[0] if isinstance(entry.shape[0], int) else None
        self.outputs: dict[str, list[Any]] = {output.name: output.shape for output in self._session.get_outputs()}
        self.image_size = _choose_size(spec, entry.shape[2:], image_size)
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.mean = _read_numbers(spec, self.metadata, "mean") or IMAGENET_MEAN
        self.std = _read_numbers(spec, self.metadata, "std") or IMAGENET_STD
        self.fingerprint = hash_parts("onnx", *(hash_file(file) for file in _files_of(path)))

    def _check_input(self) -> Any:
        entries = self._session.get_inputs()
        if len(entries) != 1:
            names = ", ".join(entry.name for entry in entries)
            raise ValueError(f"{self.spec} has the inputs {names}: a teacher has one, the images")
        [entry] = entries
        if len(entry.shape) != 4 or (isinstance(entry.shape[1], int) and entry.shape[1] != 3):
            raise ValueError(f"{self.spec} takes {entry.shape}: a teacher takes images [batch, 3, height, width]")
        if entry.type not in _TYPES:
            raise ValueError(f"{self.spec} takes {entry.type}: a teacher takes float32 or float16")
        return entry

    def ask(self, images: Tensor, *names: str) -> list[Tensor]:
        """The outputs of those names for prepared images."""
        values = np.ascontiguousarray(images.cpu().numpy(), dtype=self._dtype)
        session, wanted = self._session_of_thread(), list(names)
        if self._batch_size is None:
            return list(map(torch.from_numpy, session.run(wanted, {self._input_name: values})))
        num_missing = -len(values) % self._batch_size  # the last part is filled up with copies of its last image
        values = np.concatenate([values, np.repeat(values[-1:], num_missing, axis=0)])
        parts = [
            session.run(wanted, {self._input_name: part}) for part in np.split(values, len(values) // self._batch_size)
        ]
        return [torch.from_numpy(np.concatenate(column)[: len(images)]) for column in zip(*parts, strict=True)]

    def _session_of_thread(self) -> Any:
        """A session with as many threads as torch has in the thread that asks: lanes have a core each, or a few.

        Calls side by side share the session's further threads, so that together they take no more than the cores.
        """
        num_threads = torch.get_num_threads()
        with self._starting:
            if num_threads != self._num_threads:
                self._session = _start(self._path, self.spec, device=self._device, num_threads=num_threads)
                self._num_threads = num_threads
            return self._session


def open_onnx(spec: str, *, image_size: ImageSize | None, device: torch.device) -> TeacherSource:
    """The classifier of a file with logits as its first output; `classes` in its metadata, a list, are their names."""
    model = OnnxModel(spec, image_size=image_size, device=device)
    name, shape = next(iter(model.outputs.items()))
    if len(shape) != 2:
        raise ValueError(f"{spec} gives {shape}: a teacher gives logits [batch, classes]")
    classes = _read_list(spec, model.metadata, "classes")
    num_classes = shape[1] if isinstance(shape[1], int) else None
    if classes is not None and num_classes not in (None, len(classes)):
        raise ValueError(f"{spec}: its metadata names {len(classes)} classes and it has {num_classes}")
    return TeacherSource(
        name=spec,
        ask=lambda images: model.ask(images, name)[0],
        fingerprint=model.fingerprint,
        num_classes=num_classes if classes is None else len(classes),
        classes=None if classes is None else tuple(map(str, classes)),
        image_size=model.image_size,
        mean=model.mean,
        std=model.std,
        is_autocast=False,  # the file says itself what is computed in which type
    )


def _start(path: Path, spec: str, *, device: torch.device, num_threads: int) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ValueError(f"{spec}: ONNX files need onnxruntime: pip install vitrail[onnx]") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    # Threads that have nothing to do would spin, on the cores that the student is to be computed on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors only: the rest is about the graph, not about the user
    wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    offered = onnxruntime.get_available_providers()
    providers = [name for name in wanted if name in offered] + ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # onnxruntime's own kinds of error have no common base but this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{spec}: damaged, or not an ONNX model ({reason[:160]})") from None


def _choose_size(spec: str, sides: list[Any], wanted: ImageSize | None) -> tuple[int, int] | None:
    """The size that the file fixes, or the wanted one where it leaves it open; None: that of the student's images."""
    fixed = tuple(side if isinstance(side, int) else None for side in sides)
    if wanted is None:
        height, width = fixed
        return None if height is None or width is None else (height, width)
    size = as_pair(wanted)
    if any(side not in (None, given) for side, given in zip(fixed, size, strict=True)):
        raise ValueError(f"{spec} takes images of {sides[0]}x{sides[1]}, not of {size[0]}x{size[1]}")
    return size


def _read_list(spec: str, metadata: dict[str, str], key: str) -> list[Any] | None:
    if key not in metadata:
        return None
    try:
        content = parse_json(metadata[key])
    except ValueError:
        content = None
    if not isinstance(content, list):
        raise ValueError(f"{spec}: {key} in its metadata is {metadata[key]!r}, not a JSON list")
    return content


def _read_numbers(spec: str, metadata: dict[str, str], key: str) -> tuple[float, ...] | None:
    content = _read_list(spec, metadata, key)
    if content is None:
        return None
    if len(content) != 3 or not all(isinstance(value, (int, float)) for value in content):
        raise ValueError(f"{spec}: {key} in its metadata is {metadata[key]!r}, not three numbers")
    return tuple(map(float, content))


def _files_of(path: Path) -> list[Path]:
    """The file, and those beside it that exporters put large weights into: model.onnx.data, model.onnx_data."""
    return sorted(other for other in path.parent.iterdir() if other.name.startswith(path.name) and other.is_file())
