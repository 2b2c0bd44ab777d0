"""Tables at hand as every run finds them, and runs in processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import cold
import duckdb_httpfs
from systems import Place

from tables import rows, scripts
from tables.cases import FILES, SMALL_ROWS, Case, Op, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire import Wire

SOURCES = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 600
PREPARE_SECONDS = 300
# Files that nobody changes in place, so that a copy of a table can share them.
SHARED = (".parquet", ".lance", ".avro", ".del", ".arrow")

Figures = dict[str, Any]


def mirror(source: Path, target: Path) -> None:
    """Makes a folder equal to another; what a system never changes in place is not copied."""
    target.mkdir(parents=True, exist_ok=True)
    wanted = {entry.name: entry for entry in os.scandir(source)}
    for entry in os.scandir(target):
        other = wanted.get(entry.name)
        if other and entry.is_dir() and other.is_dir():
            continue
        if other and entry.name.endswith(SHARED) and entry.inode() == other.inode():
            del wanted[entry.name]
        elif entry.is_dir():
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
    for name, entry in wanted.items():
        if entry.is_dir():
            mirror(Path(entry.path), target / name)
        elif name.endswith(SHARED):
            os.link(entry.path, target / name)
        else:
            shutil.copy2(entry.path, target / name)


def counted_kinds(requests: dict[str, int]) -> dict[str, int]:
    """Requests as HTTP has them, from the names in the server's log."""
    kinds: dict[str, int] = {}
    for name, count in requests.items():
        operation = name.split()[0]
        known = (kind for kind in ("Get", "Put", "Head", "List", "Delete") if operation.startswith(kind))
        kind = "PUT" if operation in {"UploadPart", "CopyObject"} else next(known, "Post").upper()
        kinds[kind] = kinds.get(kind, 0) + count
    return kinds


