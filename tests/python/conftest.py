"""Fixtures that every test may use: stores, servers, broken networks, random-test profiles."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import signal
import uuid
import zlib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import pds
from gcs_fake import FakeGcs
from pds import cli
from servers import AzureServer, S3Server, Toxiproxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import dagster as dg

    Run = Callable[..., tuple[int, str, str]]

# Fixtures that stand for a server: whoever asks for one carries its marker.
MARKER_OF = {
    "azure_server": "azure",
    "azure_store": "azure",
    "far_s3": "s3",
    "s3_server": "s3",
    "s3_store": "s3",
    "spark": "spark",
    "toxiproxy_server": "s3",
}

# Of a test that is slow anyway, or starts processes that are.
SLOW_SECONDS = 900

# What the suite is run with once more: everything is split as often as it can be.
HOSTILE = {"row_group_size": 3, "memory_limit": 32 * 2**20}

hypothesis.settings.register_profile(
    "fast",
    max_examples=30,
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "soak", hypothesis.settings.get_profile("fast"), max_examples=3000, derandomize=False
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by the servers they ask for, before `-m` selects."""
    for item in items:
        for fixture in set(getattr(item, "fixturenames", ())) & MARKER_OF.keys():
            item.add_marker(MARKER_OF[fixture])
        # On a busy machine one takes three times as long as on an idle one.
        is_slow = item.get_closest_marker("slow") or item.get_closest_marker("spark")
        if is_slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    leave_to_soak(items)


def leave_to_soak(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked `sampled(n)`, leave all but one in n to `make soak`.

    Which ones follows from their names alone, and one of each function stays. Of other slow tests and of those in Spark
    half run. Above the stores, servers are what local files are: half of the tests run on S3, a third on Azure. With
    hostile sizes a third of the tests run again.
    """
    if "PDS_SOAK" in os.environ:
        return
    for item in items:
        names = {marker.name for marker in item.iter_markers()}
        shares = [3] if "PDS_HOSTILE" in os.environ else []
        if not {"store", "publish", "spark"}.intersection(item.path.parts):
            shares += [share for name, share in {"s3": 2, "azure": 3}.items() if name in names]
        if names & {"slow", "spark"} and "sampled" not in names:
            shares.append(2)
        if any(_hash(item) % share for share in shares):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.soak)
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("soak"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_one in cases.values():
        marker = of_one[0].get_closest_marker("sampled")
        kept = -(-len(of_one) // (marker.args[0] if marker else 1))
        for item in sorted(of_one, key=_hash)[kept:]:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.soak)


def _hash(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.encode())


# A shell that starts this in the background has it ignore Ctrl-C, and its children too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def sigterm() -> None:
    """The signal ends a process: Dagster leaves it an exception, which a child that waits may never notice."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def hostile() -> Iterator[bool]:
    """Whether this run is the hostile one, in which small sizes are the defaults."""
    if "PDS_HOSTILE" not in os.environ:
        yield False
        return
    plain = pds.ParquetDatasetStore.__init__

    @functools.wraps(plain)
    def with_small_sizes(self: pds.ParquetDatasetStore, *args: Any, **options: Any) -> None:
        plain(self, *args, **{**HOSTILE, **options})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pds.ParquetDatasetStore, "__init__", with_small_sizes)
        yield True


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server for the whole run; tests keep apart by prefix."""
    with S3Server.start() as server:
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    """One Azure emulator for the whole run."""
    with AzureServer.start() as server:
        yield server


@pytest.fixture(scope="session")
def toxiproxy_server() -> Iterator[Toxiproxy]:
    """The process behind `toxiproxy`."""
    with Toxiproxy.start() as server:
        yield server


@pytest.fixture
def toxiproxy(toxiproxy_server: Toxiproxy) -> Iterator[Toxiproxy]:
    """Makes proxies; those a test has made end with it."""
    yield toxiproxy_server
    toxiproxy_server.reset()


@pytest.fixture
def far_s3(toxiproxy: Toxiproxy, s3_server: S3Server) -> S3Server:
    """The S3 server at the end of a line of 30 ms and 20 MiB/s."""
    proxy = toxiproxy.proxy(s3_server.endpoint)
    proxy.wan()
    return s3_server.at(proxy.endpoint)


@pytest.fixture
def memory_store() -> Iterator[pds.Store]:
    """An empty store in memory."""
    with pds.Store("memory://") as store:
        yield store


@pytest.fixture
def local_store(tmp_path: Path) -> Iterator[pds.Store]:
    """An empty store in a folder."""
    root = tmp_path / "store"
    root.mkdir()
    with pds.Store(root.as_uri()) as store:
        yield store


@pytest.fixture
def s3_prefix() -> str:
    """A prefix nobody else has."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def s3_store(s3_server: S3Server, s3_prefix: str) -> Iterator[pds.Store]:
    """An empty store on the S3 server."""
    with pds.Store(s3_server.url(s3_prefix), storage_options=s3_server.options()) as store:
        yield store


@pytest.fixture
def azure_store(azure_server: AzureServer, s3_prefix: str) -> Iterator[pds.Store]:
    """An empty store on the Azure emulator."""
    with pds.Store(azure_server.url(s3_prefix), storage_options=azure_server.options()) as store:
        yield store


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[FakeGcs]:
    """One fake of Google Cloud Storage for the whole run."""
    with FakeGcs() as server:
        yield server


@pytest.fixture
def gcs_store(gcs_server: FakeGcs, s3_prefix: str) -> Iterator[pds.Store]:
    """An empty store on the fake of Google Cloud Storage."""
    with pds.Store(gcs_server.url(s3_prefix), storage_options=gcs_server.options()) as store:
        yield store


STORES = [
    "memory",
    "local",
    "gcs",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("azure", marks=pytest.mark.azure),
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> pds.Store:
    """An empty store of each kind in turn."""
    chosen: pds.Store = request.getfixturevalue(f"{request.param}_store")
    return chosen


@pytest.fixture(scope="session")
def remote_store_sdist() -> Path:
    """The unpacked source distribution of remote-store, fetched by `make setup`."""
    home = Path(os.environ.get("PDS_CACHE", Path.home() / ".cache" / "pds"))
    return home / "sdist" / f"remote_store-{importlib.metadata.version('remote-store')}"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance of Dagster that keeps nothing."""
    import dagster as dg  # noqa: PLC0415 few tests need it

    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the ``pds`` command with arguments: the exit code, and what it prints to stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            code = cli.main(argv)
        except SystemExit as stop:
            code = int(str(stop.code))
        out, err = capfd.readouterr()
        return code, out, err

    return run
