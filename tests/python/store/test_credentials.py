"""Where credentials come from: a callable, a profile, and no metadata service where none was meant."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import pds
from gcs_fake import FakeGcs
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers import AzureServer

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        yield server


def _options(server: ScriptedS3) -> dict[str, str]:
    return {name: value for name, value in server.options().items() if "key" not in name}


class _Provider:
    """Counts calls, and how many there are at once."""

    def __init__(self, lifetime: timedelta | None = None) -> None:
        self.lifetime, self.calls, self.most_at_once = lifetime, 0, 0
        self.failure: Exception | None = None
        self.hidden = ""
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self) -> dict[str, object]:
        with self._lock:
            self.calls += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            if self.failure:
                raise self.failure
            keys = {"access_key_id": f"key{self.calls}", "secret_access_key": "s", "session_token": f"t{self.calls}"}
            keys.pop(self.hidden, None)
            return keys if self.lifetime is None else {**keys, "expires_at": datetime.now(UTC) + self.lifetime}
        finally:
            with self._lock:
                self._now -= 1


def _signed_with(server: ScriptedS3) -> list[tuple[str, str]]:
    found = (re.search(r"Credential=([^/]+)/", request.headers["authorization"]) for request in server.seen)
    tokens = (request.headers.get("x-amz-security-token", "") for request in server.seen)
    return [(match.group(1) if match else "", token) for match, token in zip(found, tokens, strict=True)]


def test_a_provider_is_asked_at_the_first_request_and_once(server: ScriptedS3) -> None:
    provider = _Provider()
    store = pds.Store("s3://bucket", _options(server), credential_provider=provider)
    assert provider.calls == 0
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: store.write(f"f{n}", b"x"), range(64)))
    assert (provider.calls, provider.most_at_once) == (1, 1)
    assert set(_signed_with(server)) == {("key1", "t1")}


def test_one_call_at_a_time_where_credentials_do_not_last(server: ScriptedS3) -> None:
    provider = _Provider(timedelta(minutes=4))
    store = pds.Store("s3://bucket", _options(server), credential_provider=provider)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: store.write(f"f{n}", b"x"), range(64)))
    assert provider.most_at_once == 1
    assert provider.calls > 1


@pytest.mark.parametrize(("lifetime", "calls"), [(HOUR, 1), (timedelta(minutes=4), 3), (-HOUR, 3)])
@pytest.mark.parametrize("overwrite", [True, False])
def test_credentials_are_fetched_anew_before_they_expire(
    server: ScriptedS3, overwrite: bool, lifetime: timedelta, calls: int
) -> None:
    provider = _Provider(lifetime)
    store = pds.Store("s3://bucket", _options(server), credential_provider=provider)
    for number in range(3):
        store.write(f"a{number}", b"x", overwrite=overwrite)
    assert provider.calls == calls
    assert [key for key, _ in _signed_with(server)][-1] == f"key{calls}"


def test_a_failed_refresh_is_borne_while_there_are_credentials(
    server: ScriptedS3, caplog: pytest.LogCaptureFixture
) -> None:
    """A record of it goes to Python's logging, without having been asked for."""
    provider = _Provider(timedelta(minutes=4))
    store = pds.Store("s3://bucket", _options(server), credential_provider=provider)
    store.write("a", b"x")
    provider.failure = RuntimeError("the broker is down")
    assert store.read_bytes("a") == b"x"
    assert any(r.name.startswith("pds") and "could not be refreshed" in r.getMessage() for r in caplog.records)
    assert logging.getLogger("pds").handlers
    provider.failure, provider.hidden = None, "secret_access_key"
    assert store.read_bytes("a") == b"x"
    provider.hidden, provider.lifetime = "", -HOUR
    assert store.read_bytes("a") == b"x"
    provider.failure = RuntimeError("the broker is down")
    with pytest.raises(pds.PermissionDenied, match="the broker is down"):
        store.read_bytes("a")


def test_a_provider_that_fails_is_the_cause(server: ScriptedS3) -> None:
    provider = _Provider()
    provider.failure = RuntimeError("the broker is down")
    store = pds.Store("s3://bucket", _options(server), credential_provider=provider)
    for call in (lambda: store.read_bytes("a"), lambda: store.write("a", b"x"), lambda: pds.Table(store, "t").scan()):
        with pytest.raises(pds.PermissionDenied, match=r"credential provider failed.*the broker is down") as caught:
            call()
        assert caught.value.__cause__ is provider.failure
        assert "no credentials" not in str(caught.value)
    assert server.seen == []


@pytest.mark.parametrize("url", ["memory://", "file:///tmp", "az://container", "gs://bucket"])
def test_a_profile_is_for_s3(url: str) -> None:
    with pytest.raises(pds.InvalidInput, match="aws_profile"):
        pds.Store(url, aws_profile="dev")


