"""Random graphs and updates are as in the model. `make soak` runs thousands: see `random_updates`."""

from __future__ import annotations

from collections import Counter

import pytest

from producers.random_updates import run_graph


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(12))
def test_random_graphs(number: int) -> None:
    seen: Counter[str] = Counter()
    run_graph(number, seen)
    assert seen["rows compared"] > 0
