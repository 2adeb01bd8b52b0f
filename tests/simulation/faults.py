"""Faults of a schedule: drawn from its seed, put at numbered points or at instants."""

from collections.abc import Callable

from tests.simulation.platform import ApiProcess, Platform
from tests.simulation.world import Process

_AT_POINTS = {"file": 80, "turn": 400, "send": 30, "execute": 24, "connect": 10}
"""Kinds of points, and about how many of them a schedule passes: a fault strikes at one of the first."""


def draw(platform: Platform, chaos_s: float) -> None:
    """Put 0 to 6 random faults into a schedule whose traffic takes `chaos_s` seconds."""
    world = platform.world
    if world.random.random() < 0.3:
        # Ended requests wait in the spool, where further faults find them.
        at = world.random.uniform(0.0, chaos_s)
        world.push(at, _at_instant("database outage", _outage, platform))
        for _ in range(world.random.choice((0, 1, 2))):
            name = world.random.choice(("kill", "lose power", "stop"))
            world.push(at + world.random.uniform(0.0, 5.0), _at_instant(name, FAULTS[name][0], platform))
    for _ in range(world.random.choice((0, 1, 1, 2, 3, 4, 6))):
        name = world.random.choice(_NAMES)
        strike, kinds = FAULTS[name]
        if kinds and world.random.random() < 0.8:
            kind = world.random.choice(kinds)
            number = 1 + int(_AT_POINTS[kind] * world.random.random() ** 1.5)
            world.traps[kind, number] = _trap(name, strike, platform)
        else:
            world.push(world.random.uniform(0.0, chaos_s), _at_instant(name, strike, platform))


def draw_late_death(platform: Platform, chaos_s: float) -> None:
    """Kill a process, or cut the power: soon after a compaction, or towards the end of the traffic."""
    world = platform.world
    name = world.random.choice(("kill", "kill", "lose power"))
    strike = _at_instant(name, FAULTS[name][0], platform)
    # The first name that is given is that of the process's first spool.
    world.traps["renamed", 2] = lambda _: world.after(0.5 * world.random.random() ** 2, strike)
    world.push(world.random.uniform(0.6, 1.4) * chaos_s, strike)


def _trap(name: str, strike: "Strike", platform: Platform) -> Callable[[Process], None]:
    def trap(process: Process) -> None:
        assert isinstance(process, ApiProcess)
        _strike(name, strike, platform, process)

    return trap


def _at_instant(name: str, strike: "Strike", platform: Platform) -> Callable[[], None]:
    def now() -> None:
        if platform.living:
            _strike(name, strike, platform, platform.world.random.choice(platform.living))

    return now


def _strike(name: str, strike: "Strike", platform: Platform, process: ApiProcess) -> None:
    platform.struck.append(name)
    platform.world.note("FAULT", name, process.name)
    strike(platform, process)


Strike = Callable[[Platform, ApiProcess], None]


def _kill(_: Platform, process: ApiProcess) -> None:
    process.kill()


def _power(platform: Platform, _: ApiProcess) -> None:
    # Not here: the thread that runs now must first give way.
    platform.world.push(platform.world.now, platform.lose_power)


def _disk(kind: str) -> Strike:
    def strike(platform: Platform, process: ApiProcess) -> None:
        for one in platform.apis:
            one.disk_failed = one.disk_failed or not one.dead
        platform.disk.fail_next.append(kind)

    return strike


def _full_disk(platform: Platform, _: ApiProcess) -> None:
    disk = platform.disk
    disk.full = True

    def freed() -> None:
        disk.full = False

    platform.world.after(platform.world.random.uniform(0.5, 8.0), freed)


def _command(kind: str) -> Strike:
    return lambda platform, _: platform.server.fail_next.append(kind)


def _crash(platform: Platform, _: ApiProcess) -> None:
    platform.server.crash(platform.world.random.choice((0.1, 1.0, 6.0)) * platform.world.random.random())


def _freeze(platform: Platform, _: ApiProcess) -> None:
    platform.server.freeze(platform.world.random.choice((0.3, 2.0, 20.0)) * platform.world.random.random())


def _outage(platform: Platform, _: ApiProcess) -> None:
    platform.server.crash(platform.world.random.uniform(0.5, 6.0))


def _cut(platform: Platform, _: ApiProcess) -> None:
    platform.server.cut_all()


def _lock(platform: Platform, _: ApiProcess) -> None:
    """Another transaction locks one account."""
    world, locked = platform.world, platform.server.model.locked
    tenant = world.random.choice(list(platform.server.model.accounts))
    locked.add(tenant)
    world.after(world.random.choice((0.05, 0.5, 4.0)) * world.random.random(), lambda: locked.discard(tenant))


def _slow(platform: Platform, _: ApiProcess) -> None:
    server, world = platform.server, platform.world
    server.slow_s = world.random.uniform(0.0, 0.8)

    def fast() -> None:
        server.slow_s = 0.0

    world.after(world.random.uniform(0.5, 5.0), fast)


def _host_clock(platform: Platform, _: ApiProcess) -> None:
    platform.world.skew_s += platform.world.random.choice((-3600.0, -5.0, 5.0, 120.0, 86_400.0))


def _database_clock(platform: Platform, _: ApiProcess) -> None:
    platform.server.clock_skew_s += platform.world.random.choice((-5.0, 3.0, 90.0, 3600.0))


def _no_reaper(platform: Platform, _: ApiProcess) -> None:
    platform.reaper_rests_until = (
        platform.world.now + platform.world.random.uniform(0.5, 2.0) * platform.ttl_s
    )


def _stop(_: Platform, process: ApiProcess) -> None:
    process.stop()


FAULTS: dict[str, tuple[Strike, tuple[str, ...]]] = {
    "kill": (_kill, ("file", "turn", "send", "execute", "connect")),
    "lose power": (_power, ("file", "turn", "execute")),
    "stop": (_stop, ("turn", "send")),
    "write fails": (_disk("eio"), ("file",)),
    "no space": (_disk("enospc"), ("file",)),
    "short write": (_disk("short"), ("file",)),
    "disk full": (_full_disk, ()),
    "deadlock": (_command("deadlock"), ("execute",)),
    "command lost": (_command("lost_before"), ("execute",)),
    "answer lost": (_command("lost_after"), ("execute",)),
    "crash after commit": (_command("crash_after"), ("execute",)),
    "database crash": (_crash, ("execute", "send", "file")),
    "database freeze": (_freeze, ()),
    "database slow": (_slow, ()),
    "account locked": (_lock, ("execute", "send")),
    "connections cut": (_cut, ("send", "turn")),
    "host clock": (_host_clock, ("file", "send")),
    "database clock": (_database_clock, ("execute",)),
    "no reaper": (_no_reaper, ()),
}
"""Faults, and the kinds of points at which they strike; none: at an instant."""

_OFTEN = {"kill": 4, "lose power": 3, "answer lost": 3, "short write": 2}
_NAMES = [name for name in FAULTS for _ in range(_OFTEN.get(name, 1))]
