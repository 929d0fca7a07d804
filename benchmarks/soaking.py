"""Mixed load with kills, a full disk and floods; what a service acknowledged must be there afterwards.

Workers add, relabel, change, delete, search and decide about ids of their own, one request after the other,
and write down what became of each (`Ledger`):

    2xx                     acknowledged: it holds from now on
    4xx, 503                refused: nothing has changed
    no answer, 500, 504     nobody knows: one of both holds, of a batch for all of its items

The service is ended again and again, mostly by SIGKILL, and often while it is in trouble. After every start
all items and reviews are read and compared with the ledger. Whatever it does not allow is a fault. Floods
come from another address of this machine, as from another machine.
"""

import asyncio
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np

LAUNCH = "import typer; from surefind.cli.serve import serve; typer.run(serve)"
TOKEN = "soak" * 4
LABELS = [f"label {n}" for n in range(8)]
DIM = 16
SMALL = 2**28
"""Bytes of a file system that is filled up; on a larger one the limit of file sizes plays a full disk."""
UNKNOWN = (500, 502, 504)
WAITING = "waiting"
FLOODING = "127.0.0.2"
TROUBLES = ("calm", "full", "flood", "upkeep", "poison")


def vector(id_: str, version: int) -> list[float]:
    """Return the vector of an item's version: a noisy member of one of as many classes as labels."""
    rng = np.random.default_rng([version, *id_.encode()])
    centre = np.random.default_rng(rng.integers(len(LABELS))).normal(size=DIM)
    drawn = centre + 0.9 * rng.normal(size=DIM)
    return [float(x) for x in (drawn / np.linalg.norm(drawn)).round(6)]


@dataclass(frozen=True)
class Item:
    """What an item was told to be; version 0 came as an image, whose vector is the service's."""

    label: str
    version: int

    def message(self, id_: str) -> dict[str, Any]:
        """Return what is sent to add it."""
        payload = {"version": self.version}
        about = {"id": id_, "label": self.label, "payload": payload}
        return about | {"vector": vector(id_, self.version), "kappa": 400.0}


@dataclass
class Ledger:
    """What may be there: the possible states of every item and review, one if it was acknowledged."""

    items: dict[str, set[Item | None]] = field(default_factory=dict)
    reviews: dict[str, set[str]] = field(default_factory=dict)
    batches: list[dict[str, tuple[Item | None, Item | None]]] = field(default_factory=list)
    unanswered: int = 0
    faults: list[str] = field(default_factory=list)
    acknowledged: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, status: int | None, after: dict[str, Item | None]) -> None:
        """Write down what became of a request that would make items so."""
        if status is not None and status < 300:
            self.acknowledged[kind] += len(after)
            self.items |= {id_: {state} for id_, state in after.items()}
        elif status is None or status in UNKNOWN:
            self.unknown[kind] += len(after)
            before = {id_: self.certain(id_) for id_ in after}
            self.batches.append({id_: (before[id_], after[id_]) for id_ in after})
            self.items |= {id_: {before[id_], state} for id_, state in after.items()}
        else:
            self.refused[kind] += len(after)
            for id_ in after:
                self.items.setdefault(id_, {None})

    def note_review(self, kind: str, status: int | None, id_: str, after: str) -> None:
        """Write down what became of a request that would make a review so."""
        if status is not None and status < 300:
            self.acknowledged[kind] += 1
            self.reviews[id_] = {after}
        elif status is None or status in UNKNOWN:
            self.unknown[kind] += 1
            self.reviews[id_] = self.reviews[id_] | {after}
        else:
            self.refused[kind] += 1

    def certain(self, id_: str) -> Item | None:
        """Return the one state of an item that is known."""
        (state,) = self.items.get(id_, {None})
        return state

    def compare_items(self, found: dict[str, Item]) -> None:
        """Compare with all items that are there, and take over which of several states holds."""
        for id_ in found.keys() - self.items.keys():
            self.faults.append(f"item {id_!r} was never added, and is there")
        for id_, possible in self.items.items():
            if found.get(id_) not in possible:
                self.faults.append(f"item {id_!r} is {found.get(id_)}, not one of {possible}")
        for batch in self.batches:
            done = [found.get(id_) == after for id_, (before, after) in batch.items()]
            if len(set(done)) > 1:
                self.faults.append(f"a batch was done by half: {batch}")
        self.batches = []
        self.items = {id_: {found.get(id_)} for id_ in self.items}

    def compare_reviews(self, found: dict[str, str]) -> None:
        """Compare with all reviews that are there; searches without an answer may have left some."""
        new = found.keys() - self.reviews.keys()
        if len(new) > self.unanswered:
            self.faults.append(f"{len(new)} reviews that nobody was told of")
        for id_, possible in self.reviews.items():
            if found.get(id_) not in possible:
                self.faults.append(f"review {id_} is {found.get(id_)}, not one of {possible}")
        self.unanswered = 0
        self.reviews = {id_: {state} for id_, state in found.items()}


