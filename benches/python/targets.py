"""What was to be reached, beside what was measured."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

from cases import Case

if TYPE_CHECKING:
    from figures import Figures

IMPORT = Case("none", "import", "local")
STREAM_MIB = 300
DEFAULT_LIMIT_MIB = 512
WHEEL_MB = 40
IMPORT_SECONDS = 0.1
BYTES_OVER = 1.05
PART_REQUESTS = 2


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A peer's figure over that of pds, to be at least so much."""

    what: str
    case: Case
    peer: str
    least: float
    figure: str = "wall"


def _case(op: str, store: str, data: str = "lineitem", mode: str = "warm") -> Case:
    return Case(data, op, store, mode)


RATIOS = [
    Ratio("write, local disk, against remote-store", _case("write", "local"), "remote-store", 1.9),
    Ratio("write, local disk, against polars", _case("write", "local"), "polars", 1.4),
    Ratio("write, S3 server, against remote-store", _case("write", "s3"), "remote-store", 2.2),
    Ratio("write, S3 server, against polars", _case("write", "s3"), "polars", 1.4),
    Ratio("write, slow S3, against remote-store", _case("write", "slow"), "remote-store", 2.2),
    Ratio("write, slow S3, against polars", _case("write", "slow"), "polars", 1.4),
    Ratio("write 200 columns, local disk, against polars", _case("write", "local", "wide"), "polars", 1.1),
    Ratio("write 200 columns, S3 server, against polars", _case("write", "s3", "wide"), "polars", 1.1),
    Ratio("write long strings, S3 server, against polars", _case("write", "s3", "text"), "polars", 1.1),
    Ratio("write long strings, S3 server, against pyarrow", _case("write", "s3", "text"), "pyarrow", 1.1),
    Ratio("CPU time of a write, against pyarrow", _case("write", "local"), "pyarrow", 1.0, "cpu"),
    Ratio("read whole, local disk, against remote-store", _case("read", "local"), "remote-store", 2),
    Ratio("read whole, local disk, against DuckDB", _case("read", "local"), "duckdb", 1.0),
    Ratio("read whole, local disk, against polars", _case("read", "local"), "polars", 1.2),
    Ratio("read whole, S3 server, against remote-store", _case("read", "s3"), "remote-store", 2.2),
    Ratio("read whole, S3 server, against polars", _case("read", "s3"), "polars", 1.2),
    Ratio("read 200 columns whole, local disk, against polars", _case("read", "local", "wide"), "polars", 1.1),
    Ratio("read 200 columns whole, S3 server, against polars", _case("read", "s3", "wide"), "polars", 1.1),
    Ratio("read 2 of 16 columns, local, against remote-store", _case("columns", "local"), "remote-store", 4.0),
    Ratio("read 2 of 16 columns, S3, against remote-store", _case("columns", "s3"), "remote-store", 5.0),
    *(
        Ratio(f"read 2 of 16 columns, {title}{process}, against polars", case, "polars", 1.0)
        for store, title in (("local", "local"), ("s3", "S3"))
        for mode, process in (("warm", ""), ("cold", ", cold process"))
        for case in (_case("columns", store, mode=mode),)
    ),
    Ratio("small dataset, S3 server, against remote-store", _case("small", "s3", "small"), "remote-store", 4.0),
    Ratio("small dataset, S3 server, against one bare file", _case("small", "s3", "small"), "pyarrow", 1.0),
    Ratio("Spark's write, against df.write.parquet", _case("spark", "local", "spark"), "spark", 1.3),
]


def table(found: Figures) -> list[str]:
    """All targets that were measured."""
    rows = [row for ratio in RATIOS if (row := _ratio(found, ratio))]
    checks = [_partial_bytes(found), _partial_requests(found), *_peaks(found), _import(found)]
    rows += [row for row in (*checks, _wheel(found)) if row]
    if not rows:
        return []
    head = [
        "| what (lineitem unless said) | to reach | measured | reached |",
        "| --- | ---: | ---: | --- |",
    ]
    return head + ["| " + " | ".join(row) + " |" for row in rows]


def _reached(yes: bool) -> str:  # noqa: FBT001 a word for it
    return "yes" if yes else "**no**"


def _ratio(found: Figures, target: Ratio) -> list[str] | None:
    ratios = found.ratios(target.case, target.peer, target.figure)
    if not ratios:
        return None
    middle = statistics.median(ratios)
    least, got = f"{target.least:.1f} times", f"{middle:.2f} times"
    return [target.what, least, got, _reached(middle >= target.least)]


def _partial_bytes(found: Figures) -> list[str] | None:
    case = _case("columns", "s3")
    seen, needed = found.counted(case, "pds"), found.needed_bytes(case)
    if not seen or not needed:
        return None
    share = seen["received"] / needed
    what = "bytes received for 2 of 16 columns, of their chunks and the footer"
    return [what, f"at most {BYTES_OVER:.0%}", f"{share:.1%}", _reached(share <= BYTES_OVER)]


def _partial_requests(found: Figures) -> list[str] | None:
    seen = found.counted(_case("columns", "s3"), "pds")
    if not seen:
        return None
    count = sum(n for kind, n in seen["requests"].items() if kind.endswith(" part"))
    what = "requests for 2 of 16 columns, a part"
    return [what, f"at most {PART_REQUESTS}", str(count), _reached(count <= PART_REQUESTS)]


def _peak(found: Figures, what: str, case: Case, limit_mib: int) -> list[str] | None:
    peak = found.median(case, "pds", "peak_kib")
    if peak is None:
        return None
    mib = peak / 1024
    return [what, f"at most {limit_mib} MiB", f"{mib:.0f} MiB", _reached(mib <= limit_mib)]


def _peaks(found: Figures) -> list[list[str] | None]:
    write = "peak memory of a write above the input"
    stream = "peak memory of a stream with a limit of 256 MiB"
    return [
        *(
            _peak(found, f"{write}, {data}, {store}", _case("write", store, data), DEFAULT_LIMIT_MIB)
            for data in ("lineitem", "wide", "text")
            for store in ("local", "s3")
        ),
        *(
            _peak(found, f"{stream}, {store}", _case("stream", store, "stream"), STREAM_MIB)
            for store in ("local", "s3")
        ),
    ]


def _import(found: Figures) -> list[str] | None:
    wall = found.median(IMPORT, "pds", "wall")
    if wall is None:
        return None
    reached = wall < IMPORT_SECONDS
    got = f"{'under' if reached else 'over'} 100 ms"
    return ["import, beside pyarrow", "under 100 ms", got, _reached(reached)]


def _wheel(found: Figures) -> list[str] | None:
    size = found.header(IMPORT)["machine"]["wheel_bytes"] if IMPORT in found else None
    if not size:
        return None
    mb = size / 1e6
    return ["size of the wheel", f"under {WHEEL_MB} MB", f"{mb:.1f} MB", _reached(mb < WHEEL_MB)]
