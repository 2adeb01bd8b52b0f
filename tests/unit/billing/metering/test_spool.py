"""The spool file: appending, compaction, running full, adoption by another process."""

import errno
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from billing.metering import spool as spool_module
from billing.metering.adoption import AdoptedSpool, adopt
from billing.metering.frames import parse
from billing.metering.records import Checkpoint, OpenRecord, Outcome, PriceVersion, Unbilled, UsageRecord
from billing.metering.spool import Spool
from core.ids import uuid7
from core.tokens import NO_TOKENS, TokenUsage
from tests.support.waiting import until_sync

PRICE = PriceVersion(1, 1, 1, 1, 1)


def opened(request_id: UUID | None = None) -> OpenRecord:
    return OpenRecord(
        request_id=request_id or uuid7(),
        tenant_id=uuid7(),
        project_id=uuid7(),
        key_id=uuid7(),
        model="m",
        tier="standard",
        region="r",
        price=PRICE,
        list_price=PRICE,
        admitted_at=datetime(2026, 11, 20, tzinfo=UTC),
        replica_id="h/m-0",
        boot_id="b",
        simulated=False,
        stream=True,
    )


def ended(record: OpenRecord, output: int = 5) -> UsageRecord:
    return UsageRecord(open=record, outcome=Outcome.COMPLETED, usage=TokenUsage(input=1, output=output))


class Owner:
    """A spool and its owner's thread: callbacks of the spool's thread run when the owner looks."""

    def __init__(self, directory: Path, capacity: int = 64 * 1024, name: str = "api-1") -> None:
        self.calls: list[Callable[[], None]] = []
        self.spool = Spool(directory, name, capacity=capacity, call_soon=self.calls.append)

    def look(self) -> None:
        while self.calls:
            self.calls.pop(0)()


