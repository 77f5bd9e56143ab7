"""Files that must be whole: written under another name first, held by one process at a time, checked when read.

The lowest room: it imports nothing of ours, and torch only in `tensors`.
"""

from vitrail.storage.csv_text import CsvWriter, bare_cell, csv_text, guard_cell
from vitrail.storage.fingerprints import describe_settings, hash_file, hash_text
from vitrail.storage.folders import install_folder, replacing_files, settle
from vitrail.storage.locks import locked
from vitrail.storage.reading import (
    check_nesting,
    content_of,
    parse_json,
    parse_yaml,
    read_json,
    read_json_lines,
    read_json_object,
    read_text,
    read_xml,
)
from vitrail.storage.whole import is_partial, link_whole, remove, replacing, sync, write_json, write_text, write_whole

__all__ = [
    "CsvWriter",
    "bare_cell",
    "check_nesting",
    "content_of",
    "csv_text",
    "describe_settings",
    "guard_cell",
    "hash_file",
    "hash_text",
    "install_folder",
    "is_partial",
    "link_whole",
    "locked",
    "parse_json",
    "parse_yaml",
    "read_json",
    "read_json_lines",
    "read_json_object",
    "read_text",
    "read_xml",
    "remove",
    "replacing",
    "replacing_files",
    "settle",
    "sync",
    "write_json",
    "write_text",
    "write_whole",
]
