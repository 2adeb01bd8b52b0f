"""Work on many items in turn, in which one that fails does not stop the others."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


async def for_each(items: Iterable[T], act: Callable[[T], Awaitable[object]], subject: str) -> None:
    """Await `act(item)` for every item in turn. `subject` names an item in the log, such as "organisation".

    Raises an ExceptionGroup of all failures after the last item. Each is logged when it happens.
    """
    failures: list[Exception] = []
    for item in items:
        try:
            await act(item)
        except Exception as error:
            log.exception("%s %s failed", subject, item)
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{subject}: {len(failures)} failed", failures)
