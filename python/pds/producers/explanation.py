"""What updates of a pipeline read, stage by stage, as far as that is known without calling a function."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pds.display import Listing, Summarized, Summary
from pds.producers.operators import AGGREGATE_CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pds.producers.attachment import Attachment
    from pds.producers.graph import Node, Order

_RECOMPUTED = AGGREGATE_CLASSES["recompute"]
_CLASSES = {function: name for name, functions in AGGREGATE_CLASSES.items() for function in functions}
# `DEFAULT_PAGE_ROWS` of the engine.
_PAGE_ROWS = 1024


@dataclass(frozen=True)
class StageExplanation:
    """How a source or a stage is updated.

    Args:
        name: The name.
        feeders: The names of its feeders; none of a source.
        kind: `source`, `table` or `stage` (a source fed by one), `function`, `batches`, `join`, or the operator:
            `select`, `aggregate`, `distinct`, `first` or `flatten`.
        cost: `changes` if a changed key costs what changed in it, `group` if it costs all its rows.
        reads: What an update reads for a changed key, beside its old rows.
        rows: The number of stored rows of its content, with those that newer runs replace; 0 before the first update.
        runs: The number of runs of its content.
        bytes: The size of all its tables.
        classes: What updates compute its results from, by their names: `invert` the state of a key and the rows that
            changed, `prefix` also the rows at one end of the key, where the feeder has them in that order, `recompute`
            all rows of the key (for `min` and `max` only if the value leaves). Stages of another kind have one class;
            `pairs` are the rows of a join that changed, with those of the other side.
        key_pages: About how many pages of stored rows are looked up for a changed key, as an estimate: one of each run
            that can have its rows. A key with more rows than a page has more. Pages that an earlier stage of the
            update looks up, too, are read once.
        key_bytes: About how many bytes these have: the size of runs by their rows, of which a page has 1,024.
    """

    name: str
    feeders: tuple[str, ...]
    kind: str
    cost: str
    reads: str
    rows: int
    runs: int
    bytes: int
    classes: dict[str, str]
    key_pages: int
    key_bytes: int

    @property
    def class_names(self) -> str:
        """The classes with the names that have them, for people."""
        names: dict[str, list[str]] = {}
        for name, class_name in self.classes.items():
            names.setdefault(class_name, []).append(name)
        if len(names) == 1:
            return next(iter(names))
        return "; ".join(f"{class_name} {', '.join(of_class)}" for class_name, of_class in names.items())


class Explanation(Summarized):
    """How a pipeline is updated; its text is a table."""

    def __init__(self, stages: Iterable[StageExplanation]) -> None:
        self.stages = {stage.name: stage for stage in stages}

    def __str__(self) -> str:
        lines = [
            (
                *("stage", "kind", "cost", "class", "rows", "runs", "bytes"),
                *("pages/key", "bytes/key", "reads for a changed key"),
            )
        ]
        lines += [
            (
                *(stage.name, stage.kind, stage.cost, stage.class_names),
                *(f"{stage.rows:,}", str(stage.runs), f"{stage.bytes:,}"),
                *(f"~{stage.key_pages:,}", f"~{stage.key_bytes:,}", stage.reads),
            )
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
                stage.class_names,
                stage.rows,
                stage.runs,
                stage.bytes,
                stage.key_pages,
                stage.key_bytes,
                stage.reads,
            )
            for stage in self.stages.values()
        )
        headers = (
            *("stage", "feeders", "kind", "cost", "class", "rows", "runs", "bytes"),
            *("pages for a key (estimate)", "bytes for a key (estimate)", "reads for a changed key"),
        )
        return Summary("How updates compute each stage", {}, (Listing(headers, rows, len(self.stages), "stages"),))


def describe_node(node: Node, attached: Attachment | None) -> dict[str, object]:
    """Return what is declared of a source or a stage, by label."""
    key, value = node.fields
    return {
        "kind": _describe(node, attached, None)[0],
        "feeders": ", ".join(node.feeders or ()) or None,
        **({} if attached is None else {attached.kind: attached.title}),
        "key": key.type,
        "value": value.type,
        "order of the key": "descending" if node.descending else None,
    }


def list_nodes(nodes: list[Node], attachments: dict[str, Attachment]) -> Listing:
    """Return the listing of declared sources and stages."""
    rows = (
        (
            node.name,
            _describe(node, attachments.get(node.name), None)[0],
            ", ".join(node.feeders or ()),
            *node.fields.types,
        )
        for node in nodes
    )
    return Listing(("name", "kind", "feeders", "key", "value"), rows, len(nodes), "sources and stages")


def explain(
    nodes: Iterable[Node], attachments: dict[str, Attachment], stored: dict[str, dict[str, Any]]
) -> Explanation:
    """Explain the declared sources and stages; `stored` are the nodes of the manifest by name."""
    declared = list(nodes)
    orders = {node.name: node.order_by if node.preserve is None else None for node in declared}
    sources = {node.name for node in declared if node.feeders is None}
    explained = []
    for node in declared:
        feeders = node.feeders or []
        order = orders[feeders[0]] if len(feeders) == 1 else None
        attached = attachments.get(node.name)
        runs = _find_runs(node, attached, stored, sources)
        explained.append(_explain(node, attached, stored.get(node.name, {}), order, _estimate(runs)))
    return Explanation(explained)


def _explain(
    node: Node,
    attached: Attachment | None,
    stored: dict[str, Any],
    order: Order | None,
    estimate: tuple[int, int],
) -> StageExplanation:
    """Explain one of them; `order` is that of the values of its only feeder."""
    kind, cost, reads = _describe(node, attached, order)
    content, mappings = stored.get("content", ()), stored.get("mappings", ())
    update = stored.get("update")
    key_pages, key_bytes = estimate
    return StageExplanation(
        name=node.name,
        feeders=tuple(node.feeders or ()),
        kind=kind,
        cost=cost,
        reads=reads,
        rows=sum(map(count_rows, content)),
        runs=len(content),
        bytes=sum(map(_count_bytes, [*content, *mappings, *([update] if update else [])])),
        classes=_classify(node, order),
        key_pages=key_pages,
        key_bytes=key_bytes,
    )


def count_rows(run: dict[str, Any]) -> int:
    """Return the number of rows of a stored run."""
    rows: int = sum(file["rows"] for file in run["files"])
    return rows


def _count_bytes(run: dict[str, Any]) -> int:
    size: int = sum(file["size_bytes"] for file in run["files"])
    return size


def _find_runs(
    node: Node, attached: Attachment | None, stored: dict[str, dict[str, Any]], sources: set[str]
) -> list[dict[str, Any]]:
    """The runs in which an update looks up a changed key."""
    own = stored.get(node.name, {})
    content: list[dict[str, Any]] = own.get("content", [])
    if node.feeders is None:
        # What is pushed takes the place of all rows of a key, unless it is compared with them.
        return content if node.skip_unchanged or (attached is not None and attached.is_compared) else []
    kind = None if node.operator is None else next(iter(json.loads(node.operator)))
    is_by_rows = kind in {"aggregate", "join"}
    # A changed key of a source has all its rows in the update.
    read = [name for name in node.feeders if is_by_rows or len(node.feeders) > 1 or name not in sources]
    runs = [run for name in read for run in stored.get(name, {}).get("content", [])]
    # Rows of an aggregate say what its key mappings are, and a join stores none.
    mappings = [] if is_by_rows else own.get("mappings", [])
    return [*runs, *content, *mappings]


def _estimate(runs: list[dict[str, Any]]) -> tuple[int, int]:
    """About how many pages and bytes it takes to look up a key that has its rows in one page of each run."""
    rows = [count_rows(run) for run in runs]
    pages = sum(count > 0 for count in rows)
    by_rows = zip(runs, rows, strict=True)
    sizes = (_count_bytes(run) * min(count, _PAGE_ROWS) // count for run, count in by_rows if count)
    return pages, sum(sizes)


def _classify(node: Node, order: Order | None) -> dict[str, str]:
    """The classes of its results; none of a source."""
    if node.feeders is None:
        return {}
    if node.operator is None:
        return {"join" if node.is_join else "function": "recompute"}
    operator = json.loads(node.operator)
    (kind,) = operator
    if kind == "join":
        return {kind: "pairs"}
    if kind == "first":
        return {kind: "prefix" if _is_prefix(operator[kind], order) else "recompute"}
    if kind != "aggregate":
        return {kind: "recompute"}
    ordered = None if order is None else order[0][0].strip('"')
    classes: dict[str, str] = {}
    for one in operator[kind]:
        class_name = _CLASSES[one["function"]]
        is_prefix = class_name == "prefix" and one["column"] == ordered
        classes[one["name"]] = class_name if is_prefix or class_name != "prefix" else "recompute"
    return classes


def _is_prefix(first: Any, order: Order | None) -> bool:  # noqa: ANN401 JSON
    """Whether the first rows of a key are the first ones of the feeder."""
    by = [(one["expression"], one["descending"]) for one in first["by"]]
    return order is not None and by == [(text, order[1]) for text in order[0][: len(by)]]


def _describe(node: Node, attached: Attachment | None, order: Order | None) -> tuple[str, str, str]:
    """The kind, the cost and what is read; `order` is that of the values of its only feeder."""
    if attached is not None:
        return attached.kind, "group", attached.describe_reads()
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
    if kind == "first" and _is_prefix(operator, order):
        return "changes", "the first rows of the key"
    if kind != "aggregate" or any(one["function"] in _RECOMPUTED for one in operator):
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
