"""Which model answers for a name at an instant: aliases, deprecated and retired models, and their replacements. Pure.

A model retires at its date without any job: whoever resolves a name compares the date with the time.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

Status = Literal["active", "deprecated", "retired"]
_NEVER = datetime.max.replace(tzinfo=UTC)


class ModelLife(msgspec.Struct, frozen=True):
    """What a row of `models` says about a name's life."""

    name: str
    status: str
    """active | deprecated | retired, as stored; `is_retired` says what holds."""
    alias_of: str | None = None
    note: str | None = None
    """What customers should use instead, or why."""
    deprecated_at: datetime | None = None
    """Since when customers are told that it goes; None for an active model."""
    retires_at: datetime | None = None
    """From when it is retired; None = no date is set."""
    replacement: str | None = None
    """The model to use instead."""
    redirected: bool = False
    """Whether `replacement` answers requests for it once it is retired."""

    def is_retired(self, now: datetime) -> bool:
        """Whether the name is retired at `now`."""
        return self.status == "retired" or (self.retires_at is not None and self.retires_at <= now)


class Deprecation(msgspec.Struct, frozen=True):
    """What customers are told about a model that goes or is gone."""

    model: str
    deprecated_at: datetime | None
    """None of a model that was deprecated before this was recorded."""
    retires_at: datetime | None
    replacement: str | None
    redirected: bool
    note: str | None
    retired: bool
    alias_of: str | None = None
    """What `model` stands for, if it is an alias."""


def served_by(life: ModelLife, lives: Mapping[str, ModelLife], now: datetime) -> str | None:
    """Name of the model that answers requests for the name at `now`: its own, that of an alias, or the replacement's.

    None when the name is retired and no replacement answers for it.
    """
    last = _resolved(life, lives, now)[-1]
    return last.name if last.alias_of is None and not last.is_retired(now) else None


def ending_of(life: ModelLife, now: datetime) -> Deprecation | None:
    """The end of the name itself, whatever it leads to; None when it stays."""
    retired = life.is_retired(now)
    if life.status == "active" and not retired:
        return None
    return Deprecation(
        life.name,
        life.deprecated_at,
        life.retires_at,
        life.replacement,
        life.redirected,
        life.note,
        retired,
        life.alias_of,
    )


def deprecation_of(life: ModelLife, lives: Mapping[str, ModelLife], now: datetime) -> Deprecation | None:
    """The end of a name for its users, at `now`; None when it, and all that it leads to, stays.

    Of a name that is refused: why. Otherwise the first end to come of the name, of the model that it is an alias of,
    and of the one that answers; without one, which model was replaced by the one that answers.
    """
    resolved = _resolved(life, lives, now)
    ends = [told for step in resolved if (told := ending_of(step, now)) is not None]
    if resolved[-1].is_retired(now):
        return next(told for told in ends if told.retired)
    to_come = [told for told in ends if not told.retired]
    if to_come:
        return min(to_come, key=lambda told: told.retires_at or _NEVER)
    return ends[-1] if ends else None


def _resolved(life: ModelLife, lives: Mapping[str, ModelLife], now: datetime) -> list[ModelLife]:
    """The rows that a name leads to, itself first: an alias to its model, a retired model to its replacement."""
    found: dict[str, ModelLife] = {}
    while life.name not in found:
        found[life.name] = life
        following = life.alias_of
        if life.is_retired(now):
            following = life.replacement if life.redirected else None
        if following is None:
            break
        life = lives[following]
    return list(found.values())


def next_retirement(lives: Iterable[ModelLife], now: datetime) -> datetime | None:
    """The first instant after `now` at which some name retires; None = none has a date."""
    return min(
        (life.retires_at for life in lives if life.retires_at is not None and life.retires_at > now),
        default=None,
    )
