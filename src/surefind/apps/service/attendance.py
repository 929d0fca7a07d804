"""Requests whose client has gone are given up: what was not begun for them is not begun any more.

A client that closes its connection while it waits (its own time limit, a stopped program) leaves work
behind that nobody will read. A request that is not answered within `PATIENCE` seconds is therefore watched:
when its client goes, its handling is cancelled. Queues skip it when its turn comes
(`surefind.apps.service.batching`, `surefind.apps.service.state`); what a thread has begun is finished, so
that a change is made as a whole or not at all.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefind.apps.service.problems import problem

PATIENCE = 0.05
GONE = 499
"""What such a request is counted and logged as; nobody reads the answer."""


class Attendance:
    """ASGI middleware that cancels the handling of requests whose client has gone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and cancel it if its client goes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        read, gone, begun = False, False, False
        watch: asyncio.Task[None] | None = None

        async def reading() -> Message:
            nonlocal read, gone
            message = await receive()
            gone = message["type"] == "http.disconnect"
            read = gone or not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        async def wait() -> None:
            nonlocal gone
            while not read:  # the endpoint still reads what the client sends
                await asyncio.sleep(PATIENCE)
            gone = gone or (await receive())["type"] == "http.disconnect"
            if gone and not begun and task is not None:
                task.cancel()

        def start() -> None:
            nonlocal watch
            watch = loop.create_task(wait())

        timer = loop.call_later(PATIENCE, start)
        try:
            await self._app(scope, reading, sending)
        except asyncio.CancelledError:
            if not gone or task is None:
                raise
            task.uncancel()
            await problem(GONE, "the client has gone.")(scope, receive, send)
        finally:
            timer.cancel()
            if watch is not None:
                watch.cancel()
