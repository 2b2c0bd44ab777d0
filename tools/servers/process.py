"""What all servers share: pinned programs in the cache, processes on free ports."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

START_SECONDS = 30.0
STOP_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Tool:
    """A pinned server program and the way to get it."""

    version: str
    program: str
    go_package: str | None = None
    npm_package: str | None = None


TOOLS = {
    "versitygw": Tool("1.8.0", "versitygw", go_package="github.com/versity/versitygw/cmd/versitygw"),
    "toxiproxy": Tool("2.5.0", "server", go_package="github.com/Shopify/toxiproxy/v2/cmd/server"),
    "azurite": Tool("3.37.0", "node_modules/.bin/azurite-blob", npm_package="azurite"),
}


def cache_dir() -> Path:
    """The folder that outlives a clone, as the Makefile knows it."""
    return Path(os.environ.get("PDS_CACHE") or Path.home() / ".cache" / "pds")


def _folder(name: str) -> Path:
    return cache_dir() / "bin" / f"{name}-{TOOLS[name].version}"


def program(name: str) -> Path:
    """The installed program of a tool; FileNotFoundError names the command that installs it."""
    path = _folder(name) / TOOLS[name].program
    if not path.exists():
        target = "azure" if name == "azurite" else "servers"
        raise FileNotFoundError(f"{name} is not installed in {path.parent}: run `make {target}`")
    return path


def install(name: str) -> None:
    """Puts a tool into the cache unless it is there: whole, or not at all."""
    tool, target = TOOLS[name], _folder(name)
    if (target / tool.program).exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        if tool.go_package:
            command = [
                "go",
                "install",
                "-trimpath",
                "-ldflags=-s -w",
                f"{tool.go_package}@v{tool.version}",
            ]
        else:
            package = f"{tool.npm_package}@{tool.version}"
            command = [
                "npm",
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--prefix",
                scratch,
                package,
            ]
        subprocess.run(command, check=True, env={**os.environ, "GOBIN": scratch}, stdin=subprocess.DEVNULL)
        Path(scratch).chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        # A second installer may have been faster; what it left is the same.
        with contextlib.suppress(OSError):
            Path(scratch).rename(target)
            Path(scratch).mkdir()
    program(name)


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _spawn(argv: Sequence[str], port: int, log: Path) -> subprocess.Popen[bytes] | None:
    """The running server, or None if it ended before it listened."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent
        )
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None:
        if _listens(port):
            return process
        if time.monotonic() > deadline:
            _stop(process)
            raise TimeoutError(f"{argv[0]} did not listen within {START_SECONDS:.0f} s")
        time.sleep(0.02)
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running(command: Callable[[int], Sequence[str]], log: Path) -> Iterator[tuple[int, int]]:
    """Runs ``command(port)`` on a free port and yields port and process id once it listens."""
    for _ in range(3):  # another process may take the port between the look and the start
        port = free_port()
        process = _spawn(command(port), port, log)
        if process is not None:
            break
    else:
        raise RuntimeError(f"{command(0)[0]} did not start: {log.read_text(errors='replace')[-2000:]}")
    try:
        yield port, process.pid
    finally:
        _stop(process)


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder in memory where there is one, so that a slow disk is not measured."""
    memory = Path("/dev/shm")  # noqa: S108 a random name is made in it
    base = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=f"pds-{name}-", dir=base, ignore_cleanup_errors=True) as path:
        yield Path(path)


def request(
    netloc: str,
    method: str,
    path: str,
    *,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> str:
    """One HTTP request to a server here; RuntimeError where it is refused."""
    connection = http.client.HTTPConnection(netloc, timeout=10)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status >= http.client.BAD_REQUEST:
        raise RuntimeError(f"{method} {path}: {answer.status} {text}")
    return text
