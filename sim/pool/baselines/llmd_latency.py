"""llm-d's predicted latency: replicas by the TTFT and the time per token that a model learned online predicts."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.pool.baselines.base import Endpoint, RoutedRequest, Router
from sim.pool.baselines.exact import EventIndexed
from sim.pool.baselines.llmd import SPECULATIVE_S, queue_scores
from sim.pool.contract import SimRequest

STRICT_AFFINITY = 0.99
"""Cached share of the prompt (0 to 1) of the first affinity filter."""
LOOSE_AFFINITY = 0.80
"""Cached share of the prompt (0 to 1) of the second."""
MAX_TTFT_PENALTY_S = 5.0
"""Predicted seconds by which the first token of replicas that hold the prompt may lag behind the others'."""
TTFT_WEIGHT = 0.8
"""Weight of the predicted TTFT in the score."""
TPOT_WEIGHT = 0.2
"""Weight of the predicted time per token in the score."""
STEPS = 100
"""Steps into which scores are rounded."""
SAMPLES = 2000
"""Observations that the model is fitted to."""
FIT_EVERY = 50
"""New observations after which it is fitted again; it predicts nothing before the second fit."""
RIDGE = 1e-3
"""Regularisation of the fit, relative to the features' own scale."""

Floats = NDArray[np.float64]


class OnlineModel:
    """A ridge regression over the last SAMPLES observations, fitted again every FIT_EVERY."""

    def __init__(self) -> None:
        self._seen: deque[tuple[Sequence[float], float]] = deque(maxlen=SAMPLES)
        self._count = 0
        self._weights: Floats = np.zeros(0)

    @property
    def ready(self) -> bool:
        """Whether it has seen enough to predict."""
        return self._count >= 2 * FIT_EVERY

    def learn(self, features: Sequence[float], observed: float) -> None:
        """Take one observation."""
        self._seen.append((features, observed))
        self._count += 1
        if self._count % FIT_EVERY == 0:
            self._fit()

    def predict(self, features: Sequence[Sequence[float]]) -> Floats:
        """Return a prediction for each row of features, at least 0; call it only when `ready`."""
        return np.maximum(0.0, np.asarray(features, dtype=np.float64) @ self._weights)

    def _fit(self) -> None:
        rows = np.array([features for features, _ in self._seen], dtype=np.float64)
        targets = np.array([observed for _, observed in self._seen])
        scale = np.maximum(1e-12, np.sqrt((rows**2).mean(axis=0)))
        scaled = rows / scale
        ridge = RIDGE * len(rows) * np.eye(rows.shape[1])
        self._weights = np.linalg.solve(scaled.T @ scaled + ridge, scaled.T @ targets) / scale


@dataclass(slots=True)
class Sent:
    """What was known of a request's replica when it was dispatched."""

    at: float
    ttft: Sequence[float]
    tpot: Sequence[float]
    first_token_at: float = -1.0


