"""Scenarios of replica choice: load, ties, stale metrics and caches."""

from sim.pool.contract import Record, SimRequest
from sim.pool.faults import Kill
from sim.pool.scenarios.figures import arrived, hit_rate, in_time, of_tenant, shares, ttft
from sim.pool.scenarios.scenario import Finding, RunOutcome, Scenario, Setup, at_least, at_most
from sim.pool.scenarios.traffic import conversation, make_request, merged, poisson, pool, rng_of
from sim.pool.settings import RunConfig

# One system prompt shared by all requests

_PROMPT = 4096


def _shared_prompt(seed: int) -> Setup:
    rng = rng_of("shared-system-prompt", seed)
    requests = [
        make_request(at, "org", _PROMPT + rng.randrange(40, 200), rng.randrange(60, 240), number,
            shared="system prompt", shared_tokens=_PROMPT)
        for number, at in enumerate(poisson(rng, 60.0, 0.0, 20.0))
    ]  # fmt: skip
    return Setup(pool(8), merged(requests), RunConfig(seed=seed))


def _shared_prompt_check(ran: RunOutcome) -> list[Finding]:
    records = ran.result.records
    return [
        at_most("requests on the busiest of 8 replicas", shares(records, 8)[0], 0.4, "%"),
        at_least("answered in time", in_time(records), 0.95, "%"),
        at_least("prompt tokens from cache", hit_rate(records), 0.85, "%"),
    ]


# Ties


def _ties(seed: int) -> Setup:
    rng = rng_of("tie-starvation", seed)
    requests = [
        make_request(at, f"t{number % 7}", 600, 20, number)
        for number, at in enumerate(poisson(rng, 1.5, 0.0, 240.0))
    ]
    return Setup(pool(5), merged(requests), RunConfig(seed=seed))


def _ties_check(ran: RunOutcome) -> list[Finding]:
    dealt = shares(ran.result.records, 5)
    return [
        at_least("requests on the idlest of 5 replicas", dealt[-1], 0.1, "%"),
        at_most("requests on the busiest", dealt[0], 0.3, "%"),
    ]


# Many routers inside one metrics cycle


def _herd(seed: int) -> Setup:
    rng = rng_of("stale-herd", seed)
    before = [
        make_request(at, "before", 300, 300, number) for number, at in enumerate(poisson(rng, 4.0, 0.0, 60.0))
    ]
    waves = [
        make_request(
            10.0 * wave + 2.2 + rng.uniform(0.0, 0.15), f"t{number % 16}", 1_200, 100, f"{wave} {number}"
        )
        for wave in range(6)
        for number in range(64)
    ]
    return Setup(pool(8), merged(before, waves), RunConfig(seed=seed, api_processes=8))


def _herd_check(ran: RunOutcome) -> list[Finding]:
    together = of_tenant(ran.result.records, "t")
    waves = [arrived(together, 10.0 * wave, 10.0 * wave + 10.0) for wave in range(6)]
    return [
        at_most(
            "requests of a wave on one of 8 replicas", max(shares(wave, 8)[0] for wave in waves), 0.25, "%"
        ),
        at_most("their TTFT p99", ttft(together, 0.99), 3.0, "s"),
    ]


# Cold prompts to the emptiest cache

_DIES_S, _BACK_S = 40.0, 50.0


def _spiral(seed: int) -> Setup:
    rng = rng_of("smallest-tree-spiral", seed)
    requests = [
        make_request(at, f"t{number % 9}", rng.randrange(4_000, 12_000), rng.randrange(4, 60), number)
        for number, at in enumerate(poisson(rng, 2.0, 0.0, 90.0))
    ]
    faults = (Kill(_DIES_S, "r3"),)
    return Setup(
        pool(4, cold_start_s=_BACK_S - _DIES_S), merged(requests), RunConfig(seed=seed, faults=faults)
    )


def _spiral_check(ran: RunOutcome) -> list[Finding]:
    after = arrived(ran.result.records, _BACK_S + 1.0, _BACK_S + 21.0)
    return [
        at_most(
            "arrivals in 20 s that go to the replica with the empty cache", _share_of(after, "r3"), 0.6, "%"
        ),
        at_most("their TTFT p90", ttft(after, 0.9), 8.0, "s"),
    ]