@pytest.mark.parametrize(
    ("zone", "hours", "calls"),
    [("Pacific/Kiritimati", 1, 1), ("Etc/GMT+12", -1, 2), ("UTC", 1, 1)],
)
def test_a_time_without_a_zone_is_utc(server: ScriptedS3, zone: str, hours: int, calls: int) -> None:
    """Whatever the machine's own zone is."""
    program = f"""
import datetime, pds
calls = []
def provide():
    calls.append(1)
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return {{"access_key_id": "k", "secret_access_key": "s", "expires_at": now + datetime.timedelta(hours={hours})}}
store = pds.Store("s3://bucket", {_options(server)!r}, credential_provider=provide)
store.write("a", b"x", overwrite=True)
store.read_bytes("a")
assert len(calls) == {calls}, calls
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "TZ": zone})


@pytest.mark.parametrize("answer", [{}, {"access_key_id": "k"}, {"bearer_token": "t"}, {"access_key_id": None}])
def test_a_provider_that_gives_too_little(server: ScriptedS3, answer: dict[str, object]) -> None:
    store = pds.Store("s3://bucket", _options(server), credential_provider=lambda: answer)
    with pytest.raises(pds.PermissionDenied, match="access_key_id and secret_access_key"):
        store.read_bytes("a")
    assert server.seen == []


@pytest.mark.parametrize("answer", [None, 7, {"access_key_id": 7, "secret_access_key": "s"}, {"expires_at": "soon"}])
def test_a_provider_that_gives_something_else(server: ScriptedS3, answer: Any) -> None:
    store = pds.Store("s3://bucket", _options(server), credential_provider=lambda: answer)
    with pytest.raises(pds.PermissionDenied, match="credential provider failed") as caught:
        store.read_bytes("a")
    assert isinstance(caught.value.__cause__, TypeError | AttributeError)


@pytest.mark.parametrize("url", ["memory://", "file:///tmp"])
def test_stores_without_credentials(url: str) -> None:
    with pytest.raises(pds.InvalidInput, match="credential_provider"):
        pds.Store(url, credential_provider=_Provider())


def test_google_cloud_storage() -> None:
    with FakeGcs() as server:
        server.tokens = {"t1"}
        tokens = iter(["t1", "t2"])
        options = {"google_base_url": server.endpoint, "allow_http": "true", "max_retries": "0"}

        def provide() -> dict[str, object]:
            return {"bearer_token": next(tokens), "expires_at": datetime.now(UTC) + timedelta(minutes=1)}

        store = pds.Store(server.url("p"), options, credential_provider=provide)
        store.write("a", b"x")
        with pytest.raises(pds.PermissionDenied):
            store.read_bytes("a")
        assert [r.headers["authorization"] for r in server.seen] == ["Bearer t1", "Bearer t2"]
        wrong = pds.Store(server.url("p"), options, credential_provider=lambda: {"access_key_id": "k"})
        with pytest.raises(pds.PermissionDenied, match="bearer_token"):
            wrong.read_bytes("a")


def _azure(server: AzureServer, provide: Callable[[], dict[str, object]]) -> pds.Store:
    options = {name: value for name, value in server.options().items() if not name.endswith("_key")}
    return pds.Store(server.url("credentials"), options, credential_provider=provide)


def test_azure(azure_server: AzureServer) -> None:
    store = _azure(azure_server, lambda: {"account_key": azure_server.key})
    store.write("a", b"x", overwrite=True)
    assert store.read_bytes("a") == b"x"
    for wrong in ({"account_key": "AAAA"}, {"sas_token": "?sv=2021-08-06&sig=AAAA"}):
        with pytest.raises(pds.PermissionDenied):
            _azure(azure_server, lambda wrong=wrong: wrong).read_bytes("a")
    with pytest.raises(pds.PermissionDenied, match="bearer_token, sas_token or account_key"):
        _azure(azure_server, lambda: {"access_key_id": "k"}).read_bytes("a")


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_profile_that_is_not_there(
    server: ScriptedS3, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names it; no metadata service is asked."""
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = d\naws_secret_access_key = s\n")
    options = {"aws_region": "r", "aws_metadata_endpoint": server.endpoint, "allow_http": "true", "max_retries": "0"}
    if how == "option":
        options["aws_profile"] = "ghost"
    else:
        monkeypatch.setenv("AWS_PROFILE", "ghost")
    store = pds.Store("s3://bucket", options)
    with pytest.raises(pds.PermissionDenied, match="ghost"):
        store.read_bytes("a")
    assert server.seen == []


@pytest.mark.parametrize(("profile", "key"), [(None, "d"), ("dev", "e")])
def test_a_profile(server: ScriptedS3, profile: str | None, key: str, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = s\n"
        "[dev]\naws_access_key_id = e\naws_secret_access_key = s\n"
    )
    options = {**_options(server), **({"aws_profile": profile} if profile else {})}
    pds.Store("s3://bucket", options).write("a", b"x")
    assert [name for name, _ in _signed_with(server)] == [key]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket", {"aws_endpoint": "{endpoint}", "aws_metadata_endpoint": "{endpoint}"}),
        ("az://container", {"azure_storage_account_name": "a", "azure_storage_endpoint": "{endpoint}",
                            "azure_msi_resource_id": "r"}),
    ],
)  # fmt: skip
def test_a_custom_endpoint_without_credentials(server: ScriptedS3, url: str, options: dict[str, str]) -> None:
    given = {name: value.format(endpoint=server.endpoint) for name, value in options.items()}
    store = pds.Store(url, {**given, "allow_http": "true", "max_retries": "0"})
    with pytest.raises(pds.PermissionDenied, match="no credentials"):
        store.read_bytes("a")
    assert server.seen == []
