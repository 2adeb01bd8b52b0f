"""What the state file keeps of a running engine."""

import msgspec

from core.process_identity import ProcessIdentity
from workers.answer_quality import AnswerRule
from workers.engine_sleep import Proof
from workers.engine_spec import EngineSpec
from workers.wire import AnswerQuality, EngineCounters


class SavedEngine(msgspec.Struct):
    """A running engine in the state file, from which a new agent can adopt it."""

    process: ProcessIdentity
    url: str
    argv: tuple[str, ...]
    boot_id: str
    warmup: EngineCounters
    ready: bool
    restarts: int = 0
    ending: bool = False
    """Whether the agent has begun to end it; it is not adopted then."""
    changing: bool = False
    """Whether it was falling asleep or waking; its weights may be incomplete, so it is not adopted."""
    proofs: tuple[Proof, ...] = ()
    """The answers that prove a wake; empty = not asked for."""
    own: EngineCounters = EngineCounters()
    """Tokens of the agent's own requests after the warm-up."""
    quality: AnswerQuality | None = None
    """Its answers beside those of the version before."""


class Deployed(msgspec.Struct, frozen=True):
    """The version of a replica's engine by the last rollout."""

    spec: EngineSpec = EngineSpec()
    reference: tuple[Proof, ...] = ()
    """The greedy answers, by rank, of the engine before, which those of its own must be; empty = none. An agent that
    knows no `rule` reads them so, too."""
    rule: AnswerRule = AnswerRule()
    """How close they must be, so that it serves."""
    answers: tuple[Proof, ...] = ()
    """In place of `reference` where `rule` asks for less than the same."""
    beside: str | None = None
    """The version of the engine that gave them; None = not known."""


BASE_VERSION = Deployed()
