"""Credentials as the tools of AWS find them; botocore, which the AWS CLI is made of, is the oracle."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

import pds
from fake_aws import INSTANCE_ROLE, REFRESHED_TOKEN, SSO_TOKEN, FakeAws
from scripted_s3 import ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_URL = "https://example.awsapps.com/start"
SESSION_PROFILE = """
[sso-session corp]
sso_start_url = https://example.awsapps.com/start
sso_region = eu-west-1
[profile dev]
sso_session = corp
sso_account_id = 1
sso_role_name = reader
"""
STATIC = "aws_access_key_id = static\naws_secret_access_key = s\n"
# The configuration file, the credentials file, the environment, the access key.
FILES: dict[str, tuple[str, str, dict[str, str], str]] = {
    "keys": ("", f"[default]\n{STATIC}", {}, "static"),
    "keys in the configuration": (f"[default]\n{STATIC}", "", {}, "static"),
    "a named profile": (f"[profile dev]\n{STATIC}", "", {"AWS_PROFILE": "dev"}, "static"),
    "a named profile of the credentials": ("", f"[dev]\n{STATIC}", {"AWS_PROFILE": "dev"}, "static"),
    "both files": (f"[default]\n{STATIC.replace('static', 'other')}", f"[default]\n{STATIC}", {}, "static"),
    "comments and spaces": (f"# text\n[default]\nregion = x\n; more\n{STATIC}", "", {}, "static"),
    "a role": (
        f"[profile base]\n{STATIC}[profile dev]\nrole_arn = arn:aws:iam::1:role/writer\nsource_profile = base\n",
        "", {"AWS_PROFILE": "dev"}, "key-writer",
    ),
    "a role of a role": (
        (f"[profile base]\n{STATIC}[profile middle]\nrole_arn = arn:aws:iam::1:role/hop\nsource_profile = base\n"
        "[profile dev]\nrole_arn = arn:aws:iam::1:role/writer\nsource_profile = middle\nexternal_id = partner\n"),
        "", {"AWS_PROFILE": "dev"}, "key-writer",
    ),
    "a role by the environment's keys": (
        "[profile dev]\nrole_arn = arn:aws:iam::1:role/writer\ncredential_source = EcsContainer\n",
        "", {"AWS_PROFILE": "dev", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "{aws}/container"}, "key-writer",
    ),
    "an SSO session": (SESSION_PROFILE, "", {"AWS_PROFILE": "dev"}, "key-reader"),
    "SSO without a session": (
        f"[default]\nsso_start_url = {START_URL}\nsso_region = eu-west-1\nsso_account_id = 1\nsso_role_name = reader\n",
        "", {}, "key-reader",
    ),
    "a role by SSO": (
        SESSION_PROFILE + "[profile up]\nrole_arn = arn:aws:iam::1:role/writer\nsource_profile = dev\n",
        "", {"AWS_PROFILE": "up"}, "key-writer",
    ),
    "a process": ("[default]\ncredential_process = '{process}' --for \"a b\"\n", "", {}, "key-process"),
    "a web identity of a profile": (
        "[default]\nrole_arn = arn:aws:iam::1:role/web\nweb_identity_token_file = {token}\n", "", {}, "key-web",
    ),
    "a web identity of the environment": (
        "", "", {"AWS_WEB_IDENTITY_TOKEN_FILE": "{token}", "AWS_ROLE_ARN": "arn:aws:iam::1:role/web"}, "key-web",
    ),
    "a web identity before a profile": (
        "", f"[default]\n{STATIC}",
        {"AWS_PROFILE": "default", "AWS_WEB_IDENTITY_TOKEN_FILE": "{token}", "AWS_ROLE_ARN": "arn:aws:iam::1:role/web"},
        "key-web",
    ),
    "a role of a profile before a web identity": (
        f"[profile base]\n{STATIC}[profile dev]\nrole_arn = arn:aws:iam::1:role/writer\nsource_profile = base\n",
        "",
        {"AWS_PROFILE": "dev", "AWS_WEB_IDENTITY_TOKEN_FILE": "{token}", "AWS_ROLE_ARN": "arn:aws:iam::1:role/web"},
        "key-writer",
    ),
    "the other variable for a profile": (
        f"[profile dev]\n{STATIC}", "", {"AWS_DEFAULT_PROFILE": "dev", "AWS_PROFILE": "none"}, "static",
    ),
    "keys before a process": ("[default]\ncredential_process = false\n", f"[default]\n{STATIC}", {}, "static"),
    "keys beside half an SSO session": (
        f"[sso-session corp]\nsso_start_url = {START_URL}\nsso_region = r\n[default]\nsso_session = corp\n{STATIC}",
        "", {}, "static",
    ),
    "a container": ("", "", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{aws}/container"}, "key-container"),
    "keys of the environment": (
        "", f"[default]\n{STATIC}", {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "s"}, "env",
    ),
}  # fmt: skip


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with FakeAws() as aws:
        yield aws


@pytest.fixture
def s3() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        yield server


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aws: FakeAws) -> Path:
    """An empty home, and services on loopback."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for service in ("STS", "SSO", "SSO_OIDC"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", aws.endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", aws.endpoint)
    (tmp_path / ".aws" / "sso" / "cache").mkdir(parents=True)
    process = tmp_path / "process of mine"
    keys = {"Version": 1, "AccessKeyId": "key-process", "SecretAccessKey": "s", "SessionToken": "t"}
    process.write_text(f'#!/bin/sh\ntest "$2" = "a b" && echo \'{json.dumps(keys)}\'\n')
    process.chmod(process.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "token").write_text("web-token")
    return tmp_path


