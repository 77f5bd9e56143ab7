"""Answers about the images of a data set in their order, of one process or of several that share the images."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from vitrail.data.quarantine import Problem
from vitrail.data.sampler import Ranks
from vitrail.data.turns import own_ranges
from vitrail.inference.passes import Passes
from vitrail.tasks.results import Answer

_NoteUnread = Callable[[Problem], object]


def answer_together(
    passes: Passes, answer: Callable[[_NoteUnread], Iterator[Answer]], note_unread: _NoteUnread
) -> Iterator[Answer]:
    """The answers about all images in the main process, in order and as they come; none in the others.

    `answer` gives those about this process's own images, in order, and notes what can't be read before it answers about
    a later image. Several processes go on piece by piece, so that none of them keeps more than some batches.
    """
    world, num_images, size = passes.world, len(passes.data), passes.batch_size
    own = own_ranges(num_images, batch_size=size, ranks=world.ranks)
    found = _in_order(passes, own, answer)
    if world.num_ranks == 1:
        yield from _without_problems(found, note_unread)
        return
    num_rounds = len(own_ranges(num_images, batch_size=size, ranks=Ranks(0, world.num_ranks)))  # none has more
    for number in range(num_rounds):
        told = list(islice(found, len(own[number]) if number < len(own) else 0))
        everyone = chain.from_iterable(world.gather(told))
        if world.is_main:
            yield from _without_problems(everyone, note_unread)


def _in_order(
    passes: Passes, ranges: Sequence[range], answer: Callable[[_NoteUnread], Iterator[Answer]]
) -> Iterator[Answer | Problem]:
    """For each image of the ranges its answer, or why it can't be read."""
    unread: deque[Problem] = deque()
    answers = answer(unread.append)
    waiting: Answer | None = None
    for index in chain.from_iterable(ranges):
        waiting = waiting or next(answers, None)
        if waiting is not None and waiting.place == passes.data.locate(index):
            yield waiting
            waiting = None
        else:
            yield unread.popleft()


def _without_problems(found: Iterable[Answer | Problem], note_unread: _NoteUnread) -> Iterator[Answer]:
    for one in found:
        if isinstance(one, Problem):
            note_unread(one)
        else:
            yield one
