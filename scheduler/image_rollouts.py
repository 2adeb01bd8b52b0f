"""Shows hosts, with the replicas on them, to scheduler/core/image_rollout.py."""

from collections.abc import Callable, Mapping, Sequence

from scheduler.core.image_rollout import ImageHosts, ImageSituation, decide_image
from scheduler.core.replica import Replica
from scheduler.core.rollout import Decision, Member, Verdict
from scheduler.core.state import SchedulerState
from scheduler.image_answers import ImageAnswers
from scheduler.rollout_clock import RolloutClock
from scheduler.version_figures import VersionComparison, verdict
from workers.rollouts import Progress, Rollout, RolloutState
from workers.wire import SIMULATED_HOST, CommandResult, ReplicaCommand, ReplicaStatus


class ImageRollouts:
    """The rollouts of images of one scheduler incarnation."""

    def __init__(self, comparison: VersionComparison, now: Callable[[], float]) -> None:
        """`comparison` keeps what requests see; `now` returns monotonic seconds."""
        self._comparison = comparison
        self._answers = ImageAnswers(comparison, now)
        self._seen: Mapping[str, ImageHosts] = {}
        self.host_of: Callable[[str], str] = lambda agent_id: agent_id
        """The id of an agent's host."""

    def look(
        self, active: Mapping[str, Rollout], seen: Mapping[str, ImageHosts]
    ) -> dict[str, dict[str, str]]:
        """Take what PostgreSQL says of the hosts; returns the version of all engines by model and id of their host."""
        self._seen = seen
        self._answers.keep(name for name, each in active.items() if each.image is not None)
        versions: dict[str, dict[str, str]] = {}
        for model, rollout in active.items():
            if rollout.image is None:
                continue
            before, after = rollout.versions
            hosts = seen[model].hosts if model in seen else ()
            versions[model] = {
                prefix + host.name: after if host.new else before
                for host in hosts
                for prefix in ("", SIMULATED_HOST)
            }
        return versions

    def agents(self, rollout: Rollout, state: SchedulerState) -> frozenset[str] | None:
        """The agents of the hosts of a new image; None = a version of engines is rolled out."""
        if rollout.image is None:
            return None
        return frozenset(each.agent_id for each in self._replicas(rollout, state, new=True))

    def decide(
        self,
        rollout: Rollout,
        members: Sequence[Member],
        state: SchedulerState,
        clock: RolloutClock,
        now: float,
    ) -> tuple[Decision, Progress]:
        """What happens next to a rollout, and how far it is. `members`: the model's replicas."""
        seen = self._seen.get(rollout.model, ImageHosts(0))
        members_of = self._by_host(rollout, members, state)
        other_answers = self._answers.problem(rollout, self._statuses(rollout, state, new=True))
        old, new = self._comparison.compare(rollout.model, *rollout.versions, now)
        judged = verdict(rollout.strategy, old, new)
        if other_answers:
            judged = Verdict(other_answers, judged.enough)
        situation = ImageSituation(
            rollout.state,
            rollout.strategy,
            rollout.canary_hosts(seen.count),
            seen,
            members_of,
            judged,
            state_s=max(now - clock.state_since, rollout.state_age_s),
        )
        clock.note(*situation.done_and_left, now, settled=situation.is_settled)
        situation.stalled_s = now - clock.since
        new_hosts = {host.name for host in seen.hosts if host.new}
        shown = [(name, member) for name, found in members_of.items() for member in found]
        progress = Progress(
            max(
                rollout.progress.wanted, sum(member.serves for name, member in shown if name not in new_hosts)
            ),
            len(shown),
            sum(name in new_hosts for name, _ in shown),
            sum(member.serves for _, member in shown),
            old=old,
            new=new,
        )
        return decide_image(situation), progress

    def questions(self, rollout: Rollout, state: SchedulerState) -> list[ReplicaCommand]:
        """The commands by which engines are asked for their greedy answers now."""
        if rollout.state is RolloutState.ROLLING_BACK:
            return []
        old, new = (self._statuses(rollout, state, new=each) for each in (False, True))
        return self._answers.ask(rollout, old, new)

    def take(self, result: CommandResult) -> bool:
        """Take the result of such a command; False = it is of another."""
        return self._answers.take(result)

    def is_read(self, model: str) -> bool:
        """Whether the hosts of a rollout were read."""
        return model in self._seen

    def _by_host(
        self, rollout: Rollout, members: Sequence[Member], state: SchedulerState
    ) -> dict[str, list[Member]]:
        """The replicas of the group's hosts by the names of these."""
        homes = {each.engine.replica_id: self._home(each) for each in state.fleet.replicas_of(rollout.model)}
        found: dict[str, list[Member]] = {host.name: [] for host in self._seen[rollout.model].hosts}
        for member in members:
            if (host := found.get(homes[member.name])) is not None:
                host.append(member)
        return found

    def _replicas(self, rollout: Rollout, state: SchedulerState, *, new: bool) -> list[Replica]:
        """The replicas on hosts of the new image, or the old."""
        seen = self._seen.get(rollout.model, ImageHosts(0))
        names = {host.name for host in seen.hosts if host.new is new}
        return [each for each in state.fleet.replicas_of(rollout.model) if self._home(each) in names]

    def _statuses(self, rollout: Rollout, state: SchedulerState, *, new: bool) -> list[ReplicaStatus]:
        rows = self._replicas(rollout, state, new=new)
        return list({each.engine.replica_id: each.engine for each in rows}.values())

    def _home(self, replica: Replica) -> str:
        """The name of a replica's host; an agent with simulated engines calls its host `sim-NAME`."""
        return self.host_of(replica.agent_id).removeprefix(SIMULATED_HOST)
