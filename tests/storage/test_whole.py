"""Files and folders of files: whole under their names, whatever ends the process that writes them."""

import errno
import os
from pathlib import Path

import pytest
from interrupted import interrupt

from vitrail.storage import install_folder, is_partial, replacing, replacing_files, settle, write_json, write_text

OLD = {"config": "old", "weights": "old", "left out": "old"}
NEW = {"config": "new", "weights": "new", "added": "new"}


def fill(folder: Path, contents: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text)


def contents_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if not is_partial(path)}


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("ne")
        assert path.read_text() == "old"
        temporary.write_text("new")
    assert contents_of(tmp_path) == {"file": "new"}
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(f"{1 / 0}")
    assert contents_of(tmp_path) == {"file": "new"}
    assert not any(map(is_partial, tmp_path.iterdir()))


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere") as caught:
        write_json(tmp_path / "nowhere" / "plan.json", {"step": 1})
    assert caught.value.filename == str(tmp_path / "nowhere" / "plan.json")
    with pytest.raises(OSError) as caught, replacing_files(tmp_path / "model", keeps_others=True) as draft:  # noqa: PT011
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(draft / "weights"))
    assert caught.value.filename == str(tmp_path / "model" / "weights")
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_file_do_not_meet_under_its_temporary_name(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as one, replacing(tmp_path / "file") as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert contents_of(tmp_path) == {"file": "one"}


@pytest.mark.parametrize("keeps_others", [True, False])
def test_files_of_a_folder_change_together(tmp_path: Path, keeps_others: bool) -> None:
    fill(tmp_path / "folder", OLD)
    with replacing_files(tmp_path / "folder", keeps_others=keeps_others) as draft:
        fill(draft, NEW)
        assert contents_of(tmp_path / "folder") == OLD
    assert contents_of(tmp_path / "folder") == (OLD | NEW if keeps_others else NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_new_folder_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    with replacing_files(tmp_path / "a" / "folder", keeps_others=True) as draft:
        fill(draft, NEW)
        assert not (tmp_path / "a" / "folder").exists()
    assert contents_of(tmp_path / "a" / "folder") == NEW


@pytest.mark.parametrize("at", [1, 2, 3, 4])  # the decision, and three files that take their places
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("keeps_others", [True, False])
def test_ctrl_c_at_any_rename_leaves_all_old_files_or_all_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, is_after: bool, keeps_others: bool
) -> None:
    folder = tmp_path / "folder"
    fill(folder, OLD)
    with monkeypatch.context() as patch:
        interrupt(patch, at=at, is_after=is_after)
        with pytest.raises(KeyboardInterrupt), replacing_files(folder, keeps_others=keeps_others) as draft:
            fill(draft, NEW)
    settle(folder)
    is_new = (at, is_after) != (1, False)
    assert contents_of(folder) == ((OLD | NEW if keeps_others else NEW) if is_new else OLD)
    with replacing_files(folder, keeps_others=False) as draft:
        fill(draft, {"config": "newest"})
    assert contents_of(folder) == {"config": "newest"}


def test_a_writer_finishes_what_another_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    fill(folder, OLD)
    fill(tmp_path / "draft", NEW)
    with monkeypatch.context() as patch:
        interrupt(patch, at=2, is_after=False)
        with pytest.raises(KeyboardInterrupt):
            install_folder(tmp_path / "draft", folder, keeps_others=True)
    with replacing_files(folder, keeps_others=True) as draft:
        fill(draft, {"weights": "newest"})
    assert contents_of(folder) == OLD | NEW | {"weights": "newest"}


def test_what_can_not_be_finished_is_said_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "folder", OLD)
    fill(tmp_path / "folder" / ".update", NEW)

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ValueError, match=r"folder: writing it was cut short and can't be finished here \(Read-only"):
        settle(tmp_path / "folder")


def test_text_is_utf_8_with_the_line_ends_it_has(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "été\r\n\udce9\n", errors="surrogateescape")
    assert (tmp_path / "file").read_bytes() == "été\r\n".encode() + b"\xe9\n"
