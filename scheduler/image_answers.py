"""Compares the greedy answers of engines on hosts of a new image with those of an engine on a host of the old one."""

from collections.abc import Callable, Iterable

import msgspec

from core.ids import uuid7
from scheduler.version_figures import VersionComparison
from workers.answer_quality import AnswerRule, compare, problem
from workers.backoff import pause_after
from workers.engine_sleep import Proof
from workers.rollouts import Rollout
from workers.wire import ANY_DISTANCE, CommandResult, ReplicaCommand, ReplicaState, ReplicaStatus

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""Seconds until an engine is asked again that gave no answers, doubled each time: an older agent never does."""
ASK_S = 10.0
"""Deadline of the question; an agent answers from memory."""

Engine = tuple[str, str]
"""A model and an incarnation of its engine."""


class ImageAnswers:
    """The answers of this scheduler's image rollouts, by incarnation. Agents keep them from each engine's start."""

    def __init__(self, comparison: VersionComparison, now: Callable[[], float]) -> None:
        """`comparison` gets the results; `now` returns monotonic seconds."""
        self._comparison, self._now = comparison, now
        self._answers: dict[Engine, tuple[Proof, ...]] = {}
        self._reference: dict[str, tuple[Proof, ...]] = {}
        """By model: those of the old image."""
        self._asked: dict[str, Engine] = {}
        """By command."""
        self._pauses: dict[Engine, tuple[int, float]] = {}
        """Questions in vain, and when the next one may be asked."""

    def ask(
        self, rollout: Rollout, old: Iterable[ReplicaStatus], new: Iterable[ReplicaStatus]
    ) -> list[ReplicaCommand]:
        """The questions that are due: to one engine of the old image, and to each of the new one."""
        model = rollout.model
        before, after = _serving(rollout, old), _serving(rollout, new)
        if model not in self._reference:
            given = [self._answers[key] for one in before if (key := (model, one.boot_id)) in self._answers]
            if given:
                self._reference[model] = given[0]
            else:
                after = [*before[:1], *after]
        return [self._question(model, one) for one in after if self._is_due((model, one.boot_id))]

    def problem(self, rollout: Rollout, new: Iterable[ReplicaStatus]) -> str:
        """Why an engine of the new image must not serve, as a clause; empty = all may. Keeps how alike answers are."""
        rule = _rule(rollout)
        before = self._reference.get(rollout.model)
        for one in new:
            now = self._answers.get((rollout.model, one.boot_id))
            if before is None or now is None or len(before) != len(now):
                continue  # the answers of another number of ranks say nothing
            if (quality := compare(before, now)) is not None:
                self._comparison.on_answers(rollout.model, one.boot_id, quality)
            if why := problem(rule, before, now):
                return f"{one.replica_id}: {why}"
        return ""

    def take(self, result: CommandResult) -> bool:
        """Take the answers of an engine; False = it was not asked by this command."""
        engine = self._asked.pop(result.command_id, None)
        if engine is None:
            return False
        try:
            answers = msgspec.json.decode(result.message, type=tuple[Proof, ...]) if result.ok else ()
        except msgspec.MsgspecError:
            answers = ()
        if answers:
            self._answers[engine] = answers
        else:
            count = self._pauses.get(engine, (0, 0.0))[0] + 1
            self._pauses[engine] = count, self._now() + pause_after(count, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        return True

    def keep(self, models: Iterable[str]) -> None:
        """Forget other models than these."""
        kept = set(models)
        self._reference = {model: each for model, each in self._reference.items() if model in kept}
        self._answers = {key: each for key, each in self._answers.items() if key[0] in kept}
        self._pauses = {key: each for key, each in self._pauses.items() if key[0] in kept}

    def _is_due(self, engine: Engine) -> bool:
        waits = self._pauses.get(engine, (0, float("-inf")))[1] > self._now()
        return not (waits or engine in self._answers or engine in self._asked.values())

    def _question(self, model: str, status: ReplicaStatus) -> ReplicaCommand:
        command = ReplicaCommand(str(uuid7()), status.replica_id, "answers", ASK_S)
        self._asked[command.command_id] = model, status.boot_id
        return command


def _serving(rollout: Rollout, rows: Iterable[ReplicaStatus]) -> list[ReplicaStatus]:
    """The replicas that serve with the version of engines that all are to have."""
    return [one for one in rows if one.version == rollout.after.version and one.state is ReplicaState.READY]


def _rule(rollout: Rollout) -> AnswerRule:
    strategy = rollout.strategy
    most = strategy.max_logprob_distance
    return AnswerRule(
        strategy.same_answer, strategy.min_agreement or 0.0, ANY_DISTANCE if most is None else most
    )