def _share_of(records: list[Record], replica_id: str) -> float:
    return sum(record.replica_id == replica_id for record in records) / max(1, len(records))


# Load that exists only before the first token


def _long_prompts(seed: int) -> Setup:
    rng = rng_of("long-prompt-one-token", seed)
    requests = [
        make_request(at, f"t{number % 8}", rng.randrange(31_000, 32_700), 1, number)
        for number, at in enumerate(poisson(rng, 1.2, 0.0, 120.0))
    ]
    return Setup(pool(8), merged(requests), RunConfig(seed=seed))


def _long_prompts_check(ran: RunOutcome) -> list[Finding]:
    records = ran.result.records
    return [
        at_most("requests on the busiest of 8 replicas", shares(records, 8)[0], 0.25, "%"),
        at_most("TTFT p90 (4.6 s are the prompt's own)", ttft(records, 0.9), 12.0, "s"),
    ]


# Few requests, full KV caches


def _kv(seed: int) -> Setup:
    rng = rng_of("kv-saturation", seed)
    long = [
        make_request(at, f"long-{number % 4}", rng.randrange(24_000, 30_000), rng.randrange(300, 900), number)
        for number, at in enumerate(poisson(rng, 0.5, 0.0, 90.0))
    ]
    short = [
        make_request(at, f"short-{number % 8}", rng.randrange(100, 400), rng.randrange(100, 300), number)
        for number, at in enumerate(poisson(rng, 10.0, 0.0, 90.0))
    ]
    return Setup(pool(6, kv_tokens=110_000), merged(long, short), RunConfig(seed=seed))


def _kv_check(ran: RunOutcome) -> list[Finding]:
    records = ran.result.records
    return [
        at_most("answers recomputed for want of KV cache", sum(record.preemptions for record in records), 5),
        at_least("short requests in time", in_time(of_tenant(records, "short")), 0.95, "%"),
    ]


# Affinity given up when load is uneven


def _collapse(seed: int) -> Setup:
    rng = rng_of("affinity-collapse", seed)
    crowd = [
        make_request(start + rng.uniform(0.0, 0.5), f"crowd-{start}", 2_200, rng.randrange(500, 700), number,
            shared="crowd", shared_tokens=2_048)
        for start in (16.0, 30.0, 44.0, 58.0)
        for number in range(90)
    ]  # fmt: skip
    talks: list[SimRequest] = []
    for number in range(40):
        first = rng.uniform(0.0, 12.0)
        times = [first + 11.0 * turn + rng.uniform(0.0, 3.0) for turn in range(6)]
        talks += conversation(times, f"talk-{number}", number, opening=6_000, turn=200, output=100)
    return Setup(pool(4), merged(crowd, talks), RunConfig(seed=seed))


def _collapse_check(ran: RunOutcome) -> list[Finding]:
    further = [
        record for record in of_tenant(ran.result.records, "talk") if record.request.prompt_tokens > 6_000
    ]
    return [
        at_least("prompt tokens from cache, turns after the first", hit_rate(further), 0.8, "%"),
        at_most("their TTFT p90", ttft(further, 0.9), 2.0, "s"),
    ]


# Caches after a saturated start


def _saturated(seed: int) -> Setup:
    rng = rng_of("saturated-start", seed)
    crowd = [
        make_request(at, "crowd", 2_100, rng.randrange(300, 500), number, shared="crowd", shared_tokens=2_048)
        for number, at in enumerate(poisson(rng, 14.0, 0.0, 60.0))
    ]
    talks: list[SimRequest] = []
    for number in range(48):
        first = rng.uniform(0.0, 10.0)
        times = [first + 10.0 * turn + rng.uniform(0.0, 3.0) for turn in range(5)]
        talks += conversation(times, f"talk-{number}", number, opening=8_000, turn=200, output=120)
    return Setup(pool(4), merged(crowd, talks), RunConfig(seed=seed))


def _saturated_check(ran: RunOutcome) -> list[Finding]:
    records = ran.result.records
    further = [record for record in of_tenant(records, "talk") if record.request.prompt_tokens > 8_000]
    return [
        at_least("prompt tokens from cache, turns after the first", hit_rate(further), 0.9, "%"),
        at_most("their TTFT p90", ttft(further, 0.9), 3.0, "s"),
        at_least("all requests in time", in_time(records), 0.7, "%"),
    ]


# Bursts


