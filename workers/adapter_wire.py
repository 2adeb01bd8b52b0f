"""Messages of agents about LoRA adapters: what an adapter consists of, its files in parts, and which are deleted.

They are msgspec structs on the scheduler's socket, as those of `workers.wire`. Each question has an id of the agent's,
which the answer repeats.
"""

import msgspec

PART_BYTES = 256 * 1024
"""Bytes of one part of a file, but the last: short enough that the scheduler's other work does not wait for it."""


class AdapterFile(msgspec.Struct, frozen=True):
    """One file of an adapter."""

    path: str
    """Its name, without a directory."""
    size: int
    """Bytes."""
    sha256: str


class AdapterQuestion(msgspec.Struct, tag="adapter_question"):
    """Agent to scheduler: what does the adapter of this name consist of?"""

    question_id: str
    name: str
    """The name by which requests call it."""


class AdapterAnswer(msgspec.Struct, tag="adapter_answer"):
    """Scheduler to agent."""

    question_id: str
    adapter_id: str = ""
    """Empty = there is no such adapter."""
    files: list[AdapterFile] = []
    error: str = ""
    """Why it is not known now; the agent may ask again."""


class AdapterPartQuestion(msgspec.Struct, tag="adapter_part_question"):
    """Agent to scheduler: a part of a file, please."""

    question_id: str
    adapter_id: str
    path: str
    part: int
    """From 0; PART_BYTES each."""


class AdapterPartAnswer(msgspec.Struct, tag="adapter_part_answer"):
    """Scheduler to agent."""

    question_id: str
    data: bytes = b""
    """Empty = there is no such part."""
    error: str = ""


class AdaptersKept(msgspec.Struct, tag="adapters_kept"):
    """Agent to scheduler: which of these are deleted?"""

    question_id: str
    adapter_ids: list[str]


class AdaptersGone(msgspec.Struct, tag="adapters_gone"):
    """Scheduler to agent."""

    question_id: str
    adapter_ids: list[str] = []
    error: str = ""


Question = AdapterQuestion | AdapterPartQuestion | AdaptersKept
Answer = AdapterAnswer | AdapterPartAnswer | AdaptersGone
