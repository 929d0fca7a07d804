"""The service: a gallery, perhaps a model, and settings become an ASGI application.

One process serves one gallery, because a gallery has one writer. The gallery stays its maker's to close.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from surefind.apps.service import about, items, pages, problems, reviewing, searches
from surefind.apps.service.embedding import Learner
from surefind.apps.service.limits import Limits
from surefind.apps.service.settings import Settings
from surefind.apps.service.shortcut import Shortcut
from surefind.apps.service.state import Desk
from surefind.apps.service.telemetry import Recorder
from surefind.gallery.gallery import Gallery


def create_app(gallery: Gallery, learner: Learner | None = None, *, settings: Settings) -> FastAPI:
    """Make the application.

    Args:
        gallery: What is searched. With ``on_stale="mark"`` it answers after changes too.
        learner: A fitted `surefind.MetricLearner` that embeds images; None for vectors only.
        settings: Places, tokens and limits.

    Returns:
        The application; any ASGI server runs it.
    """
    desk = Desk(gallery, learner, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await desk.close()

    app = FastAPI(
        title="surefind",
        summary="Retrieval that knows when it does not know.",
        version=version("surefind"),
        openapi_url="/v1/openapi.json",
        # Their pages fetch scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # It would tell others the addresses, which hold ids; `metrics` and `logs` do not.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        lifespan=lifespan,
    )
    app.state.desk = desk
    problems.install(app)
    for part in (searches, items, reviewing, about):
        app.include_router(part.router)
    pages.mount(app)
    busiest = searches.search_vectors
    path = searches.router.url_path_for(busiest.__name__)
    app.add_middleware(Shortcut, path=path, endpoint=busiest)
    app.add_middleware(Limits, settings=settings)
    app.add_middleware(Recorder, metrics=desk.metrics)
    return app
