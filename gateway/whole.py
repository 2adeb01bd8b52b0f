"""Answers that engines are asked for in one piece: those of requests with tools whose client did not ask for a stream.

Engines parse the tool calls of a finished text better than those of a growing one. In return nothing is known of such
an answer until it has ended: no counts, no first token. Therefore it is only asked for where its hold covers all that
it may cost (billing/metering/sql/hold.sql), and until it has ended this module stands in for the counts:

* For the scheduler, its tokens advance at the speed that was predicted when it was placed.
* For billing, its prompt counts once it is known that the engine has prefilled it, and its output when the answer has
  arrived. A client that leaves pays the prompt, or nothing.

It is known that a prompt is prefilled when all of this holds (`prompt_may_be_prefilled`, `WholeAnswers.advance`): twice
the predicted time to the first token has passed, and the time after which a snapshot shows what came after the
dispatch; the engine has no request waiting and runs this one alone; its counter of prompt tokens has grown since by at
least the prompt's tokens. Engines add a prompt to that counter when its prefill is complete, and another request's
prompt grows it too; therefore a later snapshot must show tokens generated while the engine still ran this request alone
and prefilled nothing. Where other requests run, without the counters, or without a tokenizer to count the prompt,
nothing is known, and nothing is charged.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from core.errors import EngineFailed
from gateway.context import AnyContext
from gateway.extras import carries_extras, is_there
from gateway.merge_chunks import answer_object, chat_choice
from gateway.ports import Scheduler
from gateway.schemas.common import Extras, PreparedRequest
from gateway.sse import BROKEN_OFF, StreamCodec
from gateway.time_budget import UNKNOWN_ITL_S
from gateway.unfinished_calls import before_call, opening_of
from gateway.usage import EngineUsage, UsageTracker
from scheduler.wire import Placement, PoolSnapshot
from workers.wire import EngineCounters, ReplicaState, ReplicaStatus

SNAPSHOT_AGE_S = 3.0
"""Seconds after which a snapshot shows what an engine did at an instant: scrape, heartbeat and snapshot, with slack."""
MAX_COUNTS = 4
"""How often the tokens of one prompt are counted at most: the tokenizer may be busy or still loading."""


class _Choice(msgspec.Struct, gc=False):
    """One choice of an engine's answer, of a chat or a text completion."""

    index: int = 0
    message: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Document(msgspec.Struct, gc=False):
    """The members of an engine's answer that the customer gets."""

    choices: list[_Choice]
    usage: EngineUsage
    id: str | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Document)


class WholeAnswer(StreamCodec):
    """The answer of one attempt that arrives in one piece. It has the counts and the end of a stream's codec."""

    __slots__ = (
        "alone",
        "counting",
        "counts",
        "dispatched_at",
        "document",
        "opening",
        "prompt_counter",
        "prompt_tokens",
    )

    def __init__(
        self,
        choices: int,
        limit: int,
        dispatched_at: float,
        prompt_counter: int,
        extras: Extras,
        opening: re.Pattern[str] | None = None,
    ) -> None:
        """`dispatched_at`: monotonic seconds. `prompt_counter`: the engine's prompt tokens by then, -1 = not known.

        `extras`: those that the request asks for. `opening`: the text with which a tool call begins; None = the answer
        has no calls.
        """
        super().__init__(choices, limit, extras=extras)
        self.opening = opening
        self.document: dict[str, Any] = {}
        """The answer without its usage, once it has arrived."""
        self.dispatched_at = dispatched_at
        self.prompt_counter = prompt_counter
        self.prompt_tokens = 0
        """Tokens of the prompt; 0 = not counted."""
        self.counting = False
        """Whether the prompt's tokens are being counted."""
        self.counts = 0
        """How often the prompt was given to the tokenizer."""
        self.alone: EngineCounters | None = None
        """The engine's counters in the first snapshot in which it ran this request alone; None = not seen."""

    def take(self, endpoint: str, body: bytes) -> None:
        """Take the engine's answer. Raises EngineFailed when it is not one of `endpoint` with its usage.

        Never more output tokens are counted than the hold covers, even if an engine ignores its limit.
        """
        try:
            found = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineFailed(f"The engine sent an answer of an unknown form: {error}") from None
        if len(found.choices) != self.choices or any(
            (choice.message if endpoint == "chat" else choice.text) is None for choice in found.choices
        ):
            raise EngineFailed("The engine sent an answer with missing choices.")
        self.content_started = any(_has_content(choice, self._extras) for choice in found.choices)
        output = found.usage.completion_tokens or 0
        if self.content_started and (output < 1 or found.usage.prompt_tokens < 1):
            raise EngineFailed("The engine sent an answer without its usage.")
        self.tracker = UsageTracker(self.choices)  # the engine's own count of the prompt replaces ours
        self.tracker.set_totals(
            msgspec.structs.replace(found.usage, completion_tokens=min(output, self.limit))
        )
        if any(choice.finish_reason in BROKEN_OFF for choice in found.choices):
            raise EngineFailed("The engine gave up the answer.")
        for choice in found.choices:
            self.finish_reasons[choice.index] = choice.finish_reason or "stop"
        self.done = True
        self.fingerprint = found.system_fingerprint or ""
        ordered = sorted(found.choices, key=lambda choice: choice.index)
        self.document = answer_object(
            endpoint,
            found.id,
            found.created,
            found.model,
            found.system_fingerprint,
            [
                self._chat_choice(choice) if endpoint == "chat" else _text_choice(choice, self._extras)
                for choice in ordered
            ],
            found.prompt_token_ids if self._extras.token_ids else msgspec.UNSET,
        )

    def _chat_choice(self, choice: _Choice) -> dict[str, Any]:
        """The choice as a merged stream has it: texts that are there, and tool calls if there are any.

        No request for log-probabilities is answered in one piece.
        """
        message = choice.message or {}
        members: dict[str, Any] = {name: value for name, value in message.items() if isinstance(value, str)}
        calls = message.get("tool_calls") or []
        if (
            self.opening is not None
            and choice.finish_reason == "length"
            and not calls
            and "content" in members
        ):
            members["content"] = before_call(members["content"], self.opening)
        return chat_choice(choice.index, members, calls, None, _ends(choice, self._extras))


