"""Files that must be whole: written under another name first, held by one process at a time, checked when read.

The lowest room: it imports nothing of ours, and torch only in `tensors`.
"""

from vitrail.storage.csv_text import csv_text, guard_cell
from vitrail.storage.fingerprints import describe_settings, hash_file, hash_text
from vitrail.storage.folders import install_folder, replacing_files, settle
from vitrail.storage.locks import locked
from vitrail.storage.reading import read_json, read_json_object
from vitrail.storage.whole import is_partial, link_whole, remove, replacing, sync, write_json, write_text, write_whole

__all__ = [
    "csv_text",
    "describe_settings",
    "guard_cell",
    "hash_file",
    "hash_text",
    "install_folder",
    "is_partial",
    "link_whole",
    "locked",
    "read_json",
    "read_json_object",
    "remove",
    "replacing",
    "replacing_files",
    "settle",
    "sync",
    "write_json",
    "write_text",
    "write_whole",
]