def _bursts(seed: int) -> Setup:
    rng = rng_of("burst-pile-up", seed)
    requests = [
        make_request(start + rng.uniform(0.0, 0.05), f"t{burst}", 3_200, rng.randrange(60, 140), number,
            shared="tools", shared_tokens=2_048)
        for burst, start in enumerate((2.0, 14.0, 26.0, 38.0))
        for number in range(80)
    ]  # fmt: skip
    return Setup(pool(8), merged(requests), RunConfig(seed=seed))


def _bursts_check(ran: RunOutcome) -> list[Finding]:
    bursts = [arrived(ran.result.records, start, start + 12.0) for start in (2.0, 14.0, 26.0, 38.0)]
    return [
        at_most(
            "requests of a burst on one of 8 replicas", max(shares(each, 8)[0] for each in bursts), 0.35, "%"
        ),
        at_most("TTFT p99", ttft(ran.result.records, 0.99), 6.0, "s"),
    ]


ROUTING = (
    Scenario(
        "shared-system-prompt",
        "ai-dynamo/dynamo #737",
        "Every request began with the same system prompt, so one worker always had the best overlap and got them all. "
        "Here one organisation's 60 requests a second share 4,096 tokens; one replica decodes less than half of that.",
        _shared_prompt,
        _shared_prompt_check,
        ("longest_match", "llmd_sticky", "llmd_blend"),
    ),
    Scenario(
        "tie-starvation",
        "ai-dynamo/dynamo #7836",
        "With independent requests costs were equal and ties always fell on the same workers: two of five never got "
        "anything. Here a nearly idle pool gets prompts that no replica has cached.",
        _ties,
        _ties_check,
        ("first_of_equals",),
    ),
    Scenario(
        "stale-herd",
        "ai-dynamo/dynamo #589",
        "Router instances took load from metrics and added what each had routed itself; inside one metrics cycle all "
        "of them saw the same best worker and none the others' choices. Here waves of 64 requests reach eight API "
        "processes within 150 ms, on top of a little other load.",
        _herd,
        _herd_check,
        ("by_scrape",),
    ),
    Scenario(
        "smallest-tree-spiral",
        "sgl-project/sglang #14532",
        "A cache miss went to the worker with the smallest tree, whatever its load: the one that drowns in unique "
        "prompts, or the one that has just started. Here one of four replicas dies and comes back with an empty cache "
        "while unique prompts arrive.",
        _spiral,
        _spiral_check,
        ("cache_aware_2025",),
    ),
    Scenario(
        "long-prompt-one-token",
        "sgl-project/sglang #27547",
        "Load counted from the response on; with prompts of 32,000 tokens and answers of one it was always zero, and "
        "every request went to the first worker. Here the same traffic on eight replicas.",
        _long_prompts,
        _long_prompts_check,
        ("counts_answers",),
    ),
    Scenario(
        "kv-saturation",
        "smg-project/smg #1621",
        "A few long-context requests fill an engine's KV cache long before any request count looks uneven; its queue "
        "grows while others idle. Here prompts of 24,000 to 30,000 tokens on caches of 110,000, and short ones beside.",
        _kv,
        _kv_check,
        ("least_request",),
    ),
    Scenario(
        "affinity-collapse",
        "sgl-project/sglang #32195",
        "When load became uneven every request went to the shortest queue, cached prefix or not, so each paid a full "
        "prefill just when there was no time for it. Here forty conversations go on while bursts load single replicas.",
        _collapse,
        _collapse_check,
        ("cache_aware", "least_request"),
    ),
    Scenario(
        "saturated-start",
        "ours",
        "Forty-eight conversations and a crowd begin at once: for 14 s there is more to prefill than the pool can. "
        "A router that sends turns elsewhere meanwhile has every conversation half cached everywhere and prefills it "
        "again and again, though what comes later would be easy; one that never does drowns the replicas where "
        "it all began.",
        _saturated,
        _saturated_check,
        ("dynamo", "llmd_sticky"),
    ),
    Scenario(
        "burst-pile-up",
        "llm-d/llm-d-router #2515",
        "A burst was scored against one picture of the pool, prefix first, and landed on one pod. Here 80 requests "
        "with the same tools arrive within 50 ms at an idle pool, four times.",
        _bursts,
        _bursts_check,
        ("llmd_blend", "cache_aware"),
    ),
)
