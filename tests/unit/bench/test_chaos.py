"""The plan of faults replays, and the audit finds what is wrong between a journal and rows."""

import random
from pathlib import Path
from typing import Any

import pytest

from bench.chaos import report
from bench.chaos.books import Audit, Books, Violation, billed_is_generated, row_is_right, row_is_there
from bench.chaos.generated import Generated, read_engine_log
from bench.chaos.journal import Entry, Journal, TornAdmission
from bench.chaos.plan import CARDS, DECK_SIZE, plan
from bench.chaos.run import Done, Outcome
from bench.chaos.traffic import Reader, draw

TENANT = "t"


def entry(**values: Any) -> Entry:
    given = {
        "status": 200,
        "request_id": "r",
        "finished": True,
        "claimed": (5, 8),
        "tokens": 8,
        "ended_at": 10.0,
    }
    made = Entry(1, TENANT, "stream", 5, 20, 0.0)
    for name, value in (given | values).items():
        setattr(made, name, value)
    return made


def row(**values: Any) -> dict[str, Any]:
    return {
        "tenant_id": TENANT,
        "input_tokens": 5,
        "output_tokens": 8,
        "outcome": "length",
        "cost": 1,
    } | values


def checks(found: Any) -> list[str]:
    return [each.check for each in found]


def test_a_seed_gives_the_same_faults_however_many_follow() -> None:
    assert plan(4711, 1000)[:35] == plan(4711, 35)
    assert plan(4711, 35) != plan(4712, 35)


def test_every_kind_occurs_in_the_first_deck() -> None:
    for seed in range(20):
        kinds = [fault.kind for fault in plan(seed, DECK_SIZE)]
        assert {kind: kinds.count(kind) for kind in CARDS} == CARDS
    assert DECK_SIZE == 20


def test_a_drawn_request_is_the_same_for_the_same_random_numbers() -> None:
    one, other = (draw(random.Random(5), "m", 7) for _ in range(2))
    assert one == other
    assert all(len(text) % 4 == 0 for text in one.expected)


def test_a_stream_that_ends_with_an_error_is_not_a_whole_answer() -> None:
    """Its headers may have been sent with a comment, before the request was refused."""
    ask = draw(random.Random(5), "m", 7)
    seen = entry(finished=False, tokens=0, claimed=None)
    reader = Reader(ask, seen)
    for line in (b": waiting", b'data: {"error":{"code":"service_unavailable"}}', b"data: [DONE]"):
        reader.line(line)
    assert (seen.finished, seen.admitted, seen.result) == (False, False, "failed")
    reader.line(b"data: [DONE]")
    assert seen.wrong == "[DONE] came twice"


def test_a_sound_row_passes() -> None:
    assert checks(row_is_right(entry(), row())) == []


@pytest.mark.parametrize(
    ("seen", "booked", "check"),
    [
        ({}, {"tenant_id": "other"}, "a row belongs to its tenant"),
        ({"claimed": (5, 9)}, {}, "a row is what its answer says"),
        ({"tokens": 7}, {}, "a whole answer is billed as delivered"),
        ({}, {"input_tokens": 10}, "the prompt is billed once"),
        ({"finished": False}, {"output_tokens": 21}, "billed <= asked for"),
        ({"finished": False}, {"outcome": "engine_failed"}, "failures cost nothing"),
        ({"finished": False, "tokens": 0, "status": 500}, {}, "a refusal costs nothing"),
        ({"wrong": "text"}, {}, "answers are whole"),
    ],
)
def test_a_wrong_row_is_found(seen: dict[str, Any], booked: dict[str, Any], check: str) -> None:
    assert check in checks(row_is_right(entry(**seen), row(**booked)))


def test_an_admitted_request_needs_a_row_unless_its_admission_was_torn() -> None:
    journal = Journal()
    assert checks(row_is_there(entry(), journal)) == ["one row per admitted request"]
    assert checks(row_is_there(entry(status=402, tokens=0, finished=False), journal)) == []
    journal.torn_open["r"] = TornAdmission("boot-1", 100)
    assert checks(row_is_there(entry(), journal)) == []


def books(journal: Journal) -> Books:
    return Books("postgresql://nowhere", Path("/nonexistent"), journal)


def cut_at(*arrivals: tuple[float, int]) -> Entry:
    return entry(finished=False, claimed=None, tokens=arrivals[-1][1], arrivals=list(arrivals), ended_at=10.0)


def wrong(journal: Journal, audit: Audit, seen: Entry, **booked: Any) -> list[str]:
    return checks(books(journal).delivered_is_billed(audit, seen, row(**booked)))


