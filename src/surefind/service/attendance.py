"""Requests whose client has gone are given up: what was not begun for them is not begun any more.

A client that closes its connection while it waits (its own time limit, a stopped program) leaves work
behind that nobody will read. A request that is not answered within `PATIENCE` seconds is therefore watched:
when its client goes, its handling is cancelled. Queues skip it when its turn comes
(`surefind.service.batching`, `surefind.service.state`); what a thread has begun is finished, so
that a change is made as a whole or not at all.

A service that is stopped cancels what is not answered when its grace is over. Such a request gets 504 as if
it had taken too long, which it has: it may be done yet, and its client is to look.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefind.service.problems import problem

PATIENCE = 0.05
GONE = 499
"""What such a request is counted and logged as; nobody reads the answer."""
STOPPED = "the service was stopped before this was answered; it may have been done all the same."


class Attendance:
    """ASGI middleware that cancels the handling of requests whose client has gone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and cancel it if its client goes."""
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        client = _Client(receive, send, task)
        timer = asyncio.get_running_loop().call_later(PATIENCE, client.watch)
        try:
            await self._app(scope, client.receive, client.send)
        except asyncio.CancelledError:
            if client.answered:
                raise
            task.uncancel()
            answer = problem(GONE, "the client has gone.") if client.gone else problem(504, STOPPED)
            await answer(scope, receive, send)
        finally:
            timer.cancel()
            client.leave()


class _Client:
    """One request's client, and the task that handles the request."""

    def __init__(self, receive: Receive, send: Send, task: "asyncio.Task[None]") -> None:
        self._receive, self._send, self._task = receive, send, task
        self.gone, self.answered, self._read = False, False, False
        self._watch: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self.gone = message["type"] == "http.disconnect"
        self._read = self.gone or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        self.answered = True
        await self._send(message)

    def watch(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._wait())

    def leave(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _wait(self) -> None:
        while not self._read:  # the endpoint still reads what the client sends
            await asyncio.sleep(PATIENCE)
        self.gone = self.gone or (await self._receive())["type"] == "http.disconnect"
        if self.gone and not self.answered:
            self._task.cancel()
