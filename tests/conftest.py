"""Fixtures of all tests: sockets off in tests/unit, loopback only elsewhere, real servers for who asks for them."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest_socket
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from core.db import Database
from tests.support.services import Services, obtain
from tests.support.timing import Times

# No property test depends on the speed of the machine.
hypothesis.settings.register_profile(
    "penstock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("penstock")

_TESTS = Path(__file__).parent
_LOOPBACK = ["127.0.0.1", "::1", "localhost", "0.0.0.0"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--times`: where the times of this call are added to those of earlier ones (tests/support/timing.py)."""
    parser.addoption(
        "--times", type=Path, metavar="FILE", help="keep how long tests took in FILE, and print it"
    )


def pytest_configure(config: pytest.Config) -> None:
    """The process that reports keeps the times; workers of pytest-xdist do not."""
    if config.option.times is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Times(config.option.times))


class ByFile(LoadFileScheduling):
    """pytest-xdist's `loadfile`, with the files of tests/e2e on one worker: they share platforms with real engines."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/e2e" if nodeid.startswith("tests/e2e/") else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """How tests are given to workers: xdist's own ways, but for `--dist loadfile`."""
    return ByFile(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests outside of tests/unit may talk to this machine and no other."""
    for item in items:
        if not _is_unit(item) and item.get_closest_marker("enable_socket") is None:
            item.add_marker(pytest.mark.allow_hosts(_LOOPBACK))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Unit tests have no sockets but the Unix pair that an event loop needs."""
    if _is_unit(item):
        pytest_socket.disable_socket(allow_unix_socket=True)


def _is_unit(item: pytest.Item) -> bool:
    return item.path.is_relative_to(_TESTS / "unit")


@pytest.fixture(scope="session", autouse=True)
def _tidy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As root, servers below pytest's closed directories keep their data elsewhere (core/child.py): remove it."""
    yield
    for pointer in tmp_path_factory.getbasetemp().rglob("*.location"):
        shutil.rmtree(Path(pointer.read_text().strip()).parent, ignore_errors=True)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Services:
    """The run's PostgreSQL and this worker's Redis."""
    base = tmp_path_factory.getbasetemp()
    if worker_id == "master":
        return obtain(base, os.getpid(), worker_id, 1)
    return obtain(base.parent, os.getppid(), worker_id, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


@pytest.fixture
def pg_url(services: Services) -> str:
    """postgresql:// URL of a database of this worker: migrated, seeded, otherwise empty, new for each test."""
    return services.fresh_database()


@pytest.fixture
async def database(pg_url: str) -> AsyncIterator[Database]:
    """`core.db.Database` on `pg_url`."""
    database = Database(pg_url)
    yield database
    await database.close()


@pytest.fixture
def redis_url(services: Services) -> str:
    """redis:// URL of this worker's own server, emptied."""
    with SyncRedis.from_url(services.redis_url) as client:
        client.flushall()
    return services.redis_url


@pytest.fixture
async def redis_client(redis_url: str) -> AsyncIterator[Redis]:
    """A client on `redis_url`."""
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()
