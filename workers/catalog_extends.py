"""Profiles that state what they change of another one: `extends = "NAME"`, of the same model and one level deep."""

from collections.abc import Mapping
from typing import Any

from core.errors import InvalidRequest

BY_KEY = ("args", "env", "figures")
"""Tables of which single entries are replaced; all else is replaced as a whole."""


def resolve(source: object, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a catalog's content, as TOML gives it, in which no profile leaves to another what it has.

    Only the shape that this needs is looked at; what else is wrong with the content is found by its reader. Raises
    InvalidRequest with both names for a profile that cannot be extended.
    """
    models = content.get("models")
    if not isinstance(models, dict):
        return dict(content)
    return {**content, "models": {name: _resolved(source, name, model) for name, model in models.items()}}


def _resolved(source: object, name: str, model: object) -> object:
    """Return a model with all of its profiles in full."""
    profiles = model.get("profiles") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(profiles, dict):
        return model
    full = {}
    for key, profile in profiles.items():
        extends = profile.get("extends", "") if isinstance(profile, dict) else ""
        full[key] = profile
        if extends:
            base = _base(f"the catalog {source} is wrong: models.{name}.profiles.{key}", profiles, extends)
            full[key] = _changed(base, profile)
    return {**model, "profiles": full}


def _base(where: str, profiles: Mapping[str, Any], extends: object) -> dict[str, Any]:
    base = profiles.get(extends) if isinstance(extends, str) else None
    if not isinstance(base, dict):
        stated = ", ".join(key for key, each in profiles.items() if "extends" not in each)
        raise InvalidRequest(
            f"{where}.extends is {extends!r}, which is no profile of the model; it can extend: {stated}"
        )
    if "extends" in base:
        raise InvalidRequest(
            f"{where}.extends is {extends!r}, which itself extends {base['extends']!r}; extend one that extends none"
        )
    return base


def _changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with the changes."""
    merged = {**base, **changes}
    for table in BY_KEY:
        before, after = base.get(table), changes.get(table)
        if isinstance(before, dict) and isinstance(after, dict):
            merged[table] = {**before, **after}
    return merged
