"""The simulated world: API processes, the network, engines, and a routing system under test between them.

A request's life: it arrives at an API process (`_arrive`), reaches the routing system (`_submit`), is dispatched
(`_on_decision`) and started on a replica (`_start`); its first token and its end travel back. A routing system is
notified when a real one would be: after the network's delay; metrics and KV events arrive later still.
"""

import math
from collections.abc import Iterable, Sequence

from sim.engine.step_model.engine import EventKind
from sim.engine.step_model.job import Job
from sim.pool.calls import Call, Phase, job_of
from sim.pool.contract import (
    Decision,
    Dispatch,
    LosesRouters,
    Record,
    Refuse,
    ReplicaView,
    RunResult,
    SimRequest,
)
from sim.pool.estimates import Estimates
from sim.pool.faults import Fault, Kill, KillApiProcess, RestartScheduler, Slow
from sim.pool.gpu_time import GpuTime, gpu_time
from sim.pool.lifecycle import Lifecycle
from sim.pool.network import Delays, stream
from sim.pool.pool import ReplicaSpec
from sim.pool.routing_link import RoutingLink
from sim.pool.settings import Progress, RoutingFactory, RoutingSetup, RunConfig
from sim.pool.sim_replica import SimReplica
from sim.pool.telemetry import KvWire, LoadMeter, Scraper
from sim.pool.timeline import Timeline
from workers.wire import KvDelta

CLIENT_GRACE_S = 2.0
"""Seconds after which the placements of a lost API process are dropped (scheduler/service.py)."""


_WIND_DOWN_S = CLIENT_GRACE_S + 1.0
"""Seconds simulated after the last outcome, so that messages in transit arrive."""
TOO_LONG = "too_long"
"""Reason of a refusal by the API process, whatever the policy: no replica accepts a sequence of this length."""


