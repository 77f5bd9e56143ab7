"""The server's log: lines of JSON that wait for nothing and lose nothing."""

import json
import logging
import sys

import pytest

from vitrail.data.decode.library_lines import LIBRARY_LINES
from vitrail.serving.telemetry import LOGGER, logging_to_stderr


def test_lines_are_written_at_once_and_whole_while_images_are_decoded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    former = logging.getLogger("vitrail").handlers
    with open(2, "w", closefd=False) as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        with logging_to_stderr(), LIBRARY_LINES:
            LOGGER.info("asked for the class Corrupt JPEG data: bad Huffman code", extra={"fields": {"status": 400}})
            told = json.loads(capfd.readouterr().err)
    assert (told["message"], told["status"]) == ("asked for the class Corrupt JPEG data: bad Huffman code", 400)
    assert logging.getLogger("vitrail").handlers is former
    assert capfd.readouterr().err == ""
