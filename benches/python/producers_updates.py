"""Updates of a pipeline beside building it anew and beside what peers take to recompute its results.

The build and one run of each peer are measured in processes of their own, where their memory is seen; then updates and
peers take turns in one process. Ratios are of times: above 1 the update is faster.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from producers_costs import KIB, MIB, Costs, Table, in_turn, measured, ratio, run_child, scratch, size_of
from producers_registry import GRAPHS
from producers_sums import change_orders

import pds

if TYPE_CHECKING:
    from pathlib import Path

UPDATES = (1, 100, 10_000)
PEERS = ("polars", "duckdb")


def compare(name: str, sizes: list[int], rounds: int) -> None:
    """Prints what updates of a pipeline cost at some sizes."""
    graph = GRAPHS[name]
    heads = ("rows", "changed")
    times = [f"{other} / update" for other in ("rebuild", "polars", "DuckDB")]
    table = Table(
        *heads, *times, *(f"CPU: {each}" for each in times), "bytes of a rebuild", "KiB read", "KiB written",
        "requests that read", "that write", "MiB of memory",
    )  # fmt: skip
    notes = []
    for rows in sizes:
        with scratch() as folder:
            lines, builds = _measure(name, rows, rounds, folder)
            for changed, costs in lines.items():
                update, build = costs["update"], builds["rebuild"]
                peers = [costs[peer] for peer in PEERS]
                middle = Costs.median_of(update)
                moved = (middle.read + middle.written) / build.written
                table.add(
                    f"{rows:,}", changed,
                    f"{build.wall / middle.wall:.1f}", *(f"{ratio(peer, update):.2f}" for peer in peers),
                    f"{build.cpu / middle.cpu:.1f}", *(f"{ratio(peer, update, 'cpu'):.2f}" for peer in peers),
                    f"{moved:.2%}", f"{middle.read / KIB:,.0f}", f"{middle.written / KIB:,.0f}",
                    f"{middle.reads:.0f}", f"{middle.writes:.0f}", f"{builds[changed].peak_kib / KIB:,.0f}",
                )  # fmt: skip
            peaks = {each: f"{builds[each].peak_kib / KIB:,.0f}" for each in ("rebuild", *PEERS)}
            source_bytes = sum(path.stat().st_size for path in graph.sources(rows).values())
            notes.append(
                f"{graph.title}, {rows:,} rows: peak memory of a rebuild {peaks['rebuild']} MiB, of polars "
                f"{peaks['polars']}, of DuckDB {peaks['duckdb']}; between updates the pipeline keeps "
                f"{size_of(folder / 'lake') / MIB:,.0f} MiB of files (all versions), of which "
                f"{builds['rebuild'].written / MIB:,.0f} are of the first one, and neither memory nor a server; the "
                f"peers keep {source_bytes / MIB:,.0f} MiB of Parquet."
            )
    print("\n" + "\n".join(notes), flush=True)


def _measure(
    name: str, rows: int, rounds: int, folder: Path
) -> tuple[dict[str, dict[str, list[Costs]]], dict[str, Costs]]:
    """Of each update the costs of its rounds and of the peers' in the same rounds; and those of single processes."""
    graph, url = GRAPHS[name], (folder / "lake").as_uri()
    (folder / "peers").mkdir()
    sources = graph.sources(rows)
    alone = {"rebuild": run_child(graph=name, rows=rows, op="build", url=url)}
    for peer in PEERS:
        alone[peer] = run_child(graph=name, rows=rows, op=peer, folder=str(folder / "peers"))
    store = pds.Store(url)
    pipeline = graph.open(store, rows)
    works, kinds = {}, {}
    for kind in graph.changes:
        for keys in UPDATES:
            changed = f"{keys:,} {kind}" if len(graph.changes) > 1 else f"{keys:,}"
            kinds[changed] = (kind, keys)

            def prepare(number: int, kind: str = kind, keys: int = keys) -> object:
                changes = graph.changes[kind](rows, keys, number)
                return lambda: pipeline.update(changes)

            works[changed] = prepare
    for peer in PEERS:
        works[peer] = lambda _, peer=peer: lambda: graph.peers[peer](sources, folder / "peers")
    costs = in_turn(works, rounds, dict.fromkeys(kinds, store))
    if graph.check is not None and not graph.check(pipeline, rows):
        raise SystemExit(f"{graph.title}: the results are not those of the sources")
    for changed, (kind, keys) in kinds.items():
        order = {"graph": name, "rows": rows, "op": "update", "changed": kind, "keys": keys, "seed": rounds + 1}
        alone[changed] = run_child(**order, url=url, opened=True)
    peers = {peer: costs[peer] for peer in PEERS}
    return {changed: {"update": costs[changed], **peers} for changed in kinds}, alone