def _write_files(home: Path, aws: FakeAws, config: str, credentials: str) -> None:
    values = {"{process}": str(home / "process of mine"), "{token}": str(home / "token"), "{aws}": aws.endpoint}
    for name, template in (("config", config), ("credentials", credentials)):
        text = re.sub(r"\{\w+\}", lambda match: values[match.group()], template)
        if text:
            (home / ".aws" / name).write_text(text)


def _write_token(
    home: Path, key: str, *, token: str = SSO_TOKEN, expires_in: timedelta = timedelta(hours=1), **more: str
) -> Path:
    path = home / ".aws" / "sso" / "cache" / f"{hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()}.json"
    expiry = (datetime.now(UTC) + expires_in).strftime("%Y-%m-%dT%H:%M:%SZ")
    values = {"accessToken": token, "expiresAt": expiry, "region": "eu-west-1", "startUrl": START_URL, **more}
    path.write_text(json.dumps(values))
    return path


def _open(server: ScriptedS3, **options: str) -> pds.Store:
    given = {name: value for name, value in server.options().items() if "key" not in name}
    return pds.Store("s3://bucket", {**given, **options})


def _signing_keys(server: ScriptedS3) -> list[str]:
    matches = (re.search(r"Credential=([^/]+)/", request.headers.get("authorization", "")) for request in server.seen)
    return [match.group(1) if match else "" for match in matches]