class Cluster:
    """One run: construct it, call `run`, then `result`."""

    def __init__(
        self,
        routing_factory: RoutingFactory,
        requests: Iterable[SimRequest],
        pool: Sequence[ReplicaSpec],
        config: RunConfig,
    ) -> None:
        seed = config.seed
        self.config = config
        self.timeline = Timeline()
        self.delays = Delays(config.network, seed)
        self.estimates = Estimates(seed)
        self.routing = routing_factory(
            RoutingSetup(stream(seed, "routing"), config.api_processes, self.estimates)
        )
        self.link = RoutingLink(self.timeline, self.routing, self._on_decision)
        self.replicas = {
            spec.replica_id: SimReplica(
                spec,
                stream(seed, f"engine {spec.replica_id}"),
                kv_events=self.routing.wants_kv_events,
            )
            for spec in pool
        }
        self.lifecycle = Lifecycle(
            self.timeline,
            self.replicas,
            hang_limit_s=config.hang_limit_s,
            on_jobs_lost=self._on_jobs_lost,
            on_change=self._schedule_engine,
        )
        self._longest: dict[str, int] = {}
        """Longest prompt plus answer, in tokens, that every replica of a model accepts, by model."""
        for spec in pool:
            length = spec.capacity.max_model_len
            self._longest[spec.model] = min(length, self._longest.get(spec.model, length))
        self.scraper = Scraper(self.timeline, self.delays, self.replicas, self._on_metrics)
        self.kv_wire = KvWire(self.timeline, self.delays, self._on_kv_events)
        self.meter = LoadMeter()
        self.records: list[Record] = []
        self.calls: dict[int, Call] = {}
        """Requests without an outcome, by key."""
        self._requests = iter(requests)
        self._more = True
        self._last_arrival = 0.0
        self._api_processes = list(range(config.api_processes))
        self._spread = stream(seed, "arrivals")
        self._ended = 0.0
        self._gpu_time = GpuTime()

    # The run

    def run(self) -> None:
        """Run until every request has its outcome."""
        self.scraper.start()
        self._next_arrival()
        for fault in self.config.faults:
            self.timeline.at(fault.at, self._inject, fault)
        if self.config.controller is not None:
            self.timeline.after(self.config.controller.every_s, self._run_controller)
        self.timeline.after(self.config.network.progress_every_s, self._progress)
        if self.config.on_progress is not None:
            self.timeline.after(1.0, self._report_progress)
        self.timeline.run(self._is_running, math.inf)
        for call in list(self.calls.values()):
            call.job = None
            self._refuse(call, "unfinished", 0.0)
        self._gpu_time = gpu_time(self.replicas.values(), self.timeline.now)
        self._ended = self.timeline.now
        self.timeline.run(lambda: True, self._ended + _WIND_DOWN_S)

    def result(self, workload: str, load: float) -> RunResult:
        """Return the records and the pool's GPU time."""
        return RunResult(
            policy=self.routing.name,
            workload=workload,
            load=load,
            seed=self.config.seed,
            records=self.records,
            seconds=self._ended,
            gpu_hours=self._gpu_time.gpus_held_s / 3600.0,
            replica_seconds=self._gpu_time.by_state,
            gpu_seconds=self._gpu_time.gpus_by_state,
            usd_per_gpu_hour=self._gpu_time.usd_per_gpu_hour,
            arrivals_s=self._last_arrival,
            warmup_s=self.config.warmup_s,
            cooldown_s=self.config.cooldown_s,
        )

    def _is_running(self) -> bool:
        late = self.timeline.now > self._last_arrival + self.config.drain_s
        return self._more or (bool(self.calls) and not late)

    # A request's life

    def _next_arrival(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._more = False
            return
        self._last_arrival = request.at
        self.timeline.at(request.at, self._arrive_in_turn, request)

    def _arrive_in_turn(self, request: SimRequest) -> None:
        self._arrive(request)
        self._next_arrival()

    def _arrive(self, request: SimRequest) -> None:
        router = self._api_processes[self._spread.randrange(len(self._api_processes))]
        call = Call(Record(request, router), self.delays.of_call())
        if request.key in self.calls:
            raise ValueError(f"two requests of the workload have the key {request.key}")
        self.calls[request.key] = call
        self.records.append(call.record)
        if request.prompt_tokens + request.output_tokens > self._longest.get(request.model, 0):
            self._refuse(call, TOO_LONG, 0.0)
        else:
            self.meter.arrived(call)
            self.link.send(call.delays.to_scheduler_s, self._submit, call)

    def _submit(self, call: Call) -> None:
        if call.phase is not Phase.OVER:
            self.routing.arrive(call.record.request, call.record.router, self.timeline.now)

    def _on_decision(self, decision: Decision) -> None:
        """Handle a decision of the routing system: its message travels back to the API process."""
        call = self.calls.get(decision.key)
        if call is None:
            return  # its API process is dead
        if call.phase is not Phase.WAITING:
            raise ValueError(f"{self.routing.name} decides twice on request {decision.key}")
        back_s = call.delays.from_scheduler_s if self.routing.central else 0.0
        if isinstance(decision, Dispatch):
            self._dispatch(call, decision, back_s)
        else:
            self.timeline.after(back_s, self._on_refusal, call, decision)

    def _dispatch(self, call: Call, decision: Dispatch, back_s: float) -> None:
        record = call.record
        call.phase = Phase.SENT
        record.replica_id = decision.replica_id
        record.dispatched_at = self.timeline.now
        record.predicted_hit_tokens = decision.predicted_hit_tokens
        record.predicted_ttft_s = decision.predicted_ttft_s
        record.attempts += 1
        call.priority, call.rank = decision.priority, decision.rank
        before_s = self.replicas[decision.replica_id].spec.capacity.request_s
        self.timeline.after(back_s + call.delays.to_engine_s + before_s, self._start, call)

    def _start(self, call: Call) -> None:
        if call.phase is Phase.OVER:
            return
        replica = self.replicas[call.record.replica_id]
        if not replica.takes_work:
            self.timeline.after(call.delays.from_engine_s, self._on_attempt_failed, call, 0)
            return
        call.job = job_of(call.record.request, call.priority, call.rank)
        if replica.wake_at <= self.timeline.now:
            self._advance(replica)
        replica.add(call.job, self.timeline.now)
        self._schedule_engine(replica)

    def _on_first_token(self, call: Call, job: Job) -> None:
        """Handle the first token of this attempt at the API process."""
        if call.job is not job:
            return
        call.phase = Phase.DECODING
        call.record.first_token_at = self.timeline.now
        call.record.cached_tokens = job.cached_tokens
        self.link.send(call.delays.to_scheduler_s, self._notify_first_token, call, job)

    def _notify_first_token(self, call: Call, job: Job) -> None:
        if call.job is job:
            self.routing.first_token(call.key, call.record.replica_id, self.timeline.now)

    def _on_finished(self, call: Call, job: Job) -> None:
        """Handle the end of the answer at the API process."""
        if call.job is not job:
            return
        call.record.finished_at = self.timeline.now
        call.record.cached_tokens = job.cached_tokens
        call.record.preemptions += job.preemptions
        self.estimates.learn(call.record.request, call.record.router)
        self.meter.finished(call, self.replicas[call.record.replica_id], self.timeline.now)
        self._end(call)
        self.link.send(call.delays.to_scheduler_s, self._notify_finished, call, job, False)

    def _notify_finished(self, call: Call, job: Job, failed: bool) -> None:
        request = call.record.request
        self.routing.finished(
            request.key,
            call.record.replica_id,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=job.cached_tokens,
            output_tokens=job.produced if failed else request.output_tokens,
            failed=failed,
            now=self.timeline.now,
        )

    def _on_attempt_failed(self, call: Call, produced: int) -> None:
        """Handle a lost replica at the API process: retry the request, or give up."""
        if call.phase is Phase.OVER:
            return
        job = call.job or Job(call.key, call.record.request.prompt_tokens, 0)
        job.produced = produced
        call.job = None
        call.phase = Phase.WAITING
        call.record.first_token_at = -1.0
        self.link.send(call.delays.to_scheduler_s, self._notify_finished, call, job, True)
        if call.record.attempts >= self.config.max_attempts:
            self._refuse(call, "attempts_failed", 0.0)
        else:
            pause_s = self.config.retry_s * 2.0 ** (call.record.attempts - 1)
            self.timeline.after(pause_s, self.link.send, call.delays.to_scheduler_s, self._submit, call)

    def _on_refusal(self, call: Call, refusal: Refuse) -> None:
        if call.phase is not Phase.OVER:
            self._refuse(call, refusal.reason, refusal.retry_after_s)

    def _refuse(self, call: Call, reason: str, retry_after_s: float) -> None:
        call.record.refused = reason
        call.record.retry_after_s = retry_after_s
        self._end(call)

    def _end(self, call: Call) -> None:
        call.phase = Phase.OVER
        del self.calls[call.key]
        if self.config.next_request is not None:
            following = self.config.next_request(call.record, self.timeline.now)
            if following is not None:
                self._last_arrival = max(self._last_arrival, following.at)
                self.timeline.at(following.at, self._arrive, following)

    # Notifications to the routing system

    def _on_metrics(self, views: Sequence[ReplicaView]) -> None:
        self.link.deliver(self._notify_metrics, (views,))

    def _notify_metrics(self, views: Sequence[ReplicaView]) -> None:
        self.routing.metrics(views, self.timeline.now)

    def _on_kv_events(self, delta: KvDelta) -> None:
        self.link.deliver(self._notify_kv_events, (delta,))

    def _notify_kv_events(self, delta: KvDelta) -> None:
        self.routing.kv_events(delta, self.timeline.now)

    def _progress(self) -> None:
        """Report the progress of answers from API processes to the routing system."""
        self.timeline.after(self.config.network.progress_every_s, self._progress)
        if self.link.unavailable:
            return
        now, calls, progress = self.timeline.now, self.calls, self.routing.progress
        for replica in self.replicas.values():
            if replica.jobs:
                self._advance(replica)
            for job in replica.jobs.values():
                call = calls.get(job.key)
                if call is not None and call.phase is Phase.DECODING:
                    progress(job.key, replica.spec.replica_id, replica.produced(job), now)
        self.link.collect_decisions()

    # Engines

    def _schedule_engine(self, replica: SimReplica) -> None:
        """Schedule the engine's next advance at its next event."""
        at = replica.next_event_at()
        if at != replica.wake_at:
            replica.wake_at = at
            if at < math.inf:
                self.timeline.at(max(at, self.timeline.now), self._wake_engine, replica, at)

    def _wake_engine(self, replica: SimReplica, at: float) -> None:
        if replica.wake_at == at:
            replica.wake_at = math.inf
            self._advance(replica)

    def _advance(self, replica: SimReplica) -> None:
        """Advance an engine to the present and handle its events."""
        now = self.timeline.now
        after = self.timeline.after
        changes: dict[int, tuple[list[int], list[int]]] = {}
        for event in replica.advance(now):
            job = event.job
            if event.hashes:
                of_rank = changes.setdefault(event.rank, ([], []))
                of_rank[event.kind is EventKind.REMOVED].extend(event.hashes)
                continue
            if job is None or (call := self.calls.get(job.key)) is None:
                continue
            if event.kind is EventKind.FIRST_TOKEN:
                after(call.delays.from_engine_s, self._on_first_token, call, job)
            elif event.kind is EventKind.FINISHED:
                del replica.jobs[job.key]
                after(call.delays.from_engine_s, self._on_finished, call, job)
        for rank, (stored, removed) in changes.items():
            self.kv_wire.send(replica, rank, stored, removed)
        self.lifecycle.suspend_if_idle(replica)
        self._schedule_engine(replica)

    def _on_jobs_lost(self, jobs: Sequence[Job]) -> None:
        """Handle broken connections at the API processes after an engine died."""
        for job in jobs:
            call = self.calls.get(job.key)
            if call is not None and call.job is job:
                self.timeline.after(call.delays.from_engine_s, self._on_job_lost, call, job)

    def _on_job_lost(self, call: Call, job: Job) -> None:
        if call.job is job:
            self._on_attempt_failed(call, job.produced)

    # Faults and the controller

    def _inject(self, fault: Fault) -> None:
        match fault:
            case Kill(replica_id=replica_id):
                self.lifecycle.kill(replica_id)
            case Slow(replica_id=replica_id, speed=speed, seconds=seconds):
                self.lifecycle.slow(replica_id, speed, seconds)
            case RestartScheduler(away_s=away_s):
                self.link.restart(away_s, self._agents_reconnect)
            case KillApiProcess(router=router):
                self._kill_api_process(router)

    def _agents_reconnect(self) -> None:
        """Send a heartbeat and all cached blocks from every agent to a restarted scheduler."""
        self._notify_metrics(self.scraper.views())
        if self.routing.wants_kv_events:
            for replica in self.replicas.values():
                for rank, hashes in enumerate(replica.cached_hashes()):
                    self.kv_wire.send(replica, rank, hashes, [], cleared=True)

    def _kill_api_process(self, router: int) -> None:
        """End an API process and its requests; engines abort them, and the other processes take the arrivals."""
        if router not in self._api_processes or len(self._api_processes) == 1:
            return
        self._api_processes.remove(router)
        for call in [call for call in self.calls.values() if call.record.router == router]:
            if call.job is not None:
                replica = self.replicas[call.record.replica_id]
                self._advance(replica)
                replica.abort(call.job, self.timeline.now)
                self._schedule_engine(replica)
                self.lifecycle.suspend_if_idle(replica)
            call.job = None
            self._refuse(call, "api_process_died", 0.0)
        if isinstance(self.routing, LosesRouters):
            self.timeline.after(CLIENT_GRACE_S, self.link.deliver, self._notify_router_lost, (router,))

    def _notify_router_lost(self, router: int) -> None:
        if isinstance(self.routing, LosesRouters):
            self.routing.router_lost(router, self.timeline.now)

    def _run_controller(self) -> None:
        controller = self.config.controller
        if controller is None:
            return
        self.timeline.after(controller.every_s, self._run_controller)
        view = self.meter.snapshot(
            self.scraper.views(), self.replicas, self.calls.values(), self.timeline.now
        )
        for action in controller.observe(view, self.timeline.now):
            self.lifecycle.act(action)

    def _report_progress(self) -> None:
        self.timeline.after(1.0, self._report_progress)
        waiting = sum(call.phase is Phase.WAITING for call in self.calls.values())
        progress = Progress(self.timeline.now, len(self.records), waiting, len(self.calls) - waiting)
        if self.config.on_progress is not None:
            self.config.on_progress(progress)