class PredictedLatency(EventIndexed):
    """llm-d/llm-d-router v0.10 with its latency predictor and streaming mode (August 2026), without SLO headers.

    Two affinity filters: the replicas that hold 0.99 of the prompt, then those that hold 0.8; each is skipped where the
    best of them would be more than 5 s later by the predicted TTFT. Of what is left: idle replicas only, if there are
    any; the score is 0.8 of the predicted TTFT's and 0.2 of the predicted time per token's place between the lowest
    and the highest, in hundredths; a replica is drawn with the score as weight. Until the model can predict, the score
    is the mean of free KV cache, relative queue and cached share.

    Chosen here: a ridge regression instead of XGBoost, over the same inputs (prompt, cached share, KV cache, requests
    running and waiting, tokens in prefill and in decode) and the products that a step's time consists of; it needs
    fewer observations. KV events with speculative indexing (2 s) instead of the approximate index.
    """

    name = "llmd_latency"
    speculative_s = SPECULATIVE_S

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._ttft: dict[str, OnlineModel] = {}
        self._tpot: dict[str, OnlineModel] = {}
        self._sent: dict[int, Sent] = {}
        self._decoding: dict[str, int] = {}
        """Prompt tokens of the requests in decode, by replica."""

    def choose(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """Apply both affinity filters, then draw a replica by its score."""
        del router
        matched = self.matches(request, now)
        blocks = max(1, len(request.blocks))
        held = [matched.get(each.replica_id, 0) / blocks for each in candidates]
        ttft_model, tpot_model = self._models(request.model)
        if not (ttft_model.ready and tpot_model.ready):
            return self._drawn(candidates, composite_scores(candidates, held))
        ttft = ttft_model.predict([self._ttft_features(request, each, now) for each in candidates])
        tpot = tpot_model.predict([self._tpot_features(request, each) for each in candidates])
        kept = list(range(len(candidates)))
        for threshold in (STRICT_AFFINITY, LOOSE_AFFINITY):
            kept = affine(kept, held, ttft, threshold)
        kept = [index for index in kept if candidates[index].requests == 0] or kept
        scores = latency_scores(ttft[kept], tpot[kept])
        return self._drawn([candidates[index] for index in kept], scores)

    def routed(self, entry: RoutedRequest, router: Router, now: float) -> None:
        """Remember the state of the replica before the dispatch, to learn from."""
        super().routed(entry, router, now)
        endpoint = router.endpoints[entry.replica_id]
        request = entry.request
        self._sent[request.key] = Sent(
            now,
            self._ttft_features(request, endpoint, now, entry.uncached_tokens),
            self._tpot_features(request, endpoint, entry.uncached_tokens),
        )

    def first_token(self, key: int, replica_id: str, now: float) -> None:
        """Learn from the time that the first token took."""
        sent = self._sent.get(key)
        entry = next((each.in_flight[key] for each in self.routers.values() if key in each.in_flight), None)
        if sent is not None and entry is not None and sent.first_token_at < 0.0:
            sent.first_token_at = now
            self._models(entry.request.model)[0].learn(sent.ttft, now - sent.at)
            self._decoding[replica_id] = self._decoding.get(replica_id, 0) + entry.request.prompt_tokens
        super().first_token(key, replica_id, now)

    def ended(self, entry: RoutedRequest, router: Router) -> None:
        """Stop counting the request's tokens in decode."""
        super().ended(entry, router)
        sent = self._sent.pop(entry.request.key, None)
        if sent is not None and sent.first_token_at >= 0.0:
            self._decoding[entry.replica_id] -= entry.request.prompt_tokens

    def finished(
        self,
        key: int,
        replica_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        failed: bool,
        now: float,
    ) -> None:
        """Learn from the time per token of a whole answer."""
        sent = self._sent.get(key)
        entry = next((each.in_flight[key] for each in self.routers.values() if key in each.in_flight), None)
        known = sent is not None and sent.first_token_at >= 0.0 and output_tokens > 1 and not failed
        if sent is not None and entry is not None and known:
            observed_s = (now - sent.first_token_at) / (output_tokens - 1)
            self._models(entry.request.model)[1].learn(sent.tpot, observed_s)
        super().finished(
            key,
            replica_id,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            failed=failed,
            now=now,
        )

    def _models(self, model: str) -> tuple[OnlineModel, OnlineModel]:
        return self._ttft.setdefault(model, OnlineModel()), self._tpot.setdefault(model, OnlineModel())

    def _ttft_features(
        self, request: SimRequest, endpoint: Endpoint, now: float, own: int | None = None
    ) -> Sequence[float]:
        """Return the inputs for the TTFT. After the dispatch, `own` is what the request added to the prefill."""
        uncached = request.prompt_tokens - self.cached_tokens(request, endpoint, now) if own is None else own
        ahead = endpoint.prefill_tokens - (own or 0)
        running = endpoint.requests - (own is not None)
        view = endpoint.view
        return (
            1.0,
            max(0, uncached),
            ahead,
            running,
            view.waiting,
            view.kv_usage,
            max(0, uncached) * running,
            self._decoding.get(endpoint.replica_id, 0),
        )

    def _tpot_features(
        self, request: SimRequest, endpoint: Endpoint, own: int | None = None
    ) -> Sequence[float]:
        """Return the inputs for the time per token; `own` as for the TTFT."""
        running = endpoint.requests - (own is not None)
        ahead = endpoint.prefill_tokens - (own or 0)
        decoding = self._decoding.get(endpoint.replica_id, 0)
        return 1.0, running, endpoint.view.kv_usage, decoding, ahead, request.prompt_tokens

    def _drawn(self, candidates: Sequence[Endpoint], scores: Sequence[float]) -> Endpoint:
        if sum(scores) <= 0.0:
            return self.rng.choice(candidates)
        return self.rng.choices(candidates, weights=scores)[0]


def affine(kept: Sequence[int], held: Sequence[float], ttft: Floats, threshold: float) -> list[int]:
    """Return those of `kept` that hold at least `threshold` of the prompt; all where none does, or where the best of
    them would be too late.
    """
    warm = [index for index in kept if held[index] >= threshold]
    cold = [index for index in kept if held[index] < threshold]
    if not warm or (cold and min(ttft[warm]) - min(ttft[cold]) > MAX_TTFT_PENALTY_S):
        return list(kept)
    return warm


def latency_scores(ttft: Floats, tpot: Floats) -> list[float]:
    """Return scores from 0.01 to 1.01, as shipped: the lowest predicted latency has the highest."""
    ttft_weight, tpot_weight = TTFT_WEIGHT, TPOT_WEIGHT
    if np.ptp(ttft) <= 0.0 < np.ptp(tpot):
        ttft_weight, tpot_weight = 0.0, 1.0
    elif np.ptp(tpot) <= 0.0 < np.ptp(ttft):
        ttft_weight, tpot_weight = 1.0, 0.0
    combined = ttft_weight * _place(ttft) + tpot_weight * _place(tpot)
    return [(int((1.0 - each) * STEPS) + 1) / STEPS for each in combined.tolist()]


def composite_scores(candidates: Sequence[Endpoint], held: Sequence[float]) -> list[float]:
    """Return the mean of free KV cache, relative queue and cached share of the prompt, in hundredths."""
    queues = queue_scores([each.view.waiting for each in candidates])
    return [
        round(STEPS * (1.0 - each.view.kv_usage + queue + share) / 3.0) / STEPS
        for each, queue, share in zip(candidates, queues, held, strict=True)
    ]


def _place(values: Floats) -> Floats:
    """Return where each value lies between the lowest (0) and the highest (1); 0.5 for all where they are equal."""
    spread = float(np.ptp(values))
    if spread <= 0.0:
        return np.full(len(values), 0.5)
    scaled: Floats = (values - values.min()) / spread
    return scaled
