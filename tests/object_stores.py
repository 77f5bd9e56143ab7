"""Stores on loopback: a web server that knows ranges and can be told to fail, and moto's S3."""

import contextlib
import email.utils
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

# What a server may do with a request, given the number of those before it: None is an answer as it should be.
Fault = Callable[[int, str], str | None]


class WebServer:
    """A folder behind HTTP. `fault` names what goes wrong: drop, cut, slow, a status, or a whole answer for a range."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fault = folder, _no_fault
        self.requests: list[tuple[str, str | None]] = []  # path and range
        self.redirects: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                number = len(server.requests)
                server.requests.append((self.path, self.headers.get("Range")))
                _answer(server, self, server.fault(number, self.path))

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _no_fault(number: int, path: str) -> str | None:
    return None


def _answer(server: WebServer, handler: Any, fault: str | None) -> None:
    if fault == "drop":
        handler.close_connection = True
        handler.connection.close()
        return
    if fault is not None and fault.isdecimal():
        handler.send_response(int(fault))
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if handler.path in server.redirects:
        handler.send_response(302)
        handler.send_header("Location", server.redirects[handler.path])
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    path = server.folder / handler.path.lstrip("/")
    if not path.is_file():
        handler.send_response(404)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    data = path.read_bytes()
    total = len(data)
    asked = handler.headers.get("Range")
    if asked is not None and fault != "whole":
        first, last = asked.removeprefix("bytes=").split("-")
        start, stop = int(first), min(int(last) + 1, total)
        if start >= total:
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{total}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        data = data[start:stop]
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
    else:
        handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    if fault != "no tag":
        handler.send_header("ETag", f'"{hashlib.md5(path.read_bytes()).hexdigest()}"')
        handler.send_header("Last-Modified", email.utils.formatdate(path.stat().st_mtime, usegmt=True))
    handler.end_headers()
    if fault == "slow":
        time.sleep(0.1)
    if fault == "cut":
        data = data[: len(data) // 2]
        handler.close_connection = True
    with contextlib.suppress(ConnectionError):
        handler.wfile.write(data)


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[WebServer]:
    """A server of a folder."""
    server = WebServer(folder)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """moto's S3 on loopback, with the bucket `bucket`; its address. It answers for real, over HTTP."""
    pytest.importorskip("s3fs", reason="needs the extra remote")
    server_module = pytest.importorskip("moto.server", reason="needs moto's server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "loopback",
    "AWS_SECRET_ACCESS_KEY": "secret-of-loopback",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def put_objects(endpoint: str, objects: dict[str, bytes], *, bucket: str = "bucket", access: str = "private") -> None:
    """Make objects in a bucket, which is made if need be; `access` says who may read them, in the words of S3."""
    import boto3

    settings = {
        "aws_access_key_id": S3_ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": S3_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        "region_name": S3_ENVIRONMENT["AWS_DEFAULT_REGION"],
    }
    client = boto3.client("s3", endpoint_url=endpoint, **settings)
    client.create_bucket(Bucket=bucket)
    for key, content in objects.items():
        client.put_object(Bucket=bucket, Key=key, Body=content, ACL=access)
    client.close()


def put_folder(endpoint: str, folder: Path, prefix: str) -> None:
    """Copy the files of a folder into the bucket."""
    put_objects(
        endpoint,
        {f"{prefix}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()},
    )
