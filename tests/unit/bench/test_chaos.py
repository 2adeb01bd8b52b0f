"""The plan of faults replays, and the audit finds what is wrong between a journal and rows."""

from pathlib import Path
from typing import Any

import pytest

from bench.chaos import report
from bench.chaos.books import Audit, Books, Violation, row_is_right, row_is_there
from bench.chaos.journal import Entry, Journal
from bench.chaos.plan import CARDS, DECK_SIZE, plan
from bench.chaos.run import Done, Outcome
from bench.chaos.traffic import draw

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
    import random

    one, other = (draw(random.Random(5), "m", 7) for _ in range(2))
    assert one == other
    assert all(len(text) % 4 == 0 for text in one.expected)


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
    journal.torn_open.add("r")
    assert checks(row_is_there(entry(), journal)) == []


def books(journal: Journal) -> Books:
    return Books("postgresql://nowhere", Path("/nonexistent"), journal)


def cut_at(*arrivals: tuple[float, int]) -> Entry:
    return entry(finished=False, claimed=None, tokens=arrivals[-1][1], arrivals=list(arrivals), ended_at=10.0)


def test_a_killed_process_may_lose_the_last_seconds_and_no_more() -> None:
    journal = Journal(deaths=[10.0])
    audit = Audit()
    lost = cut_at((5.0, 10), (9.0, 20))
    assert not list(books(journal).compare(audit, lost, row(outcome="interrupted", output_tokens=10), None))
    assert (audit.forgiven, audit.longest_loss_s) == (10, 1.0)
    older = cut_at((5.0, 10), (7.0, 20))
    found = list(books(journal).compare(audit, older, row(outcome="interrupted", output_tokens=10), None))
    assert checks(found) == ["delivered <= billed"]
    journal.stopped.add(8.0, 9.5)
    assert not list(books(journal).compare(audit, older, row(outcome="interrupted", output_tokens=10), None))


def test_only_a_killed_process_may_lose_tokens_and_nothing_is_billed_that_was_not_generated() -> None:
    found = books(Journal()).compare(Audit(), cut_at((9.9, 20)), row(outcome="client_cancelled"), None)
    assert checks(found) == ["delivered <= billed"]
    assert checks(books(Journal()).compare(Audit(), entry(), row(), (7, True))) == ["billed <= generated"]
    assert checks(books(Journal()).compare(Audit(), entry(), row(), (7, False))) == [], (
        "its engine was killed"
    )


def test_rows_without_a_client_are_at_most_the_unanswered_requests() -> None:
    journal = Journal(entries=[entry(), entry(request_id="", status=0)])
    audit = Audit()
    assert not list(books(journal).unknown_rows(audit, {"r": row(), "x": row()}))
    assert (audit.lost, audit.strangers) == (1, 1)
    assert checks(books(journal).unknown_rows(audit, {"x": row(), "y": row()})) == ["nothing invented"]


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
