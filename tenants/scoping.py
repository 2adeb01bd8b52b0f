"""The decorator of repository functions that read or write across organisations on purpose.

A function that uses a table with a tenant_id must filter by it or carry this decorator
(tests/architecture/test_tenant_scoping.py reads the source).
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def platform_wide(reason: str) -> Callable[[F], F]:
    """Mark a function as deliberately not scoped to a tenant. Raises ValueError for an empty `reason`."""
    if not reason:
        raise ValueError("say why the function is platform-wide")

    def decorate(function: F) -> F:
        return function

    return decorate
