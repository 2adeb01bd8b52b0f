"""A pool under load with full caches, ten thousand queued requests, and prompts that partly match the caches.

Conversations are chains of random 64-bit hashes after a shared system prompt, as the gateway's hashes are.
"""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.core.config import PolicyConfig
from scheduler.core.decisions import Decision, Placed
from scheduler.core.fleet import Fleet
from scheduler.core.placement import ActivePlacement
from scheduler.core.rules import AdmissionRules, QueueRules, SchedulerConfig
from scheduler.core.state import SchedulerState
from scheduler.wire import Placement, PlaceRequest, Released
from workers.wire import Capacity, Heartbeat, ReplicaState, ReplicaStatus

MODEL = "penstock/bench"
CLIENT = "api-1"
BLOCK_TOKENS = 64
"""Number of tokens per prefix block."""
OUTPUT_TOKENS = 300
"""Number of output tokens of each request."""
SLOTS = 16
"""Sequences per replica; a small number, so that thousands of requests wait while the pool is full."""
TENANTS = 200
"""Number of tenants with queued requests."""
SYSTEM_PROMPTS = 50
"""Number of different system prompts."""
SYSTEM_BLOCKS = (2, 32)
"""Shortest and longest system prompt in blocks."""
CONVERSATIONS = 5000
"""Number of open conversations; half of the prompts continue one of them."""
Chain: TypeAlias = "array[int]"
"""64-bit hashes in an array, which the garbage collector does not traverse."""
CAPACITY = Capacity(
    prefill_tokens_per_s=13_500.0,
    step_base_s=0.008,
    step_per_seq_s=0.0004,
    step_per_kv_token_s=1e-9,
    accept_per_step=1.9,
    max_num_seqs=SLOTS,
    kv_cache_tokens=8_000_000,
)


@dataclass(frozen=True)
class Size:
    """The parameters that may affect the cost of a decision."""

    replicas: int = 256
    cached_blocks: int = 1_000_000
    """Number of blocks that the index remembers, over all replicas."""
    shortest: int = 1
    longest: int = 4096
    """Longest prompt in blocks; lengths are uniform on a logarithmic scale."""
    queued: int = 10_000


FILL_STEP = 1024
"""Number of prompts between two checks of how full the caches are."""
GROWTH = 1.002
"""Growth factor over FILL_STEP prompts up to which the caches count as unable to hold more."""
FULL = 0.95
"""Share of the requested cached blocks (0 to 1) from which on caches count as full."""


class Prompts:
    """Prompts as chains of hashes: half continue a conversation, half begin one."""

    def __init__(self, rng: random.Random, shortest: int, longest: int) -> None:
        self._rng = rng
        self.range = (shortest, longest)
        self._systems = [self._hashes(rng.randint(*SYSTEM_BLOCKS)) for _ in range(SYSTEM_PROMPTS)]
        self._known: list[Chain] = []

    def _hashes(self, count: int) -> Chain:
        return array("Q", self._rng.randbytes(8 * count))

    def draw(self) -> Chain:
        """Return a prompt's blocks."""
        rng, (shortest, longest) = self._rng, self.range
        length = round(shortest * (longest / shortest) ** rng.random())
        if self._known and rng.random() < 0.5:
            chain = rng.choice(self._known)
            return chain[:length] if len(chain) >= length else (chain + self._hashes(length))[:length]
        chain = rng.choice(self._systems)[:length]
        chain = chain + self._hashes(length - len(chain))
        if len(self._known) < CONVERSATIONS:
            self._known.append(chain)
        else:
            self._known[rng.randrange(CONVERSATIONS)] = chain
        return chain

    def request(self, number: int) -> PlaceRequest:
        """Return a request of a random tenant with such a prompt."""
        blocks = self.draw().tolist()  # a list, as decoded from the wire
        tenant = f"tenant-{self._rng.randrange(TENANTS)}"
        return PlaceRequest(
            f"request-{number}",
            tenant,
            MODEL,
            len(blocks) * BLOCK_TOKENS,
            OUTPUT_TOKENS,
            blocks=blocks,
            block_tokens=BLOCK_TOKENS,
            deadline_s=600.0,
        )


