"""The garbage collector's settings for processes that serve requests."""

import gc

YOUNG_OBJECTS = 10_000
"""Allocated containers after which the youngest generation is collected; CPython's default of 700 collects it several
times per request."""


def freeze_heap() -> None:
    """Exclude all present objects from garbage collection, and collect young ones less often.

    Call it once, when a role has started. Modules, routes and schemas live as long as the process; scanning them in
    each full collection took a fifth of the API's CPU time and delayed open streams.

    A full collection follows when new objects are more than a quarter of those that the last one left. The second
    collection counts without the frozen ones; else garbage of a quarter of the whole program would gather first.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
