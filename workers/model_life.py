"""Which model answers for a name at an instant: aliases, deprecated and retired models, and their replacements. Pure.

A model retires at its date without any job: whoever resolves a name compares the date with the time.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

import msgspec

Status = Literal["active", "deprecated", "retired"]


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


def served_by(life: ModelLife, lives: Mapping[str, ModelLife], now: datetime) -> str | None:
    """Name of the model that answers requests for the name at `now`: its own, that of an alias, or the replacement's.

    None when the name is retired and no replacement answers for it.
    """
    seen: set[str] = set()
    while life.name not in seen:
        seen.add(life.name)
        if not life.is_retired(now):
            if life.alias_of is None:
                return life.name
            life = lives[life.alias_of]
        elif life.redirected and life.replacement is not None:
            life = lives[life.replacement]
        else:
            return None
    return None


def deprecation_of(life: ModelLife, lives: Mapping[str, ModelLife], now: datetime) -> Deprecation | None:
    """What customers of a name are told at `now`; None when it, and the model that it is an alias of, stay."""
    retired = life.is_retired(now)
    if life.status == "active" and not retired:
        return None if life.alias_of is None else deprecation_of(lives[life.alias_of], lives, now)
    return Deprecation(
        life.name, life.deprecated_at, life.retires_at, life.replacement, life.redirected, life.note, retired
    )


def next_retirement(lives: Iterable[ModelLife], now: datetime) -> datetime | None:
    """The first instant after `now` at which some name retires; None = none has a date."""
    return min(
        (life.retires_at for life in lives if life.retires_at is not None and life.retires_at > now),
        default=None,
    )
