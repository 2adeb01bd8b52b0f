"""The version of a model's engine: what a rollout replaces on its replicas (docs/adr/0060)."""

import hashlib
import re
from pathlib import Path

import msgspec

from core.errors import InvalidRequest
from workers.catalog import ArgValue, CatalogModel, EngineProfile
from workers.model_definition import check_arguments

BASE = ""
"""Version of a replica that runs as its host's settings and the catalog say."""
_WORD = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,99}")
"""A version of an engine, which becomes part of a path, or a revision of weights."""
_FIXED_ARGS = frozenset({"tensor-parallel-size", "data-parallel-size", "max-num-batched-tokens", "revision"})
"""Arguments that a version cannot set: they follow from the profile, or have a field of their own."""


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a version differs from what host and catalog say. Without any field it is the base version."""

    profile: str = ""
    """Profile of the model with the same GPUs; empty = the host's own."""
    engine_version: str = ""
    """Version of the engine, whose environment the host has beside its own (`environment`); empty = the host's own."""
    revision: str = ""
    """Revision of the weights on the hub; empty = the one that is meant without it."""
    args: dict[str, ArgValue | None] = {}
    """Arguments of the engine that replace or extend those of the profile; None takes one away."""

    @property
    def version(self) -> str:
        """Its name: eight hexadecimal digits that follow from the content; BASE of the empty spec."""
        if self == EngineSpec():
            return BASE
        content = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(content).hexdigest()[:8]

    def keeps_weights(self, other: "EngineSpec") -> bool:
        """Whether both serve the same weights in the same format, so that their greedy answers must agree."""
        return (self.revision, self.profile) == (other.revision, other.profile)


def profile_of(model: CatalogModel, base: EngineProfile, spec: EngineSpec) -> EngineProfile:
    """The profile of `spec` for a replica that has `base` by itself.

    Raises InvalidRequest when the model has no such profile, when it needs another number of GPUs or ranks than `base`,
    and for an argument that a version cannot set.
    """
    profile = model.profile(spec.profile or base.name)
    if (profile.gpus, profile.dp_ranks) != (base.gpus, base.dp_ranks):
        raise InvalidRequest(
            f"profile {profile.name} of {model.name} has {profile.gpus} GPUs and {profile.dp_ranks} ranks, and a "
            f"replica of the profile {base.name} has {base.gpus} and {base.dp_ranks}; a rollout keeps both",
            param="profile",
        )
    _check_words(spec)
    check_arguments(spec.args)
    if fixed := sorted(_FIXED_ARGS & spec.args.keys()):
        raise InvalidRequest(
            f"a version cannot set the argument {fixed[0]}: it follows from the profile, and revision has a field",
            param="args",
        )
    args = {**profile.args, **spec.args, **({"revision": spec.revision} if spec.revision else {})}
    kept = {flag: value for flag, value in args.items() if value is not None}
    longest = kept.get("max-model-len", profile.max_model_len)
    if not isinstance(longest, int) or not 0 < longest <= model.context_len:
        raise InvalidRequest(
            f"max-model-len is {longest}, must be between 1 and the model's context ({model.context_len})",
            param="args",
        )
    return msgspec.structs.replace(profile, args=kept, max_model_len=longest)


def environment(engine_env: Path, spec: EngineSpec) -> Path:
    """Directory of the engine of a version, beside the host's own: `.engine-0.33.0` beside `.engine`.

    Where that is a symbolic link, it is beside what the link leads to. Raises InvalidRequest for a version that is no
    part of a path.
    """
    if not spec.engine_version:
        return engine_env
    _check_words(spec)
    base = engine_env.resolve()
    return base.with_name(f"{base.name}-{spec.engine_version}")


def _check_words(spec: EngineSpec) -> None:
    for param, word in (("engine_version", spec.engine_version), ("revision", spec.revision)):
        if word and not _WORD.fullmatch(word):
            raise InvalidRequest(
                f"{param} is {word[:80]!r}; it must be letters, digits and . _ + - only", param=param
            )
