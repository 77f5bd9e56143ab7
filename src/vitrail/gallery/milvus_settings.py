"""What may be said when a gallery is made on Milvus: its index, how fresh answers are, where thumbnails are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitrail.gallery.milvus_state import MilvusManifest

KINDS = {"exact": "FLAT", "ivf": "IVF_FLAT", "hnsw": "HNSW", "diskann": "DISKANN"}  # our names and Milvus's
CONSISTENCIES = ("Strong", "Session", "Bounded", "Eventually")
_FEW = 200_000  # images up to which "auto" is exact
_MAX_LISTS = 65_536
_PROBED_SHARE, _LEAST_PROBED = 1 / 32, 16
Params = Mapping[str, int | float | str]


@dataclass(frozen=True)
class MilvusSettings:
    """Settings of a new gallery."""

    index_params: Params = field(default_factory=dict)  # of the index, as Milvus names them: M, efConstruction, nlist
    search_params: Params = field(default_factory=dict)  # of each search: ef, nprobe, search_list
    consistency: str = "Strong"  # Strong sees all that was acknowledged; Bounded is faster and may lag by seconds
    partition: bool = False  # images of a coarse class together, for large galleries that are asked by coarse class
    files: str | None = None  # a folder or an address such as s3://BUCKET/PATH for thumbnails

    def __post_init__(self) -> None:
        for name in ("index_params", "search_params"):
            _check_params(name, getattr(self, name))
        if self.consistency not in CONSISTENCIES:
            raise ValueError(f"consistency must be one of {', '.join(CONSISTENCIES)}, not {self.consistency!r}")
        if not isinstance(self.partition, bool):
            raise ValueError(f"partition must be true or false, not {self.partition!r}")
        if self.files is not None and not isinstance(self.files, str):
            raise ValueError(f"files must be a folder or an address, not {self.files!r}")


def choose_kind(name: str, *, num_images: int) -> str:
    """exact, ivf, hnsw or diskann; "auto" goes by the number of images."""
    if name == "auto":
        return "exact" if num_images <= _FEW else "hnsw"
    if name not in KINDS:
        raise ValueError(f"index must be one of {', '.join((*KINDS, 'auto'))} on Milvus, not {name!r}")
    return name


def complete_params(settings: MilvusSettings, *, kind: str, num_images: int) -> dict[str, Any]:
    """The parameters of index and searches, with our defaults where nothing is said."""
    num_lists = max(1, min(_MAX_LISTS, round(4 * num_images**0.5)))
    num_lists = int(settings.index_params.get("nlist", num_lists))
    index: dict[str, dict[str, Any]] = {
        "exact": {},
        "ivf": {"nlist": num_lists},
        "hnsw": {"M": 32, "efConstruction": 200},
        "diskann": {},
    }
    search: dict[str, dict[str, Any]] = {
        "exact": {},
        "ivf": {"nprobe": min(num_lists, max(_LEAST_PROBED, round(_PROBED_SHARE * num_lists)))},
        "hnsw": {"ef": 128},
        "diskann": {"search_list": 128},
    }
    return {
        "index_params": {**index[kind], **settings.index_params},
        "search_params": {**search[kind], **settings.search_params},
    }


def index_of_rows(manifest: MilvusManifest) -> list[tuple[str, str, dict[str, Any]]]:
    """The indexes of the collection of images: of the embeddings, and of what filters ask for."""
    # The client of today takes a `params` apart; inside another it goes as one, which milvus-lite reads, too.
    vector = {"metric_type": "IP", "params": {"params": dict(manifest.index_params)}}
    scalars = ["path_key", *(f"label_{column}" for column in range(len(manifest.levels)))]
    return [
        ("vector", KINDS[manifest.wanted_index], vector),
        *((name, "INVERTED", {"index_name": name}) for name in scalars),
    ]


def fields_of_rows(manifest: MilvusManifest) -> list[tuple[str, str, dict[str, Any]]]:
    """The fields of the collection of images."""
    labels = []
    for column, level in enumerate(manifest.levels):
        is_key = manifest.is_partitioned and level == manifest.coarse
        labels.append((f"label_{column}", "INT64", {"is_partition_key": True} if is_key else {}))
    return [
        ("id", "INT64", {"is_primary": True}),
        ("vector", "FLOAT16_VECTOR" if manifest.is_half else "FLOAT_VECTOR", {"dim": manifest.dim}),
        *labels,
        ("path", "VARCHAR", {"max_length": 65_535}),
        ("path_key", "INT64", {}),
        ("picture_pack", "INT64", {}),
        ("picture_start", "INT64", {}),
        ("picture_size", "INT64", {}),
    ]


def _check_params(name: str, params: Any) -> None:
    if not isinstance(params, Mapping):
        raise ValueError(f"{name} must be names and values, such as {{M: 32}}, not {params!r}")
    for key, value in params.items():
        if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(f"{name}: {key}: {value!r} is no number and no text")
