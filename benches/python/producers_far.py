"""Updates of one key through three stages, with the S3 server at the end of a line of 30 ms and 20 MiB/s.

Waits for the store are what makes the time grow with the delay of the line. The same updates are run over a line that
is 70 ms longer, so the difference of the two times, by 70 ms, is the number of waits, whatever the processor does. Over
a line that is much longer an update of more than two seconds would look for a newer version before its commit.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from producers_costs import KIB, Costs, Table, measured, run_child
from producers_registry import GRAPHS
from wire import LATENCY_MS, MIB_PER_SECOND

import pds
from servers import S3Server, Toxiproxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers_graphs import Graph

LONGER_MS = 70
AT_MOST = {"warm": 8, "cold": 11}
SECONDS = 0.35


def compare(sizes: list[int], rounds: int) -> None:
    """Prints the waits."""
    table = Table(
        "stages", "rows", "process", f"seconds at {LATENCY_MS} ms (at most {SECONDS})", f"time by {LATENCY_MS} ms",
        "waits by two lines", "at most", "requests that read", "that write", "KiB read", texts=1,
    )  # fmt: skip
    with S3Server.start("pds-bench") as server, Toxiproxy.start() as proxies:
        lines = {}
        for delay in (LATENCY_MS, LATENCY_MS + LONGER_MS):
            proxy = proxies.proxy(server.endpoint)
            proxy.wan(latency_ms=delay, mib_per_second=MIB_PER_SECOND)
            lines[delay] = server.at(proxy.endpoint)
        for name in ("chain", "python chain"):
            for rows in sizes:
                order = {"graph": name, "rows": rows, "url": server.url(f"{name.replace(' ', '-')}-{rows}")}
                run_child(**order, op="build", options=server.options())
                for process, measure in (("warm", _measure_warm), ("cold", _measure_cold)):
                    near, far = (measure(order, line, rounds, delay) for delay, line in lines.items())
                    _add(table, (GRAPHS[name], rows, process), near, far)


def _add(table: Table, what: tuple[Graph, int, str], near: list[Costs], far: list[Costs]) -> None:
    graph, rows, process = what
    seconds = [statistics.median(costs.wall for costs in each) for each in (near, far)]
    middle = Costs.median_of(near)
    table.add(
        graph.title, f"{rows:,}", process, f"{seconds[0]:.2f}", f"{seconds[0] * 1000 / LATENCY_MS:.1f}",
        f"{(seconds[1] - seconds[0]) * 1000 / LONGER_MS:.1f}", AT_MOST[process],
        f"{middle.reads:.0f}", f"{middle.writes:.0f}", f"{middle.read / KIB:,.0f}",
    )  # fmt: skip


def _measure_warm(order: dict[str, Any], line: S3Server, rounds: int, delay: int) -> list[Costs]:
    """In a process that has made an update over this line before."""
    store = pds.Store(order["url"], line.options())
    graph, rows = GRAPHS[order["graph"]], order["rows"]
    pipeline = graph.open(store, rows)
    costs = []
    for number in range(rounds + 1):
        changes = graph.changes["orders"](rows, 1, 1000 * delay + number)
        update: Callable[[], object] = lambda changes=changes: pipeline.update(changes)  # noqa: E731 one that is typed
        costs.append(measured(update, store))
    return costs[1:]


def _measure_cold(order: dict[str, Any], line: S3Server, rounds: int, delay: int) -> list[Costs]:
    """In processes of their own that have not spoken to the store."""
    order = order | {"op": "update", "changed": "orders", "keys": 1, "options": line.options()}
    return [run_child(**order, seed=1000 * delay + 500 + number) for number in range(rounds)]
