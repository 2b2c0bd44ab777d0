"""What updates of a pipeline read, stage by stage, as far as that is known without calling a function."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pds.display import Listing, Summarized, Summary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pds.producers.attached import AttachedTable
    from pds.producers.graph import Node, Order


@dataclass(frozen=True)
class StageExplanation:
    """How a source or a stage is updated.

    Args:
        name: The name.
        feeders: The names of its feeders; none of a source.
        kind: `source`, `table` (a source fed by one), `function`, `batches`, `join`, or the operator: `select`,
            `aggregate`, `distinct`, `first` or `flatten`.
        cost: `changes` if a changed key costs what changed in it, `group` if it costs all its rows.
        reads: What an update reads for a changed key, beside its old rows.
        rows: The number of stored rows of its content, with those that newer runs replace; 0 before the first update.
        runs: The number of runs of its content.
        bytes: The size of all its tables.
    """

    name: str
    feeders: tuple[str, ...]
    kind: str
    cost: str
    reads: str
    rows: int
    runs: int
    bytes: int


class Explanation(Summarized):
    """How a pipeline is updated; its text is a table."""

    def __init__(self, stages: Iterable[StageExplanation]) -> None:
        self.stages = {stage.name: stage for stage in stages}

    def __str__(self) -> str:
        lines = [("stage", "kind", "cost", "rows", "runs", "bytes", "reads for a changed key")]
        lines += [
            (stage.name, stage.kind, stage.cost, f"{stage.rows:,}", str(stage.runs), f"{stage.bytes:,}", stage.reads)
            for stage in self.stages.values()
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    __repr__ = __str__

    def _summarize(self) -> Summary:
        rows = (
            (
                stage.name,
                ", ".join(stage.feeders),
                stage.kind,
                stage.cost,
                stage.rows,
                stage.runs,
                stage.bytes,
                stage.reads,
            )
            for stage in self.stages.values()
        )
        headers = ("stage", "feeders", "kind", "cost", "rows", "runs", "bytes", "reads for a changed key")
        return Summary("How updates compute each stage", {}, (Listing(headers, rows, len(self.stages), "stages"),))


def describe_node(node: Node, table: AttachedTable | None) -> dict[str, object]:
    """Return what is declared of a source or a stage, by label."""
    key, value = node.fields
    return {
        "kind": _describe(node, table, None)[0],
        "feeders": ", ".join(node.feeders or ()) or None,
        "table": None if table is None else table.path,
        "key": key.type,
        "value": value.type,
        "order of the key": "descending" if node.descending else None,
    }


def list_nodes(nodes: list[Node], tables: dict[str, AttachedTable]) -> Listing:
    """Return the listing of declared sources and stages."""
    rows = (
        (node.name, _describe(node, tables.get(node.name), None)[0], ", ".join(node.feeders or ()), *node.fields.types)
        for node in nodes
    )
    return Listing(("name", "kind", "feeders", "key", "value"), rows, len(nodes), "sources and stages")


def explain(nodes: Iterable[Node], tables: dict[str, AttachedTable], stored: dict[str, dict[str, Any]]) -> Explanation:
    """Explain the declared sources and stages; `stored` are the nodes of the manifest by name."""
    declared = list(nodes)
    orders = {node.name: node.order_by if node.preserve is None else None for node in declared}
    return Explanation(
        _explain(node, tables.get(node.name), stored.get(node.name, {}), [orders[name] for name in node.feeders or ()])
        for node in declared
    )


def _explain(
    node: Node, table: AttachedTable | None, stored: dict[str, Any], orders: list[Order | None]
) -> StageExplanation:
    kind, cost, reads = _describe(node, table, orders[0] if len(orders) == 1 else None)
    runs = [*stored.get("content", ()), *stored.get("mappings", ())]
    update = stored.get("update")
    return StageExplanation(
        name=node.name,
        feeders=tuple(node.feeders or ()),
        kind=kind,
        cost=cost,
        reads=reads,
        rows=sum(file["rows"] for run in stored.get("content", ()) for file in run["files"]),
        runs=len(stored.get("content", ())),
        bytes=sum(file["size_bytes"] for run in [*runs, *([update] if update else [])] for file in run["files"]),
    )


def _describe(node: Node, table: AttachedTable | None, order: Order | None) -> tuple[str, str, str]:
    """The kind, the cost and what is read; `order` is that of the values of its only feeder."""
    if table is not None:
        return "table", "group", f"the changes of {table.path!r}, and its rows of the key{table.describe_lookup()}"
    if node.feeders is None:
        return "source", "group", "nothing: all rows of the key are pushed"
    if node.operator is None:
        call: Any = node.function
        kind = "join" if node.is_join else "function" if call.max_group_rows is None else "batches"
        hook = "; its old rows for preserve" if node.preserve is not None else ""
        return kind, "group", f"all rows of the key{hook}"
    operator = json.loads(node.operator)
    (kind,) = operator
    return kind, *_describe_operator(kind, operator[kind], order)


def _describe_operator(kind: str, operator: Any, order: Order | None) -> tuple[str, str]:  # noqa: ANN401 JSON
    """The cost and what is read."""
    if kind == "join":
        return "changes", "the rows that changed, and those of the other side"
    if kind == "first":
        by = [(one["expression"], one["descending"]) for one in operator["by"]]
        if order is not None and by == [(text, order[1]) for text in order[0][: len(by)]]:
            return "changes", "the first rows of the key"
    if kind != "aggregate" or any(one["function"] == "count_distinct" for one in operator):
        return "group", "all rows of the key"
    ordered = None if order is None else order[0][0].strip('"')
    reads = ["the rows that changed"]
    for is_ordered, what in ((True, "rows at the end"), (False, "all rows")):
        extremes = [
            one["name"]
            for one in operator
            if one["function"] in ("min", "max") and (one["column"] == ordered) == is_ordered
        ]
        if extremes:
            reads.append(f"{what} of the key if the value leaves that is {' or '.join(extremes)}")
    return "changes", "; ".join(reads)
