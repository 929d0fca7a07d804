"""The service: a gallery, perhaps a model, and settings become an ASGI application with a page.

One process writes a gallery; others may read it (`surefind.service.state`). The gallery stays its
maker's to close.

**Calibrate again** with reviewed queries, which are a random share of all, or from the gallery's own items.
It is made on a copy of the gallery, while searches go on, and used from then on. A calibration that cannot
be made leaves the old one in place.

**An audit** (`surefind.Gallery.audit`) is made of a copy too, when it is first asked for, and again after
the gallery has changed. It takes a processor for a while, so whoever asks for it must be allowed to write.

**A snapshot** is a copy of the gallery at one moment, in the service's folder ``snapshots``: a gallery's
folder like any other. To go back to one, stop the service and put it in the place of the gallery. Deleting
old ones is the operator's.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from surefind.decisions.risk import RiskCurve
from surefind.gallery.gallery import Gallery
from surefind.gallery.store import stored_items
from surefind.service import items, problems, reviews, search, wire
from surefind.service.guard import Limits
from surefind.service.images import Learner
from surefind.service.problems import conflicting, described
from surefind.service.review_store import read_reviews
from surefind.service.routes import (
    Allowed,
    EncodedIds,
    State,
    as_json,
    guarded_router,
    json_body,
    writes,
)
from surefind.service.settings import WRITE, Settings
from surefind.service.state import AppState
from surefind.service.telemetry import Recorder, log_event
from surefind.service.wire import RefusedError

PAGE = Path(__file__).parent / "page"
"""The files of the page, served as they are."""
SNAPSHOTS = "snapshots"
SNAPSHOT = "%Y-%m-%dT%H-%M-%S-%fZ"
MOST_SNAPSHOTS = 100
"""Copies that may be there; the next one is refused until the operator has deleted some."""


def create_app(gallery: Gallery, learner: Learner | None = None, *, settings: Settings) -> FastAPI:
    """Return the application; any ASGI server runs it.

    Args:
        gallery: What is searched.
        learner: A fitted `surefind.MetricLearner` that embeds images; None for vectors only.
        settings: Places, tokens and limits.
    """
    tokens = len(settings.keyring)  # read now, so that a file that cannot be used is told at once
    log_event("start", version=version("surefind"), place=gallery.info["place"], tokens=tokens)
    state = AppState(gallery, learner, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.begin()
        log_event("ready", items=len(gallery), calibrated=gallery.calibration is not None)
        yield
        log_event("stopping")
        await state.close()
        log_event("stopped")

    app = FastAPI(
        title="surefind",
        summary="Retrieval that knows when it does not know.",
        version=version("surefind"),
        openapi_url="/v1/openapi.json",
        # Their pages fetch scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # It would tell others the addresses, which hold ids; `telemetry` does not.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        lifespan=lifespan,
    )
    app.state.service = state
    problems.install(app)
    for router in (search.router, items.router, reviews.router, probes, about):
        app.include_router(router)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_middleware(EncodedIds, busiest=search.busiest)
    app.add_middleware(Limits, settings=settings, buckets=state.buckets)
    app.add_middleware(Recorder, metrics=state.metrics)
    if settings.trusted_proxies:
        app.add_middleware(
            ProxyHeadersMiddleware, trusted_hosts=[*map(str, settings.trusted_proxies)]
        )
    return app


probes = APIRouter(tags=["about"], responses=described(429))
"""For machines and browsers that have no token."""
about = guarded_router("", "about")
Recalibration = Annotated[wire.Recalibration, Depends(json_body(wire.Recalibration))]


@probes.get("/", include_in_schema=False)
async def index() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})


@probes.get("/healthz")
async def healthz() -> wire.Health:
    """Report that the service is up; no token is needed."""
    return wire.Health(status="ok")


@probes.get("/readyz", responses={503: {"model": wire.Ready, "description": "It is not ready."}})
async def readyz(state: State, response: Response) -> wire.Ready:
    """Report whether everything is there: gallery, graph, calibration and disk; no token is needed."""
    reasons = await state.readiness.reasons()
    response.status_code = 503 if reasons else 200
    return wire.Ready(ready=not reasons, reasons=reasons)


@about.get("/metrics", response_class=Response)
async def metrics(state: State) -> Response:
    """Return the figures for Prometheus."""
    text, kind = await state.work(state.metrics.text)
    return Response(text, headers={"Content-Type": kind})


@about.get("/v1/gallery")
async def gallery(state: State, found: Allowed) -> wire.GalleryView:
    """Describe what can be searched, and how."""
    return wire.GalleryView(
        items=await state.work(lambda: len(state.gallery)),
        dim=state.gallery.info["dim"],
        model=state.gallery.model,
        images=state.embeds,
        calibrated=state.gallery.calibration is not None,
        may_write=found.scope == WRITE,
    )


@about.get("/v1/calibration", response_model=wire.CalibrationView)
async def calibration(state: State) -> Response:
    """Describe what the decisions rest on: error rates over thresholds, how fresh it is, and the watch."""

    def look() -> wire.CalibrationView:
        made, sample = state.gallery.calibration, _sample(state)
        if made is None:
            return wire.CalibrationView(calibrated=False, reviews=sample)
        names = ("summary", "threshold", "queries", "unknown", "left_out_queries", "renewals")
        return wire.CalibrationView(
            calibrated=True,
            reviews=sample,
            watch=_watch(state.gallery),
            max_wrong=made.target.max_wrong,
            confidence=made.target.confidence,
            max_false_alarms=None if made.gate is None else made.gate.max_false_alarms,
            risk_curve=wire.Curve.model_validate(made.risk_curve, from_attributes=True),
            identification=_identification(made.risk_curve),
            **{name: getattr(made, name) for name in (*names, "left_out_matched", "made", "stale")},
        )

    return await state.work(lambda: as_json(look()))


def _watch(gallery: Gallery) -> wire.WatchView | None:
    """Say what the watch has found."""
    seen = gallery.watch()
    if seen is None:
        return None
    alarm, names = seen.alarm, ("since", "stream", "direction")
    return wire.WatchView(
        queries=seen.queries,
        capital=seen.capital,
        alarm=None if alarm is None else seen.sentence,
        **{name: None if alarm is None else getattr(alarm, name) for name in names},
    )


def _identification(found: RiskCurve) -> wire.IdentificationCurve:
    bounds = {
        f"{name}_{side}": values
        for name in ("fpir", "fnir")
        for side, values in zip(("lower", "upper"), getattr(found, f"{name}_bounds"), strict=True)
    }
    rates = {name: getattr(found, name) for name in ("unknown", "enrolled", "fpir", "fnir")}
    return wire.IdentificationCurve.model_validate(rates | bounds)


def _sample(state: AppState) -> wire.SampleView:
    counts = state.reviews.counts()
    return wire.SampleView(
        share=state.settings.review_share,
        usable=counts.usable,
        waiting=counts.waiting,
        needed=state.gallery.info["reviews_needed"],
        summary=counts.summary,
    )


@about.post("/v1/calibration", **writes(wire.Recalibration))
async def recalibrate(body: Recalibration, state: State) -> wire.Recalibrated:
    """Calibrate again with reviewed random checks, for the same target, or from the gallery's items."""

    def make() -> wire.Recalibrated:
        how = body.model_dump(exclude={"with_reviews", "from_items"}, exclude_none=True)
        with conflicting():
            reviewed = read_reviews(state.settings.folder) if body.with_reviews else None
            found = state.gallery.calibrate(reviews=reviewed, **how)
        state.changed()  # items may have been, meanwhile
        return wire.Recalibrated(
            reached=found.reached,
            summary=found.summary,
            queries=found.queries,
            reviewed=0 if reviewed is None else len(reviewed),
        )

    return await state.keep(make)


