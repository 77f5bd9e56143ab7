"""A group of settings: frozen, typed, and read from YAML without code.

The sentence below each field is its description: `vitrail recipes show` prints it beside the key.
"""

import math
from collections.abc import Mapping, Set
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from vitrail.settings.limits import MAX_SIDE

Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
ImageSize = Side | tuple[Side, Side]


class Section(BaseModel):
    """A group of settings: unknown keys and wrong types are errors, and nothing changes once it is made."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    def unused(self) -> Set[str]:
        """Fields that have no effect beside the values of the others; `vitrail recipes show` leaves them out."""
        return frozenset()

    @classmethod
    def describe_field(cls, name: str) -> str:
        """The sentence below a field, in this class or in the nearest parent that has one."""
        kinds = (kind for kind in cls.__mro__ if issubclass(kind, Section) and name in kind.model_fields)
        return next((str(text) for kind in kinds if (text := kind.model_fields[name].description)), "")

    @field_validator("*", mode="before")
    @classmethod
    def refuse_what_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true for 1 and infinity for a number of epochs, which pydantic would take."""
        assert info.field_name is not None
        field = cls.model_fields[info.field_name]
        if isinstance(field.default, Section):  # it looks at its own
            return value
        items = value if isinstance(value, (list, tuple)) else (value,)
        takes_flags = field.annotation is bool or bool in get_args(field.annotation)
        if not takes_flags and any(isinstance(item, bool) for item in items):
            raise PydanticCustomError("no_number", "true and false are no values of it")
        if isinstance(value, (Mapping, list, tuple)):
            from vitrail.storage import check_nesting

            check_nesting(value)
        if isinstance(value, Mapping) and _has_infinite(value):  # of other fields pydantic sees to it
            raise PydanticCustomError("no_number", "numbers must be finite")
        return value


def _has_infinite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_infinite, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_infinite, value))
    return isinstance(value, float) and not math.isfinite(value)
