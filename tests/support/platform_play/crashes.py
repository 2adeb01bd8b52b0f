"""Processes and hosts that die in the play, and what of their work comes back when."""

import asyncio
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from billing.metering.records import UsageRecord
from core.tokens import NO_TOKENS, TokenUsage
from jobs.work import schedule
from tests.support.platform_play.doomed import Frame, live_and_die
from tests.support.platform_play.processes import ApiProcess
from tests.support.platform_play.stage import Stage
from tests.support.platform_play.traffic import Request, checkpoint, month_of


@dataclass
class Dead:
    """What the spool of a dead process owes: each request, the tokens that will be billed, when it was admitted."""

    host: Path
    owed: list[tuple[Request, TokenUsage, datetime, bool]]
    """The last: whether it costs nothing."""
    held: bool = True


async def die(play: Stage, host: str, names: list[str]) -> Dead:
    """A process of `host` takes a request of each customer and is killed: the first has ended (and is not settled),
    the last has delivered nothing, the others have come some way.
    """
    play.dead += 1
    folder = play.folder / host
    requests = []
    for name in names:
        drawn = play.traffic.draw(play.people[name], play.time.now(), kind="completed", size=9_000)
        assert drawn is not None, f"{name} has no credit for it"
        requests.append(drawn)
    doomed = f"doomed-{play.dead}"
    frames: list[Frame] = []
    dead = Dead(folder, [])
    async with ApiProcess(play.url, play.folder / "nowhere", f"{doomed}-holds") as alive:
        granted = await alive.place([one.asked for one in requests])
        for number, (request, hold) in enumerate(zip(requests, granted, strict=True)):
            opened = play.traffic.opened(request, hold)
            frames.append(opened)
            usage, free = request.usage, False
            if number == 0:
                frames.append(UsageRecord(opened, play.traffic.ended(request, opened).outcome, usage))
            elif number == len(requests) - 1:
                play.engines[request.model].work("cancelled_tail", request.asked.max_input_tokens, 0)
                usage, free = NO_TOKENS, True
            else:
                frames += [checkpoint(request, 0.2), checkpoint(request, 0.6)]
                usage = TokenUsage(input=usage.input, output=int(usage.output * 0.6))
                play.engines[request.model].work("billed", usage.input, usage.output)
                play.engines[request.model].work("cancelled_tail", 0, play.traffic.rng.randrange(50))
            dead.owed.append((request, usage, hold.admitted_at, free))
    await asyncio.to_thread(live_and_die, folder, doomed, frames)
    return dead


async def reap(play: Stage, dead: Dead) -> None:
    """Nobody adopts it in time: its holds lapse and the money is free again."""
    job = next(one for one in schedule(play.settings) if one.name == "penstock.reap")
    lapsed = 0
    for _ in range(8):
        await play.time.later(seconds=20)
        lapsed += await job.work(play.database, play.settings)
    assert lapsed == len(dead.owed)
    dead.held = False
    for request, *_ in dead.owed:
        request.person.account.held -= request.hold


async def come_back(play: Stage, dead: Dead, month: date | None = None) -> None:
    """A process starts on the host and adopts; `month` = the month of the books when the true one is over."""
    now = play.time.now()
    async with play.process(dead.host):
        pass
    for request, usage, admitted_at, free in sorted(dead.owed, key=lambda one: one[0].asked.request_id):
        play.traffic.bill(request, usage, admitted_at, now, free=free, held=dead.held, month=month)
        if not free and request.person.account.name == "elm":
            raise AssertionError("the service level of elm counts what answered")
    assert month is None or month_of(now) == month
