"""One operation, again and again, each time with another fault at another of its requests.

Each run has a server to itself and starts from the same objects. Most of the time is waiting, so
many go on at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import pds
from scripted_s3 import FAULTS, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scripted_s3 import Request, Stored

_State = TypeVar("_State")

# One occurrence of these says nothing about the request: it is sent again, or its outcome is
# looked up, and the operation succeeds.
PASSING = (
    "500", "503", "500 after", "503 after", "drop", "drop after", "stall", "stall after", "cut"
)  # fmt: skip
# What can go on for the rest of an operation.
LASTING = tuple(fault for fault in FAULTS if fault != "cut")
# Those that a client can tell from each other.
DISTINCT = ("403", "404", "409", "412", "500 after", "drop", "drop after", "stall after", "cut")
LIMIT_SECONDS = 60
TICK_SECONDS = 0.1
AT_ONCE = 12
# So many at once on so few cores: an answer that is late is none that does not come. Who is under no
# fault waits as long as it takes; one fault is waited for again and again, one that lasts is not. Only
# a fault that gives no answer is waited for: where every request is answered, or its connection closed,
# a late answer must not be taken for a second fault.
PATIENT = {"stall_timeout": "30", "retry_timeout": "60"}
UNDER_ONE_FAULT = {"stall_timeout": "2", "retry_timeout": "40", "max_retries": "8"}
UNDER_A_FAULT_THAT_LASTS = {"stall_timeout": "1.2"}
# Of those that upload much.
FEW_AT_ONCE = 3
# Of the faults that a request gets in the gate, one in so many; `make soak` has them all.
GATE_SHARE = 1 if "PDS_SOAK" in os.environ else 3
# More requests than an operation has.
ENDLESS = 10_000
# A body this large is given the time of a slow line, which is more than a test can wait.
PATIENT_BYTES = 1 << 20


class Run(NamedTuple):
    """A fault at a request, and at those after it where it lasts."""

    number: int
    request: Request
    fault: str
    lasts: bool

    def __str__(self) -> str:
        return f"{self.fault} at request {self.number}{' and all after' if self.lasts else ''}, {self.request}"

    def faults(self) -> dict[int, str]:
        """For the server."""
        last = ENDLESS if self.lasts else self.number + 1
        return dict.fromkeys(range(self.number, last), self.fault)

    def options(self) -> dict[str, str]:
        """Of the store on which the operation is done."""
        limits = UNDER_A_FAULT_THAT_LASTS if self.lasts else UNDER_ONE_FAULT
        is_answered = not self.fault.startswith("stall")
        return limits | {"stall_timeout": PATIENT["stall_timeout"]} if is_answered else limits


def plan(
    requests: Sequence[Request], faults: Iterable[str], *, lasts: bool, verbs: str = "", share: int = GATE_SHARE
) -> list[Run]:
    """The runs of an operation that sends these requests.

    `verbs` (joined by ``|``) are those that are hit. Each request gets every fault, or one in so many (`share`), and
    the next request others.
    """
    return [
        Run(number, request, fault, lasts)
        for place, fault in enumerate(faults)
        for number, request in enumerate(requests)
        if _can_hit(request, fault)
        and (not verbs or request.verb in verbs.split("|"))
        and (place + number) % share == 0
    ]


# What makes an upload an object of another name.
ENDS_UPLOADS = "complete|copy|delete"


def _can_hit(request: Request, fault: str) -> bool:
    # S3 sends an error after a 200 only where it works long after the headers are sent.
    unheard = fault == "error body" and request.method != "POST"
    return not unheard and not (fault.startswith("stall") and len(request.body) > PATIENT_BYTES)


def store(server: ScriptedS3, run: Run | None = None) -> pds.Store:
    """The store on a server, as the operation of a run sees it, or whoever looks at it without faults."""
    return pds.Store("s3://bucket/prefix", storage_options=server.options() | (run.options() if run else PATIENT))


def impatient_store(server: ScriptedS3) -> pds.Store:
    """The store on a server, as one sees it who waits for no answer for long."""
    return pds.Store("s3://bucket/prefix", storage_options=server.options() | UNDER_A_FAULT_THAT_LASTS)


class Operation(NamedTuple):
    """What changes a store, and what is there before."""

    work: Callable[[pds.Store], object]
    setup: Callable[[pds.Store], None]
    # It commits first and then removes (a vacuum): it may have done only the one.
    in_steps: bool = False


class Case(Generic[_State]):
    """An operation, what it makes of what is there, and what a second time makes of that."""

    def __init__(self, operation: Operation, look: Callable[[pds.Store], _State | None]) -> None:
        self.operation, self.look = operation, look
        with ScriptedS3() as server:
            operation.setup(store(server))
            self.before: dict[str, Stored] = server.save()
            self.old = look(store(server))
            server.restart()
            operation.work(store(server))
            self.requests = list(server.seen)
            # What one run writes, at most so much of which may be left where cleaning up is not possible.
            self.written = len(server.save().keys() - self.before.keys())
            self.new = look(store(server))
            self.second_error = type(ended(lambda: operation.work(store(server))))
            self.newer = look(store(server))

    def run(self, server: ScriptedS3, run: Run) -> Exception | None:
        """Do it under the run's faults, which end then; how it ended."""
        server.restart(run.faults())
        error = ended(lambda: self.operation.work(store(server, run)))
        server.restart()
        if not run.lasts and run.fault in PASSING:
            assert error is None, repr(error)
        return error

    def check_clean(self, server: ScriptedS3, error: Exception, spared: str = "") -> None:
        """What was uploaded for a commit that certainly is not is gone; but for keys that contain `spared`."""
        left = sorted(key for key in server.save().keys() - self.before.keys() if not spared or spared not in key)
        uploads = [upload.key for upload in server.bucket.uploads.values() if upload.pieces]
        events = [str(event) for event in server.log_before if left and left[0] in event.request.keys]
        assert self.operation.in_steps or not left, f"{left} are left after {error!r}: {events}"
        assert not uploads, f"uploads of {uploads} are left after {error!r}"


