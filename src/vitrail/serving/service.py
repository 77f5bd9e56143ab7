"""What the routes ask: images in, answers out, through workers that decode, queues, and batches by turns."""

import asyncio
import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from vitrail.serving.batching import Batcher, ComputeLane
from vitrail.serving.decoding import NewImage, Workers, make_new, make_seen, make_shown, open_checked
from vitrail.serving.fleet import Fleet
from vitrail.serving.keys import KeyRing, read_keys
from vitrail.serving.limits import ServingLimits
from vitrail.serving.refusals import RefusedError
from vitrail.serving.served_gallery import ServedGallery
from vitrail.serving.served_model import EMBED, EXPLAIN, DrawnAnswer, DrawnMap, MapQuestion, ServedModel
from vitrail.serving.telemetry import LOGGER, Telemetry
from vitrail.serving.turns import Turns

Pixels = bytes | np.ndarray  # an encoded image, or uint8 [height, width, 3]
Result = TypeVar("Result")
_COUNT_SECONDS = 2.0  # in which galleries are counted; of one that takes longer, the last count is told
_ASKING = 4  # questions to a gallery that are answered at a time
_MOST_ASKING, _MOST_CHANGING = 64, 8  # that wait for each gallery
_RENDERERS = 2  # threads that write answers


class Crew:
    """A fleet with the queues in front of its models; a request stays with the crew that it began with."""

    def __init__(self, fleet: Fleet, *, lane: ComputeLane, limits: ServingLimits, telemetry: Telemetry) -> None:
        self.fleet = fleet
        self._lane, self._limits, self._telemetry = lane, limits, telemetry
        self.batchers: dict[tuple[str, str], Batcher[Any, Any]] = {}
        # Of each gallery, so that a database that hangs holds up its own clients alone.
        self.questions = {
            name: Turns(_ASKING, most=_MOST_ASKING, status=503, what=f"questions to the gallery {name!r}")
            for name in fleet.galleries
        }
        self.changes = {
            name: Turns(1, most=_MOST_CHANGING, status=429, what=f"changes of the gallery {name!r}")
            for name in fleet.galleries
        }

    def model(self, name: str, ability: str | None = None) -> ServedModel:
        """The model of that name, which must be able to do what is asked."""
        found = self.fleet.models.get(name)
        if found is None:
            raise RefusedError(404, f"no model {name[:64]!r}; there are: {', '.join(self.fleet.models) or 'none'}")
        if ability is not None:
            found.require(ability)
        return found

    def gallery(self, name: str) -> ServedGallery:
        """The gallery of that name."""
        found = self.fleet.galleries.get(name)
        if found is None:
            raise RefusedError(404, f"no gallery {name[:64]!r}; there are: {', '.join(self.fleet.galleries) or 'none'}")
        return found

    def gallery_of(self, model: ServedModel, name: str | None) -> ServedGallery:
        """The gallery whose embeddings are a model's: the one that is named, or the only one."""
        fitting = {one.name: one for one in self.fleet.galleries.values() if one.viewer is model}
        if name is None and len(fitting) == 1:
            return next(iter(fitting.values()))
        if name is not None and name in fitting:
            return fitting[name]
        known = ", ".join(fitting) or "none"
        raise RefusedError(404, f"say which gallery of the model {model.name!r} is searched; there are: {known}")

    async def ask(self, gallery: ServedGallery, question: Callable[[], Result]) -> Result:
        """What a question to a gallery gives, beside all that does not wait for its database."""
        return await self.questions[gallery.name].run(question)

    async def change(self, gallery: ServedGallery, work: Callable[[], Result]) -> Result:
        """Change a gallery to the end, also for a client that has gone: half a change there is not."""
        return await self.changes[gallery.name].run(work)

    def batcher(self, model: ServedModel, verb: str) -> Batcher[Any, Any]:
        """The queue in front of a computation of a model."""
        key = model.name, verb
        if key not in self.batchers:
            compute: Callable[[list[Any]], Sequence[Any]]
            if verb == EMBED:
                compute, max_batch = model.compute_embeddings, None
            elif verb == EXPLAIN:
                compute, max_batch = model.compute_maps, 1
            elif model.answers_by_logits:
                compute, max_batch = model.compute_logits, None
            else:
                compute, max_batch = model.compute_answers, 1
            telemetry = self._telemetry

            def note(count: int, seconds: float) -> None:
                telemetry.batches.labels(*key).observe(count)
                telemetry.computing.labels(*key).observe(seconds)

            self.batchers[key] = Batcher(
                compute,
                lane=self._lane,
                limits=self._limits,
                max_batch=max_batch,
                may_part=model.may_part and max_batch is None,
                note=note,
            )
        return self.batchers[key]

    async def close(self) -> None:
        """Wait until all that was asked is answered."""
        await asyncio.gather(*(one.close() for one in self.batchers.values()))

    def end(self) -> None:
        """End the threads of galleries; without it, they end when no request has the crew any more."""
        for turns in (*self.questions.values(), *self.changes.values()):
            turns.close()


