"""Slow and broken networks: toxiproxy between a client and a server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from servers.process import free_port, program, request, running, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Proxy:
    """One way to a server, made slow or broken by toxics."""

    api: Toxiproxy
    name: str
    endpoint: str

    def toxic(self, kind: str, *, stream: str = "downstream", share: float = 1.0, **attributes: int) -> None:
        """Adds toxiproxy's toxic ``kind`` to a share of the connections."""
        toxic = {"type": kind, "stream": stream, "toxicity": share, "attributes": attributes}
        self.api.call("POST", f"/proxies/{self.name}/toxics", toxic | {"name": f"{kind}-{stream}"})

    def wan(self, *, latency_ms: int = 30, mib_per_second: int = 20) -> None:
        """A line to a distant store."""
        self.toxic("latency", latency=latency_ms)
        for stream in ("upstream", "downstream"):
            self.toxic("bandwidth", stream=stream, rate=mib_per_second * 1024)


@dataclasses.dataclass(frozen=True)
class Toxiproxy:
    """A running toxiproxy and its HTTP API."""

    port: int
    pid: int

    @classmethod
    @contextlib.contextmanager
    def start(cls, seed: int = 1) -> Iterator[Self]:
        """Runs a proxy server until the block ends; the seed decides which connections are hit."""
        server = str(program("toxiproxy"))

        def command(port: int) -> list[str]:
            return [server, "-host", "127.0.0.1", "-port", str(port), "-seed", str(seed)]

        with (
            scratch("toxiproxy") as folder,
            running(command, folder / "server.log") as (port, pid),
        ):
            yield cls(port, pid)

    def call(self, method: str, path: str, body: object = None) -> list[dict[str, object]]:
        """One request to the API; its answer, as a list where it is one, else as a list of one."""
        text = request(f"127.0.0.1:{self.port}", method, path, body=None if body is None else json.dumps(body))
        value = json.loads(text) if text else []
        return value if isinstance(value, list) else [value]

    def proxy(self, upstream: str) -> Proxy:
        """A clean way to a server's endpoint, on a port of its own."""
        parts = urlsplit(upstream)
        listen = f"127.0.0.1:{free_port()}"
        name = f"to-{parts.port}-by-{listen.rpartition(':')[2]}"
        self.call(
            "POST",
            "/proxies",
            {"name": name, "listen": listen, "upstream": parts.netloc, "enabled": True},
        )
        return Proxy(self, name, parts._replace(netloc=listen).geturl())

    def reset(self) -> None:
        """Removes all proxies."""
        for by_name in self.call("GET", "/proxies"):
            for name in by_name:
                self.call("DELETE", f"/proxies/{name}")