def _has_content(choice: _Choice, extras: Extras) -> bool:
    """Whether a choice has text, reasoning, a refusal, a tool call or a stop string that was asked for."""
    members = (choice.message or {}).items()
    if bool(choice.text) or any(bool(value) for name, value in members if name != "role"):
        return True
    return carries_extras(extras, msgspec.UNSET, choice.finish_reason, choice.stop_reason, choice.token_ids)


def _ends(choice: _Choice, extras: Extras) -> dict[str, Any]:
    ends: dict[str, Any] = {"finish_reason": choice.finish_reason}
    if extras.stop_reason and choice.stop_reason:
        ends["stop_reason"] = choice.stop_reason
    if extras.token_ids:
        found = {"prompt_token_ids": choice.prompt_token_ids, "token_ids": choice.token_ids}
        ends |= {name: ids for name, ids in found.items() if is_there(ids)}
    return ends


def _text_choice(choice: _Choice, extras: Extras) -> dict[str, Any]:
    return {"index": choice.index, "text": choice.text, "logprobs": None, **_ends(choice, extras)}


def predicted_output(placement: Placement, elapsed_s: float, limit: int, choices: int) -> int:
    """Output tokens, over all `choices`, at the predicted speed, at most `limit`."""
    itl_s = placement.predicted_itl_s or UNKNOWN_ITL_S
    return min(limit, max(0, int((elapsed_s - placement.predicted_ttft_s) / itl_s)) * choices)


def prompt_may_be_prefilled(
    placement: Placement, status: ReplicaStatus, answer: WholeAnswer, elapsed_s: float
) -> bool:
    """Whether the engine runs `answer` alone, dispatched `elapsed_s` ago, and has prefilled as many tokens since."""
    return (
        elapsed_s >= max(2 * placement.predicted_ttft_s, SNAPSHOT_AGE_S)
        and status.state is ReplicaState.READY
        and status.waiting == 0
        and status.running == answer.choices
        and 0 < answer.prompt_tokens <= status.counters.prompt_tokens - answer.prompt_counter
        and answer.prompt_counter >= 0
    )


class PromptCounter(Protocol):
    """Counts the tokens of prompts."""

    async def count_tokens(
        self, model: str, prepared: PreparedRequest, salt: str, *, reasoning: bool, simulated: bool
    ) -> int:
        """Return the prompt's tokens as the engine counts them; 0 when they cannot be counted now."""


class WholeAnswers:
    """Follows the open requests whose answers were asked for in one piece. One per process."""

    def __init__(
        self, scheduler: Scheduler, snapshot: Callable[[], PoolSnapshot], prompts: PromptCounter
    ) -> None:
        """`snapshot` returns the live state of the replicas."""
        self._scheduler = scheduler
        self._snapshot = snapshot
        self._prompts = prompts
        self._counts: set[asyncio.Task[None]] = set()

    def begin(self, context: AnyContext, placement: Placement, now: float) -> WholeAnswer:
        """Return the empty answer of a new attempt, which is dispatched `now`."""
        status = self._status(placement)
        counter = status.counters.prompt_tokens if status is not None else -1
        prepared, limit = context.request.prepared, context.reserved.output_limit
        opening = opening_of(prepared, context.request.model.tool_parser)
        return WholeAnswer(prepared.choices, limit, now, counter, prepared.extras, opening)

    def advance(self, context: AnyContext, answer: WholeAnswer, now: float) -> None:
        """Report predicted progress, and count the prompt once it is known to be prefilled. Called once a second."""
        placement = context.routing.placement
        if placement is None or answer.done:
            return
        elapsed_s = now - answer.dispatched_at
        limit, choices = context.reserved.output_limit, answer.choices
        self._scheduler.progress(placement, predicted_output(placement, elapsed_s, limit, choices))
        status = self._status(placement)
        if status is None or answer.tracker.reported or elapsed_s < SNAPSHOT_AGE_S:
            return
        if answer.prompt_tokens == 0 and not answer.counting and answer.counts < MAX_COUNTS:
            answer.counting = True
            answer.counts += 1
            task = asyncio.create_task(self._count(context, answer, placement))
            self._counts.add(task)
            task.add_done_callback(self._counts.discard)
        elif not prompt_may_be_prefilled(placement, status, answer, elapsed_s):
            answer.alone = None
        elif answer.alone is None or answer.alone.prompt_tokens != status.counters.prompt_tokens:
            answer.alone = status.counters
        elif status.counters.generation_tokens > answer.alone.generation_tokens:
            answer.tracker.set_prompt(answer.prompt_tokens)

    async def _count(self, context: AnyContext, answer: WholeAnswer, placement: Placement) -> None:
        request = context.request
        try:
            answer.prompt_tokens = await self._prompts.count_tokens(
                placement.model,
                request.prepared,
                request.principal.cache_salt,
                reasoning="reasoning" in request.model.capabilities,
                simulated=placement.simulated,
            )
        finally:
            answer.counting = False

    def _status(self, placement: Placement) -> ReplicaStatus | None:
        """The replica's state in the last snapshot, if it is the engine that the request was placed on."""
        for status in self._snapshot().replicas:
            if status.replica_id == placement.replica_id and status.boot_id == placement.boot_id:
                return status
        return None