def is_probe(key: str) -> bool:
    """Whether it is an object with which a server is tried out; a fault may leave one, three bytes long."""
    return "-_probe-" in key


def ended(call: Callable[[], object]) -> Exception | None:
    """How a call ended, in good time; an error must be one of ours."""
    with own_seconds() as taken:
        try:
            call()
        except pds.RemoteStoreError as error:
            return error
        finally:
            assert taken() < LIMIT_SECONDS, f"it took {taken():.0f} s"
    return None


@contextlib.contextmanager
def own_seconds() -> Iterator[Callable[[], float]]:
    """How long the block has taken so far, without the time in which it could not go on.

    A machine that is paused or overloaded has done nothing wrong, and a call that hangs leaves it idle. So what counts
    are the ticks of a thread, without the time in which something waited for a processor.
    """
    done, ticks, waited_before = threading.Event(), 0, waited_for_processors()

    def count() -> None:
        nonlocal ticks
        while not done.wait(TICK_SECONDS):
            ticks += 1

    ticking = threading.Thread(target=count)
    ticking.start()
    try:
        yield lambda: max(0.0, ticks * TICK_SECONDS - (waited_for_processors() - waited_before))
    finally:
        done.set()
        ticking.join()


def waited_for_processors() -> float:
    """The seconds in which something on this machine waited for a processor; 0 where they are not counted."""
    with contextlib.suppress(OSError):
        some = Path("/proc/pressure/cpu").read_text().partition("\n")[0]
        return int(some.rpartition("total=")[2]) / 1e6
    return 0.0


@contextlib.contextmanager
def servers(count: int) -> Iterator[queue.SimpleQueue[ScriptedS3]]:
    """So many servers, to be taken and given back."""
    with contextlib.ExitStack() as stack:
        free: queue.SimpleQueue[ScriptedS3] = queue.SimpleQueue()
        for _ in range(count):
            free.put(stack.enter_context(ScriptedS3()))
        yield free


def run_all(
    runs: Sequence[Run], before: dict[str, Stored], work: Callable[[ScriptedS3, Run], None], at_once: int = AT_ONCE
) -> None:
    """Have `work` judge every run on a server that holds `before`; fail with all that failed."""
    with servers(min(at_once, len(runs))) as free, ThreadPoolExecutor(at_once) as pool:

        def one(run: Run) -> str | None:
            server, begin = free.get(), time.monotonic()
            with own_seconds() as taken:
                try:
                    server.restart()
                    server.restore(before)
                    work(server, run)
                except Exception as failure:  # noqa: BLE001 told below
                    times = f"{taken():.1f} s of its own in {time.monotonic() - begin:.1f} s"
                    return f"{run} ({times}): {type(failure).__name__}: {failure}\n{_sent(server, run)}"
                finally:
                    free.put(server)
            return None

        failures = [failure for failure in pool.map(one, runs) if failure]
    assert not failures, f"{len(failures)} of {len(runs)} runs failed:\n" + "\n\n".join(failures[:12])


def _sent(server: ScriptedS3, run: Run) -> str:
    """What came in under the fault of a run that failed, and after it."""
    under_fault, after = (server.seen_before, server.seen) if server.seen_before else (server.seen, [])
    lines = [f"  {number} {request}" for number, request in enumerate(under_fault)]
    hit = under_fault[run.number : run.number + 1]
    if hit and hit[0].verb != run.request.verb:
        lines[run.number] += f" (the fault was meant for {run.request})"
    return "\n".join([*lines[-60:], *(f"  then {request}" for request in after[-40:])])