def _key_of_botocore() -> str:
    """In a process of its own: it reads the home directory when it is imported."""
    program = (
        "import botocore.session; "
        "print(botocore.session.Session().get_credentials().get_frozen_credentials().access_key)"
    )
    environment = {"AWS_DEFAULT_REGION": "eu-west-1", **os.environ}
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("case", FILES)
def test_the_key_is_that_of_the_aws_tools(
    case: str, home: Path, aws: FakeAws, s3: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, credentials, environment, key = FILES[case]
    _write_files(home, aws, config, credentials)
    for name in ("corp", START_URL):
        _write_token(home, name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("{token}", str(home / "token")).replace("{aws}", aws.endpoint))
    store = _open(s3)
    assert aws.asked == []
    store.write("a", b"x")
    asked = list(aws.asked)
    assert store.read_bytes("a") == b"x"
    assert aws.asked == asked
    assert set(_signing_keys(s3)) == {key} == {_key_of_botocore()}


def test_a_profile_of_the_options_comes_before_the_environment(
    home: Path, aws: FakeAws, s3: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_files(home, aws, f"[profile dev]\n{STATIC}", "[default]\naws_access_key_id = d\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    _open(s3, aws_profile="dev").write("a", b"x")
    assert _signing_keys(s3) == ["static"]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_an_endpoint_of_the_environment(
    name: str, home: Path, aws: FakeAws, s3: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be http://, and AWS is not asked for the region of its bucket."""
    _write_files(home, aws, "", f"[default]\n{STATIC}")
    monkeypatch.setenv(name, s3.endpoint)
    store = pds.Store("s3://bucket", max_retries=0)
    store.write("a", b"x")
    assert store.read_bytes("a") == b"x"
    assert set(_signing_keys(s3)) == {"static"}


def test_an_instance_is_asked_last(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with an endpoint of its own does not ask it, so its credentials are seen by their region alone."""
    store = pds.Store("s3://bucket", aws_region="eu-west-1", max_retries=0, retry_timeout=1, proxy_url=aws.endpoint)
    with pytest.raises(pds.Error):
        store.read_bytes("a")
    paths = [asked.what["path"] for asked in aws.asked if asked.service == "instance"]
    assert paths[0] == "/latest/api/token"
    assert paths[-1].endswith(INSTANCE_ROLE)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    asked = len(aws.asked)
    with pytest.raises(pds.PermissionDenied, match="AWS_EC2_METADATA_DISABLED is set"):
        pds.Store("s3://bucket", aws_region="eu-west-1", max_retries=0).read_bytes("a")
    assert len(aws.asked) == asked


def test_nothing_anywhere(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer within seconds, from a machine whose network drops what is sent to the metadata service."""
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    store = pds.Store("s3://bucket", aws_region="eu-west-1")
    started = time.monotonic()
    with pytest.raises(pds.PermissionDenied, match="no AWS credentials") as caught:
        store.read_bytes("a")
    assert time.monotonic() - started < 10
    for place in ("AWS_ACCESS_KEY_ID is not set", 'profile "default"', "a web identity", "a container", "an instance"):
        assert place in str(caught.value)
    for advice in ("aws configure", "aws sso login", "aws_profile", "aws_skip_signature"):
        assert advice in str(caught.value)
    assert aws.asked == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("[profile dev]\nregion = x\n", 'profile "dev"'),
        ("[profile other]\nregion = x\n", 'profile "dev"'),
        ("", 'profile "dev"'),
        ("[profile dev]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = gone\n", "gone"),
        ("[profile dev]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = dev\n", 'profile "dev"'),
        ("[profile dev]\nrole_arn = arn:aws:iam::1:role/x\n", 'profile "dev"'),
        (f"[profile b]\n{STATIC}[profile dev]\nrole_arn = arn:aws:iam::1:role/forbidden\nsource_profile = b\n",
         "not authorized to assume it"),
        ("[profile dev]\ncredential_process = false\n", 'profile "dev"'),
        ("[profile dev]\ncredential_process = echo nonsense\n", 'profile "dev"'),
        ("[profile dev]\naws_access_key_id = only\n", 'profile "dev"'),
    ],
)  # fmt: skip
def test_a_named_profile_that_cannot_be_used(
    config: str, expected: str, home: Path, aws: FakeAws, s3: ScriptedS3
) -> None:
    """The error names it and the reason; no other credentials are tried, nothing is sent to the store."""
    _write_files(home, aws, config, f"[default]\n{STATIC}")
    with pytest.raises(pds.PermissionDenied, match=re.escape(expected)) as caught:
        _open(s3, aws_profile="dev").read_bytes("a")
    assert 'profile "dev"' in str(caught.value)
    assert s3.seen == []


def test_an_sso_login_that_has_expired(home: Path, aws: FakeAws, s3: ScriptedS3) -> None:
    _write_files(home, aws, SESSION_PROFILE, "")
    for prepare in (lambda: None, lambda: _write_token(home, "corp", expires_in=-timedelta(hours=1)),
                    lambda: _write_token(home, "corp", token="revoked")):  # fmt: skip
        prepare()
        with pytest.raises(pds.PermissionDenied, match="aws sso login --profile dev") as caught:
            _open(s3, aws_profile="dev").read_bytes("a")
        assert "revoked" not in str(caught.value)
    _write_token(home, "corp")
    _open(s3, aws_profile="dev").write("a", b"x")
    assert _signing_keys(s3) == ["key-reader"]


def test_an_sso_token_is_refreshed(home: Path, aws: FakeAws, s3: ScriptedS3) -> None:
    """As the AWS CLI refreshes it, so that both go on with the new one."""
    _write_files(home, aws, SESSION_PROFILE, "")
    registered_until = (datetime.now(UTC) + timedelta(days=9)).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = _write_token(
        home, "corp", token="old", expires_in=-timedelta(hours=1), clientId="c", clientSecret="s",
        refreshToken="r", registrationExpiresAt=registered_until,
    )  # fmt: skip
    _open(s3, aws_profile="dev").write("a", b"x")
    assert _signing_keys(s3) == ["key-reader"]
    assert aws.services() == ["sso-oidc", "sso"]
    assert json.loads(path.read_text())["accessToken"] == REFRESHED_TOKEN


def test_a_role_is_assumed_anew_before_its_credentials_expire(home: Path, aws: FakeAws, s3: ScriptedS3) -> None:
    """Not for every request: concurrent ones share the outcome for some seconds, also that of a failure."""
    aws.expiry = datetime.now(UTC) + timedelta(minutes=4)
    _write_files(home, aws, *FILES["a role"][:2])
    store = _open(s3, aws_profile="dev")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.write(f"f{number}", b"x"), range(32)))
    assert [asked.signed_with for asked in aws.asked] == ["static"]
    time.sleep(2.1)
    store.read_bytes("f1")
    assert len(aws.asked) == 2


def test_concurrent_requests_share_a_failure(home: Path, aws: FakeAws, s3: ScriptedS3) -> None:
    config = f"[profile b]\n{STATIC}[profile dev]\nrole_arn = arn:aws:iam::1:role/forbidden\nsource_profile = b\n"
    _write_files(home, aws, config, "")
    store = _open(s3, aws_profile="dev")

    def read(_number: int) -> None:
        with pytest.raises(pds.PermissionDenied, match="not authorized to assume it"):
            store.read_bytes("a")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(32)))
    assert len(aws.asked) == 1


