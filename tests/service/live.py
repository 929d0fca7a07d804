"""A real server on loopback, in a thread, for as long as it is needed."""

import threading
import time
from contextlib import contextmanager

import uvicorn

from surefind.cli.serve import listen
from surefind.gallery.gallery import Gallery
from surefind.service.app import create_app
from surefind.service.guard import guarded_config
from surefind.service.settings import Settings


@contextmanager
def live(gallery_folder, learner, **settings):
    """Serve a gallery's folder; yield the address without a slash at its end."""
    settings = {"folder": gallery_folder.with_suffix(".service"), "rate": 0} | settings
    with Gallery.open(gallery_folder) as gallery, listen("127.0.0.1", 0) as taken:
        chosen = Settings(**settings)
        app = create_app(gallery, learner, settings=chosen)
        server = uvicorn.Server(guarded_config(app, chosen))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{taken.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
