"""The S3 server of the comparison, the slow line to it, and what goes over the wire.

Timed runs speak to the server directly. What is counted, is counted in a run of its own, on the
server's side and never by the client: requests from the server's access log, bytes by a proxy
before it that does nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Self

from servers import Proxy, S3Server, Toxiproxy
from servers.process import program, request, running, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

LATENCY_MS = 30
MIB_PER_SECOND = 20


@dataclasses.dataclass(frozen=True)
class Wire:
    """One server and the ways to it."""

    server: S3Server
    slow: S3Server
    counted: S3Server
    proxy: Proxy

    @classmethod
    @contextlib.contextmanager
    def start(cls) -> Iterator[Self]:
        """Runs server and proxies until the block ends."""
        with S3Server.start("pds-bench") as server, _counting_toxiproxy() as proxies:
            slow, counted = proxies.proxy(server.endpoint), proxies.proxy(server.endpoint)
            slow.wan(latency_ms=LATENCY_MS, mib_per_second=MIB_PER_SECOND)
            yield cls(server, server.at(slow.endpoint), server.at(counted.endpoint), counted)

    def seen(self) -> Seen:
        """The counts up to now; bytes of a connection are counted when it is closed."""
        time.sleep(0.5)
        metrics = request(f"127.0.0.1:{self.proxy.api.port}", "GET", "/metrics")
        sums = {"upstream": 0, "downstream": 0}
        pattern = rf'received_bytes_total\{{direction="(\w+)".*proxy="{self.proxy.name}".*\}} (\S+)'
        for direction, value in re.findall(pattern, metrics):
            sums[direction] += int(float(value))
        log = (self.server.folder / "access.log").read_text(errors="replace")
        found = re.findall(r" s3_(\w+) (\S+) ", log)
        requests = Counter(f"{operation} {_kind(key)}" for operation, key in found)
        return Seen(requests, sums["upstream"], sums["downstream"])


@dataclasses.dataclass(frozen=True)
class Seen:
    """Requests by operation, and bytes by direction, headers included."""

    requests: Counter[str]
    sent: int
    received: int

    def since(self, earlier: Seen) -> dict[str, object]:
        """What came after an earlier look."""
        return {
            "requests": dict(self.requests - earlier.requests),
            "sent": self.sent - earlier.sent,
            "received": self.received - earlier.received,
        }


def _kind(key: str) -> str:
    """What an object is to its dataset."""
    name = key.rpartition("/")[2]
    if "/_delta_log" in key:
        return "log"
    if name.endswith(".parquet"):
        return "part"
    return name if name in {"manifest.json", "_SUCCESS", "_publish.json"} else "other"


@contextlib.contextmanager
def _counting_toxiproxy() -> Iterator[Toxiproxy]:
    server = str(program("toxiproxy"))

    def command(port: int) -> list[str]:
        return [server, "-host", "127.0.0.1", "-port", str(port), "-proxy-metrics"]

    with scratch("toxiproxy") as folder, running(command, folder / "server.log") as (port, pid):
        yield Toxiproxy(port, pid)
