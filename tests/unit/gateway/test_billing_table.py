"""What is billed, and what rates and the fair share are charged, for answers that do not end by themselves.

One test for each cell of the tables in docs/api.md ("Answers that do not end by themselves"), which must say the same.
A killed process is played with a real spool, which another process adopts.
"""

import asyncio
import json
from pathlib import Path

import pytest

from billing.metering.adoption import adopt
from billing.metering.records import Checkpoint, OpenRecord, Outcome, UsageRecord
from billing.metering.spool import Spool
from core.errors import EngineFailed
from core.ids import uuid7
from core.tokens import TokenUsage
from gateway.context import AbortReason
from gateway.ports import Headers
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from tests.support.gateway_fakes import (
    PRICE,
    FakeEngines,
    FakeMeter,
    FakeReply,
    Gateway,
    Script,
    answer,
    chunk,
    principal,
)  # fmt: skip
from tests.support.waiting import until

API_GUIDE = Path(__file__).resolve().parents[3] / "docs/api.md"
NOTHING = TokenUsage()
PROMPT = TokenUsage(5)
SO_FAR = TokenUsage(5, 0, 2)
ALL = TokenUsage(5, 0, 3)
STAGES = ("before prefill", "after prefill", "while delivering")
BILLED = {
    "nothing": NOTHING, "prompt": PROMPT, "prompt and output so far": SO_FAR, "prompt and output": ALL,
}  # fmt: skip
TABLE = {
    ("streamed", "your client leaves"): ("nothing", "prompt", "prompt and output so far"),
    ("streamed", "we shut down"): ("nothing", "prompt", "prompt and output so far"),
    ("streamed", "our process is killed"): ("nothing", "prompt", "prompt and output so far"),
    ("streamed", "the engine dies"): ("nothing", "nothing", "nothing"),
    ("whole", "your client leaves"): ("nothing", "prompt and output so far", "prompt and output"),
    ("whole", "we shut down"): ("nothing", "prompt", "prompt"),
    ("whole", "our process is killed"): ("nothing", "prompt", "prompt"),
    ("whole", "the engine dies"): ("nothing", "nothing", "prompt and output"),
}
CELLS = [
    (form, end, stage, billed)
    for (form, end), row in TABLE.items()
    for stage, billed in zip(STAGES, row, strict=True)
]


def prepared(*, stream: bool) -> PreparedRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    return parse_chat(json.dumps(body).encode())


