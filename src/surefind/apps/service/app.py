"""The service: a gallery, perhaps a model, and settings become an ASGI application with a page.

One process serves one gallery, because a gallery has one writer. The gallery stays its maker's to close.
"""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from surefind.apps.service import items, problems, searches
from surefind.apps.service.embedding import Learner
from surefind.apps.service.limits import Limits
from surefind.apps.service.messages import CalibrationView, Curve, GalleryView, Health
from surefind.apps.service.problems import described
from surefind.apps.service.settings import WRITE, Allowed, Settings, allowed
from surefind.apps.service.state import AppState, State
from surefind.apps.service.telemetry import Recorder
from surefind.gallery.gallery import Gallery

PAGE = Path(__file__).parent / "page"
"""The files of the page, served as they are."""


def create_app(gallery: Gallery, learner: Learner | None = None, *, settings: Settings) -> FastAPI:
    """Return the application; any ASGI server runs it.

    Args:
        gallery: What is searched. With ``on_stale="mark"`` it answers after changes too.
        learner: A fitted `surefind.MetricLearner` that embeds images; None for vectors only.
        settings: Places, tokens and limits.
    """
    gallery.fit_labels()  # before anybody waits for an answer
    state = AppState(gallery, learner, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await state.close()

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
    for router in (searches.router, items.router, searches.reviews, about):
        app.include_router(router)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_middleware(Limits, settings=settings)
    app.add_middleware(Recorder, metrics=state.metrics)
    return app


about = APIRouter(tags=["about"], responses=described(401, 403, 422, 429, 504))


@about.get("/", include_in_schema=False)
async def index() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})


@about.get("/healthz", responses=described(503))
async def healthz(state: State) -> Health:
    """Report that the service is up; no token is needed."""
    return Health(status="ok", items=await state.work(lambda: len(state.gallery)))


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
        dim=state.gallery.dim,
        model=state.gallery.model,
        images=state.embeds,
        calibrated=state.gallery.calibration is not None,
        may_write=found == WRITE,
        version=version("surefind"),
    )


@about.get("/v1/calibration", dependencies=[Depends(allowed)])
async def calibration(state: State) -> CalibrationView:
    """Describe what the decisions rest on: the risk-coverage curve, the spread of κ, and a summary."""
    made = state.gallery.calibration
    if made is None:
        return CalibrationView(calibrated=False)
    added = made.contributions
    apart = {"calibrated", "risk_curve", "contributions", "max_false_alarms"}
    names = CalibrationView.model_fields.keys() - apart
    return CalibrationView(
        calibrated=True,
        max_false_alarms=None if made.gate is None else made.gate.max_false_alarms,
        risk_curve=Curve.model_validate(made.risk_curve, from_attributes=True),
        contributions=None if added is None else list(map(dataclasses.asdict, added.signals)),
        **{name: getattr(made, name) for name in names},
    )