def test_a_killed_process_may_lose_the_last_seconds_and_no_more() -> None:
    journal, audit = Journal(deaths=[10.0]), Audit()
    assert not wrong(journal, audit, cut_at((5.0, 10), (9.0, 20)), outcome="interrupted", output_tokens=10)
    assert (audit.lost, audit.longest_loss_s, audit.forgiven) == (10, 1.0, 0)
    older = cut_at((5.0, 10), (7.0, 20))
    assert wrong(journal, audit, older, outcome="interrupted", output_tokens=10) == ["delivered <= billed"]
    assert audit.lost == 10, "what has no excuse is not counted as lost"
    journal.stopped.add(8.0, 9.5)
    assert not wrong(journal, audit, older, outcome="interrupted", output_tokens=10)


@pytest.mark.parametrize(
    "outcome", ["completed", "length", "client_cancelled", "engine_failed", "budget_stopped"]
)
def test_only_a_killed_process_may_lose_tokens(outcome: str) -> None:
    journal, audit = Journal(deaths=[10.0]), Audit()
    last = cut_at((9.9, 20))
    assert wrong(journal, audit, last, outcome=outcome, output_tokens=19) == ["delivered <= billed"]
    assert not wrong(journal, audit, last, outcome=outcome, output_tokens=20)


@pytest.mark.parametrize(
    ("generated", "found", "compared"),
    [
        (Generated([8], 1), [], 1),
        (Generated([3, 8], 2), [], 1),
        (Generated([7], 1), ["billed <= generated"], 1),
        (Generated([4, 4], 2), ["billed <= generated"], 1),
        (Generated([7], 2), [], 0),
        (None, ["billed <= generated"], 0),
    ],
    ids=["exact", "retried", "one too many", "both attempts", "its engine was killed", "no engine knows it"],
)
def test_no_row_has_more_than_one_attempt_generated(
    generated: Generated | None, found: list[str], compared: int
) -> None:
    audit = Audit()
    assert checks(billed_is_generated(audit, "r", row(), generated)) == found
    assert audit.compared == compared


def test_the_log_of_the_engines_says_which_attempts_ended(tmp_path: Path) -> None:
    log = tmp_path / "engines.jsonl"
    assert read_engine_log(log) == {}
    lines = [
        '{"request_id": "a"}',
        '{"request_id": "b"}',
        '{"request_id": "a", "generated": 5}',
        '{"request_id": "a"}',
    ]
    log.write_text("\n".join([*lines, '{"request_id": "a", "generated": 9}', '{"request_id": "c", "gen']))
    found = read_engine_log(log)
    assert found == {"a": Generated([5, 9], 2), "b": Generated([], 1)}
    assert (found["a"].is_known, found["a"].most, found["b"].is_known) == (True, 9, False)


def test_rows_without_a_client_are_at_most_the_unanswered_requests() -> None:
    journal = Journal(entries=[entry(), entry(request_id="", status=0)])
    audit = Audit()
    assert not list(books(journal).unknown_rows(audit, {"r": row(), "x": row()}))
    assert (audit.unanswered, audit.strangers) == (1, 1)
    assert checks(books(journal).unknown_rows(audit, {"x": row(), "y": row()})) == ["nothing invented"]


def test_tokens_of_a_torn_admission_are_explained_up_to_what_it_may_have_cost(tmp_path: Path) -> None:
    log = tmp_path / "engines.jsonl"
    log.write_text('{"request_id": "r"}\n{"request_id": "r", "generated": 17}\n')
    journal = Journal()
    journal.torn_open["r"] = TornAdmission("boot-1", 100)
    books = Books("", log, journal)

    def left(boot_id: str, prompt: int, generation: int) -> dict[str, int]:
        return books.unexplained({"boot_id": boot_id, "prompt": prompt, "generation": generation})

    assert left("boot-1", 47, 17) == {}
    assert left("boot-1", 101, 18) == {"prompt": 101, "generation": 18}
    assert left("boot-1", -1, 0) == {"prompt": -1}
    assert left("boot-2", 47, 0) == {"prompt": 47}
    log.write_text('{"request_id": "r"}\n')
    assert left("boot-1", 0, 500) == {}, "its engine was killed, so nothing says how much it generated"


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    outcome = Outcome(7, took_s=61.0, timeline=[(1.0, "finished"), (2.0, "broken")])
    outcome.faults = [Done(fault, fault.number, 0.5, "done") for fault in plan(7, 20)]
    outcome.audits = [Audit(rows=2, requests={"finished": 2}, outcomes={"length": 2})]
    outcome.machine = {"date": "2026-01-02", "commit": "abc", "machine": "m", "clients": 3, "disk": True}
    assert outcome.sound
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").write_text("# Results\n\n| [Other](other.md) | | | | |\n\nEnd.\n")
    for _ in range(2):
        written = report.publish(outcome.as_dict(), tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "data/chaos.json", "images/chaos.svg", "results/chaos.md", "results/README.md"
    ]  # fmt: skip
    assert written[3].read_text().count("[Random faults](chaos.md)") == 1
    assert "20 faults in 1 minutes, the books agree with the journal" in written[2].read_text()
    outcome.audits[0].violations.append(Violation("nothing twice", "r"))
    assert not outcome.sound
    assert "1 VIOLATIONS" in report.text(outcome.as_dict())
