"""`surefind serve`: a gallery over HTTP, with a page for people.

    RUN         its model embeds images; its gallery is RUN/gallery, made empty if it is not there yet
    GALLERY     a gallery's folder or a Milvus address; ``--model`` names the run that embeds images, by
                default the one that the gallery was indexed with, if it is there

Reviews and thumbnails are kept beside the gallery, in GALLERY.service. ``--check`` makes nothing.
"""

import gc
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

import surefind as sf
from surefind.checks import install_command
from surefind.cli.about import lacking
from surefind.cli.console import put, say, spelled, to_stderr, warn
from surefind.cli.galleries import check_model, remembered_run
from surefind.cli.runs import FINGERPRINT, MODEL, open_run
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.service.settings import Settings

LAST, AFTER = 4.8, 0.5
"""Seconds after which the process ends when it is stopped, and when the gallery is closed: all that was
acknowledged is on the disk long before."""
SWITCH = 0.001
"""Seconds that a thread may keep Python's lock while others want it."""
BACKLOG = 1024
"""Connections that the system holds until they are taken in."""
Index = Literal["exact", "hnsw", "auto"]


def serve(
    target: Annotated[
        str,
        Argument(
            metavar="RUN|GALLERY", help="A run, or a gallery: its folder or its Milvus address."
        ),
    ],
    config: Annotated[
        Path | None, Option(envvar="SUREFIND_CONFIG", help="A TOML file of settings.")
    ] = None,
    host: Annotated[str | None, Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, Option(help="Port, 8765 by default; 0 takes a free one.")] = None,
    model: Annotated[
        Path | None, Option(help="Run that embeds images, if the target is a gallery.")
    ] = None,
    index: Annotated[
        Index | None,
        Option(
            help="How to search: exact, by an hnsw graph, or auto; as when it was made by default."
        ),
    ] = None,
    tokens: Annotated[
        Path | None, Option(help="File of tokens with names; changes count at once.")
    ] = None,
    review_share: Annotated[
        float | None,
        Option(
            min=0,
            max=1,
            help="Fraction of all queries that people are asked about, whatever was decided; a calibration "
            "can use these.",
        ),
    ] = None,
    read_only: Annotated[
        bool | None,
        Option(
            "--read-only",
            help="Change nothing, and follow the process that does: several may read one gallery.",
        ),
    ] = None,
    assigned: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Any other setting; --check lists them all."),
    ] = None,
    check: Annotated[
        bool,
        Option("--check", help="Only check whether everything is ready, and show the settings."),
    ] = False,
    new_token: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Only make a token of this name, print it once, and store its hash in the file of tokens "
            "(tokens.toml by default).",
        ),
    ] = None,
    write: Annotated[
        bool, Option("--write", help="Let the bearer of the new token change things.")
    ] = False,
) -> Any:
    """Serve a gallery over HTTP, with a page to search, browse and review.

    A setting is an option, a variable (`SUREFIND_RATE`, `SUREFIND_WRITE_TOKEN`), a line of the file, or the
    default, in this order.

    Example: `surefind serve runs/digits --check`

    Example: `surefind serve runs/digits --new-token scanner-3 --write`
    """
    if new_token is not None:
        return make_named_token(target, tokens or Path("tokens.toml"), new_token, write=write)
    try:
        from surefind.service.app import create_app
        from surefind.service.guard import guarded_config
        from surefind.service.settings import check_listening, configure
        from surefind.service.telemetry import write_to_stderr
    except ModuleNotFoundError as error:
        needed = install_command(*lacking("serve", "cli", "torch"))
        raise InputError(f"serving needs more ({error}): {needed}.") from error
    os.umask(0o077)  # what is kept is nobody else's
    place, run = gallery_and_run(target)
    named: dict[str, Any] = {"host": host, "port": port, "tokens": tokens}
    named |= {"review_share": review_share, "read_only": read_only}
    named |= {name: value for name, _, value in (s.partition("=") for s in assigned or ())}
    beside = Path(f"{'surefind' if '://' in place else place}.service")
    settings, sources = configure(beside, named, config)
    check_listening(settings)
    reads = settings.read_only
    with open_gallery(place, None if reads else run, index, check=check or reads) as gallery:
        learner = learner_for(gallery, model or run)
        known = settings.images or remembered_images(gallery)
        settings = settings.model_copy(update={"images": known})
        say(described(place, gallery, learner))
        if not len(gallery):
            filling = spelled("index", "SOURCE", run=model or run, out=place)
            say(f"It is empty. Fill it while nothing serves it: {filling}; or by POST /v1/items.")
        if check:
            lines = show(settings, sources)
            say("Everything is ready; leave out --check to serve it.")
            return {
                "gallery": place,
                "items": len(gallery),
                "calibrated": gallery.calibration is not None,
                "embeds": learner is not None,
                "settings": {
                    name: {"value": value, "from": source} for name, value, source in lines
                },
                "tokens": len(settings.keyring),
            }
        listening = listen(settings.host, settings.port)
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        say(f"Open http://{shown}:{listening.getsockname()[1]}/ in a browser. Ctrl-C stops.")
        write_to_stderr()
        app = create_app(gallery, learner, settings=settings)
        run_until_stopped(guarded_config(app, settings), listening)
    say("Stopped; everything that was acknowledged is kept.")
    end_within(AFTER)  # a thread may compute what nobody waits for, and Python waits for threads
    return {"gallery": place, "stopped": True}