@about.get("/v1/audit", **writes())
async def audit(
    state: State,
    most: Annotated[int, Query(ge=1, le=200, description="Findings of each kind.")] = 20,
) -> wire.AuditView:
    """List items and labels that something is probably wrong with."""

    def look() -> wire.AuditView:
        with conflicting():
            found = state.current(Gallery.audit)
        rows = found.to_rows(most)
        ids = {row[key] for row in rows for key in ("id", "other_id")} - {None}
        there = {id_ for id_ in ids if _has_picture(state, id_)}
        findings = [
            wire.Finding(**row, image=row["id"] in there, other_image=row["other_id"] in there)
            for row in rows
        ]
        return wire.AuditView(sentences=list(found.sentences), findings=findings)

    return await state.keep(look)


def _has_picture(state: AppState, id_: wire.ItemId) -> bool:
    there = id_ in state.gallery
    return there and state.thumbnails.has(id_, state.gallery.get(id_).payload)


@about.post("/v1/snapshot", status_code=201, **writes())
async def make_snapshot(state: State) -> wire.SnapshotView:
    """Copy the gallery as it is now; searches and changes go on."""

    def copy() -> wire.SnapshotView:
        folder = state.settings.folder / SNAPSHOTS
        sentence = None
        if state.gallery.info["place"] == "memory":
            sentence = "a gallery in memory has no place of its own, and cannot be copied."
        elif folder.is_dir() and len(list(folder.iterdir())) >= MOST_SNAPSHOTS:
            sentence = f"there are {MOST_SNAPSHOTS} snapshots already; delete old ones first."
        if sentence is not None:
            raise RefusedError(409, sentence)
        place = folder / datetime.now(UTC).strftime(SNAPSHOT)
        with conflicting():
            state.gallery.save(place)
        return wire.SnapshotView(name=place.name, items=stored_items(place))

    return await state.keep(copy)
