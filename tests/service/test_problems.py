"""Known errors become an answer with a status and a sentence."""

import json

import pytest
from fastapi.exceptions import RequestValidationError

from surefind.errors import InputError, NumericalError, StorageError
from surefind.service.problems import answer_to
from surefind.service.wire import RefusedError

MISSING = {"loc": ("body", "k"), "msg": "Field required"}


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (RefusedError(429, "too much at once."), 429, "too much at once."),
        (RequestValidationError([MISSING]), 422, "body.k: Field required."),
        (StorageError("no space in /srv/x"), 503, "."),
        (InputError("k must be 1 or more."), 422, "k must be 1 or more."),
        (NumericalError("not finite."), 500, "not finite."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_known_error_has_a_status_and_a_sentence(error, status, sentence):
    answer = answer_to(error)
    assert answer.status_code == status
    said = json.loads(answer.body)["error"]
    assert said.endswith(sentence)
    assert "/srv" not in said


def test_headers_of_a_refusal_are_sent():
    answer = answer_to(RefusedError(429, "too much at once.", {"retry-after": "2"}))
    assert answer.headers["retry-after"] == "2"
