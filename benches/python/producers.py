"""What an update of a pipeline costs beside computing everything anew: ``make bench-producers``.

Each mode prints rows of a table in Markdown: ratios of times (medians of the rounds), and counts. Peers run in the same
rounds, in turn. The rows of the sources are made once and kept in the cache. Without a mode, updates of 1, 100 and
10,000 keys of a pipeline of two functions of batches are compared with building it anew, and with what polars and
DuckDB take to recompute its results from Parquet and write them.

    make bench-producers
    make bench-producers ARGS='--rows 1000000 --rounds 3'
    make bench-producers ARGS='--join'              the same of orders joined with customers
    make bench-producers ARGS='--tpch'              the same of revenue by order, by customer, by nation and month
    make bench-producers ARGS='--growth'            updates of ten times the keys, as many rows in each
    make bench-producers ARGS='--in-a-row 1000'     updates of 100 keys one after another
    make bench-producers ARGS='--one-group'         aggregates of a key that has all rows
    make bench-producers ARGS='--words'             a word count, built in full
    make bench-producers ARGS='--row-mode'          rows a second of functions that are called key by key
    make bench-producers ARGS='--memory'            peaks of builds and updates
    make bench-producers ARGS='--far'               one key through three stages, the S3 server over 30 ms
    make bench-producers ARGS='--stages'            manifests of 20 and 200 stages
    make bench-producers ARGS='--pathway PYTHON'    updates beside pathway's, by a Python that has pathway
"""

from __future__ import annotations

import argparse
from pathlib import Path

import producers_far
import producers_memory
import producers_pathway
import producers_row_mode
import producers_stages
import producers_updates
import producers_words

MODES = {
    "join": "orders joined with customers",
    "tpch": "revenue of TPC-H by order, by customer, by nation and month",
    "growth": "updates of ten times the keys",
    "one-group": "aggregates of one key",
    "words": "a word count, built in full",
    "row-mode": "rows a second of functions that are called key by key",
    "memory": "peaks of builds and updates",
    "far": "one key through three stages, the S3 server over 30 ms",
    "stages": "manifests of 20 and 200 stages",
}
BOTH = [1_000_000, 10_000_000]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-producers", description="Updates of pipelines.")
    parser.add_argument("--rows", type=int, action="append", help="rows of the source; may be given more than once")
    parser.add_argument("--rounds", type=int, default=5)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--in-a-row", type=int, help="so many updates of 100 keys")
    modes.add_argument("--pathway", type=Path, help="a Python that has pathway: updates beside its")
    for name, what in MODES.items():
        modes.add_argument(f"--{name}", action="store_const", const=name, dest="mode", help=what)
    arguments = parser.parse_args()
    rows, rounds = arguments.rows, arguments.rounds
    if arguments.in_a_row is not None:
        producers_updates.compare_in_a_row(rows or [1_000_000], arguments.in_a_row)
        return
    if arguments.pathway is not None:
        producers_pathway.compare(arguments.pathway, rows or [1_000_000], rounds)
        return
    run = {
        None: lambda: producers_updates.compare("sums", rows or BOTH, rounds),
        "join": lambda: producers_updates.compare("join", rows or BOTH, rounds),
        "tpch": lambda: producers_updates.compare("tpch", rows or [6_000_000], rounds),
        "growth": lambda: producers_updates.compare_growth(rows or BOTH, rounds),
        "one-group": lambda: producers_updates.compare_one_group(rows or BOTH, rounds),
        "words": lambda: producers_words.compare((rows or [10_000_000])[0], rounds),
        "row-mode": lambda: producers_row_mode.compare((rows or [2_000_000])[0], rounds),
        "memory": lambda: producers_memory.compare(rows or BOTH),
        "far": lambda: producers_far.compare(rows or [10_000_000], rounds),
        "stages": lambda: producers_stages.compare((rows or [10_000])[0]),
    }
    run[arguments.mode]()


if __name__ == "__main__":
    main()
