"""What the options of `penstock models add --host-kind` say of a model."""

import os
from collections.abc import Sequence
from pathlib import Path

from core.errors import InvalidRequest
from workers.catalog import load_catalog
from workers.engine_command import CHECKOUT
from workers.model_config import fetch_config, read_config, weight_bytes
from workers.model_definition import NewModel, ProfileFile, parse_argument, read_profile


def given_model(
    name: str,
    host_kind: str,
    gpus: int | None,
    weights: str | None,
    revision: str | None,
    arguments: Sequence[str],
    profile: Path | None,
) -> NewModel:
    """The model to add, with its config.json from the directory or the hub. Raises InvalidRequest, Unavailable."""
    host = load_catalog().hosts.get(host_kind)
    directory = None if weights is None or not weights.startswith((".", "/")) else Path(weights).resolve()
    if directory is not None and revision is not None:
        raise InvalidRequest("--revision is of the hub; a directory has none", param="revision")
    config = fetch_config(weights or name, revision) if directory is None else read_config(directory)
    return NewModel(
        name=name,
        config=config,
        host_kind=host_kind,
        gpus=gpus if gpus is not None else 0 if host is None else host.gpus,
        weights=weights or "" if directory is None else str(directory),
        revision=revision,
        args=dict(map(parse_argument, arguments)),
        profile=ProfileFile() if profile is None else read_profile(profile),
        weight_bytes=0 if directory is None else weight_bytes(directory),
    )


def engine_environment(given: Path | None) -> Path:
    """The engine's environment: the given one, else PENSTOCK_ENGINE_ENV, else .engine beside the code."""
    return given or Path(os.environ.get("PENSTOCK_ENGINE_ENV") or CHECKOUT / ".engine")
