"""A dataset on the scripted server: who writes it, what must hold after every request and in the end.

Clients are told apart by their access keys: "a" is the one in trouble, "b" and "c" come after it,
"z" looks at the result. Calls run in threads, or in processes where one is to be stopped or killed.
Every change is watched: where the marker is, there is exactly one whole dataset.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pds
from scripted_s3 import CLASS_A, CLASS_A_PLAIN_COMPLETE, CLASS_B, Rule, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from publish.children import Child, Children
    from scripted_s3 import Event, Request, Stored

KEY = "silver/orders"
MARKER, MANIFEST, INTENT = "_SUCCESS", "manifest.json", "_publish.json"
CLASSES = {"A": CLASS_A, "A, plain completes": CLASS_A_PLAIN_COMPLETE, "B": CLASS_B}
# Rows of a part: little stays with the writer until it is published, more is a multipart upload.
PART_ROWS = {"inline": 30, "staged": 20_000}
SIZES = tuple(PART_ROWS)
LIMIT_SECONDS = 120
# For clients to whom nothing happens: the machine may be busy.
UNDISTURBED = {"stall_timeout": "10", "retry_timeout": "30"}


def _lease() -> tuple[dict[str, str], float]:
    """A short lease where the library has an option for it; else its own."""
    short = {"publish_lease": "2.4"}
    try:
        pds.Store("s3://bucket", storage_options={"aws_region": "us-east-1"} | short)
    except pds.RemoteStoreError:
        return {}, 30.0
    return short, 2.4


LEASE_OPTIONS, LEASE = _lease()
# Within so many seconds after its connection was closed, or its process died, a request lands or never.
LATEST = LEASE / 2


@dataclass
class Call:
    """A call in a thread of its own."""

    work: Callable[[], Any]
    value: Any = None
    error: Exception | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self.work()
        except Exception as error:  # noqa: BLE001 the test judges it
            self.error = error

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def wait(self) -> Call:
        """Until it ends; an error must be one of ours."""
        self._thread.join(LIMIT_SECONDS)
        assert not self.is_running, "the call does not end"
        assert self.error is None or isinstance(self.error, pds.RemoteStoreError), repr(self.error)
        return self

    def check(self) -> Any:
        """Wait; what it returned."""
        self.wait()
        if self.error is not None:
            raise self.error
        return self.value


def table(version: int, size: str, parts: int = 1) -> pa.Table:
    """Rows that tell their version and hardly compress."""
    rows = PART_ROWS[size] * parts
    noise = np.random.default_rng(version).random(rows)
    return pa.table({"version": pa.array([version] * rows, pa.int64()), "noise": noise})


def version_of(found: pa.Table) -> int:
    """The version it is; a mixture fails."""
    (version,) = set(found["version"].to_pylist())
    return int(version)


class Watch:
    """Where the marker is, there is exactly one whole dataset; called after every change."""

    def __init__(self, server: ScriptedS3) -> None:
        self._server = server
        self._parts: dict[str, tuple[int, int]] = {}

    def __call__(self, event: Event) -> None:
        """Look at what there is."""
        objects = self._server.bucket.objects
        folder = {key.removeprefix(f"p/{KEY}/"): stored for key, stored in objects.items() if f"{KEY}/" in key}
        if MARKER in folder:
            self.check(folder, str(event))

    def check(self, folder: dict[str, Stored], where: str) -> None:
        """Fail unless the folder holds one whole dataset and nothing else that is read."""
        assert MANIFEST in folder, f"{where}: a marker without a manifest"
        manifest = json.loads(folder[MANIFEST].content)
        files = sorted(name for name in folder if name.endswith(".parquet"))
        assert files == sorted(manifest["parts"]), f"{where}: {files}, the manifest names {manifest['parts']}"
        found = [self._part(folder[name]) for name in files]
        assert len({version for version, _ in found}) == 1, f"{where}: a mixture of versions {found}"
        if len(files) == 1 and self._phase(folder) == "single":
            # One file replaces another: it shows itself before its manifest does.
            return
        assert sum(rows for _, rows in found) == manifest["row_count"], f"{where}: rows of another manifest"

    @staticmethod
    def _phase(folder: dict[str, Stored]) -> str:
        if INTENT not in folder:
            return ""
        with contextlib.suppress(ValueError):
            return str(json.loads(folder[INTENT].content).get("phase", ""))
        return ""

    def _part(self, stored: Stored) -> tuple[int, int]:
        if stored.etag not in self._parts:
            found = pq.read_table(io.BytesIO(stored.content), columns=["version"])
            self._parts[stored.etag] = (version_of(found), found.num_rows)
        return self._parts[stored.etag]


class World:
    """One dataset on one server, and those who work on it."""

    def __init__(self, server: ScriptedS3, size: str = "inline") -> None:
        self.server, self.size = server, size
        self.watch = Watch(server)
        server.watch = self.watch
        # Versions whose write was reported as done, in this order.
        self.acknowledged: list[int] = []
        self.children: list[Child] = []
        # What a write sends when nothing disturbs it, and how much of that before it claims the folder.
        self.sent: list[str] = []
        self.first_claim = 0
        self._lease = LEASE_OPTIONS
        self._is_patient = False

    # --- clients -------------------------------------------------------------

    def options(self, client: str, **more: str) -> dict[str, str]:
        """Store options of a client."""
        patience = {} if client == "a" and not self._is_patient else UNDISTURBED
        return self.server.options(client) | self._lease | patience | more

    def datasets(self, client: str, parts: int = 1, **more: str) -> pds.ParquetDatasetStore:
        """The datasets as a client sees them; more than one part are numbered ones."""
        store = pds.Store("s3://bucket/p", storage_options=self.options(client, **more))
        per_file = PART_ROWS[self.size] if parts > 1 else None
        return pds.ParquetDatasetStore(store, compression="none", max_rows_per_file=per_file)

    def table(self, version: int, parts: int = 1) -> pa.Table:
        """The rows of a version."""
        return table(version, self.size, parts)

    def write(self, client: str, version: int, parts: int = 1, *, overwrite: bool = True, **more: str) -> None:
        """Write a version; noted once it is reported as done."""
        ds = self.datasets(client, parts, **more)
        ds.write_dataset(self.table(version, parts), KEY, overwrite=overwrite)
        self.acknowledged.append(version)

    def start(self, client: str, version: int, parts: int = 1, *, overwrite: bool = True, **more: str) -> Call:
        """`write` in a thread."""
        return Call(lambda: self.write(client, version, parts, overwrite=overwrite, **more))

    def child(self, children: Children, client: str, verb: str, version: int = 0, parts: int = 1, **more: Any) -> Child:
        """`write`, `delete`, `clean`, `read` in a process."""
        job = {
            "url": "s3://bucket/p",
            "options": self.options(client, **more.get("options", {})),
            "key": KEY,
            "verb": verb,
            "version": version,
            "rows": PART_ROWS[self.size] * parts,
            "per_file": PART_ROWS[self.size] if parts > 1 else None,
            "overwrite": more.get("overwrite", True),
        }
        found = children.start(job)
        self.children.append(found)
        return found

    def pause_at(self, client: str, number: int, fault: str = "pause") -> Rule:
        """Pause the client's n-th request (from 0) as `requests_of` counts them, and none before."""

        def matches(request: Request) -> bool:
            return request.client == client and not request.is_probe and not self._renews(request)

        return self.server.add(Rule(matches, fault, skip=number, times=1))

    def _renews(self, request: Request) -> bool:
        """Whether it rewrites the intent that is there, which a busy machine does more often."""
        stored = self.server.snapshot().get(request.key)
        if stored is None or not request.touches("put", INTENT):
            return False
        written, there = json.loads(request.body), json.loads(stored)
        return bool({**written, "nonce": ""} == {**there, "nonce": ""})

    def wait_for_parts_beside(self, held: Rule) -> None:
        """Until the parts that are sent at the same time as the request that is held have arrived.

        Otherwise the process would be stopped between the check of its lease and the send of one of them.
        """
        request = held.requests[0]
        if not request.touches("put|complete|copy|delete", ".parquet"):
            return
        beside = {sent for sent in self.sent if sent.startswith(f"{request.verb} ") and sent.endswith(".parquet")}
        beside.discard(str(request))
        wait_until(lambda: beside <= {str(event.request) for event in self.server.log})

    def requests_of(self, work: Callable[[], Any], client: str) -> list[str]:
        """What the client sends to do some work, but probes; the server is put back to what it was.

        With a lease that nobody has to renew and time for answers: a busy machine would add requests that other runs do
        not have.
        """
        before, acknowledged = self.server.save(), list(self.acknowledged)
        count = len(self.server.seen)
        self._lease, self._is_patient = dict.fromkeys(LEASE_OPTIONS, "120"), True
        work()
        self._lease, self._is_patient = LEASE_OPTIONS, False
        sent = [str(r) for r in self.server.seen[count:] if r.client == client and not r.is_probe]
        self.server.restore(before)
        self.acknowledged = acknowledged
        return sent

    # --- what is there -------------------------------------------------------

    def files(self) -> list[str]:
        """The names in the dataset's folder."""
        return sorted(key.removeprefix(f"p/{KEY}/") for key in self.server.snapshot())

    def has(self, name: str) -> bool:
        """Whether the folder has that file."""
        return f"p/{KEY}/{name}" in self.server.snapshot()

    def intent(self) -> dict[str, Any] | None:
        """The intent, where there is one."""
        found = self.server.snapshot().get(f"p/{KEY}/{INTENT}")
        return json.loads(found) if found is not None else None

    def read(self, client: str = "z") -> int:
        """The version a reader sees, whole."""
        found = self.datasets(client).read_dataset(KEY)
        version = version_of(found)
        parts = found.num_rows // PART_ROWS[self.size]
        assert found.sort_by("noise").equals(self.table(version, parts).sort_by("noise"))
        return version

    def check(self, *allowed: int, leftovers: bool = False) -> None:
        """What was reported as done can be read, the folder is clean, and the key takes writes."""
        self.check_watched()
        assert self.read() in allowed, self.story()
        if not leftovers:
            self.check_clean()
        self.write("z", 99)
        assert self.read() == 99
        self.check_clean()
        self.check_watched()

    def check_clean(self) -> None:
        """One dataset's files, no intent, no upload."""
        manifest = self.datasets("z").read_manifest(KEY)
        assert self.files() == sorted([MARKER, MANIFEST, *manifest.parts]), self.story()
        assert not self.uploads(), f"{self.uploads()}\n{self.story()}"

    def uploads(self) -> list[str]:
        """The paths of uploads that hold pieces of parts."""
        # One whose name was lost on its way holds nothing, that of a killed probe three bytes: they go by the rule.
        all_of = self.server.bucket.uploads.values()
        return [upload.key for upload in all_of if upload.pieces and "-_probe-" not in upload.key]

    def check_absent(self) -> None:
        """There is no dataset, nothing is left of one, and the key takes one."""
        self.check_watched()
        assert not self.datasets("z").dataset_exists(KEY), self.story()
        assert self.files() == [], self.story()
        assert not self.uploads(), self.story()
        self.write("z", 99, overwrite=False)
        assert self.read() == 99

    def check_watched(self) -> None:
        """Nothing was wrong at any moment."""
        for failure in self.server.failures:
            raise AssertionError(f"{failure}\n{self.story()}") from failure

    def story(self) -> str:
        """What was applied, for a message."""
        return "\n".join(str(event) for event in self.server.log if event.request.mutates)

    def close(self) -> None:
        """End what still runs."""
        for child in self.children:
            child.kill()


@contextlib.contextmanager
def world(ignores: frozenset[str] = CLASS_A, size: str = "inline") -> Iterator[World]:
    """A world on a server of its own."""
    with ScriptedS3(ignores) as server:
        found = World(server, size)
        try:
            yield found
        finally:
            found.close()


def drop_uploads(server: ScriptedS3) -> None:
    """What a rule of the bucket does to uploads that are too old."""
    with server.bucket.lock:
        server.bucket.uploads.clear()


def wait_until(what: Callable[[], bool], seconds: float = 60) -> None:
    """Until it is so."""
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "it does not come to that"
        time.sleep(0.01)
