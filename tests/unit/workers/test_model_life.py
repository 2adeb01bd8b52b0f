"""Which model answers for a name, and what its users are told, before, at and after a date of retirement."""

from datetime import UTC, datetime, timedelta

import pytest

from workers.model_life import ModelLife, deprecation_of, next_retirement, served_by

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
PAST, LATER = NOW - timedelta(days=1), NOW + timedelta(days=1)


def lives(*rows: ModelLife) -> dict[str, ModelLife]:
    return {row.name: row for row in rows}


def going(
    name: str, at: datetime | None, replacement: str | None = None, *, redirected: bool = False
) -> ModelLife:
    return ModelLife(
        name,
        "deprecated",
        deprecated_at=PAST,
        retires_at=at,
        replacement=replacement,
        redirected=redirected,
    )


NEW, ALIAS = ModelLife("new", "active"), ModelLife("fast", "active", alias_of="old")


@pytest.mark.parametrize(
    ("old", "served"),
    [
        (ModelLife("old", "active"), "old"),
        (going("old", None), "old"),
        (going("old", LATER, "new", redirected=True), "old"),
        (going("old", NOW), None),
        (going("old", NOW, "new"), None),
        (going("old", NOW, "new", redirected=True), "new"),
        (ModelLife("old", "retired"), None),
        (ModelLife("old", "retired", replacement="new", redirected=True), "new"),
    ],
)
def test_a_name_and_its_alias_are_served_by_the_same_model(old: ModelLife, served: str | None) -> None:
    rows = lives(old, NEW, ALIAS)
    assert served_by(old, rows, NOW) == served
    assert served_by(ALIAS, rows, NOW) == served


def test_replacements_are_followed_to_one_that_serves_and_never_in_circles() -> None:
    first = going("first", PAST, "second", redirected=True)
    rows = lives(first, going("second", PAST, "new", redirected=True), NEW)
    assert served_by(first, rows, NOW) == "new"
    circle = lives(first, going("second", PAST, "first", redirected=True))
    assert served_by(first, circle, NOW) is None
    assert served_by(ModelLife("gone", "retired", alias_of="new"), rows, NOW) is None


def test_users_of_an_alias_are_told_of_its_models_end_or_of_its_own() -> None:
    old = going("old", LATER, "new")
    rows = lives(old, NEW, ALIAS)
    told = deprecation_of(ALIAS, rows, NOW)
    assert told == deprecation_of(old, rows, NOW)
    assert told is not None
    assert (told.model, told.retires_at, told.replacement, told.retired) == ("old", LATER, "new", False)
    own = ModelLife("quick", "deprecated", alias_of="old", retires_at=PAST)
    ended = deprecation_of(own, rows, NOW)
    assert ended is not None
    assert (ended.model, ended.retired) == ("quick", True)
    assert deprecation_of(NEW, rows, NOW) is None


@pytest.mark.parametrize(
    ("alias_ends", "model_ends", "told"),
    [
        (LATER, PAST, "old"),
        (LATER, LATER, "fast"),
        (LATER, LATER - timedelta(hours=1), "old"),
        (LATER, None, "fast"),
        (None, LATER, "old"),
        (None, None, "fast"),
        (PAST, LATER, "fast"),
    ],
)
def test_users_of_a_deprecated_alias_are_told_the_first_end(
    alias_ends: datetime | None, model_ends: datetime | None, told: str
) -> None:
    alias = ModelLife("fast", "deprecated", alias_of="old", deprecated_at=PAST, retires_at=alias_ends)
    ending = deprecation_of(alias, lives(alias, going("old", model_ends)), NOW)
    assert ending is not None
    assert ending.model == told


def test_users_of_a_redirected_name_are_told_what_happens_to_the_model_that_serves() -> None:
    old = going("old", PAST, "new", redirected=True)
    for new, told in ((NEW, "old"), (going("new", LATER, "next"), "new"), (going("new", PAST), "old")):
        for name in (old, ALIAS):
            ending = deprecation_of(name, lives(old, new, ALIAS), NOW)
            assert ending is not None
            assert ending.model == told
    second = lives(old, going("new", PAST, "next", redirected=True), ModelLife("next", "active"))
    ending = deprecation_of(old, second, NOW)
    assert ending is not None
    assert (ending.model, ending.replacement) == ("new", "next"), "the successor is the model that answers"


def test_the_next_retirement_is_the_first_date_to_come() -> None:
    rows = [going("a", PAST), going("b", LATER), going("c", LATER + timedelta(days=1)), NEW]
    assert next_retirement(rows, NOW) == LATER
    assert next_retirement(rows, LATER) == LATER + timedelta(days=1)
    assert next_retirement([NEW], NOW) is None
