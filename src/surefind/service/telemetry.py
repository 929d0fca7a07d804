"""Every request is counted, logged and numbered; an unforeseen error becomes an answer without details.

The log has one line of JSON for each request: when, what kind of request (the route, not the address: ids
are user content), the name of the caller's token, its status, its milliseconds and its number. No token,
id, label, vector, file name or error text is in it.

Prometheus reads requests, their times, batches, decisions and items:

surefind_requests_total{method, route, status}
surefind_request_seconds{route}             a histogram
surefind_batch_size{kind}                   a histogram: requests that were done together
surefind_decisions_total{decision}          "none" without a calibration
surefind_items, surefind_reviews_pending, surefind_reviews_dropped
surefind_waiting{kind}                      requests that wait to be searched or embedded
surefind_failures_total{kind}               of what nobody waits for: a "review" that could not be kept for
                                            a person, "renew", and "follow" of one that only reads
surefind_renewals_total, surefind_renewal_seconds       of the calibration, and the time of the last one
surefind_follows_total                      how often a service that only reads read the gallery again
surefind_stale                              1 from a change of the items until the renewal, or else 0
surefind_calibration_age_seconds            since it was made or renewed; NaN without one
surefind_watch_queries                      seen since the calibration was made
surefind_watch_capital                      100 raises the alarm
surefind_watch_alarm                        1 since queries were found to differ, or else 0
process_*                                   CPU, memory and open files

The moments of a service's life are lines of the log too: start, ready, stopping, stopped, calibration
renewed, gallery followed, tokens reloaded. A renewal that fails has the kind and the place of
the error, and so has a review that could not be kept.
"""

import asyncio
import functools
import logging
import os
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefind.gallery.gallery import Gallery
from surefind.service.problems import problem
from surefind.service.review_store import Reviews
from surefind.service.wire import CALLER

LOGGER = logging.getLogger("surefind.service")


class JsonLines(logging.Formatter):
    """Write a record and its ``fields`` as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        return to_json(line | getattr(record, "fields", {})).decode()


def write_to_stderr() -> None:
    """Log to the standard error; the command line calls this."""
    # Records need not say which thread and process wrote them: `JsonLines` does not write that.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log a moment in the service's life."""
    LOGGER.log(level, event, extra={"fields": fields})


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The figures of one service, in a registry of its own.

    Args:
        gallery: What is served.
        reviews: What waits for a person.
    """

    def __init__(self, gallery: Gallery, reviews: Reviews) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "surefind", "registry": self._registry}
        requests = Counter("requests", "Requests answered.", ["method", "route", "status"], **own)
        times = Histogram("request_seconds", "Time to answer.", ["route"], buckets=SECONDS, **own)
        decisions = Counter("decisions", "Queries answered, by decision.", ["decision"], **own)
        self._batches = Histogram("batch_size", "Done together.", ["kind"], buckets=SIZES, **own)
        self._waiting = Gauge("waiting", "Requests that wait.", ["kind"], **own)
        self._failures = Counter("failures", "Failures that nobody waits for.", ["kind"], **own)
        for kind in ("review", "renew", "follow"):
            self._failures.labels(kind)
        self._renewals = Counter("renewals", "Renewals of the calibration.", **own)
        self._last = Gauge("renewal_seconds", "Time of the last renewal.", **own)
        self._follows = Counter("follows", "Times that the gallery was read again.", **own)
        watched = functools.partial(_watched, gallery)
        gauges: dict[str, Callable[[], float]] = {
            "items": lambda: len(gallery),
            "reviews_pending": lambda: len(reviews),
            "reviews_dropped": lambda: reviews.dropped,
            "stale": lambda: getattr(gallery.calibration, "stale", False),
            "calibration_age_seconds": lambda: _age(gallery),
            "watch_queries": lambda: watched("queries"),
            "watch_capital": lambda: watched("capital"),
            "watch_alarm": lambda: watched("alarm") != 0,
        }
        for name, value in gauges.items():
            Gauge(name, f"{name.replace('_', ' ').capitalize()}.", **own).set_function(value)
        ProcessCollector(registry=self._registry)
        # Labels are looked up once: there are few, and many requests.
        self._of = functools.cache(
            lambda *asked: (requests.labels(*asked).inc, times.labels(asked[1]).observe)
        )
        self._decided = functools.cache(lambda name: decisions.labels(name).inc)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        count, observe = self._of(method, route, status)
        count()
        observe(seconds)

    def queue(self, kind: str, length: Callable[[], int]) -> Callable[[int], None]:
        """Count the requests of a kind that wait; return what counts its batches."""
        self._waiting.labels(kind).set_function(length)
        return self._batches.labels(kind).observe

    def decision(self, decision: str | None) -> None:
        """Count an answer."""
        self._decided(decision or "none")()

    def failed(self, kind: str, error: Exception) -> None:
        """Count and log what failed and nobody waits for."""
        self._failures.labels(kind).inc()
        # Its text may hold what a user sent.
        log_event(f"{kind} failed", logging.ERROR, defect=_where(error))

    def renewed(self, seconds: float) -> None:
        """Count a renewal of the calibration."""
        self._renewals.inc()
        self._last.set(seconds)
        log_event("calibration renewed", seconds=round(seconds, 3))

    def followed(self, items: int) -> None:
        """Count that the gallery was read again after another process changed it."""
        self._follows.inc()
        log_event("gallery followed", items=items)

    def text(self) -> tuple[bytes, str]:
        """Return everything as Prometheus reads it, and the content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


def _watched(gallery: Gallery, name: str) -> Any:
    """Return a value of the watch's report, 0 if there is none."""
    return getattr(gallery.watch(), name, None) or 0


def _age(gallery: Gallery) -> float:
    made = getattr(gallery.calibration, "made", None)
    return float("nan") if made is None else (datetime.now(UTC) - made).total_seconds()


STOPPED = "the service was stopped before this was answered; it may have been done all the same."
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""The page needs nothing of other hosts, so a browser may fetch nothing there."""
SAFE = [(name.lower().encode(), value.encode()) for name, value in SAFE_HEADERS.items()]


class Recorder:
    """ASGI middleware around all others: numbers, counts and logs requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record what became of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number, start, status, defect = os.urandom(6).hex(), time.perf_counter(), 0, None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = (b"x-request-id", number.encode())
                message["headers"] = [*message["headers"], *SAFE, own]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if status:
                raise
            await problem(504, STOPPED)(scope, receive, watched)
        except Exception as error:
            defect = _where(error)
            if not status:
                answer = problem(500, f"a defect of the service; its number is {number}.")
                await answer(scope, receive, watched)
        seconds = time.perf_counter() - start
        route = getattr(scope.get("route"), "path", "") or "none"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.request(method, route, status, seconds)
        asked = {"request": number, "caller": scope.get(CALLER), "method": method, "route": route}
        asked |= {"status": status, "ms": round(seconds * 1e3, 2)}
        level = logging.INFO if defect is None else logging.ERROR
        if LOGGER.isEnabledFor(level):
            fields = asked if defect is None else asked | {"defect": defect}
            # A line does not say whence it was written, so the stack is not searched for that.
            where, extra = ("", 0), {"fields": fields}
            record = LOGGER.makeRecord(LOGGER.name, level, *where, "request", (), None, extra=extra)
            LOGGER.handle(record)


def _where(error: Exception) -> str:
    """Name an error's kind and place; its text may hold what a user sent."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
