"""What clients saw of their requests, kept apart from the platform: the other side of its books."""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Entry:
    """One request from its client's side. Times are seconds of this process's monotonic clock."""

    number: int
    tenant: str
    kind: str
    prompt_tokens: int
    max_tokens: int
    """Output tokens that may be billed at most, over all choices."""
    started_at: float
    ended_at: float = 0.0
    status: int = 0
    """HTTP status; 0 = no answer came."""
    request_id: str = ""
    """As the answer's header said it; "" = no answer came."""
    code: str = ""
    """The API's error code, of an answer or of an event inside of a stream."""
    finished: bool = False
    """The answer came whole: a stream with its [DONE] and without an error, a JSON document with its last byte."""
    left: bool = False
    """The client left before the end, on purpose."""
    broken: str = ""
    """The connection's error; "" = it ended as HTTP says."""
    wrong: str = ""
    """How delivered text differs from what the engine generates for this prompt."""
    claimed: tuple[int, int] | None = None
    """Input and output tokens as the answer's own usage says."""
    tokens: int = 0
    """Tokens delivered, over all choices."""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """When tokens arrived, and how many had arrived by then."""

    def deliver(self, now: float, tokens: int) -> None:
        """Note the arrival of tokens."""
        if tokens:
            self.tokens += tokens
            self.arrivals.append((now, self.tokens))

    def tokens_before(self, instant: float) -> int:
        """Return how many tokens had arrived by then."""
        place = bisect.bisect_right(self.arrivals, instant, key=lambda each: each[0])
        return self.arrivals[place - 1][1] if place else 0

    @property
    def admitted(self) -> bool:
        """Whether the platform admitted the request beyond doubt."""
        return self.tokens > 0 or (self.finished and self.status == 200)

    @property
    def result(self) -> str:
        """One word for tables."""
        if self.left:
            return "left"
        if self.status not in (0, 200):
            return "refused" if self.status < 500 or self.status == 503 else "failed"
        if self.finished:
            return "finished"
        return "failed" if self.code else "broken"


@dataclass
class Windows:
    """Intervals of time in which something was so, such as that an API process was stopped."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def add(self, start: float, end: float) -> None:
        """Note an interval."""
        self.spans.append((start, end))

    def overlap_s(self, start: float, end: float) -> float:
        """Return the seconds of the interval in which it was so; intervals that overlap count twice."""
        return sum(max(min(end, until) - max(start, since), 0.0) for since, until in self.spans)


@dataclass(frozen=True)
class TornAdmission:
    """What an admission said that was torn from a spool, as it may be when a host dies before its sync (ADR 2)."""

    boot_id: str
    """The engine that the request was sent to."""
    max_input_tokens: int
    """Upper bound of the prompt tokens that it counted."""


@dataclass
class Journal:
    """All requests since the last audit, and what the harness did to API processes meanwhile."""

    entries: list[Entry] = field(default_factory=list)
    deaths: list[float] = field(default_factory=list)
    """When an API process was killed."""
    engine_deaths: list[float] = field(default_factory=list)
    stopped: Windows = field(default_factory=Windows)
    """When an API process was stopped."""
    lag: Windows = field(default_factory=Windows)
    """When this process itself was not run for more than 200 ms: the machine is busy, and so are the others late."""
    torn: set[str] = field(default_factory=set)
    """Requests whose last record was torn from a spool."""
    torn_open: dict[str, TornAdmission] = field(default_factory=dict)
    """Those of them whose admission was torn: they may have no row."""

    def death_before(self, instant: float) -> float:
        """Return when the last API process died that a connection's end at `instant` can be due to."""
        return max((death for death in self.deaths if death <= instant + 0.5), default=instant)

    def by_result(self) -> dict[str, int]:
        """Return the number of requests by their result."""
        return counted(entry.result for entry in self.entries)


def counted(words: Iterable[str]) -> dict[str, int]:
    """Return how often each word occurs."""
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return dict(sorted(found.items()))
