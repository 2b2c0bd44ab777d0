"""Tables in Spark against their peers: ``make bench-spark``.

Each system in a session of its own (``measure_spark_tables.py``), in turn, round after round. A ratio is the peer's
seconds by those of pds within a round; the median, the lowest and the highest are printed as rows of a table. What
the systems return has to be equal.

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
        rounds.append({system: result["seconds"] for system, result in results.items()})
    print("| operation | pds, seconds | delta ÷ pds | parquet ÷ pds |\n| --- | --- | --- | --- |")
    for name in rounds[0]["pds"]:
        cells = [f"{statistics.median(r['pds'][name] for r in rounds):.2f}"]
        for system in SYSTEMS[1:]:
            operation = PEER_OPERATION.get(name, name)
            ratios = [r[system][operation] / r["pds"][name] for r in rounds if operation in r[system]]
            spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
            cells.append(f"{statistics.median(ratios):.2f}{spread}" if ratios else "")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