class Service:
    """The server without HTTP."""

    def __init__(
        self,
        load: Callable[[], Fleet],
        *,
        limits: ServingLimits | None = None,
        keys_file: Path | None = None,
        num_workers: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.limits, self.telemetry = limits or ServingLimits(), Telemetry()
        self._load, self._keys_file = load, keys_file
        self.keys: KeyRing | None = None if keys_file is None else read_keys(keys_file)
        self.lane = ComputeLane(threads=threads)
        self.workers = Workers(num_workers or min(8, 2 + (os.cpu_count() or 1)))
        self.renderers = Workers(_RENDERERS)  # an answer that is there does not wait for images that are to be decoded
        self._loaders = Workers(1)  # what is loaded anew may take long
        self._counting: dict[ServedGallery, asyncio.Task[None]] = {}
        self.crew = self._gather(load())
        self._reloading = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self.held = 0  # bytes of requests that are being answered, and of answers that clients have not taken
        self.is_draining = False

    def _gather(self, fleet: Fleet) -> Crew:
        return Crew(fleet, lane=self.lane, limits=self.limits, telemetry=self.telemetry)

    async def reload(self) -> bool:
        """Load everything anew, keys too, and let it take over; what is wrong leaves all as it is."""
        async with self._reloading:
            try:
                keys = None if self._keys_file is None else read_keys(self._keys_file)
                context = contextvars.copy_context()  # with it, what the user has said to trust
                crew = self._gather(await self._loaders.run(context.run, self._load))
            except Exception as error:  # a file that is half written is no reason to stop serving
                LOGGER.error("not loaded anew: %s", error, extra={"fields": {"event": "reload"}})
                self.telemetry.reloads.labels("failed").inc()
                return False
            former, self.crew, self.keys = self.crew, crew, keys
            leaving = asyncio.create_task(former.close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            LOGGER.info("loaded anew", extra={"fields": {"event": "reload"}})
            self.telemetry.reloads.labels("loaded").inc()
            return True

    async def close(self) -> None:
        """End when all is answered."""
        await self.crew.close()
        for leaving in list(self._leaving):
            await leaving
        self.lane.close()
        self.workers.close()
        self.renderers.close()
        self._loaders.close()
        for counting in list(self._counting.values()):
            counting.cancel()
        self.crew.end()

    @contextlib.contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a request while it is answered; more than all may hold is refused."""
        own = 0

        def hold(count: int) -> None:
            nonlocal own
            if self.held + count > self.limits.max_held:
                raise RefusedError(429, "the server holds as many requests as it can: try again later", retry_after=1.0)
            own += count
            self.held += count

        try:
            yield hold
        finally:
            self.held -= own

    async def measure(self) -> bytes:
        """All numbers at this moment, as Prometheus reads them; of a gallery that can't be counted now, the last."""
        await self._count_galleries()
        for (name, verb), batcher in self.crew.batchers.items():
            self.telemetry.queue.labels(name, verb).set(len(batcher))
        self.telemetry.held.set(self.held)
        return self.telemetry.render()

    async def _count_galleries(self) -> None:
        for gallery in self.crew.fleet.galleries.values():
            if gallery not in self._counting:
                self._counting[gallery] = asyncio.create_task(self._count(self.crew, gallery))
        if self._counting:
            await asyncio.wait(list(self._counting.values()), timeout=_COUNT_SECONDS)

    async def _count(self, crew: Crew, gallery: ServedGallery) -> None:
        try:
            with contextlib.suppress(RefusedError):  # the log tells why
                self.telemetry.gallery.labels(gallery.name).set(await crew.ask(gallery, lambda: len(gallery)))
        finally:
            del self._counting[gallery]

    async def look(self, crew: Crew, model: ServedModel, verb: str, images: Sequence[Pixels]) -> list[Tensor]:
        """What one pass says about each image: its logits, or its embedding."""
        with crew.batcher(model, verb).reserve(len(images)) as place:
            view, most = model.trained.view, self.limits.max_pixels
            if len(images) == 1:
                seen = [await self.workers.run(make_seen, images[0], view, most)]
            else:
                seen = await self.workers.map(make_seen, images, view, most)
            return await place.ask(seen)

    async def answer(self, crew: Crew, model: ServedModel, verb: str, images: Sequence[bytes]) -> list[DrawnAnswer]:
        """Answers about places in each image."""
        with crew.batcher(model, verb).reserve(len(images)) as place:
            opened = await self.workers.map(open_checked, images, self.limits.max_pixels)
            if sum(one.height * one.width for one in opened) > self.limits.max_pixels:  # pictures are drawn of them all
                most = self.limits.max_pixels / 1e6
                raise RefusedError(413, f"the images have more than {most:,.4g} megapixels together: send fewer")
            return await place.ask(list(images))

    async def explain(self, crew: Crew, model: ServedModel, image: bytes, **asked: Any) -> DrawnMap:
        """A map of an image, as `MapQuestion` says it."""
        with crew.batcher(model, EXPLAIN).reserve(1) as place:
            shown = await self.workers.run(make_shown, image, model.trained.view, self.limits.max_pixels)
            return (await place.ask([MapQuestion(shown, **asked)]))[0]

    async def prepare(
        self, crew: Crew, gallery: ServedGallery, images: Sequence[bytes]
    ) -> tuple[list[NewImage], list[Tensor]]:
        """What a gallery keeps of images, and their embeddings; nothing is changed yet."""
        crew.changes[gallery.name].check()
        with crew.batcher(gallery.viewer, EMBED).reserve(len(images)) as place:
            view = gallery.viewer.trained.view
            found = await self.workers.map(make_new, images, view, self.limits.max_pixels)
            return [one for one, _ in found], await place.ask([seen for _, seen in found])
