"""The service: a gallery, perhaps a model, and settings become an ASGI application with a page.

One process writes a gallery; others may read it (`surefind.service.follower`). The gallery stays its
maker's to close.
"""

import dataclasses
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from surefind.decisions.identification import Identification
from surefind.gallery.gallery import Gallery
from surefind.service import (
    auditing,
    items,
    labels,
    problems,
    recalibration,
    searches,
    snapshots,
    verdicts,
)
from surefind.service.embedding import Learner
from surefind.service.limits import Limits
from surefind.service.problems import described
from surefind.service.routes import EncodedIds
from surefind.service.settings import WRITE, Allowed, Settings, allowed
from surefind.service.state import AppState, State
from surefind.service.telemetry import Recorder, log_event
from surefind.service.wire import (
    CalibrationView,
    Curve,
    GalleryView,
    Health,
    IdentificationCurve,
    Ready,
    WatchView,
)

PAGE = Path(__file__).parent / "page"
"""The files of the page, served as they are."""


def create_app(gallery: Gallery, learner: Learner | None = None, *, settings: Settings) -> FastAPI:
    """Return the application; any ASGI server runs it.

    Args:
        gallery: What is searched.
        learner: A fitted `surefind.MetricLearner` that embeds images; None for vectors only.
        settings: Places, tokens and limits.
    """
    log_event("start", version=version("surefind"), gallery=gallery.info["place"])
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
    looking = (items.router, labels.router, auditing.router)
    reviewing = (recalibration.router, verdicts.router, searches.reviews, snapshots.router)
    for router in (searches.router, *looking, *reviewing, about):
        app.include_router(router)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_middleware(searches.VectorDoor)
    app.add_middleware(EncodedIds)
    app.add_middleware(Limits, settings=settings)
    app.add_middleware(Recorder, metrics=state.metrics)
    if settings.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))
    return app


about = APIRouter(tags=["about"], responses=described(401, 403, 422, 429, 504))


@about.get("/", include_in_schema=False)
async def index() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})


@about.get("/healthz")
async def healthz() -> Health:
    """Report that the service is up; no token is needed."""
    return Health(status="ok")


@about.get("/readyz", responses={503: {"model": Ready, "description": "It is not ready."}})
async def readyz(state: State, response: Response) -> Ready:
    """Report whether everything is there: gallery, graph, calibration and disk; no token is needed."""
    reasons = await state.readiness.reasons()
    response.status_code = 503 if reasons else 200
    return Ready(ready=not reasons, reasons=reasons)


@about.get("/metrics", response_class=Response, dependencies=[Depends(allowed)])
async def metrics(state: State) -> Response:
    """Return the figures for Prometheus."""
    text, kind = await state.work(state.metrics.text)
    return Response(text, headers={"Content-Type": kind})


@about.get("/v1/gallery", dependencies=[Depends(allowed)])
async def gallery(state: State, found: Allowed) -> GalleryView:
    """Describe what can be searched, and how."""
    return GalleryView(
        items=await state.work(lambda: len(state.gallery)),
        dim=state.gallery.info["dim"],
        model=state.gallery.model,
        images=state.embeds,
        calibrated=state.gallery.calibration is not None,
        may_write=found.leave == WRITE,
        version=version("surefind"),
    )


@about.get("/v1/calibration", dependencies=[Depends(allowed)])
async def calibration(state: State) -> CalibrationView:
    """Describe what the decisions rest on: error rates over thresholds, how fresh it is, and the watch."""
    made = state.gallery.calibration
    if made is None:
        return CalibrationView(calibrated=False)
    now = await state.work(functools.partial(_today, state.gallery))
    added = made.contributions
    apart = {"calibrated", "risk_curve", "identification", "contributions", "max_false_alarms"}
    names = CalibrationView.model_fields.keys() - apart - now.keys()
    return CalibrationView(
        calibrated=True,
        max_false_alarms=None if made.gate is None else made.gate.max_false_alarms,
        risk_curve=Curve.model_validate(made.risk_curve, from_attributes=True),
        identification=_identification(made.identification),
        contributions=None if added is None else list(map(dataclasses.asdict, added.signals)),
        **now,
        **{name: getattr(made, name) for name in names},
    )


def _today(gallery: Gallery) -> dict[str, Any]:
    """Say how fresh the calibration is, and what the watch has found."""
    made, seen = gallery.calibration, gallery.watch()
    watch = None
    if seen is not None:
        alarm = seen.alarm
        watch = WatchView(
            queries=seen.queries,
            capital=seen.capital,
            alarm=None if alarm is None else seen.sentence,
            since=None if alarm is None else alarm.since,
            stream=None if alarm is None else alarm.stream,
            direction=None if alarm is None else alarm.direction,
        )
    return {
        "renewals": 0 if made is None else made.renewals,
        "made": None if made is None else made.made,
        "stale": made is not None and made.stale,
        "watch": watch,
    }


def _identification(found: Identification) -> IdentificationCurve:
    bounds = {
        f"{name}_{side}": values
        for name in ("fpir", "fnir")
        for side, values in zip(("lower", "upper"), getattr(found, f"{name}_bounds"), strict=True)
    }
    rates = {name: getattr(found, name) for name in ("unknown", "enrolled", "fpir", "fnir")}
    return IdentificationCurve.model_validate(rates | bounds)