class SpoolMeter(FakeMeter):
    """The records of one process in its spool."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.spool = Spool(directory, "api-1", capacity=64 * 1024, call_soon=lambda callback: callback())

    def open(self, record: OpenRecord) -> None:
        assert self.spool.append(record)
        super().open(record)

    def checkpoint(self, record: Checkpoint) -> None:
        assert self.spool.append(record)
        super().checkpoint(record)

    def settle(self, record: UsageRecord) -> None:
        assert self.spool.append(record)
        super().settle(record)


class SlowReply(FakeReply):
    """A client that takes its time to read a whole answer."""

    def __init__(self) -> None:
        super().__init__()
        self.delivering = False
        self.has_read = asyncio.Event()

    async def respond(self, body: bytes, headers: Headers) -> None:
        self.delivering = True
        await self.has_read.wait()


class Run:
    """One request that has reached a stage. Its engine has computed `computed` by then."""

    def __init__(self, form: str, stage: str, directory: Path) -> None:
        self.meter = SpoolMeter(directory)
        self.reply = SlowReply() if form == "whole" and stage == "while delivering" else FakeReply()
        self.pause = asyncio.Event()
        opening = chunk("", tokens=0, role=True)
        words = [chunk("a", tokens=1), chunk("b", tokens=2)]
        scripts: dict[str, Script] = {
            "before prefill": [self.pause],
            "after prefill": [opening, *(words if form == "whole" else []), self.pause],
            "while delivering": [opening, *words, self.pause],
        }
        script = scripts[stage]
        self.computed = {1: NOTHING, 2: PROMPT, 4: SO_FAR}[len(script)]
        ending: Script = [EngineFailed("reset")]
        if isinstance(self.reply, SlowReply):
            ending = answer(["a", "b", "c"])[3:]
            self.computed = ALL
        self.gateway = Gateway(FakeEngines([*script, *ending], [*script, *ending]), meter=self.meter)
        self.request_id = uuid7()
        self.task = asyncio.create_task(
            self.gateway.director.handle(
                self.request_id, principal(), prepared(stream=form == "streamed"), self.reply
            )
        )

    async def reach(self, *, checkpoint: bool = True) -> None:
        """Wait for the stage; with a `checkpoint`, the second in which the counts were written has passed."""
        streams = self.gateway.engines.streams
        await until(lambda: streams and self.pause not in streams[0].script, what="the engine pauses")
        if checkpoint:
            self.gateway.open_requests.tick()
        if isinstance(self.reply, SlowReply):
            reply = self.reply
            self.pause.set()
            await until(lambda: reply.delivering, what="the answer is being delivered")

    async def end(self, by: str) -> None:
        """End the request."""
        if by == "your client leaves":
            self.gateway.open_requests.abort_request(self.request_id, AbortReason.CLIENT_DISCONNECTED)
        elif by == "we shut down":
            self.task.cancel()
        elif by == "the engine dies":
            self.pause.set()
            if isinstance(self.reply, SlowReply):
                self.reply.has_read.set()  # the engine has done its work
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.mark.promise(6, 7, 8)
@pytest.mark.parametrize(("form", "end", "stage", "billed"), CELLS)
async def test_each_cell(form: str, end: str, stage: str, billed: str, tmp_path: Path) -> None:
    run = Run(form, stage, tmp_path)
    await run.reach()
    rates = run.gateway.rates
    if end == "our process is killed":
        record = killed(run, tmp_path)
        assert (rates.settled, rates.refunded) == ([], 0), "the estimates that were reserved stay charged"
        ended = isinstance(run.reply, SlowReply)
        assert bool(run.gateway.scheduler.released) is ended, "the scheduler settles what its client has lost"
    else:
        await run.end(end)
        [record] = run.meter.settled
        estimate = run.gateway.scheduler.requests[0].prompt_tokens
        counted = run.computed
        assert rates.settled == [(counted.input or estimate, counted.output)]
        assert rates.refunded == 0
        assert all(one.dispatched for one in run.gateway.scheduler.released)
        run.gateway.assert_resolved()
    run.task.cancel()
    await asyncio.gather(run.task, return_exceptions=True)
    expected = BILLED[billed]
    assert record.cost == PRICE.cost(expected)
    if not record.outcome.free:
        assert record.usage == expected
    assert record.outcome is outcome_of(form, end, stage)
    computed = record.usage + record.extra_unbilled
    assert expected.input <= run.computed.input
    assert expected.output <= run.computed.output
    assert computed.output <= record.attempts * run.computed.output
    if record.attempts == 1:
        assert computed == run.computed or end == "our process is killed", "all that was counted is recorded"
    assert (
        expected.output == 0 or form == "whole" or run.reply.body.count(b'"content":"') - 1 <= expected.output
    )


@pytest.mark.promise(7, 8)
@pytest.mark.parametrize("form", ["streamed", "whole"])
async def test_a_process_that_dies_before_the_first_checkpoint_bills_nothing(
    form: str, tmp_path: Path
) -> None:
    """Its spool shows that the request was about to be sent, not that an engine has processed the prompt."""
    run = Run(form, "after prefill", tmp_path)
    await run.reach(checkpoint=False)
    record = killed(run, tmp_path)
    run.task.cancel()
    await asyncio.gather(run.task, return_exceptions=True)
    assert (record.outcome, record.usage, record.cost) == (Outcome.INTERRUPTED, NOTHING, 0)
    [tail] = record.unbilled
    assert tail.tail_input >= run.computed.input, "reconciliation expects what the engine may have counted"


def outcome_of(form: str, end: str, stage: str) -> Outcome:
    if end == "the engine dies":
        return Outcome.COMPLETED if (form, stage) == ("whole", "while delivering") else Outcome.ENGINE_FAILED
    if end == "your client leaves":
        done = (form, stage) == ("whole", "while delivering")
        return Outcome.COMPLETED if done else Outcome.CLIENT_CANCELLED
    return Outcome.INTERRUPTED


def killed(run: Run, directory: Path) -> UsageRecord:
    """What another process makes of the spool of a killed one."""
    run.meter.spool.close()  # as the system does with the files of a dead process
    adopted = adopt(directory, None)
    assert adopted is not None
    record = adopted.load(run.request_id)
    assert record is not None
    adopted.release(remove=True)
    return record


def test_the_guide_says_the_same() -> None:
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in API_GUIDE.read_text().splitlines()
        if line.startswith(("| streamed |", "| whole |"))
    ]
    assert rows == [(*names, *cells) for names, cells in TABLE.items()]
