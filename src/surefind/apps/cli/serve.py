"""`surefind serve`: a gallery over HTTP, with a page for people.

    RUN         its model embeds images; its gallery is RUN/gallery, made empty if it is not there yet
    GALLERY     a gallery's folder or a Milvus address; ``--model`` names the run that embeds images, by
                default the one that the gallery was indexed with, if it is there

Reviews and thumbnails are kept beside the gallery, in GALLERY.service. ``--check`` makes nothing.
"""

import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import surefind as sf
from surefind.apps.cli.console import say, spelled
from surefind.apps.cli.items import check_model
from surefind.apps.cli.options import run_argument
from surefind.apps.cli.run_folder import FINGERPRINT, MODEL, open_run
from surefind.errors import InputError

BACKLOG = 1024
"""Connections that the system holds until they are taken in."""


def serve(
    target: Annotated[
        str,
        run_argument(
            metavar="RUN-or-GALLERY", help="A run, or a gallery: its folder or its Milvus address."
        ),
    ],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    model: Annotated[
        Path | None, Option(help="Run that embeds images, if the target is a gallery.")
    ] = None,
    images: Annotated[
        Path | None, Option(help="Folder of the payloads' paths; by default that of `index`.")
    ] = None,
    folder: Annotated[
        Path | None, Option(help="Where reviews are kept; beside the gallery by default.")
    ] = None,
    read_token: Annotated[
        str | None, Option(envvar="SUREFIND_READ_TOKEN", help="Lets its bearer search and look.")
    ] = None,
    write_token: Annotated[
        str | None, Option(envvar="SUREFIND_WRITE_TOKEN", help="Lets its bearer change things too.")
    ] = None,
    rate: Annotated[
        float, Option(min=0, help="Requests a second and client; 0 for no limit.")
    ] = 200.0,
    max_mb: Annotated[int, Option(min=1, help="Largest request in MB.")] = 10,
    trusted_proxy: Annotated[
        list[str] | None,
        Option(help="Address or network of a proxy whose X-Forwarded-For names the client."),
    ] = None,
    review_share: Annotated[
        float,
        Option(
            min=0,
            max=1,
            envvar="SUREFIND_REVIEW_SHARE",
            help="Share of all queries that people are asked about, whatever was decided; a calibration "
            "can use these.",
        ),
    ] = 0.0,
    check: Annotated[
        bool, Option("--check", help="Only check whether everything is ready.")
    ] = False,
) -> None:
    """Serve a gallery over HTTP, with a page to search, browse and review.

    Example: `surefind serve runs/digits --check`
    """
    try:
        from surefind.apps.service.app import create_app
        from surefind.apps.service.connections import guarded_config
        from surefind.apps.service.settings import Settings, check_listening
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs more ({error}): pip install 'surefind[serve]'.") from error
    place, run = gallery_and_run(target)
    settings = Settings(
        folder=folder or Path(f"{'surefind' if '://' in place else place}.service"),
        images=images,
        read_token=read_token,
        write_token=write_token,
        rate=rate,
        max_bytes=max_mb * 2**20,
        trusted_proxies=tuple(trusted_proxy or ()),
        review_share=review_share,
    )
    try:
        check_listening(host, settings)
    except InputError as error:
        raise typer.BadParameter(error.text_for("cli"), param_hint="--host") from error
    with open_gallery(place, run, check=check) as gallery:
        learner = learner_for(gallery, model or run)
        settings = replace(settings, images=images or remembered_images(gallery))
        say(described(place, gallery, learner))
        if not len(gallery):
            filling = spelled("index", "SOURCE", run=model or run, out=place)
            say(f"It is empty. Fill it while nothing serves it: {filling}; or by POST /v1/items.")
        if check:
            say("Everything is ready; leave out --check to serve it.")
            return
        listening = listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        say(f"Open http://{shown}:{listening.getsockname()[1]}/ in a browser. Ctrl-C stops.")
        app = create_app(gallery, learner, settings=settings)
        run_until_stopped(guarded_config(app, settings), listening)
    say("Stopped; everything that was acknowledged is kept.")


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


def open_gallery(place: str, run: Path | None, *, check: bool) -> "sf.Gallery":
    """Open the gallery, or make an empty one for a run that has none; with ``check``, only in memory."""
    from surefind.gallery.store import holds_gallery

    if run is None or holds_gallery(Path(place)):
        return sf.Gallery.open(place, mode="r" if check else "w", on_stale="mark")
    owner = open_run(run)
    made = sf.Gallery(path=None if check else place, model=owner.fingerprint, on_stale="mark")
    if not check:
        owner.explain()
    return made


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
    folder = gallery.about.get("images")
    return Path(folder) if folder is not None and Path(folder).is_dir() else None


def remembered_run(gallery: "sf.Gallery") -> Path | None:
    """Return the run that embedded the items, if it is there and unchanged."""
    run = Path(gallery.about.get("run", ""))
    there = (run / MODEL).is_file() and open_run(run).fingerprint == gallery.model
    return run if there else None


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
    """Serve until a signal arrives, and finish the requests that have begun."""
    import uvicorn
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from surefind.apps.service.telemetry import write_to_stderr

    write_to_stderr()
    # uvicorn raises the signal again when it is done; the gallery is yet to be closed then.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Idle threads of a matrix product spin while they wait for the next one, and would take the cores that
    # requests are read and written with.
    threads = max(1, (os.cpu_count() or 1) // 2)
    try:
        with threadpool_limits(threads, user_api="blas"):
            uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
