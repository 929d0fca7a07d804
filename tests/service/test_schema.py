"""Requests made up from the service's own description never make it fail."""

import pytest
from service.live import live
from service.world import copy

pytestmark = pytest.mark.filterwarnings("ignore")

CASES, WALKED = 50, 300


@pytest.mark.parametrize("cases", [CASES, pytest.param(2000, marks=pytest.mark.nightly)])
def test_no_request_of_the_description_is_a_server_error(world, tmp_path, cases):
    from service.fuzzing import fuzz

    with live(copy(world, tmp_path), world.learner) as address:
        statuses = fuzz(address, cases)
    assert sum(statuses.values()) >= cases
    assert statuses[200] > 0


@pytest.mark.nightly
def test_no_walk_along_links_is_a_server_error(world, tmp_path):
    from service.fuzzing import follow_links

    with live(copy(world, tmp_path), world.learner, review_share=0.5) as address:
        wanted = ("POST /v1/items", "GET /v1/items/{id}")
        statuses, succeeded = follow_links(address, WALKED, wanted)
    assert sum(statuses.values()) >= WALKED
    assert all(succeeded[name] for name in wanted)
