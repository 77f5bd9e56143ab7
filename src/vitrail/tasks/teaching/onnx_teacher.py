"""An ONNX file as a teacher, run by onnxruntime."""

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


def open_onnx(spec: str, *, image_size: ImageSize | None, device: torch.device) -> TeacherSource:
    """The classifier of a file with one input [batch, 3, height, width] and logits as its first output.

    The image size is that of the input where it is fixed. Mean and deviation are ImageNet's unless the file's metadata
    has `mean` and `std`, as JSON lists; `classes` there, a list of names, says what the classes are called.
    """
    path = Path(spec).expanduser()
    if not path.is_file():
        raise ValueError(f"the teacher {spec}: no such file")
    session = _start(path, spec, device=device)
    if len(session.get_inputs()) != 1:
        names = ", ".join(entry.name for entry in session.get_inputs())
        raise ValueError(f"{spec} has the inputs {names}: a teacher has one, the images")
    entry, output = session.get_inputs()[0], session.get_outputs()[0]
    if len(entry.shape) != 4 or (isinstance(entry.shape[1], int) and entry.shape[1] != 3):
        raise ValueError(f"{spec} takes {entry.shape}: a teacher takes images [batch, 3, height, width]")
    if entry.type not in _TYPES:
        raise ValueError(f"{spec} takes {entry.type}: a teacher takes float32 or float16")
    if len(output.shape) != 2:
        raise ValueError(f"{spec} gives {output.shape}: a teacher gives logits [batch, classes]")
    size = _choose_size(spec, entry.shape[2:], image_size)
    metadata = session.get_modelmeta().custom_metadata_map
    mean, std = (
        _read_numbers(spec, metadata, key) or usual for key, usual in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD))
    )
    classes = _read_list(spec, metadata, "classes")
    num_classes = output.shape[1] if isinstance(output.shape[1], int) else None
    if classes is not None and num_classes not in (None, len(classes)):
        raise ValueError(f"{spec}: its metadata names {len(classes)} classes and it has {num_classes}")
    return TeacherSource(
        name=spec,
        ask=_Session(session, input_name=entry.name, output_name=output.name),
        fingerprint=hash_parts("onnx", *(hash_file(file) for file in _files_of(path))),
        num_classes=num_classes if classes is None else len(classes),
        classes=None if classes is None else tuple(map(str, classes)),
        image_size=size,
        mean=mean,
        std=std,
        is_autocast=False,  # the file says itself what is computed in which type
    )


class _Session:
    """From a tensor of images to a tensor of logits."""

    def __init__(self, session: Any, *, input_name: str, output_name: str) -> None:
        self.session, self.input_name, self.output_name = session, input_name, output_name
        entry = session.get_inputs()[0]
        self.dtype = _TYPES[entry.type]
        self.batch_size = entry.shape[0] if isinstance(entry.shape[0], int) else None

    def __call__(self, images: Tensor) -> Tensor:
        values = np.ascontiguousarray(images.cpu().numpy(), dtype=self.dtype)
        if self.batch_size is None:
            return torch.from_numpy(self._run(values))
        num_missing = -len(values) % self.batch_size  # the last part is filled up with copies of its last image
        values = np.concatenate([values, np.repeat(values[-1:], num_missing, axis=0)])
        parts = [self._run(part) for part in np.split(values, len(values) // self.batch_size)]
        return torch.from_numpy(np.concatenate(parts)[: len(images)])

    def _run(self, values: np.ndarray) -> np.ndarray:
        return self.session.run([self.output_name], {self.input_name: values})[0]


def _start(path: Path, spec: str, *, device: torch.device) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ValueError(f"{spec}: ONNX files need onnxruntime: pip install vitrail[onnx]") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
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