@dataclasses.dataclass(frozen=True)
class Bench:
    """The places, the sizes, and the file for the figures."""

    run: str
    work: Path
    wire: Wire
    results: Path
    sizes: Sizes
    built: dict[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)

    def place(self, store: str) -> Place:
        """Where the tables of a store lie."""
        if store == "local":
            return Place(folder=str(self.work / "local"))
        return Place(server=self.wire.slow if store == "slow" else self.wire.server)

    def record(self, **line: object) -> None:
        """Keeps a line of raw figures."""
        with self.results.open("a") as file:
            file.write(json.dumps({"run": self.run, **line}) + "\n")

    def _folders(self, store: str, name: str) -> list[tuple[Path, Path]]:
        """What makes up a table, each with where it is kept as it was prepared."""
        place = self.place(store)
        kept = (place.server.folder if place.server else self.work) / "kept"
        return [
            (place.files(name), kept / name),
            (self.work / "home" / store / name, self.work / "home-kept" / store / name),
        ]

    # -- before and after ----------------------------------------------------------

    def prepare(self, store: str, system: str, op: Op) -> None:
        """Makes the table an operation begins with, once, and keeps it; of fewer files if need be."""
        key = (store, system, op.table)
        if key in self.built:
            return
        name = f"{system}/{op.table}"
        kind, _, files = op.table.partition("-")
        count = self.sizes.files(int(files)) if files else 0
        while True:
            try:
                order = self._order(store, system=system, name=name, kind=f"prepare-{kind}", size=count, warm=False)
                self._child(order, PREPARE_SECONDS)
                break
            except (subprocess.TimeoutExpired, RuntimeError):
                self._clear(store, name)
                if count < FILES[-1]:
                    raise
                count //= 10
                print(f"{name} on {store}: {count} files, as more did not work", file=sys.stderr)
                traceback.print_exc()
        for live, kept in self._folders(store, name):
            if live.exists():
                mirror(live, kept)
        self.built[key] = count

    def restore(self, store: str, system: str, op: Op) -> None:
        """The table as it was prepared."""
        for live, kept in self._folders(store, f"{system}/{op.table}"):
            if kept.exists():
                mirror(kept, live)
            elif live.exists():
                shutil.rmtree(live)

    def remove(self, store: str) -> None:
        """All tables of a store."""
        for key in [key for key in self.built if key[0] == store]:
            self._clear(store, f"{key[1]}/{key[2]}")
            del self.built[key]

    def _clear(self, store: str, name: str) -> None:
        for folder in [folder for pair in self._folders(store, name) for folder in pair]:
            shutil.rmtree(folder, ignore_errors=True)

    # -- runs ----------------------------------------------------------------------

    def run_once(self, case: Case, system: str, *, counted: bool = False) -> Figures:
        """One run of a system on the table as it was prepared."""
        op = case.what
        self.restore(case.store, system, op)
        name, files = f"{system}/{op.table}", self.built[case.store, system, op.table]
        if not op.changes:
            self._into_page_cache(case.store, name)
        os.sync()  # or the pages of the run before would be written out during this one
        if case.mode == "cold":
            return self._cold(case, system, name)
        size = files or (int(op.table == "deleted") if op.kind.startswith("scan") else op.size)
        order = self._order(case.store, counted=counted, system=system, name=name, kind=op.kind, size=size)
        order.update(warm=not counted, verify=not counted)
        figures = self._writers(order) if op.kind == "writers" else self._child(order)
        return {**figures, "files": files} if files else figures

    def _cold(self, case: Case, system: str, name: str) -> Figures:
        """A run of a user's script, whose result is checked."""
        kind, sizes, home = case.what.kind, self.sizes, self.work / "home" / case.store
        values = scripts.values(self.place(case.store), home, name, kind, sizes)
        modules = cold.modules(system, None)
        found, figures = cold.run(scripts.BY_KIND[kind][system], values, folder=self.work, modules=modules)
        if kind == "commit":
            order = self._order(case.store, system=system, name=name, kind="rows", warm=False)
            found = self._child(order)["rows"]
            wanted: Any = SMALL_ROWS * (1 + self.built[case.store, system, case.what.table])
        elif kind == "open":
            wanted = list(rows.NAMES)
        else:
            columns, keys = rows.asked(kind, sizes)
            first, last = keys or (0, sizes.loaded - 1)
            wanted = [last - first + 1, len(columns or rows.NAMES)]
        if found != wanted:
            raise RuntimeError(f"{system} has {found} and not {wanted} at the end of {case.key}")
        return figures

    def count_once(self, case: Case, system: str) -> Figures:
        """Requests and bytes of a process that does the operation and nothing else."""
        before = self.wire.seen()
        self.run_once(case, system, counted=True)
        seen = self.wire.seen().since(before)
        return {**seen, "requests": counted_kinds(seen["requests"])}

    def _writers(self, order: dict[str, Any]) -> Figures:
        """Several processes at once, from the moment that all are ready to the end of the last."""
        count = order["size"]
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(Child.start({**order, "size": i})) for i in range(count)]
            for child in children:
                child.wait_ready()
            start = time.perf_counter()
            for child in children:
                child.go()
            found = [child.finished(TIMEOUT_SECONDS) for child in children]
            wall = time.perf_counter() - start
        figures = {key: sum(f[key] for f in found) for key in found[0] if key != "wall"}
        figures.update(wall=wall, appends=self.sizes.writer_appends * count)
        if order["verify"]:
            rows = self._child({**order, "kind": "rows", "warm": False})["rows"]
            figures["landed"] = rows / SMALL_ROWS
            figures["wall"] = wall / max(figures["landed"], 1e-9)  # of a commit that is there
        return figures

    def _into_page_cache(self, store: str, name: str) -> None:
        live, _ = self._folders(store, name)[0]
        if store == "local" and not name.rpartition("/")[2].startswith("files-"):
            for file in live.rglob("*"):
                if file.is_file():
                    file.read_bytes()

    def _order(self, store: str, *, counted: bool = False, **values: object) -> dict[str, Any]:
        """An order of child.py as JSON has it; what is counted goes through the proxy."""
        place = self.place(store)
        if counted and place.server:
            place = Place(server=self.wire.counted)
        more = {"place": dataclasses.asdict(place), "sizes": dataclasses.asdict(self.sizes)}
        return {**values, **more, "home": str(self.work / "home" / store)}

    def _child(self, order: dict[str, Any], timeout: int = TIMEOUT_SECONDS) -> Figures:
        with Child.start(order) as child:
            return child.finished(timeout)


@dataclasses.dataclass(frozen=True)
class Child:
    """A process that carries out an order; what it complains about goes to a file."""

    process: subprocess.Popen[str]
    errors: IO[str]

    @classmethod
    @contextlib.contextmanager
    def start(cls, order: dict[str, Any]) -> Iterator[Self]:
        """Runs until the block ends."""
        environment = cold.environment(duckdb_httpfs.modules(order["system"], order["place"]["server"]), SOURCES)
        command = [sys.executable, "-m", "tables.child", json.dumps(order, default=str)]
        pipe = subprocess.PIPE
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment)
            try:
                yield cls(process, errors)
            finally:
                process.kill()
                process.wait()

    def wait_ready(self) -> None:
        """Until it says so."""
        if not self.process.stdout or self.process.stdout.readline().strip() != "ready":
            self.process.wait(TIMEOUT_SECONDS)
            raise RuntimeError(f"a writer was not ready:\n{self._complaint()}")

    def go(self) -> None:
        """What it waits for."""
        if self.process.stdin:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def finished(self, timeout: int) -> Figures:
        """The object on its last line."""
        output, _ = self.process.communicate(timeout=timeout)
        if self.process.returncode:
            raise RuntimeError(f"a run ended with {self.process.returncode}:\n{self._complaint()}")
        figures: Figures = json.loads(output.splitlines()[-1])
        return figures

    def _complaint(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-4000:]
