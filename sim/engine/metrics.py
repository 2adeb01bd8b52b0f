"""/metrics of the simulated engine, under vLLM's names; the values agree with the usage of its answers."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from sim.engine.loop import EngineLoop

_LABELS = ["model_name", "engine"]
_GAUGES = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "kv_cache_usage_perc": "kv_usage",
}
"""Names of vLLM's gauges, and the figures of the step model that they show."""
_TOTALS = {
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "prompt_tokens_cached": "cached_prompt_tokens",
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "num_preemptions": "preemptions",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
}
"""Names of vLLM's counters, and those of the engine model."""
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_ITL = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)


class SimMetrics(Collector):
    """Gauges and counters read from the model at scrape time; the server feeds the latency histograms."""

    def __init__(self, loop: EngineLoop, model_name: str) -> None:
        self._loop = loop
        self._of_rank = [[model_name, str(rank)] for rank in range(len(loop.model.ranks))]
        """Values of _LABELS by rank."""
        self._registry = CollectorRegistry()
        self._registry.register(self)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self._registry)
            return family.labels(*self._of_rank[0])

        self.ttft = histogram("time_to_first_token_seconds", "Time to first token, real seconds.", _TTFT)
        self.itl = histogram("inter_token_latency_seconds", "Time between tokens, real seconds.", _ITL)
        self.e2e = histogram("e2e_request_latency_seconds", "Time of a request, real seconds.", _E2E)

    def render(self) -> bytes:
        """Return the metrics in Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called by the registry at every scrape."""
        yield from self._gauges()
        yield from self._totals()
        yield self._state()
        yield self._cache_info()
        mark = GaugeMetricFamily("penstock_simulated", "1: this engine is simulated.", labels=_LABELS)
        mark.add_metric(self._of_rank[0], 1)
        yield mark

    def _gauges(self) -> Iterator[Metric]:
        """Yield what the engine has in progress, by rank."""
        for name, field in _GAUGES.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", "As vLLM's metric of this name.", labels=_LABELS)
            for labels, rank in zip(self._of_rank, self._loop.model.ranks, strict=True):
                gauge.add_metric(labels, getattr(rank, field))
            yield gauge

    def _totals(self) -> Iterator[Metric]:
        """Yield the cumulative counters, by rank."""
        counted = [self._loop.model.counters(rank) for rank in range(len(self._of_rank))]
        for name, field in _TOTALS.items():
            counter = CounterMetricFamily(f"vllm:{name}", "As vLLM's metric of this name.", labels=_LABELS)
            for labels, counters in zip(self._of_rank, counted, strict=True):
                counter.add_metric(labels, getattr(counters, field))
            yield counter
        finished = CounterMetricFamily(
            "vllm:request_success", "Finished.", labels=[*_LABELS, "finished_reason"]
        )
        for labels, counters in zip(self._of_rank, counted, strict=True):
            for reason, total in counters.finished.items():
                # vLLM's own counter does not count requests whose client disconnected
                finished.add_metric([*labels, reason], 0 if reason == "abort" else total)
        yield finished

    def _state(self) -> Metric:
        level = self._loop.sleep.level
        states = {"awake": level == 0, "weights_offloaded": level == 1, "discard_all": level >= 2}
        gauge = GaugeMetricFamily("vllm:engine_sleep_state", "Sleep state.", labels=[*_LABELS, "sleep_state"])
        for state, on in states.items():
            gauge.add_metric([*self._of_rank[0], state], 1 if on else 0)
        return gauge

    def _cache_info(self) -> Metric:
        config = self._loop.model.config
        labels = ["engine", "block_size", "num_gpu_blocks", "enable_prefix_caching"]
        info = GaugeMetricFamily("vllm:cache_config_info", "Cache configuration.", labels=labels)
        ranks = self._loop.model.ranks
        blocks = sum(rank.pool.blocks for rank in ranks)  # vLLM states those of all ranks beside each
        for number in range(len(ranks)):
            info.add_metric([str(number), str(config.block_size), str(blocks), "True"], 1)
        return info
