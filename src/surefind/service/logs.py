"""One JSON line per request, without what users sent.

A line holds when, what kind of request (the route, not the address: ids are user content), its status, its
milliseconds and its number. No token, id, label, vector, file name or error text is in it.
"""

import json
import logging
from datetime import UTC, datetime

LOGGER = logging.getLogger("surefind.service")


class JsonLines(logging.Formatter):
    """Write a record and its ``fields`` as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record.

        Args:
            record: Its attribute ``fields``, if there is one, is a dict.

        Returns:
            The line.
        """
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(line | getattr(record, "fields", {}))


def write_to_stderr() -> None:
    """Send the service's lines to the standard error; the command line calls this."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def note_request(
    number: str, method: str, route: str, status: int, seconds: float, defect: str | None
) -> None:
    """Write the line of a request.

    Args:
        number: The request's, which its answer carries too.
        method: Of the request.
        route: The pattern of its address.
        status: Of the answer.
        seconds: How long it took.
        defect: The kind of an error that nobody foresaw, and where it was raised.
    """
    fields = {
        "request": number,
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1e3, 2),
    } | ({} if defect is None else {"defect": defect})
    level = logging.INFO if defect is None else logging.ERROR
    if LOGGER.isEnabledFor(level):
        # A line does not say whence it was written, so the stack is not searched for that.
        nowhere = ("", 0)
        record = LOGGER.makeRecord(
            LOGGER.name, level, *nowhere, "request", (), None, extra={"fields": fields}
        )
        LOGGER.handle(record)