class Disk:
    """The disk of a service, which can be made full and given room again."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"
        room = os.statvfs(folder)
        self.small = room.f_blocks * room.f_frsize <= SMALL

    def fill(self, process: int, spare: int) -> None:
        """Leave so many bytes."""
        if not self.small:
            files = self._filler.parent.rglob("*.sqlite*")
            most = max((file.stat().st_size for file in files), default=0)
            self._limit(process, most + spare if spare else 64)
            return
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**16))
        os.truncate(self._filler, max(0, self._filler.stat().st_size - spare))

    def clear(self, process: int) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)
        if not self.small:
            with suppress(ProcessLookupError):
                self._limit(process, resource.RLIM_INFINITY)

    def _limit(self, process: int, size: int) -> None:
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (size, hard))


class Soak:
    """A service, its clients, and what they know.

    Args:
        folder: Holds the ``gallery``, and what the service keeps beside it.
        options: Of `surefind serve`.
        images: Pictures to send; none for a service without a model.
        poison: Items that are refused, bodies that are no request.
        rate: Requests a second, of all workers.
        workers: How many ask at once.
        life: Seconds between two ends of the service, on average.
        seed: Of everything that is drawn.
        settled: Called after every comparison with the results so far.
    """

    def __init__(
        self,
        folder: Path,
        *,
        options: Iterable[str] = (),
        images: list[bytes] | None = None,
        poison: tuple[list[dict[str, Any]], list[bytes]] = ([], []),
        rate: float = 50.0,
        workers: int = 4,
        life: float = 45.0,
        seed: int = 0,
        settled: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self.folder, self.options, self.images, self.poison = folder, options, images, poison
        self.rate, self.workers, self.life, self.settled = rate, workers, life, settled
        self.ledger, self.random = Ledger(), random.Random(seed)
        self.disk = Disk(folder)
        self.statuses: Counter[str] = Counter()
        self.errors: list[str] = []
        self.ends: Counter[str] = Counter()
        self.peak_mb = self.served = self.cpu = 0.0
        self.compared = 0
        self.waits: dict[str, float] = {"calm": 0.0}
        self.starts: list[float] = []
        self.stops: list[float] = []
        self.alive = self.hurry = False
        self.trouble = "calm"
        self._number = itertools.count()
        self._log = folder / "log"

    def run(self, seconds: float) -> dict[str, Any]:
        """Go on for so long, compare a last time, and return the results."""
        end = time.monotonic() + seconds
        troubles = itertools.cycle(TROUBLES)
        while (left := end - time.monotonic()) > 0:
            self.live(next(troubles), min(left, self.random.uniform(0.4, 1.6) * self.life))
            self.settled(self.results())
        self.live("calm", 0)  # compares what the last end left
        return self.results()

    def live(self, trouble: str, seconds: float) -> None:
        """Start the service, compare, load it for so long, half of it in trouble, and end it."""
        asyncio.run(self._live(trouble, seconds))

    def results(self) -> dict[str, Any]:
        """Return what was found so far."""
        ledger = self.ledger
        return {
            "served_seconds": round(self.served, 1),
            "starts": len(self.starts),
            "items_and_reviews_compared": self.compared,
            "ends": dict(self.ends),
            "disk": "small file system" if self.disk.small else "limit of file sizes",
            "requests": sum(self.statuses.values()),
            "statuses": dict(sorted(self.statuses.items())),
            "acknowledged": dict(sorted(ledger.acknowledged.items())),
            "refused": dict(sorted(ledger.refused.items())),
            "unknown": dict(sorted(ledger.unknown.items())),
            "faults": ledger.faults,
            "server_errors": self.errors,
            "longest_healthz_ms": {name: round(1e3 * s, 1) for name, s in self.waits.items()},
            "longest_start_seconds": round(max(self.starts, default=0.0), 2),
            "longest_stop_seconds": round(max(self.stops, default=0.0), 2),
            "peak_mb": round(self.peak_mb, 1),
            "server_cpu_seconds": round(self.cpu, 1),
        }

    async def _live(self, trouble: str, seconds: float) -> None:
        process, address = self._start()
        limits = httpx.Limits(max_keepalive_connections=self.workers)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        begun = time.monotonic()
        async with httpx.AsyncClient(
            base_url=address, headers=headers, limits=limits, timeout=30
        ) as client:
            self.alive = True
            try:
                await self._compare(client)
                tasks = [asyncio.create_task(self._work(client, w)) for w in range(self.workers)]
                tasks.append(asyncio.create_task(self._probe(address)))
                await asyncio.sleep(seconds / 2)
                self.trouble = trouble
                troubled = asyncio.create_task(self._make_trouble(client, process, address))
                early = self.random.random() < 0.5
                await asyncio.sleep(seconds / 2 * (self.random.random() if early else 1))
                self.hurry = True  # so that the end finds requests under way
                await asyncio.sleep(self.random.uniform(0.2, 1.0))
                self._look_at(process)
                if process.poll() is not None:
                    self.ledger.faults.append(f"the service ended by itself: {process.returncode}")
                self.alive = False
                await self._end(process)
                # Requests under way find their connections closed; cancelled, nobody would note them.
                troubled.cancel()
                for found in await asyncio.gather(*tasks, troubled, return_exceptions=True):
                    if isinstance(found, Exception) and not isinstance(
                        found, asyncio.CancelledError
                    ):
                        raise found
            finally:
                self.alive, self.hurry, self.trouble = False, False, "calm"
                if process.poll() is None:
                    process.kill()
                    process.wait()
                assert process.stdout is not None
                process.stdout.close()
                self.disk.clear(process.pid)
        self.served += time.monotonic() - begun

    def _start(self) -> tuple[subprocess.Popen[bytes], str]:
        command = [sys.executable, "-c", LAUNCH, str(self.folder / "gallery"), "--port", "0"]
        environment = os.environ | {"SUREFIND_WRITE_TOKEN": TOKEN}
        begun = time.monotonic()
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--set", "rate=0", *self.options],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        assert process.stdout is not None
        for line in process.stdout:
            if address := re.search(rb"http://[^/\s]+", line):
                break
        else:
            process.wait()
            raise AssertionError(f"it does not start: {self._log.read_text()[-2000:]}")
        found = address.group().decode()
        while True:
            with suppress(httpx.TransportError):
                httpx.get(f"{found}/healthz", timeout=30).raise_for_status()
                break
            if process.poll() is not None:
                raise AssertionError(f"it does not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)
        self.starts.append(time.monotonic() - begun)
        return process, found

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        stop = signal.SIGTERM if self.random.random() < 0.25 else signal.SIGKILL
        begun = time.monotonic()
        process.send_signal(stop)
        await asyncio.to_thread(process.wait)
        if stop == signal.SIGTERM:
            self.stops.append(time.monotonic() - begun)
        self.ends[f"{stop.name}, {self.trouble}"] += 1

    def _look_at(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = next(line for line in status if line.startswith("VmHWM"))
            self.peak_mb = max(self.peak_mb, int(peak.split()[1]) / 1024)
            spent = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            self.cpu += (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")

    async def _compare(self, client: httpx.AsyncClient) -> None:
        self.compared += len(self.ledger.items) + len(self.ledger.reviews)
        self.ledger.compare_items(await self._items(client))
        reviews: dict[str, str] = {}
        while True:
            params = {"limit": 200, "offset": len(reviews)}
            page = (await client.get("/v1/reviews", params=params)).raise_for_status().json()
            reviews |= {one["id"]: WAITING for one in page["pending"]}
            if len(reviews) >= page["total"]:
                break
        offset, decisions = 0, 1
        while offset < decisions:
            params = {"decided": True, "limit": 200, "offset": offset}
            page = (await client.get("/v1/reviews", params=params)).raise_for_status().json()
            said, decisions, offset = page["decided"], page["decisions"], offset + 200
            reviews |= {one["id"]: f"{one['verdict']} {one['label']}" for one in said}
        self.ledger.compare_reviews(reviews)

    async def _items(self, client: httpx.AsyncClient) -> dict[str, Item]:
        """Read all items, and look whether vectors and searches agree with them."""
        found: dict[str, Item] = {}
        after: dict[str, str] = {}
        while True:
            params = {"limit": 500, "vectors": True} | after
            page = (await client.get("/v1/items", params=params)).raise_for_status().json()
            for one in page["items"]:
                if one["id"].startswith("own-"):
                    continue
                version = (one["payload"] or {}).get("version", 0)
                found[one["id"]] = Item(one["label"], version)
                if version and not np.allclose(
                    one["vector"], vector(one["id"], version), atol=1e-5
                ):
                    self.ledger.faults.append(f"item {one['id']!r} has another vector")
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        for id_ in self.random.sample(sorted(found), min(20, len(found))):
            if version := found[id_].version:
                asked = {"vectors": [vector(id_, version)], "k": 3, "kappa": [400.0], "keep": False}
                answer = await client.post("/v1/search/vector", json=asked | {"watch": False})
                near = answer.raise_for_status().json()["answers"][0]["neighbours"]
                if id_ not in [one["id"] for one in near]:
                    self.ledger.faults.append(f"item {id_!r} is not found by its own vector")
        return found

    async def _send(
        self, client: httpx.AsyncClient, method: str, path: str, **options: Any
    ) -> httpx.Response | None:
        """Send a request; None if there is no answer."""
        try:
            answer = await client.request(method, path, **options)
        except httpx.TransportError as error:
            self.statuses[type(error).__name__] += 1
            return None
        self.statuses[str(answer.status_code)] += 1
        if answer.status_code == 500:
            self.errors.append(f"{method} {path}: {answer.text[:200]}")
        return answer

    async def _work(self, client: httpx.AsyncClient, worker: int) -> None:
        """Do one thing after the other with ids of one's own."""
        mine = f"{worker}-"
        while self.alive:
            pause = self.random.expovariate(self.rate / self.workers)
            await asyncio.sleep(0 if self.hurry else pause)
            if not self.alive:
                return
            sure = [i for i, s in self.ledger.items.items() if i.startswith(mine) and len(s) == 1]
            there = [id_ for id_ in sure if self.ledger.certain(id_) is not None]
            gone = [id_ for id_ in sure if self.ledger.certain(id_) is None]
            crowd = len(there) > 300
            weights = {
                self._add: 1 if crowd else 4,
                self._delete: (6 if crowd else 2) if there else 0,
                self._change: 3 if there else 0,
                self._search: 6,
                self._decide: 3,
                self._add_image: 1 if self.images else 0,
            }
            action = self.random.choices([*weights], [*weights.values()])[0]
            await action(client, mine, there, gone)

    async def _add(
        self, client: httpx.AsyncClient, mine: str, there: list[str], gone: list[str]
    ) -> None:
        """Add new items or such as were deleted; or what is there already, which is refused."""
        if there and self.random.random() < 0.1:
            body = {"items": [Item("taken", 1).message(self.random.choice(there))]}
            answer = await self._send(client, "POST", "/v1/items", json=body)
            if answer is not None and answer.status_code < 300:
                self.ledger.faults.append(f"an id was taken twice: {body}")
            return
        again = self.random.sample(gone, min(len(gone), self.random.choice([0, 0, 1])))
        new = [f"{mine}{next(self._number)}" for _ in range(self.random.choice([1, 1, 1, 5]))]
        after = {id_: self._drawn() for id_ in (*again, *new)}
        body = {"items": [item.message(id_) for id_, item in after.items()]}
        answer = await self._send(client, "POST", "/v1/items", json=body)
        self.ledger.note("add", _status(answer), {**after})

    async def _add_image(
        self, client: httpx.AsyncClient, mine: str, there: list[str], gone: list[str]
    ) -> None:
        id_, label = f"{mine}{next(self._number)}", self.random.choice(LABELS)
        form, image = {"id": id_, "label": label}, self.random.choice(self.images or [b""])
        answer = await self._send(
            client, "POST", "/v1/items/image", data=form, files={"file": image}
        )
        self.ledger.note("add image", _status(answer), {id_: Item(label, 0)})

    async def _delete(
        self, client: httpx.AsyncClient, mine: str, there: list[str], gone: list[str]
    ) -> None:
        id_ = self.random.choice(there)
        answer = await self._send(client, "DELETE", _address(id_))
        self.ledger.note("delete", _status(answer), {id_: None})

    async def _change(
        self, client: httpx.AsyncClient, mine: str, there: list[str], gone: list[str]
    ) -> None:
        """Relabel an item, or give it another vector."""
        id_ = self.random.choice(there)
        before = self.ledger.certain(id_)
        assert before is not None
        if self.random.random() < 0.6 or not before.version:
            after = Item(self.random.choice(LABELS), before.version)
            body: dict[str, Any] = {"label": after.label}
        else:
            after = Item(before.label, self.random.randrange(1, 10**6))
            body = {k: v for k, v in after.message(id_).items() if k != "id"}
        answer = await self._send(client, "PUT", _address(id_), json=body)
        self.ledger.note("change", _status(answer), {id_: after})

    async def _search(
        self, client: httpx.AsyncClient, mine: str, there: list[str], gone: list[str]
    ) -> None:
        """Search; what then waits for a person must wait from now on."""
        if self.images and self.random.random() < 0.2:
            path, sent = "/v1/search/image", {"files": {"file": self.random.choice(self.images)}}
        else:
            asked = vector(f"asked {next(self._number)}", self.random.randrange(10**6))
            path = "/v1/search/vector"
            sent = {"json": {"vectors": [asked], "kappa": [400.0], "keep": True}}
        answer = await self._send(client, "POST", path, **sent)
        if answer is None or answer.status_code in UNKNOWN:
            self.ledger.unanswered += 1
        elif answer.status_code == 200:
            review = answer.json()["answers"][0]["review"]
            if review is not None and review not in self.ledger.reviews:
                self.ledger.note_review("ask", 200, review, WAITING)

    async def _decide(
        self, client: httpx.AsyncClient, mine: str, there: list[str], gone: list[str]
    ) -> None:
        """Decide about a query, or take a decision back; each review belongs to one worker."""
        known = [
            (id_, state)
            for id_, states in itertools.islice(reversed(self.ledger.reviews.items()), 400)
            if len(states) == 1 and int(id_[:4], 16) % self.workers == int(mine[:-1])
            for state in states
        ]
        if not known:
            return
        waiting = [pair for pair in known if pair[1] == WAITING]
        id_, state = self.random.choice(waiting or known)
        if state != WAITING or (self.random.random() < 0.1 and len(waiting) < len(known)):
            id_ = self.random.choice([i for i, s in known if s != WAITING])
            answer = await self._send(client, "DELETE", f"/v1/reviews/{id_}/decision")
            self.ledger.note_review("undo", _status(answer), id_, WAITING)
            return
        label = self.random.choice(LABELS)
        relabels = self.random.random() < 0.5
        verdict = {"verdict": "relabel", "label": label} if relabels else {"verdict": "reject"}
        answer = await self._send(client, "POST", "/v1/reviews", json={"id": id_} | verdict)
        after = f"relabel {label}" if relabels else "reject None"
        self.ledger.note_review("decide", _status(answer), id_, after)

    async def _probe(self, address: str) -> None:
        """Ask whether the service is alive, each time on a connection of its own."""
        while self.alive:
            begun = time.monotonic()
            try:
                async with httpx.AsyncClient(base_url=address, timeout=30) as client:
                    answer = await client.get("/healthz")
                self.statuses[f"healthz {answer.status_code}"] += 1
            except httpx.TransportError as error:
                if self.alive:
                    self.statuses[f"healthz {type(error).__name__}"] += 1
            else:
                took = time.monotonic() - begun
                self.waits[self.trouble] = max(self.waits.get(self.trouble, 0.0), took)
            await asyncio.sleep(0.5)

    async def _make_trouble(
        self, client: httpx.AsyncClient, process: subprocess.Popen[bytes], address: str
    ) -> None:
        if self.trouble == "full":
            for spare in (0, self.random.randrange(2**17), self.random.randrange(2**14)):
                self.disk.fill(process.pid, spare)
                await asyncio.sleep(self.life / 12)
                self.disk.clear(process.pid)
                await asyncio.sleep(self.life / 24)
        elif self.trouble == "flood":
            await self._flood(address)
        elif self.trouble == "upkeep":
            body = {"from_items": True, "max_wrong": 0.2}
            for method, path, sent in (
                ("POST", "/v1/calibration", {"json": body}),
                ("POST", "/v1/snapshot", {}),
                ("GET", "/v1/audit", {}),
            ):
                await self._send(client, method, path, **sent, timeout=120)
            copies = sorted((self.folder / "gallery.service" / "snapshots").glob("*"))
            for old in copies[:-2]:
                shutil.rmtree(old)
        elif self.trouble == "poison":
            await self._poison(client)

    async def _flood(self, address: str) -> None:
        """Send silent connections, half requests, long headers, and large bodies without a token."""
        host, port = address.removeprefix("http://").split(":")
        head = f"POST /v1/items HTTP/1.1\r\nHost: {host}\r\n".encode()
        large = head + b"Content-Type: application/json\r\nContent-Length: 9000000\r\n\r\n"
        writers = []
        try:
            for number in range(600):
                with suppress(OSError):
                    local = (FLOODING, 0)
                    _, writer = await asyncio.open_connection(host, int(port), local_addr=local)
                    writers.append(writer)
                    sends = (b"", b"", head, head + b"X: " + bytes(2**20), large + b"[" * 2**20)
                    writer.write(sends[number % 5] if number % 20 < 5 else b"")
                await asyncio.sleep(0.005)
            await asyncio.sleep(self.life / 8)
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _poison(self, client: httpx.AsyncClient) -> None:
        """Send items that must be refused, and bodies that are no request."""
        items, bodies = self.poison
        kind = {"content-type": "application/json"}
        for item in items:
            body = json.dumps({"items": [Item("poison", 1).message("poison") | item]}).encode()
            answer = await self._send(client, "POST", "/v1/items", content=body, headers=kind)
            if answer is not None and answer.status_code < 300:
                self.ledger.faults.append(f"taken: {body[:200]!r}")
        for body in bodies:
            for method, path in (
                ("POST", "/v1/items"),
                ("POST", "/v1/search/vector"),
                ("POST", "/v1/reviews"),
                ("PUT", "/v1/items/own-0"),
            ):
                await self._send(client, method, path, content=body, headers=kind)

    def _drawn(self) -> Item:
        return Item(self.random.choice(LABELS), self.random.randrange(1, 10**6))


def _status(answer: httpx.Response | None) -> int | None:
    return None if answer is None else answer.status_code


def _address(id_: str) -> str:
    return f"/v1/items/{quote(id_, safe='')}"
