"""Requests made up from the service's own description never make it fail."""

import pytest
from service.live import live
from service.world import copy

pytestmark = pytest.mark.slow

CASES = 200


@pytest.mark.filterwarnings("ignore")
def test_no_request_of_the_description_is_a_server_error(world, tmp_path):
    from service.fuzzing import fuzz

    with live(copy(world, tmp_path), world.learner) as address:
        statuses = fuzz(address, CASES)
    assert sum(statuses.values()) >= CASES
    assert statuses[200] > 0
    assert not any(status >= 500 for status in statuses)