def heartbeats(replicas: int) -> list[Heartbeat]:
    """Return the heartbeats of all agents, one for every eight replicas."""
    beats = []
    for first in range(0, replicas, 8):
        agent = f"agent-{first // 8}"
        statuses = [
            ReplicaStatus(
                f"{agent}/r{row}", MODEL, "http://127.0.0.1:1", "sim", "boot-1", ReplicaState.READY, CAPACITY
            )
            for row in range(first, min(first + 8, replicas))
        ]
        beats.append(Heartbeat(agent, agent, "boot-1", 1, "local", "local", 8, statuses, {}))
    return beats


def remembered_blocks(fleet: Fleet) -> int:
    """Return the number of blocks remembered over all replicas."""
    return sum(len(replica.prefix) for replica in fleet.replicas.values())


def fill(fleet: Fleet, cached_blocks: int, prompts: Prompts, rng: random.Random) -> None:
    """Run prompts on random replicas until nearly `cached_blocks` are remembered, or no more fit into their
    caches.

    Evictions leave gaps, and a small number of replicas cannot hold many blocks.
    """
    names, number, before = list(fleet.replicas), 0, -1
    goal = FULL * cached_blocks
    while True:
        if number % FILL_STEP == 0:
            held = remembered_blocks(fleet)
            if held >= goal or held <= before * GROWTH:
                return
            before = held
        wanted = prompts.request(number)
        entry = ActivePlacement(
            CLIENT,
            wanted.tenant_id,
            MODEL,
            rng.choice(names),
            "boot-1",
            wanted.prompt_tokens,
            0,
            OUTPUT_TOKENS,
            produced=0,
            prefilled=False,
            placed_at=0.0,
            blocks=wanted.blocks,
            block_tokens=BLOCK_TOKENS,
        )
        fleet.on_open(entry)
        fleet.on_prefill(entry, 0.0)
        fleet.on_close(entry, None, 0.0)
        number += 1


class World:
    """A scheduler state of one model: caches full, every slot taken, `queued` requests waiting."""

    def __init__(self, size: Size, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.size = size
        self.prompts = Prompts(self.rng, size.shortest, size.longest)
        self.beats = heartbeats(size.replicas)
        policy = PolicyConfig(
            max_blocks=size.cached_blocks, max_replica_blocks=size.cached_blocks, backlog_cold_s=1e9
        )
        rules = SchedulerConfig(
            policy=policy,
            queue=QueueRules(max_waiting=4 * size.queued + 1000),
            admission=AdmissionRules(enabled=False),
        )
        self.state = SchedulerState("epoch-1", 0.0, grace_s=0.0, config=rules)
        self.now = 0.0
        self.open: list[Placement] = []
        self._number = 0
        for _ in range(3):
            self.heartbeat_all()
        fill(self.state.fleet, size.cached_blocks, self.prompts, self.rng)
        while len(self.open) < SLOTS * size.replicas:
            self.submit()
            self.record_placed(self.state.dispatch(self.now, self.rng))
        self.refill_queue()

    def refill_queue(self) -> None:
        """Replace the queued requests by new ones with prompts of the present range."""
        self.state.drop_waiting(CLIENT)
        for _ in range(self.size.queued):
            self.submit()

    def heartbeat_all(self) -> None:
        """Send every agent's heartbeat."""
        for beat in self.beats:
            self.state.heartbeat(beat, self.now)

    def submit(self) -> None:
        """Submit one more request."""
        self._number += 1
        self.state.submit(CLIENT, self.prompts.request(self._number), self.now)

    def record_placed(self, decisions: Sequence[Decision]) -> int:
        """Record the placements, each prefilled at once, and return their number."""
        placed = [decision.placement for decision in decisions if isinstance(decision, Placed)]
        for placement in placed:
            self.state.prefill_done(CLIENT, placement.request_id, placement.replica_id, self.now)
        self.open.extend(placed)
        return len(placed)

    def release(self) -> None:
        """End one of the open placements, with the cache contents that were predicted."""
        place = self.rng.randrange(len(self.open))
        self.open[place], self.open[-1] = self.open[-1], self.open[place]
        ended = self.open.pop()
        done = Released(ended.request_id, ended.replica_id, output_tokens=OUTPUT_TOKENS)
        self.state.release(CLIENT, done, self.now)
