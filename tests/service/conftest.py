import pytest
from fastapi.testclient import TestClient
from service import world as worlds

from surefind.gallery.gallery import Gallery
from surefind.service.app import create_app
from surefind.service.settings import Settings


@pytest.fixture(scope="session")
def world():
    return worlds.world()


@pytest.fixture
def serve(world, tmp_path):
    """Start services on a copy of the gallery; return a client of each."""
    opened = []

    def start(*, gallery=None, learner=world.learner, fresh=True, **settings):
        if gallery is None:
            place = worlds.copy(world, tmp_path) if fresh else tmp_path / "gallery"
            gallery = Gallery.open(place)
        settings = {"folder": tmp_path / "gallery.service", "rate": 0} | settings
        app = create_app(gallery, learner, settings=Settings(**settings))
        client = TestClient(app, base_url="http://localhost")
        client.__enter__()
        opened.append((client, gallery))
        return client

    yield start
    for client, gallery in opened:
        client.__exit__(None, None, None)
        gallery.close()


@pytest.fixture
def client(serve):
    return serve()


@pytest.fixture
def ask(world):
    """Search with an image."""

    def ask(client, data, name="query.png", headers=None, **params):
        file = {"file": (name, data)}
        return client.post("/v1/search/image", files=file, params=params, headers=headers)

    return ask
