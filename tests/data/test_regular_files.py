"""Reading what lies on a disk: regular files alone."""

import os
from pathlib import Path

import pytest

from vitrail.data.regular_files import MAX_FILE_BYTES, read_regular_file


def test_a_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    for content in (b"", b"x", bytes(range(256)) * 9):
        (tmp_path / "file").write_bytes(content)
        assert read_regular_file(tmp_path / "file") == content
    (tmp_path / "link").symlink_to("file")
    assert read_regular_file(tmp_path / "link") == content


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/urandom", "pipe", "link", "."])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, place: str) -> None:
    if place == "pipe":
        os.mkfifo(tmp_path / place)
    if place == "link":
        (tmp_path / place).symlink_to("/dev/zero")
    with pytest.raises(OSError, match=r"^is a (device|pipe|folder), not a file with an image$"):
        read_regular_file(tmp_path / place)


def test_an_enormous_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(OSError, match="is a file of 536 MB, more than the limit of 536 MB for an image"):
        read_regular_file(tmp_path / "file")


def test_a_name_that_no_file_can_have_is_an_error_of_the_disk() -> None:
    with pytest.raises(OSError, match="null"):
        read_regular_file("a\0b")
