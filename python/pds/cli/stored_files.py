"""The files of pipelines and chains, as their manifests and blocks list them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pds.producers.tables import read_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pds.odf import Block
    from pds.producers.versions import PipelineVersion

RUN_COLUMNS: Final = ("stage", "content", "run", "path", "size_bytes", "total_rows")
SLICE_COLUMNS: Final = ("path", "size_bytes", "first_offset", "last_offset")


def list_run_files(version: PipelineVersion) -> list[dict[str, Any]]:
    """Return the files of a version: of each stage its rows, its key mappings, and its last update."""
    nodes = read_nodes(version._handle)  # noqa: SLF001 of the package
    files = []
    for name, node in nodes.items():
        runs = [(content, run) for content in ("content", "mappings") for run in node[content]]
        if node["update"] is not None:
            runs.append(("update", node["update"]))
        files += [
            {
                "stage": name,
                "content": {"content": "rows"}.get(content, content),
                "run": run["id"],
                "path": file["name"],
                "size_bytes": file["size_bytes"],
                "total_rows": file["rows"],
            }
            for content, run in runs
            for file in run["files"]
        ]
    return files


def list_slices(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """Return the slices of data that blocks refer to, in the order of their blocks."""
    events = (block.event.to_dict() for block in blocks)
    slices = [event["newData"] for event in events if event.get("newData")]
    return [
        {
            "path": f"data/{data['physicalHash']}",
            "size_bytes": data["size"],
            "first_offset": data["offsetInterval"]["start"],
            "last_offset": data["offsetInterval"]["end"],
        }
        for data in slices
    ]
