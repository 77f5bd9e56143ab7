"""Objects of web servers, by ranges of their bytes; redirects are followed to other web servers and nowhere else."""

import asyncio
import re
from typing import Any

from vitrail.data.contract import SourceFailedError
from vitrail.data.remote.extra import import_extra
from vitrail.data.remote.objects import ANSWER_SECONDS, CONNECT_SECONDS, ObjectMark, Store
from vitrail.data.remote.patience import PassingFaultError, changed, judge_status

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_NONE_OF = re.compile(r"bytes \*/(\d+)")
_MAX_REDIRECTS = 5


class WebStore(Store):
    """Files that a web server gives, with or without ranges."""

    can_list = False
    can_write = False

    def __init__(self) -> None:
        self._aiohttp = import_extra("aiohttp", "remote")
        self._asyn = import_extra("fsspec.asyn", "remote")
        timeout = self._aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS
        )
        # trust_env: names and passwords of ~/.netrc, proxies of the environment
        settings = {"trust_env": True, "timeout": timeout, "auto_decompress": False}
        files = import_extra("fsspec", "remote").filesystem("http", client_kwargs=settings, skip_instance_cache=True)
        self._files = files

    def look(self, address: str) -> ObjectMark:
        """Ask for the first byte: the answer says how long the object is, and whether the server knows ranges."""
        status, headers, _ = self._get(address, 0, 1, reads=False)
        if status == 416 and (found := _NONE_OF.fullmatch(headers.get("Content-Range", ""))):
            return ObjectMark(int(found[1]), _tag_of(headers))
        if status == 206 and (found := _RANGE.fullmatch(headers.get("Content-Range", ""))):
            return ObjectMark(int(found[3]), _tag_of(headers))
        if status == 200 and headers.get("Content-Length", "").isdecimal() and _is_plain(headers):
            return ObjectMark(int(headers["Content-Length"]), _tag_of(headers))
        if status in (200, 206):
            raise SourceFailedError(f"{address}: the server does not say how long it is, so it can't be read in parts")
        raise judge_status(address, status)

    def read(self, address: str, start: int, stop: int, *, mark: ObjectMark) -> bytes:
        """A range; of a server that gives all or nothing, all of what fits one range."""
        status, headers, data = self._get(address, start, stop, reads=True)
        if status not in (200, 206):
            raise judge_status(address, status)
        if _tag_of(headers) != mark.tag:
            raise changed(address)
        if status == 200:
            self._check_whole(address, headers, start=start, stop=stop, mark=mark)
        else:
            found = _RANGE.fullmatch(headers.get("Content-Range", ""))
            if found is None or int(found[1]) != start:
                raise PassingFaultError("an answer with another range than was asked for")
            if int(found[3]) != mark.size:
                raise changed(address)
        if len(data) < stop - start:
            raise PassingFaultError(f"an answer cut short: {len(data):,} of {stop - start:,} bytes")
        return data

    def _check_whole(self, address: str, headers: Any, *, start: int, stop: int, mark: ObjectMark) -> None:
        if headers.get("Content-Length", str(mark.size)) != str(mark.size):
            raise changed(address)
        if not _is_plain(headers) or (start, stop) != (0, mark.size):
            raise SourceFailedError(
                f"{address}: the server gives no ranges of bytes, which a file of {mark.size:,} bytes needs: serve it "
                "from one that does (nginx, S3), or copy the data to this disk"
            )

    def _get(self, address: str, start: int, stop: int, *, reads: bool) -> tuple[int, Any, bytes]:
        """Status, headers and, where asked for, as many bytes of the body as the range has."""
        aiohttp = self._aiohttp
        try:
            return self._asyn.sync(self._files.loop, self._ask, address, start, stop, reads)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise SourceFailedError(f"{address}, or what it redirects to, is no address of a web server") from None
        except aiohttp.TooManyRedirects:
            raise SourceFailedError(f"{address} redirects more than {_MAX_REDIRECTS} times") from None
        except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, ConnectionError) as error:
            # The words of an error may hold the address of a redirect, with a signature in it: its kind says enough.
            raise PassingFaultError(_kind(error)) from None

    async def _ask(self, address: str, start: int, stop: int, reads: bool) -> tuple[int, Any, bytes]:
        session = await self._files.set_session()
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        async with session.get(address, headers=headers, max_redirects=_MAX_REDIRECTS) as answer:
            parts: list[bytes] = []
            left = stop - start if reads and answer.status in (200, 206) else 0
            while left > 0 and (part := await answer.content.read(left)):
                parts.append(part)
                left -= len(part)
            if not reads or answer.status == 200:
                answer.close()  # the rest of a body that nobody wants
            return answer.status, answer.headers, b"".join(parts)


def _tag_of(headers: Any) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _is_plain(headers: Any) -> bool:
    """Whether the length is that of the file, not of what it was compressed to on its way."""
    return headers.get("Content-Encoding", "identity") in ("identity", "")


def _kind(error: BaseException) -> str:
    """A lost connection in few words, without what the error says itself."""
    name = type(error).__name__
    if "Timeout" in name:
        return "no answer in time"
    if "Connector" in name or isinstance(error, ConnectionRefusedError):
        return "no connection"
    return f"connection lost ({name})"
