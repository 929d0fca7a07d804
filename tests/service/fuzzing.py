"""Requests made up from a service's own description, sent to it; what it may not do is fail."""

from collections import Counter

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import not_a_server_error


def fuzz(address: str, cases: int) -> Counter:
    """Send at least so many cases, about the same to every operation; count the answers by status.

    Raises whatever schemathesis raises for an answer of 500 or above.
    """
    schema = schemathesis.openapi.from_url(f"{address}/v1/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses: Counter = Counter()
    turn = 0
    # Some operations have few different cases, so one turn may not be enough.
    while sum(statuses.values()) < cases:
        for operation in operations:
            _send_cases(operation, address, -(-cases // len(operations)), turn, statuses)
        turn += 1
    return statuses


def _send_cases(operation, address, count, turn, statuses):
    @seed(turn)
    @hypothesis_settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def send(case):
        answer = case.call(base_url=address)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=[not_a_server_error])

    send()
