"""Tables in Spark against their peers: ``make bench-spark``.

Each system in a session of its own (``measure_spark_tables.py``), in turn, round after round. A ratio is the peer's
seconds by those of pds within a round; the median, the lowest and the highest are printed as rows of a table, with the
median for the processor time beside it. What the systems return has to be equal.

    make bench-spark
    make bench-spark ARGS='--rounds 3 --rows 600000'
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SYSTEMS = ("pds", "delta", "parquet")
# Operations of pds beside those of the peers with another name.
PEER_OPERATION = {"read, by format": "read, second"}
MEASURE = Path(__file__).with_name("measure_spark_tables.py")


def _run(system: str, rows: int, jars: str, folder: Path) -> dict[str, Any]:
    place = Path(tempfile.mkdtemp(prefix=f"bench-{system}-", dir=folder))
    order = json.dumps({"folder": str(place / "data"), "rows": rows, "jars": jars})
    try:
        command = [sys.executable, str(MEASURE), system, order]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{system}: {done.stderr[-4000:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    finally:
        shutil.rmtree(place)


def _ratios(rounds: list[dict[str, Any]], system: str, name: str, figure: str) -> list[float]:
    """A peer's figure over that of pds, round by round; empty where the peer has no such operation."""
    operation = PEER_OPERATION.get(name, name)
    pairs = [(r[system][figure].get(operation), r["pds"][figure][name]) for r in rounds]
    return [theirs / ours for theirs, ours in pairs if theirs is not None and ours > 0]


def main() -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--jars", required=True, help="the folder with the jars of Delta")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    rounds = []
    for number in range(arguments.rounds):
        results = {}
        for system in SYSTEMS:
            results[system] = _run(system, arguments.rows, arguments.jars, arguments.folder)
        for system in SYSTEMS[1:]:
            theirs = results[system]["seen"]
            different = {n: (v, theirs[n]) for n, v in results["pds"]["seen"].items() if theirs.get(n, v) != v}
            if different:
                raise RuntimeError(f"round {number}: pds and {system} differ: {different}")
        rounds.append(results)
    heads = [f"{what}{system} ÷ pds" for system in SYSTEMS[1:] for what in ("", "CPU: ")]
    print(f"| operation | pds, seconds | {' | '.join(heads)} |\n| --- |{' ---: |' * (1 + len(heads))}")
    for name in rounds[0]["pds"]["seconds"]:
        cells = [f"{statistics.median(r['pds']['seconds'][name] for r in rounds):.2f}"]
        for system in SYSTEMS[1:]:
            times, cpu = (_ratios(rounds, system, name, figure) for figure in ("seconds", "cpu"))
            spread = f" ({min(times):.2f} to {max(times):.2f})" if times else ""
            cells.append(f"{statistics.median(times):.2f}{spread}" if times else "")
            cells.append(f"{statistics.median(cpu):.2f}" if cpu else "")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
