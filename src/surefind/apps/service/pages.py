"""The page: files of this package, served as they are."""

from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "page"

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> FileResponse:
    """Give the page."""
    return FileResponse(FOLDER / "index.html", headers={"Cache-Control": "no-cache"})


def mount(app: FastAPI) -> None:
    """Add the page and what it needs to an application.

    Args:
        app: The application.
    """
    app.include_router(router)
    app.mount("/page", StaticFiles(directory=FOLDER), name="page")