def test_a_service_that_cannot_be_reached(
    home: Path, aws: FakeAws, s3: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call may be repeated; a profile without credentials stays without."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    _write_files(home, aws, *FILES["a role"][:2])
    with pytest.raises(pds.BackendUnavailable, match='profile "dev"') as caught:
        _open(s3, aws_profile="dev").read_bytes("a")
    assert caught.value.retryable


@pytest.mark.parametrize(
    "options", [{"aws_secret_access_key": "s"}, {"aws_secret_access_key": "s", "aws_access_key_id": ""}]
)
def test_half_a_pair_of_keys_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(pds.InvalidInput, match="aws_access_key_id"):
        pds.Store("s3://bucket", options)


def test_the_hint_names_the_profile_that_logs_in(home: Path, aws: FakeAws, s3: ScriptedS3) -> None:
    _write_files(home, aws, FILES["a role by SSO"][0], "")
    with pytest.raises(pds.PermissionDenied, match="aws sso login --profile dev"):
        _open(s3, aws_profile="up").read_bytes("a")


@pytest.mark.parametrize(("options", "region"), [({}, "eu-north-1"), ({"aws_region": "r"}, "r")])
def test_the_region_is_that_of_the_profile(
    options: dict[str, str], region: str, home: Path, aws: FakeAws, s3: ScriptedS3
) -> None:
    _write_files(home, aws, "[profile dev]\nregion = eu-north-1\n", f"[dev]\n{STATIC}")
    given = {name: value for name, value in s3.options().items() if "key" not in name and name != "aws_region"}
    store = pds.Store("s3://bucket", {**given, **options}, aws_profile="dev")
    store.write("a", b"x")
    store.write("b", b"x", overwrite=True)
    assert store.read_bytes("a") == b"x"
    scopes = {re.search(r"/([^/]+)/s3/aws4_request", r.headers["authorization"]).group(1) for r in s3.seen}  # type: ignore[union-attr]
    assert scopes == {region}


def test_no_secret_is_told(home: Path, aws: FakeAws, s3: ScriptedS3, caplog: pytest.LogCaptureFixture) -> None:
    pds.enable_logging(logging.DEBUG)
    _write_files(home, aws, '[profile dev]\ncredential_process = echo \'{"SecretAccessKey": "hidden"}\'\n', "")
    with pytest.raises(pds.PermissionDenied) as caught:
        _open(s3, aws_profile="dev").read_bytes("a")
    assert "hidden" not in str(caught.value) + repr(caught.value.__cause__) + caplog.text


@pytest.mark.parametrize(
    ("status", "code"), [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed"), (404, "NoSuchBucket")]
)
def test_what_a_server_says_of_the_bucket_becomes_a_hint(status: int, code: str) -> None:
    """Also: none of these requests is sent again."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            body = f"<Error><Code>{code}</Code><Token-0>hidden</Token-0></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(server.serve_forever, 0.05)
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        store = pds.Store(
            "s3://bucket", aws_endpoint=endpoint, aws_region="r", aws_access_key_id="k", aws_secret_access_key="s"
        )
        try:
            with pytest.raises(pds.Error) as caught:
                store.read_bytes("a")
        finally:
            server.shutdown()
            served.result()
    error: Any = caught.value
    assert ("create the bucket" if status == 404 else "aws_region") in error.hint
    assert not error.retryable
    assert "hidden" not in str(error) + repr(error)
    # After a 404 of a file, a listing tells whether it is a folder.
    assert len(asked) == (2 if status == 404 else 1)
