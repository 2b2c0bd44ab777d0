"""Credentials are seen nowhere: representations, errors, causes, logs."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import pds
from scripted_s3 import Answer, Request, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s3cr3t%2Fw0rd"
KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": SECRET, "aws_region": "r"}
QUICK = {"max_retries": "0", "retry_timeout": "1", "stall_timeout": "1"}
# Nobody listens on port 1.
STORES: dict[str, tuple[str, dict[str, str]]] = {
    "secret key": ("s3://bucket/p", {**KEYS, "aws_endpoint": "http://127.0.0.1:1"}),
    "endpoint": ("s3://bucket/p", {**KEYS, "aws_endpoint": f"http://user:{SECRET}@127.0.0.1:1"}),
    "proxy": ("s3://bucket/p", {**KEYS, "proxy_url": f"http://user:{SECRET}@127.0.0.1:1"}),
    "proxy without a scheme": ("s3://bucket/p", {**KEYS, "proxy_url": f"user:{SECRET}@127.0.0.1:1"}),
    "SAS token": (
        "az://container/p",
        {
            "azure_storage_account_name": "account",
            "azure_storage_sas_key": f"sv=2024&sp=rw&sig={SECRET}",
            "azure_storage_endpoint": "http://127.0.0.1:1",
            "allow_http": "true",
        },
    ),
    "query of an endpoint": (
        "az://container/p",
        {
            "azure_storage_account_name": "account",
            "azure_skip_signature": "true",
            "azure_storage_endpoint": f"http://127.0.0.1:1/account?sig={SECRET}",
            "allow_http": "true",
        },
    ),
}


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collects texts, and looks for the secret in them and in the log at the end."""
    texts: list[str] = []
    pds.enable_logging(logging.DEBUG)
    with caplog.at_level(logging.DEBUG):
        yield texts
    assert texts
    for text in [*texts, *(record.getMessage() for record in caplog.records)]:
        for secret in (SECRET, SECRET.replace("%2F", "/")):
            assert secret not in text, text.replace(secret, "<SECRET>")


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield from (str(error), repr(error), repr(getattr(error, "__dict__", "")))
        yield "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("case", STORES)
def test_of_stores(told: list[str], case: str) -> None:
    url, options = STORES[case]
    try:
        store = pds.Store(url, storage_options={**options, **QUICK})
    except pds.RemoteStoreError as error:
        told.extend(_texts(error))
        return
    again = pickle.loads(pickle.dumps(store))  # noqa: S301 made right here
    for shown in (store, again, store.child("x"), pds.ParquetDatasetStore(store)):
        told.extend((repr(shown), str(shown)))
    assert "***" in repr(store)
    calls: list[Any] = [
        lambda: store.read_bytes("a"),
        lambda: store.write("a", b"x"),
        lambda: list(store.list_files()),
        lambda: store.delete("a"),
        lambda: pds.ParquetDatasetStore(store).read_dataset("a"),
    ]
    for call in calls:
        with pytest.raises(pds.RemoteStoreError) as caught:
            call()
        told.extend(_texts(caught.value))
        told.extend(_texts(pickle.loads(pickle.dumps(caught.value))))  # noqa: S301


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"s3://key:{SECRET}@bucket/p", {}),
        (f"az://container/p?sv=1&sig={SECRET}", {}),
        (f"s3://bucket/p?X-Amz-Signature={SECRET}", {}),
        ("s3://bucket", {"aws_endpoint": f"ftp://user:{SECRET}@host"}),
        ("s3://bucket", {**KEYS, "aws_endpoint": f"http://user:{SECRET}@ho st"}),
        ("s3://bucket", {**KEYS, "proxy_url": f"http://user:{SECRET}@ho st"}),
        ("az://container", {"azure_storage_account_name": "a", "azure_storage_sas_key": SECRET}),
        ("gs://bucket", {"google_service_account_key": SECRET}),
        ("az://container", {"azure_storage_account_name": "a", "azure_storage_account_key": SECRET}),
    ],
)
def test_of_stores_that_cannot_be_opened(told: list[str], url: str, options: dict[str, str]) -> None:
    try:
        told.append(repr(pds.Store(url, storage_options=options)))
    except pds.RemoteStoreError as error:
        told.extend(_texts(error))


@pytest.mark.parametrize("url", ["az://container/p?sig=x", "s3://bucket?a", "gs://bucket/p?access_token=x"])
def test_a_query_is_no_path(url: str) -> None:
    with pytest.raises(pds.InvalidInput, match="query"):
        pds.Store(url)


def test_what_is_no_secret_is_shown() -> None:
    store = pds.Store("s3://bucket/a b", aws_region="eu-central-1", proxy_url="http://proxy:3128", **{
        name: value for name, value in KEYS.items() if name != "aws_region"
    })  # fmt: skip
    assert "aws_region='eu-central-1'" in repr(store)
    assert "proxy_url='http://proxy:3128'" in repr(store)
    assert "'s3://bucket/a b'" in repr(store)


@pytest.mark.parametrize("is_given", [True, False])
def test_of_a_signature_that_does_not_match(told: list[str], is_given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 repeats what was signed, as text and as bytes: the session token is in it."""
    token = SECRET + "/session"

    def repeat(request: Request) -> Answer:
        signed = f"{request.method}\n/{request.key}\nx-amz-security-token:{token}\n\nhost;x-amz-security-token"
        as_bytes = signed.encode().hex(" ")
        return Answer(
            403,
            f"<Error><Code>SignatureDoesNotMatch</Code><CanonicalRequest>{signed}</CanonicalRequest>"
            f"<CanonicalRequestBytes>{as_bytes}</CanonicalRequestBytes><HostId>host</HostId></Error>".encode(),
        )

    with ScriptedS3() as server:
        monkeypatch.setattr(server.bucket, "handle", repeat)
        options = {k: v for k, v in server.options().items() if "key" not in k}
        keys = {"access_key_id": "id", "secret_access_key": "secret", "session_token": token}
        if is_given:
            options |= {f"aws_{name}": value for name, value in keys.items()}
        store = pds.Store("s3://bucket", options, credential_provider=None if is_given else lambda: keys)
        for call in (lambda: store.read_bytes("a"), lambda: list(store.list_files())):
            with pytest.raises(pds.PermissionDenied, match="SignatureDoesNotMatch") as caught:
                call()
            texts = [*_texts(caught.value)]
            assert not any(token.encode().hex(" ") in text for text in texts)
            told.extend(texts)