@pytest.fixture
def make_owner(tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    owners: list[Owner] = []

    def make(**options: object) -> Owner:
        owners.append(Owner(tmp_path, **options))  # type: ignore[arg-type]
        return owners[-1]

    yield make
    for owner in owners:
        owner.spool.close()


def test_an_end_is_read_back_and_forgotten_when_settled(make_owner: Callable[..., Owner]) -> None:
    spool = make_owner().spool
    record = opened()
    assert spool.append(record)
    assert spool.append(Checkpoint(record.request_id, TokenUsage(output=3)))
    assert spool.load(record.request_id) is None
    assert spool.append(ended(record))
    assert spool.load(record.request_id) == ended(record)
    spool.mark_settled([record.request_id])
    assert spool.load(record.request_id) is None
    spool.close()
    assert not spool.path.exists(), "nothing in it is unsettled"


def test_a_clean_close_removes_the_file_and_an_owing_one_keeps_it(tmp_path: Path) -> None:
    clean, owing = Owner(tmp_path, name="clean").spool, Owner(tmp_path, name="owing").spool
    for spool in (clean, owing):
        spool.append(opened())
    clean.mark_settled(list(clean._entries))
    clean.close()
    owing.close()
    assert [path.name for path in tmp_path.iterdir()] == ["owing.spool"]


@pytest.mark.promise(13)
def test_full_means_not_ready_and_ends_still_fit(make_owner: Callable[..., Owner]) -> None:
    spool = make_owner(capacity=32 * 1024).spool
    records = []
    while spool.ready:
        records.append(opened())
        assert spool.append(records[-1])
    assert not spool.append(Checkpoint(uuid7(), NO_TOKENS)), "a checkpoint of nobody"
    for record in records:
        assert spool.append(ended(record)), "every admitted request's end has room"
    while spool.append(opened()):
        pass
    assert not spool.ready


def test_live_records_move_to_a_fresh_file(make_owner: Callable[..., Owner], tmp_path: Path) -> None:
    owner = make_owner(capacity=16 * 1024)
    spool = owner.spool
    keeper = opened()
    spool.append(keeper)
    spool.append(Checkpoint(keeper.request_id, TokenUsage(output=7)))
    late: list[OpenRecord] = []
    while not late or spool._compaction_wanted:
        record = opened()
        assert spool.append(record)
        assert spool.append(ended(record))
        spool.mark_settled([record.request_id])
        if spool._compaction_wanted:
            until_sync(lambda: owner.calls)
            owner.look()
        if spool._compaction is not None:
            late.append(opened())
            spool.append(late[-1])  # goes to both files
    assert late
    data = (tmp_path / "api-1.spool").read_bytes()
    known = {frame.record.request_id for frame in parse(data) if isinstance(frame.record, OpenRecord)}
    assert {keeper.request_id, late[0].request_id} <= known
    counts = [frame.record.usage.output for frame in parse(data) if isinstance(frame.record, Checkpoint)]
    assert counts == [7]
    spool.append(ended(late[0], output=9))
    assert spool.load(late[0].request_id) == ended(late[0], output=9)


@pytest.mark.promise(13)
def test_a_move_that_found_no_room_is_tried_again_without_further_settlements(
    make_owner: Callable[..., Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full spool admits no request, so no settlement would request another compaction."""
    owner = make_owner(capacity=32 * 1024)
    tries: list[Path] = []

    def no_room(path: Path, capacity: int) -> int:
        tries.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spool_module, "create_file", no_room)
        patch.setattr(spool_module, "RETRY_S", 0.05)
        while owner.spool.ready:
            record = ended(opened())
            owner.spool.append(record)
            owner.spool.mark_settled([record.open.request_id])
        until_sync(lambda: len(tries) >= 3, what="further tries")
    assert not owner.spool.ready

    def ready() -> bool:
        owner.look()
        return owner.spool.ready

    until_sync(ready, what="the spool is ready again")


@pytest.mark.promise(13)
def test_a_spool_that_could_not_be_written_moves_to_a_fresh_file_once_the_disk_works(
    make_owner: Callable[..., Owner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails once must not stop the process from serving for the rest of its life."""
    owner = make_owner()
    monkeypatch.setattr(spool_module, "RETRY_S", 0.05)
    kept, lost = opened(), opened()
    assert owner.spool.append(kept)

    def full(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    with monkeypatch.context() as patch:
        patch.setattr(spool_module, "_write_all", full)
        patch.setattr(spool_module, "create_file", full)
        assert not owner.spool.append(lost)
        assert not owner.spool.ready

    def ready() -> bool:
        owner.look()
        return owner.spool.ready

    until_sync(ready, what="the spool is ready again")
    assert owner.spool.append(ended(kept))
    records = [frame.record for frame in parse((tmp_path / "api-1.spool").read_bytes())]
    assert records == [kept, ended(kept)]


def test_an_error_in_the_thread_admits_nothing_until_it_works_again(
    make_owner: Callable[..., Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no end of a request would be synced for the rest of the process's life, and nothing would show it."""
    owner = make_owner()
    monkeypatch.setattr(spool_module, "RETRY_S", 0.05)
    kept = opened()
    assert owner.spool.append(kept)

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        patch.setattr(spool_module, "create_file", broken)
        assert owner.spool.append(ended(kept))
        until_sync(lambda: not owner.spool.ready, what="the spool is not ready")

    def ready() -> bool:
        owner.look()
        return owner.spool.ready

    until_sync(ready, what="the spool is ready again")
    assert owner.spool.load(kept.request_id) == ended(kept)


def test_a_record_that_the_disk_will_not_give_is_no_crash(
    make_owner: Callable[..., Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = make_owner().spool
    record = ended(opened())
    spool.append(record)

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        assert spool.load(record.open.request_id) is None
    assert spool.load(record.open.request_id) == record


def test_a_living_spool_is_never_adopted(make_owner: Callable[..., Owner], tmp_path: Path) -> None:
    make_owner().spool.append(opened())
    assert adopt(tmp_path, None) is None


def test_adoption_tells_ended_interrupted_and_empty_requests(tmp_path: Path) -> None:
    spool = Owner(tmp_path).spool
    done, running, silent, lost = opened(), opened(), opened(), uuid7()
    for record in (done, running, silent):
        spool.append(record)
    spool.append(ended(done))
    for count in (1, 2, 3):
        spool.append(Checkpoint(running.request_id, TokenUsage(input=4, output=count)))
    spool.append(Checkpoint(silent.request_id, TokenUsage(input=4)))
    spool.close()
    adopted = adopt(tmp_path, None)
    assert adopted is not None
    assert adopt(tmp_path, None) is None, "two adopters never take the same file"
    stories = {request_id: adopted.load(request_id) for request_id in adopted}
    assert stories[done.request_id] == ended(done)
    interrupted, empty = stories[running.request_id], stories[silent.request_id]
    assert interrupted is not None
    assert (interrupted.outcome, interrupted.usage) == (Outcome.INTERRUPTED, TokenUsage(input=4, output=3))
    assert empty is not None
    assert (empty.outcome, empty.usage, empty.cost) == (Outcome.INTERRUPTED, TokenUsage(input=4), 4)
    assert lost not in stories
    adopted.release(remove=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise(7)
def test_a_process_that_dies_in_a_second_attempt_leaves_its_tokens_to_that_engine(tmp_path: Path) -> None:
    spool = Owner(tmp_path).spool
    first = opened()
    counted = TokenUsage(input=4, output=1)
    note = Unbilled("retried", "h/m-0", "b", input=4, output=1, tail_output=9)
    second = msgspec.structs.replace(
        first,
        replica_id="h/m-1",
        boot_id="b2",
        earlier_attempts=1,
        earlier_usage=counted,
        earlier_unbilled=(note,),
    )
    spool.append(first)
    spool.append(Checkpoint(first.request_id, counted))
    spool.append(second)
    spool.close()
    adopted = adopt(tmp_path, None)
    assert adopted is not None
    record = adopted.load(first.request_id)
    assert record is not None
    assert (record.open.boot_id, record.attempts) == ("b2", 2)
    assert (record.usage, record.extra_unbilled) == (NO_TOKENS, counted), "counts of the first engine"
    assert [(one.cause, one.boot_id) for one in record.unbilled] == [
        ("retried", "b"),
        ("cancelled_tail", "b2"),
    ]
    adopted.release(remove=True)


@pytest.mark.parametrize("settled", [True, False])
def test_a_disk_that_fails_at_the_end_does_not_end_the_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    """What is closed after the spool, the holds for instance, is closed all the same."""
    spool = Owner(tmp_path).spool
    if not settled:
        spool.append(opened())

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        patch.setattr(Path, "unlink", broken)
        spool.close()
    adopted = adopt(tmp_path, None)
    assert adopted is not None, "the file is not locked"
    adopted.release(remove=True)


def test_an_adopted_file_that_cannot_be_removed_is_adopted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Owner(tmp_path).spool
    spool.append(opened())
    spool.close()
    adopted = adopt(tmp_path, None)
    assert adopted is not None

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", broken)
        with pytest.raises(OSError, match="Read-only"):
            adopted.release(remove=True)
    again = adopt(tmp_path, None)
    assert again is not None
    again.release(remove=True)


def test_half_made_files_of_dead_processes_go(tmp_path: Path) -> None:
    old, young = tmp_path / "api-old.spool.new", tmp_path / "api-young.spool.new"
    for path in (old, young):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    assert adopt(tmp_path, None) is None
    assert [path.name for path in tmp_path.iterdir()] == [young.name]


class SpoolMachine(RuleBasedStateMachine):
    """After any sequence of appends, settlements and compactions, the file holds exactly the unsettled requests."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.home = tempfile.TemporaryDirectory()
        self.owner = Owner(Path(self.home.name), capacity=12 * 1024)
        self.running: dict[UUID, OpenRecord] = {}
        self.counted: dict[UUID, TokenUsage] = {}
        self.owed: dict[UUID, UsageRecord] = {}

    @rule()
    def open(self) -> None:
        record = opened()
        if self.owner.spool.ready and self.owner.spool.append(record):
            self.running[record.request_id] = record

    @rule(output=st.integers(1, 1000), last=st.booleans())
    def count(self, output: int, last: bool) -> None:
        if self.running:
            request_id = list(self.running)[-1 if last else 0]
            usage = TokenUsage(input=1, output=output)
            if self.owner.spool.append(Checkpoint(request_id, usage)):
                self.counted[request_id] = usage

    @rule(last=st.booleans())
    def try_again(self, last: bool) -> None:
        if self.running:
            before = list(self.running.values())[-1 if last else 0]
            record = msgspec.structs.replace(before, boot_id=before.boot_id + "'")
            if self.owner.spool.append(record):
                self.running[record.request_id] = record
                self.counted.pop(record.request_id, None)

    @rule(output=st.integers(0, 1000), last=st.booleans())
    def end(self, output: int, last: bool) -> None:
        if self.running:
            request_id = list(self.running)[-1 if last else 0]
            record = ended(self.running[request_id], output)
            if self.owner.spool.append(record):
                del self.running[request_id]
                self.owed[request_id] = record

    @rule()
    def settle_all(self) -> None:
        self.owner.spool.mark_settled(list(self.owed))
        self.owed.clear()

    @rule()
    def look(self) -> None:
        spool = self.owner.spool
        if spool._compaction_wanted:
            until_sync(lambda: self.owner.calls)
        self.owner.look()

    @invariant()
    def the_file_tells_what_is_owed(self) -> None:
        spool = self.owner.spool
        for request_id, record in self.owed.items():
            assert spool.load(request_id) == record
        told: dict[UUID, object] = {}
        for frame in parse(spool.path.read_bytes()):
            if isinstance(frame.record, UsageRecord):
                told[frame.record.open.request_id] = frame.record
            elif isinstance(frame.record, OpenRecord):
                told[frame.record.request_id] = frame.record
        adopted = AdoptedSpool(spool.path, -1)
        for request_id in self.running:
            interrupted = adopted.load(request_id)
            assert interrupted is not None
            assert interrupted.usage == self.counted.get(request_id, NO_TOKENS)
        for request_id, record in {**self.running, **self.owed}.items():
            assert told[request_id] == record

    def teardown(self) -> None:
        self.owner.spool.close()
        self.home.cleanup()


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(max_examples=15, stateful_step_count=60, deadline=None)
