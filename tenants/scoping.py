"""The mark of a repository function that reads or writes across organisations on purpose.

Every function that touches a table with a tenant_id must be scoped by it or carry this mark; a test reads the source
and fails on any other (tests/architecture/test_tenant_scoping.py).
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def platform_wide(reason: str) -> Callable[[F], F]:
    """Mark a function as deliberately not scoped to a tenant; `reason` says why, for the reader."""
    if not reason:
        raise ValueError("say why the function is platform-wide")

    def mark(function: F) -> F:
        return function

    return mark
