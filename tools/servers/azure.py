"""An Azure Blob server: azurite."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hmac
import secrets
from email.utils import formatdate
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from servers.process import program, request, running, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class AzureServer:
    """A running azurite with one container."""

    endpoint: str
    container: str
    pid: int
    key: str
    account: str = "pdsaccount"

    @classmethod
    @contextlib.contextmanager
    def start(cls, container: str = "pds-test") -> Iterator[Self]:
        """Runs a server that keeps everything in memory until the block ends."""
        azurite = str(program("azurite"))
        flags = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        key = base64.b64encode(secrets.token_bytes(64)).decode()

        def command(port: int) -> list[str]:
            account = ["env", f"AZURITE_ACCOUNTS={cls.account}:{key}"]
            return [*account, azurite, "--blobHost", "127.0.0.1", "--blobPort", str(port), *flags]

        with scratch("azure") as folder, running(command, folder / "server.log") as (port, pid):
            server = cls(f"http://127.0.0.1:{port}/{cls.account}", container, pid, key)
            server.create_container()
            yield server

    def create_container(self) -> None:
        """Makes the container, which object_store has no request for."""
        headers = {
            "x-ms-date": formatdate(usegmt=True),
            "x-ms-version": "2021-08-06",
        }
        text = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
        text += f"/{self.account}/{self.account}/{self.container}\nrestype:container"
        digest = hmac.digest(base64.b64decode(self.key), text.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        path = f"/{self.account}/{self.container}?restype=container"
        request(urlsplit(self.endpoint).netloc, "PUT", path, headers=headers)

    def url(self, prefix: str = "") -> str:
        """The URL of the container or of a prefix in it."""
        return f"az://{self.container}/{prefix}".rstrip("/")

    def options(self) -> dict[str, str]:
        """Storage options by object_store's names."""
        return {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "azure_storage_endpoint": self.endpoint,
            "allow_http": "true",
        }
