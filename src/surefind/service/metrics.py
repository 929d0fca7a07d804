"""What Prometheus is told: requests, their times, batches, decisions and items.

surefind_requests_total{method, route, status}
surefind_request_seconds{route}             a histogram
surefind_batch_size{kind}                   a histogram: requests that were done together
surefind_decisions_total{decision}          "none" without a calibration
surefind_items, surefind_reviews_pending
"""

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The figures of one service, in a registry of its own."""

    def __init__(self, items: Callable[[], int], pending: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "surefind_requests_total",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "surefind_request_seconds",
            "Time to answer.",
            ["route"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "surefind_batch_size",
            "Requests done together.",
            ["kind"],
            buckets=SIZES,
            registry=self._registry,
        )
        self._decisions = Counter(
            "surefind_decisions_total",
            "Queries answered, by decision.",
            ["decision"],
            registry=self._registry,
        )
        # Labels are looked up once: there are few, and many requests.
        self._of = functools.cache(
            lambda method, route, status: (
                self._requests.labels(method, route, status).inc,
                self._seconds.labels(route).observe,
            )
        )
        self._decided = functools.cache(lambda name: self._decisions.labels(name).inc)
        for name, text, value in (
            ("surefind_items", "Items in the gallery.", items),
            ("surefind_reviews_pending", "Queries that wait for a person.", pending),
        ):
            Gauge(name, text, registry=self._registry).set_function(value)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        count, observe = self._of(method, route, status)
        count()
        observe(seconds)

    def batch(self, kind: str) -> Callable[[int], None]:
        """Give what counts the batches of a kind."""
        return self._batches.labels(kind).observe

    def decision(self, decision: str | None) -> None:
        """Count an answer."""
        self._decided(decision or "none")()

    def text(self) -> tuple[bytes, str]:
        """Write everything as Prometheus reads it, with the content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
