"""The generated workloads. Their parameters are round numbers typical of such traffic; none is fitted to a policy."""

from collections.abc import Mapping

from sim.pool.workloads.arrivals import Bursts, Day
from sim.pool.workloads.sessions import Kind, Recipe, Tokens

_CHAT_TURN = Tokens(8, 1_500, mean=120)
_CHAT_ANSWER = Tokens(1, 1_500, mean=220)

_CHAT = Kind(
    "chat",
    tenants=40,
    skew=1.1,
    share=0.45,
    shared=Tokens(400, 3_000),
    opening=_CHAT_TURN,
    turn=_CHAT_TURN,
    answer=_CHAT_ANSWER,
    turns=4,
    max_turns=16,
    pause_s=25,
)
_AGENTS = Kind(
    "agents",
    tenants=40,
    skew=1.1,
    share=0.30,
    shared=Tokens(2_000, 6_000),
    opening=Tokens(50, 4_000, mean=600),
    turn=Tokens(30, 6_000, mean=700, sigma=1.1),
    answer=Tokens(10, 1_000, mean=130),
    turns=10,
    max_turns=40,
    pause_s=4,
)
_RAG = Kind(
    "documents",
    tenants=40,
    skew=1.1,
    share=0.20,
    shared=Tokens(300, 1_000),
    documents=50,
    document=Tokens(2_000, 12_000, mean=5_000, sigma=0.5),
    opening=Tokens(10, 200, mean=50),
    turn=Tokens(10, 200, mean=50),
    answer=Tokens(20, 800, mean=250),
    turns=2,
    max_turns=6,
    pause_s=30,
)
_BATCH = Kind(
    "batch",
    tenants=5,
    share=0.05,
    shared=Tokens(500, 1_500),
    opening=Tokens(200, 8_000, mean=2_000),
    answer=Tokens(20, 1_000, mean=300),
    tier="batch",
)

GENERATED: Mapping[str, Recipe] = {
    "shared-system-prompts": Recipe(
        "eight tenants with long system prompts and short turns",
        (
            Kind(
                "chat",
                tenants=8,
                skew=0.8,
                shared=Tokens(2_000, 8_000),
                opening=Tokens(16, 400, mean=80),
                turn=Tokens(16, 400, mean=80),
                answer=Tokens(10, 600, mean=150),
                turns=3,
                max_turns=10,
                pause_s=15,
            ),
        ),
    ),
    "agent-chains": Recipe(
        "agents that call tools: every prompt is the last one, its answer and a tool's result",
        (
            Kind(
                "agents",
                tenants=12,
                skew=0.5,
                shared=Tokens(2_000, 5_000),
                opening=Tokens(50, 4_000, mean=500),
                turn=Tokens(30, 6_000, mean=700, sigma=1.1),
                answer=Tokens(10, 1_000, mean=130),
                turns=12,
                max_turns=40,
                pause_s=4,
            ),
        ),
    ),
    "long-prompt-one-token": Recipe(
        "prompts of about 32,000 tokens and answers of one: load exists only before the first token",
        (Kind("long", tenants=8, opening=Tokens(31_000, 32_700), answer=Tokens(1, 1)),),
    ),
    "bursts": Recipe(
        "a quiet pool with bursts of seconds at ten times the rate, each burst one tenant's",
        (
            Kind(
                "chat",
                tenants=16,
                shared=Tokens(800, 3_000),
                opening=Tokens(16, 2_000, mean=250),
                answer=Tokens(5, 800, mean=150),
            ),
        ),
        arrivals=Bursts(on_s=5, off_s=25, off_factor=0.1),
    ),
    "greedy-tenant": Recipe(
        "nineteen tenants of 2.5 % each and a greedy one of the rest",
        (
            Kind(
                "steady",
                tenants=19,
                share=0.475,
                tenant_name="steady",
                shared=Tokens(500, 1_500),
                opening=Tokens(16, 2_000, mean=250),
                answer=Tokens(5, 800, mean=180),
            ),
            Kind(
                "greedy",
                tenants=1,
                share=0.525,
                tenant_name="greedy",
                shared=Tokens(1_000, 1_000),
                opening=Tokens(16, 2_000, mean=250),
                answer=Tokens(5, 800, mean=180),
            ),
        ),
    ),
    "model-mix": Recipe(
        "four models of very different popularity on one pool",
        (
            Kind(
                "chat",
                tenants=24,
                skew=0.8,
                shared=Tokens(400, 2_000),
                opening=_CHAT_TURN,
                turn=_CHAT_TURN,
                answer=_CHAT_ANSWER,
                turns=3,
                max_turns=10,
                pause_s=20,
            ),
        ),
        models=("llama-3.3-70b", "deepseek-v3.2", "minimax-m2.5", "qwen3.5-397b"),
        model_skew=1.2,
    ),
    "decode-bound": Recipe(
        "short prompts without common prefixes, long answers",
        (
            Kind(
                "write",
                tenants=16,
                opening=Tokens(32, 400, mean=120),
                answer=Tokens(100, 3_000, mean=900, sigma=0.6),
            ),
        ),
    ),
    "mixed": Recipe(
        "chat, agents, questions about documents and some batch work of forty tenants",
        (_CHAT, _AGENTS, _RAG, _BATCH),
    ),
    "multi-tenant-prefix": Recipe(
        "equal tenants, each with a long prompt of its own: what fairness costs when caches matter",
        (
            Kind(
                "prompted",
                tenants=24,
                shared=Tokens(3_000, 5_000),
                opening=Tokens(32, 400, mean=150),
                answer=Tokens(16, 256, mean=64, sigma=0.5),
            ),
        ),
    ),
    "diurnal": Recipe(
        "a day of chat compressed into the run, whatever its length",
        (
            Kind(
                "chat",
                tenants=24,
                skew=1.0,
                shared=Tokens(400, 2_000),
                opening=Tokens(8, 3_000, mean=400),
                answer=_CHAT_ANSWER,
            ),
        ),
        arrivals=Day(),
    ),
}
