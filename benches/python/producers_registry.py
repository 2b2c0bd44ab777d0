"""The pipelines of ``make bench-producers`` by name, for processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import producers_joins
import producers_one_key
import producers_sums

if TYPE_CHECKING:
    from producers_graphs import Graph

GRAPHS: dict[str, Graph] = {
    "sums": producers_sums.SUMS,
    "chain": producers_sums.CHAIN,
    "python chain": producers_sums.PYTHON_CHAIN,
    "join": producers_joins.JOIN,
    "tpch": producers_joins.TPCH,
    "one key": producers_one_key.ENDS,
    "one key, no order": producers_one_key.UNORDERED,
    "one key, join": producers_one_key.JOIN,
}
