"""Readers that name the file and say what to do; fingerprints of settings that outlive a new field."""

from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path

import pytest

from vitrail.storage import describe_settings, read_json, read_json_object


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"file\.json can't be read \(No such file or directory\): write it anew$"),
        (b"{", r"file\.json can't be read \(it is not JSON: Expecting .*\): write it anew$"),
        (b"", r"file\.json can't be read \(it is not JSON: "),
        (b'"\xff"', r"file\.json can't be read \(it is not in UTF-8\): write it anew$"),
        (b"[" * 100_000, r"file\.json can't be read \(its lists are nested too deeply\): write it anew$"),
        (b"[1]", r"file\.json must hold an object with keys and values, not a list: write it anew$"),
        (b"null", r"file\.json must hold an object with keys and values, not null: write it anew$"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_json_object(path, remedy="write it anew")
    assert "\n" not in str(caught.value)


def test_what_is_right_is_read_also_with_the_mark_that_editors_put_before_it(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(b'\xef\xbb\xbf{"a": [1]}')
    assert read_json_object(tmp_path / "file.json", remedy="") == {"a": [1]}
    (tmp_path / "file.json").write_text("[1]")
    assert read_json(tmp_path / "file.json", remedy="") == [1]
    with pytest.raises(ValueError, match=r"^the list can't be read"):
        read_json(tmp_path / "nothing.json", remedy="", label="the list")


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5


@dataclass(frozen=True)
class Settings:
    size: int
    depth: int = 12
    inner: Inner = field(default_factory=Inner)
    several: tuple[Inner, ...] = ()


def test_a_new_field_leaves_the_description_and_a_changed_value_does_not() -> None:
    more = make_dataclass("Settings", [("wide", bool, False)], bases=(Settings,), frozen=True)
    for settings in ({"size": 1}, {"size": 1, "depth": 3, "inner": Inner(0.1), "several": (Inner(), Inner(0.2))}):
        assert describe_settings(more(**settings)) == describe_settings(Settings(**settings))
    usual = Settings(1)
    others = [
        replace(usual, size=2),
        replace(usual, depth=13),
        replace(usual, inner=Inner(0.4)),
        replace(usual, several=(Inner(),)),
        replace(usual, several=(Inner(0.4),)),
        more(size=1, wide=True),
    ]
    assert len({describe_settings(settings) for settings in (usual, *others)}) == 1 + len(others)


def test_the_order_of_fields_and_keys_does_not_matter() -> None:
    turned = make_dataclass("Pair", [("b", int, 0), ("a", int, 0)])
    straight = make_dataclass("Pair", [("a", int, 0), ("b", int, 0)])
    assert describe_settings(turned(a=1, b=2)) == describe_settings(straight(a=1, b=2))
    assert describe_settings({"a": 1, "b": [2]}) == describe_settings({"b": [2], "a": 1})
