"""Readers that name the file and say what to do; fingerprints of settings that outlive a new field."""

from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path

import pytest
import yaml

from vitrail.storage import (
    content_of,
    describe_settings,
    parse_yaml,
    read_json,
    read_json_object,
    settle,
    write_json,
)
from vitrail.storage.reading import MAX_DEPTH


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


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 100_000])
def test_lists_in_lists_without_an_end_are_refused(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * depth + "]" * depth)
    with pytest.raises(ValueError, match=r"deep\.json can't be read \(its lists are nested too deeply\): do this$"):
        read_json(path, remedy="do this")
    with pytest.raises(ValueError, match=r"^it can't be read: its lists are nested too deeply$"):
        parse_yaml(path.read_text(), label="it", loader=yaml.SafeLoader)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [*a]", "its lists are nested too deeply"),
        (
            "\n".join(["0: &0 [x]", *(f"{i}: &{i} [{', '.join([f'*{i - 1}'] * 9)}]" for i in range(1, 30))]),
            "unfolds to",
        ),
        ("2026-13-45", "month must be in 1"),
        ("9" * 5000, "4300 digits"),
    ],
)
def test_yaml_that_harms_its_reader_is_one_line(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_yaml(text, label="it", loader=yaml.SafeLoader)
    assert str(caught.value).startswith("it can't be read: ")


def test_what_goes_wrong_with_a_content_names_its_file() -> None:
    with pytest.raises(ValueError, match=r"^a\.json holds wrong values \(KeyError 'x'\): do this$"):  # noqa: SIM117
        with content_of("a.json", remedy="do this"):
            dict[str, int]()["x"]
    with pytest.raises(ValueError, match=r"^a\.json: x is missing$"), content_of("a.json", remedy="do this"):
        raise ValueError("a.json: x is missing")


@pytest.mark.parametrize("names", [["../mine"], ["/etc/mine"], {"mine": 1}, [1]])
def test_an_update_that_a_stranger_left_removes_nothing_outside(tmp_path: Path, names: object) -> None:
    folder = tmp_path / "model"
    (folder / ".update").mkdir(parents=True)
    (tmp_path / "mine").touch()
    write_json(folder / ".update" / ".leaving.json", names)
    with pytest.raises(ValueError, match=r"\.leaving\.json must hold a list of names of files beside it: remove it$"):
        settle(folder)
    assert (tmp_path / "mine").exists()


def test_an_update_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".update").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"\.update leads elsewhere"):
        settle(tmp_path / "model")
    assert (tmp_path / "elsewhere" / "mine").exists()
