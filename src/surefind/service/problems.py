"""What a caller gets when something goes wrong: a status and a sentence, always as JSON.

400 the body is not what it says it is     408 it came too slowly       413 too large
401 a token is missing    403 not allowed  404 not there                409 in conflict with what is
415 no image              422 unusable     429 too much at once         503 the storage failed
504 it took too long      500 a defect of ours, without details
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from surefind.errors import InputError, StorageError, SurefindError
from surefind.service.wire import RefusedError


class Problem(BaseModel):
    """Why a request was not answered."""

    error: str


def problem(status: int, sentence: str, headers: Any = None) -> JSONResponse:
    """Return the answer that a problem gets."""
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe statuses for OpenAPI."""
    return {status: {"model": Problem} for status in statuses}


def invalid_sentence(errors: Sequence[Any]) -> str:
    """Return what pydantic found: the place, not the value, for what a caller sent is not repeated."""
    # A name may hold what UTF-8 cannot, and be as long as the body.
    parts = (str(part)[:40].encode(errors="replace").decode() for part in errors[0]["loc"])
    place = ".".join(parts) or "body"
    more = f" And {len(errors) - 1} more." if errors[1:] else ""
    return f"{place}: {errors[0]['msg'].removeprefix('Value error, ')}.{more}"


@contextmanager
def conflicting() -> Iterator[None]:
    """Refuse what the gallery as it is does not allow."""
    try:
        yield
    except InputError as error:
        raise RefusedError(409, str(error)) from error


def install(app: FastAPI) -> None:
    """Answer every known error of an application as a problem."""

    async def handle(request: Request, error: Any) -> JSONResponse:
        return answer_to(error)

    for kind in (HTTPException, RequestValidationError, SurefindError):
        app.add_exception_handler(kind, handle)


def answer_to(error: HTTPException | RequestValidationError | SurefindError) -> JSONResponse:
    """Return the answer that a known error gets."""
    match error:
        case HTTPException():
            return problem(error.status_code, str(error.detail), error.headers)
        case RequestValidationError():
            return problem(422, invalid_sentence(error.errors()))
        case RefusedError():
            return problem(error.status, str(error), error.headers)
        case StorageError():
            return problem(503, "what was asked could not be stored; nothing was changed.")
        case SurefindError():
            return problem(422 if isinstance(error, InputError) else 500, str(error))
    raise error