def compare_growth(sizes: list[int], rounds: int) -> None:
    """Prints by how much updates cost more where there are more keys, as many rows in each."""
    small, large = min(sizes), max(sizes)
    with scratch() as folder:
        works, stores = {}, {}
        for rows in (small, large):
            url = (folder / str(rows)).as_uri()
            run_child(graph="sums", rows=rows, op="build", url=url)
            store = pds.Store(url)
            pipeline = GRAPHS["sums"].open(store, rows)
            for keys in UPDATES[:2]:

                def prepare(
                    number: int, pipeline: pds.Pipeline = pipeline, rows: int = rows, keys: int = keys
                ) -> object:
                    changes = change_orders(rows, keys, number)
                    return lambda: pipeline.update(changes)

                works[f"{keys} of {rows}"], stores[f"{keys} of {rows}"] = prepare, store
        costs = in_turn(works, 4 * rounds, stores)
    table = Table("changed", "figure", f"of {small:,} rows", f"of {large:,} rows", "large / small", texts=2)
    for keys in UPDATES[:2]:
        of_small, of_large = (costs[f"{keys} of {rows}"] for rows in (small, large))
        middles = [Costs.median_of(each) for each in (of_small, of_large)]
        table.add(keys, "milliseconds", *(f"{m.wall * 1000:.1f}" for m in middles), f"{ratio(of_large, of_small):.2f}")
        moved = [(m.read + m.written) / KIB for m in middles]
        figures = {
            "KiB read": [m.read / KIB for m in middles],
            "KiB written": [m.written / KIB for m in middles],
            "KiB read and written": moved,
            "requests": [m.reads + m.writes for m in middles],
        }
        for figure, (low, high) in figures.items():
            table.add(keys, figure, f"{low:,.0f}", f"{high:,.0f}", f"{high / low:.2f}")


def compare_in_a_row(sizes: list[int], updates: int) -> None:
    """Prints what updates of 100 keys cost after many of them."""
    table = Table(
        "rows", "updates", "last 20 / first 20", "most runs of a table", "bytes written / changed", "manifest bytes"
    )
    for rows in sizes:
        with scratch() as folder:
            _measure_in_a_row(rows, updates, pds.Store(folder.as_uri()), table)


def _measure_in_a_row(rows: int, updates: int, store: pds.Store, table: Table) -> None:
    graph = GRAPHS["sums"]
    pipeline = graph.build(store, rows)
    walls, changed, written, most_runs, manifest_bytes = [], 0.0, 0.0, 0, 0
    for number in range(updates):
        changes = change_orders(rows, 100, number)
        changed += _size_of(changes)
        costs = measured(lambda c=changes: pipeline.update(c), store)
        walls.append(costs.wall)
        written += costs.written
        manifest = read_manifest(store, pipeline)
        manifest_bytes = max(manifest_bytes, len(manifest))
        most_runs = max(most_runs, most_runs_of(manifest))
    if graph.check is not None and not graph.check(pipeline, rows):
        raise SystemExit("the pipeline has other sums than its orders")
    slowdown = statistics.median(walls[-20:]) / statistics.median(walls[:20])
    table.add(
        f"{rows:,}", f"{updates:,}", f"{slowdown:.2f}", most_runs, f"{written / changed:.0f}", f"{manifest_bytes:,}"
    )


def _size_of(changes: dict[str, pds.Changes]) -> int:
    tables = (each.upserts for each in changes.values())
    return sum(table.nbytes for table in tables if isinstance(table, pa.Table))


def read_manifest(store: pds.Store, pipeline: pds.Pipeline) -> bytes:
    """The newest manifest as it is stored."""
    return store.read_bytes(f"{pipeline.path}/manifest/v{pipeline.version:08}.json")


def most_runs_of(manifest: bytes) -> int:
    """The most runs that a table has."""
    nodes = json.loads(manifest)["nodes"]
    return max(len(runs) for node in nodes for runs in (node["content"], node["mappings"]))


def compare_one_group(sizes: list[int], rounds: int) -> None:
    """Prints what a row of the only key costs that changes, comes or leaves, beside a rebuild of its aggregates."""
    table = Table(
        "rows of the key", "one row", "rebuild / update", "bytes read and written, of those a rebuild reads", texts=2
    )
    for rows in sizes:
        with scratch() as folder:
            _measure_one_group(rows, rounds, pds.Store(folder.as_uri()), table)


def _measure_one_group(rows: int, rounds: int, store: pds.Store, table: Table) -> None:
    p = GRAPHS["one key"].build(store, rows)
    rebuild = Costs.median_of([measured(lambda: p.rebuild("amounts", "totals", "least"), store) for _ in range(rounds)])
    amounts = p["orders"].read()["value"].to_numpy()
    least, greatest = (np.argsort(amounts)[part].tolist() for part in (slice(rounds), slice(-rounds, None)))
    changes = {
        "changed": [pds.Changes([(rows // 2 + number, number)]) for number in range(rounds)],
        "added": [pds.Changes([(rows + number, rows * 500 + number)]) for number in range(rounds)],
        "the least removed": [pds.Changes(deletes=[key]) for key in least],
        "the greatest removed": [pds.Changes(deletes=[key]) for key in reversed(greatest)],
    }
    for what, updates in changes.items():
        costs = Costs.median_of([measured(lambda c=update: p.update(orders=c), store) for update in updates])
        moved = (costs.read + costs.written) / rebuild.read
        table.add(f"{rows:,}", what, f"{rebuild.wall / costs.wall:.0f}", f"{moved:.2%}")
    if not p.check().ok:
        raise SystemExit("the aggregates are not those of all rows")
