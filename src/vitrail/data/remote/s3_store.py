"""Objects of S3 and of whatever speaks its language; where, and who one is, botocore finds in the environment."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from vitrail.data.contract import SourceFailedError
from vitrail.data.remote.addresses import split_bucket
from vitrail.data.remote.extra import import_extra
from vitrail.data.remote.objects import ANSWER_SECONDS, CONNECT_SECONDS, Listed, ObjectMark, Store
from vitrail.data.remote.patience import PassingFaultError, changed, judge_status

Result = TypeVar("Result")


class S3Store(Store):
    """A store by s3fs. botocore finds credentials, region and AWS_ENDPOINT_URL; without any it is asked as a guest."""

    def __init__(self) -> None:
        self._asyn = import_extra("fsspec.asyn", "remote")
        self._errors = import_extra("botocore.exceptions", "remote")
        self._aiohttp = import_extra("aiohttp", "remote")
        self._s3fs = import_extra("s3fs", "remote")
        self._files = self._open(is_guest=False)

    def _open(self, *, is_guest: bool) -> Any:
        settings = {"connect_timeout": CONNECT_SECONDS, "read_timeout": ANSWER_SECONDS, "retries": {"max_attempts": 0}}
        files = self._s3fs.S3FileSystem(
            anon=is_guest, config_kwargs=settings, skip_instance_cache=True, use_listings_cache=False
        )
        files.retries = 1  # `patiently` tries again
        return files

    def look(self, address: str) -> ObjectMark:
        """Ask for the object's head."""
        bucket, key = split_bucket(address)

        async def ask(client: Any) -> ObjectMark:
            head = await client.head_object(Bucket=bucket, Key=key)
            return ObjectMark(int(head["ContentLength"]), head.get("ETag", ""))

        return self._call(address, ask)

    def read(self, address: str, start: int, stop: int, *, mark: ObjectMark) -> bytes:
        """A range of the object, which the store gives only if it still has the same mark."""
        bucket, key = split_bucket(address)

        async def ask(client: Any) -> bytes:
            condition = {"IfMatch": mark.tag} if mark.tag else {}
            answer = await client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **condition)
            async with answer["Body"] as body:
                if answer.get("ETag", "") != mark.tag:
                    raise changed(address)
                return await _read_all(body, stop - start)

        data = self._call(address, ask)
        if len(data) < stop - start:
            raise PassingFaultError(f"an answer cut short: {len(data):,} of {stop - start:,} bytes")
        return data

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects whose addresses begin so, page by page."""
        bucket, start = split_bucket(prefix)
        token: str | None = None
        while True:

            async def ask(client: Any, token: str | None = token) -> Any:
                further = {"ContinuationToken": token} if token else {}
                return await client.list_objects_v2(Bucket=bucket, Prefix=start, **further)

            page = self._call(prefix, ask)
            for entry in page.get("Contents", ()):
                yield Listed(f"s3://{bucket}/{entry['Key']}", ObjectMark(int(entry["Size"]), entry.get("ETag", "")))
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or token is None:
                return

    def write(self, address: str, path: Path) -> None:
        """Upload a file, in parts where it is long; it is an object when all of it is there."""
        bucket, key = split_bucket(address)
        try:
            self._files.put_file(str(path), f"{bucket}/{key}")
        except PermissionError:
            raise judge_status(address, 403) from None
        except FileNotFoundError:
            raise SourceFailedError(f"{address}: there is no bucket {bucket!r}") from None
        except self._errors.NoCredentialsError:
            raise judge_status(address, 401) from None
        except self._passing as error:
            raise PassingFaultError(f"the upload failed ({type(error).__name__})") from None

    def _call(self, address: str, ask: Callable[[Any], Awaitable[Result]]) -> Result:
        """What the store answers, or what its error means."""

        async def call() -> Result:
            await self._files.set_session()
            return await ask(await self._files.get_s3(split_bucket(address)[0]))

        try:
            return self._asyn.sync(self._files.loop, call)
        except self._errors.ClientError as error:
            details = error.response
            code = str(details.get("Error", {}).get("Code", ""))
            if code == "NoSuchBucket":
                raise SourceFailedError(f"{address}: there is no bucket {split_bucket(address)[0]!r}") from None
            status = int(details.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or 500
            raise judge_status(address, 429 if code == "SlowDown" else status) from None
        except self._errors.NoCredentialsError:
            if self._files.anon:
                raise judge_status(address, 401) from None
            self._files = self._open(is_guest=True)
            return self._call(address, ask)
        except self._errors.ParamValidationError:
            raise SourceFailedError(f"{address} is no address of an object: write s3://BUCKET/KEY") from None
        except self._passing as error:
            raise PassingFaultError(f"no answer ({type(error).__name__})") from None

    @property
    def _passing(self) -> tuple[type[BaseException], ...]:
        """What connections and answers break with."""
        errors = self._errors
        return (errors.BotoCoreError, self._aiohttp.ClientError, asyncio.TimeoutError, OSError)


async def _read_all(body: Any, size: int) -> bytes:
    """So many bytes of an answer, which gives those that have arrived, or all that there are."""
    data = bytearray()
    while len(data) < size and (part := await body.read(size - len(data))):
        data += part
    return bytes(data)
