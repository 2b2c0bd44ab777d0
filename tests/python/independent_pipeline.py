"""A reader of pipelines that shares no code with pds: it follows docs/format.md with pyarrow and plain Python."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from producers.model import exact, order_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

WINS_BY = {"rows": 1, "content": 2, "mappings": 1}


class IndependentPipeline:
    """The newest version of a pipeline. `get` gives the bytes of an object by its path within the pipeline."""

    def __init__(self, get: Callable[[str], bytes]) -> None:
        self._get = get
        pointer = json.loads(get("_latest_manifest"))
        self.manifest: dict[str, Any] = json.loads(get(pointer["manifest"]))
        self.nodes = {node["name"]: node for node in self.manifest["nodes"]}

    def content(self, name: str) -> list[tuple[Any, ...]]:
        """Rows (target_key, source_key, value), or (key, value) of a source."""
        node = self.nodes[name]
        if not node["feeders"]:
            return self._merge(node["content"], "rows", [node["descending"]])
        order = node.get("order_by")
        if order is None:
            # A declared join has source keys of its own.
            is_join = "join" in node["definition"].get("operator", {})
            descending = not is_join and self._feeder(node)["descending"]
            return self._merge(node["content"], "content", [node["descending"], descending])
        rows = self._merge(node["content"], "content", [node["descending"], order["descending"]])
        return [(target, source["source_key"], value) for target, source, value in rows]

    def key_mappings(self, name: str) -> list[tuple[Any, ...]]:
        """Rows (source_key, target_key)."""
        node = self.nodes[name]
        rows = self._merge(node["mappings"], "mappings", [self._feeder(node)["descending"], node["descending"]])
        return [row[:2] for row in rows]

    def _feeder(self, node: dict[str, Any]) -> dict[str, Any]:
        return self.nodes[node["feeders"][0]]

    def _merge(self, runs: Sequence[dict[str, Any]], table: str, descending: list[bool]) -> list[tuple[Any, ...]]:
        """Of the rows with equal columns that decide, those of the newest run, without those that delete."""
        newest: dict[Any, int] = {}
        kept: list[tuple[Any, tuple[Any, ...]]] = []
        for number, run in enumerate(runs):
            last: Any = None
            for file in run["files"]:
                data = pq.read_table(io.BytesIO(self._get(file["name"])))
                assert data.num_rows == file["rows"]
                assert ("op" in data.column_names) == run["has_deletes"]
                names = [name for name in data.column_names if name not in ("op", "state")]
                columns = [data.column(name).to_pylist() for name in names]
                types = [data.schema.field(name).type for name in names]
                ops = data.column("op").to_pylist() if run["has_deletes"] else [0] * data.num_rows
                for op, *row in zip(ops, *columns, strict=True):
                    place = _place(row, types, descending)
                    assert last is None or last <= place, "a run is in the order of its table"
                    last = place
                    key = tuple(map(exact, row[: WINS_BY[table]]))
                    if newest.setdefault(key, number) == number and op == 0:
                        kept.append((place, tuple(row)))
        kept.sort(key=lambda item: item[0])
        return [row for _, row in kept]


def _place(row: Sequence[Any], types: Sequence[pa.DataType], descending: Sequence[bool]) -> tuple[Any, ...]:
    columns = zip(row, types, descending, strict=False)
    return tuple(order_key(value, data_type, is_descending) for value, data_type, is_descending in columns)
