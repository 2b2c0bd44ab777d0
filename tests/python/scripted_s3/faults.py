"""What can be done to a request.

A fault is a name:

===============  =====================================================================
``403`` …        that status with an S3 error document, nothing done
``500 after``    done, then that status
``drop``         connection closed, nothing done
``drop after``   done, then connection closed without an answer
``stall``        nothing done, no answer until the client gives up
``stall after``  done, no answer until the client gives up
``cut``          done; the headers and half of the body, then connection closed
``error body``   nothing done; 200 with an S3 error document as the body
``no etag``      done; the answer lacks its ETag
``hold``         as ``stall``; what a test waits for by ``held``, and ends by ``released``
``hold after``   as ``stall after``, likewise
``late``         no answer until the client gives up; done when the test says so
``late 500`` …   answered so at once; done when the test says so
``late drop``    connection closed at once; done when the test says so
``duplicate``    done and answered; done once more when the test says so
``pause``        done and answered when the test says so
``pause after``  done; answered when the test says so
===============  =====================================================================

"When the test says so" is a method of the `Rule` that hit the request.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripted_s3.bucket import Answer, Request

STATUSES = ("403", "404", "409", "412", "500", "503")
AFTER = tuple(f"{name} after" for name in ("500", "503", "drop", "stall"))
FAULTS = (*STATUSES, *AFTER, "drop", "stall", "cut", "error body")
CODES = {
    "304": "NotModified",
    "400": "InvalidRequest",
    "401": "InvalidAccessKeyId",
    "403": "AccessDenied",
    "404": "NoSuchKey",
    "405": "MethodNotAllowed",
    "409": "ConditionalRequestConflict",
    "412": "PreconditionFailed",
    "413": "EntityTooLarge",
    "423": "Locked",
    "500": "InternalError",
    "501": "NotImplemented",
    "503": "SlowDown",
}


class Event(NamedTuple):
    """A request that was applied."""

    client: str
    request: Request
    answer: Answer
    # Applied after its time: on command, not when it came.
    is_late: bool = False

    def __str__(self) -> str:
        return f"{self.client}: {self.request} {self.answer.status}{' (late)' if self.is_late else ''}"


class Fault(NamedTuple):
    """A fault's name, taken apart."""

    doing: str
    # Applied at once.
    is_applied: bool
    # Kept, to be applied on command.
    is_kept: bool

    @classmethod
    def parse(cls, name: str) -> Fault:
        """From its name."""
        if name.startswith("late"):
            return cls(name.removeprefix("late").strip() or "stall", is_applied=False, is_kept=True)
        if name == "duplicate":
            return cls("", is_applied=True, is_kept=True)
        doing = name.removesuffix(" after")
        is_applied = name != doing or doing in ("", "cut", "no etag")
        return cls(doing, is_applied, is_kept=False)


@dataclass
class Rule:
    """A fault for the requests it matches, and what became of those."""

    matches: Callable[[Request], bool]
    fault: str
    # The first so many are spared.
    skip: int = 0
    # So many are hit.
    times: int = 1 << 30
    apply: Callable[[Request], Answer] | None = None
    requests: list[Request] = field(default_factory=list)
    hit: threading.Event = field(default_factory=threading.Event)
    # A client has given up waiting for an answer.
    closed: threading.Event = field(default_factory=threading.Event)
    resumed: threading.Event = field(default_factory=threading.Event)
    # What paused requests are answered, where it is not the truth.
    answered: str = ""
    _kept: list[Request] = field(default_factory=list)
    _is_dropped: bool = False

    def take(self, request: Request) -> bool:
        """Whether it hits the request; counts it. Called under the server's lock."""
        if self.resumed.is_set() or not self.times or not self.matches(request):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        self.requests.append(request)
        if Fault.parse(self.fault).is_kept:
            self._kept.append(request)
        return True

    def wait(self, seconds: float = 60) -> None:
        """Until it has hit a request."""
        assert self.hit.wait(seconds), f"{self.fault}: no such request came"

    def wait_closed(self, seconds: float = 60) -> None:
        """Until a client has given up on a request it hit."""
        assert self.closed.wait(seconds), f"{self.fault}: the client still waits"

    def land(self) -> list[Answer]:
        """Apply what was kept; what S3 answers to nobody."""
        kept, self._kept = self._kept, []
        assert self.apply is not None
        return [self.apply(request) for request in kept]

    def resume(self, fault: str = "") -> None:
        """Paused requests are applied and answered (or so: ``500 after``, ``drop after``); it hits no more."""
        self.answered = fault.removesuffix(" after")
        self.resumed.set()

    def drop(self) -> None:
        """What is paused or kept was never sent; it hits no more."""
        self._is_dropped = True
        self._kept = []
        self.resumed.set()

    @property
    def is_dropped(self) -> bool:
        """Whether paused requests are not to be applied."""
        return self._is_dropped
