"""Addresses of data elsewhere: `s3://bucket/key`, `gs://bucket/key`, `https://host/path`; and nothing on this disk."""

import posixpath
import re
from urllib.parse import urlsplit

SCHEMES = ("s3", "gs", "https", "http")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*)://")
_LOCAL = {"file": "a path without file://", "local": "a path without local://"}


def is_address(text: str) -> bool:
    """Whether a text is an address of any kind, also of one that is refused; hf:// is a data set of its own kind."""
    found = _SCHEME.match(text)
    return found is not None and found[1].lower() != "hf"


def check_address(text: str) -> str:
    """The address, if it is one that data may be read from; what it must not hold is refused before anything is asked.

    An address is written into recipes, logs and lists of files: one with a password or a signature in it is refused.
    """
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    if scheme not in SCHEMES:
        kinds = ", ".join(f"{name}://" for name in SCHEMES)
        instead = f": write {_LOCAL[scheme]}" if scheme in _LOCAL else ""
        raise ValueError(f"data can't be read from {scheme}://; it can from {kinds}{instead}")
    rest = text[len(scheme) + 3 :]
    host, _, path = rest.partition("/")
    if "@" in host:
        raise ValueError(
            f"an address with a name or password before the @ is refused, since it would be written into recipes and "
            f"logs: {_where_credentials(scheme)}"
        )
    if scheme in ("http", "https") and ("?" in path or "#" in path):
        raise ValueError(
            f"{scheme}://{host}/...: an address with ? or # in it is refused, since it may hold a signature that "
            "would be written into recipes and logs: name a bucket by s3:// or gs://"
        )
    if not host or any(ord(letter) < 32 for letter in text):
        raise ValueError(f"{text!r} is no address of data: write {scheme}://PLACE/PATH")
    return f"{scheme}://{rest}"


def _where_credentials(scheme: str) -> str:
    if scheme == "s3":
        return "S3's are taken from AWS_ACCESS_KEY_ID and its like, or ~/.aws/credentials"
    if scheme == "gs":
        return "Google's are taken from GOOGLE_APPLICATION_CREDENTIALS or gcloud's own file"
    return "those of a web server are taken from ~/.netrc"


def scheme_of(address: str) -> str:
    """What stands before ://."""
    return address.partition("://")[0]


def join_address(folder: str, name: str) -> str:
    """The address of something below a folder; what leads out of it, and paths of this disk, are refused."""
    if is_address(name):
        return check_address(name)
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[\\/]", name):
        raise ValueError(f"{name!r} is a path of this machine's disk, and the data is at {folder}: paths start there")
    tidy = posixpath.normpath(name)
    if tidy.startswith("../") or tidy in ("..", "."):
        raise ValueError(f"{name!r} leads out of {folder}: paths start there and stay below it")
    return f"{folder.rstrip('/')}/{tidy}"


def parent_of(address: str) -> str:
    """The folder that an address lies in, without a slash at its end."""
    return address.rstrip("/").rpartition("/")[0]


def name_of(address: str) -> str:
    """The last part of an address."""
    return address.rstrip("/").rpartition("/")[2]


def split_bucket(address: str) -> tuple[str, str]:
    """The bucket and the key of an address of an object store."""
    bucket, _, key = address.partition("://")[2].partition("/")
    return bucket, key


def quote_host(address: str) -> str:
    """The server or bucket of an address, for messages."""
    return urlsplit(address).netloc
