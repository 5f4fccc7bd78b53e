"""A few examples of each fuzzer; `make fuzz` runs them for minutes."""

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.given import FUZZERS

FEW = {"stateful": 100}


@pytest.mark.parametrize("name", FUZZERS)
def test_it_finds_nothing_in_a_few_examples(name: str) -> None:
    few = settings(max_examples=FEW.get(name, 300), deadline=None, suppress_health_check=list(HealthCheck))
    FUZZERS[name](few, lambda unseeded: unseeded)