def end_within(seconds: float) -> None:
    """End the process after some seconds, whatever it does then."""
    last = threading.Timer(seconds, os._exit, (0,))
    last.daemon = True
    last.start()


def make_named_token(target: str, file: Path, name: str, *, write: bool) -> dict[str, Any]:
    """Make a token, or replace the one of this name, and print it once; the file keeps its hash."""
    from surefind.service.settings import make_token

    made = make_token(file, name, write=write)
    scope = "read and write" if write else "read"
    to_stderr(f"{name} may {scope}; the hash is in {file}. The token, shown this once:")
    put(f"{made}\n")
    to_stderr(f"Next: {spelled('serve', target, tokens=file)}")
    return {"name": name, "file": file, "write": write, "token": made}


def show(settings: "Settings", sources: dict[str, str]) -> list[tuple[str, str, str]]:
    """Print the settings in effect, where each came from, and variables that are perhaps misspelt."""
    from surefind.service.settings import unknown_variables

    lines = []
    for name, value in settings:
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        text = "none" if value is None else "hidden" if name.endswith("_token") else text
        lines.append((name, text, sources[name]))
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    for name, text, source in lines:
        say(f"  {name:<{widths[0]}}  {text:<{widths[1]}}  {source}")
    say(f"  {len(settings.keyring)} tokens")
    for variable in unknown_variables():
        warn(f"{variable} is no setting, and is not used.")
    return lines


def gallery_and_run(target: str) -> tuple[str, Path | None]:
    """Return where the gallery is, and the run if the target is one; refuse what is neither."""
    from surefind.gallery.store import holds_gallery

    path = Path(target)
    if "://" in target or holds_gallery(path) or path.suffix == ".db":
        return target, None
    if (path / MODEL).is_file():
        return str(path / "gallery"), path
    what = "is neither a run nor a gallery" if path.exists() else "does not exist"
    raise InputError(
        f"{target} {what}. A run is what `surefind train` or `surefind fit` wrote, a gallery what "
        "`surefind index` did.",
        field="target",
    )


def open_gallery(
    place: str, run: Path | None, index: Index | None = None, *, check: bool
) -> "sf.Gallery":
    """Open the gallery, or make an empty one for a run that has none; with ``check``, only in memory."""
    from surefind.gallery.store import holds_gallery

    if run is None or holds_gallery(Path(place)):
        mode = "r" if check else "w"
        return sf.Gallery.open(place, mode=mode, index=index)
    owner = open_run(run)
    kept = None if check else place
    return sf.Gallery(path=kept, index=index or "auto", model=owner.fingerprint)


def learner_for(gallery: "sf.Gallery", run: Path | None) -> "sf.MetricLearner | None":
    """Load the model that embeds images; None if there is none, and only vectors can be searched."""
    if run is None and gallery.model is not None and (Path(gallery.model) / MODEL).is_file():
        run = Path(gallery.model)
    run = run or remembered_run(gallery)
    if (gallery.model or "").startswith(FINGERPRINT):
        check_model(gallery, run)
    return None if run is None else open_run(run).learner()


def remembered_images(gallery: "sf.Gallery") -> Path | None:
    """Return the folder of the images that were indexed, if it is there."""
    folder = gallery.info.get("images")
    return Path(folder) if folder is not None and Path(folder).is_dir() else None


def described(place: str, gallery: "sf.Gallery", learner: "sf.MetricLearner | None") -> str:
    """Describe what will be served."""
    images = "images and vectors" if learner is not None else "vectors only: no model is known"
    made = "calibrated" if gallery.calibration is not None else "not calibrated: no decisions"
    return f"Serving {place}: {len(gallery):,} items, {made}; searched with {images}."


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on a port, 0 for a free one; refuse one that is taken or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}. Choose another with "
            "--port; 0 takes a free one.",
            field="port",
        ) from error


def run_until_stopped(config: Any, listening: socket.socket) -> None:
    """Serve until a signal arrives, and finish the requests that have begun, within some seconds."""
    import uvicorn
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    server: Any = uvicorn.Server(config)
    stop = server.handle_exit

    def stopping(*signalled: Any) -> None:
        end_within(LAST)
        stop(*signalled)

    server.handle_exit = stopping
    # uvicorn raises the signal again when it is done; the gallery is yet to be closed then.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Idle threads of a matrix product spin while they wait for the next one, and would take the cores that
    # requests are read and written with.
    threads = max(1, (os.cpu_count() or 1) // 2)
    # The gallery, the model and all modules stay: looking through them for garbage again and again would
    # hold every request up, by 0.1 s of each second with 10,000 items.
    gc.collect()
    gc.freeze()
    # Beside a thread that computes, each step of a search would wait for its turn five times as long.
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        with threadpool_limits(threads, user_api="blas"):
            server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        gc.unfreeze()
        sys.setswitchinterval(switch)
        signal.signal(signal.SIGTERM, before)
        listening.close()
