"""Fixtures of invoicing tests."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.billing.invoicing.support import Platform


@pytest.fixture
async def platform(pg_url: str) -> AsyncIterator[Platform]:
    """A platform whose clock stands in the middle of a month."""
    platform = await Platform.begin(pg_url)
    yield platform
    await platform.database.close()
