"""A server that plays the services of AWS that give credentials: STS, SSO, SSO-OIDC, a container's, an instance's."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
# The tokens that SSO accepts, and the role of the instance.
SSO_TOKEN = "sso-token"
REFRESHED_TOKEN = "refreshed-token"
INSTANCE_ROLE = "instance-role"


class Asked(NamedTuple):
    """A request: its service, what it asks for, and the key that signed it."""

    service: str
    what: dict[str, str]
    signed_with: str


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    aws: ClassVar[FakeAws]

    def log_message(self, *_args: object) -> None:
        pass

    def _serve(self) -> None:
        url = urlsplit(self.path)
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        status, body = self._answer(url.path, query, text)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-aws-ec2-metadata-token-ttl-seconds", "21600")
        self.end_headers()
        self.wfile.write(body.encode())

    def _answer(self, path: str, query: dict[str, str], text: str) -> tuple[int, str]:
        if path == "/federation/credentials":
            return self._sso(query)
        if path == "/token":
            return self._sso_oidc(json.loads(text))
        if path == "/container":
            self._note("container", {"authorization": self.headers.get("Authorization", "")})
            return 200, self._keys("container", "Token")
        if path.startswith("/latest/"):
            return self._instance(path)
        return self._sts({name: values[0] for name, values in parse_qs(text).items()})

    def _note(self, service: str, what: dict[str, str]) -> None:
        _, _, rest = self.headers.get("Authorization", "").partition("Credential=")
        self.aws.asked.append(Asked(service, what, rest.partition("/")[0]))

    def _keys(self, name: str, token: str = "SessionToken") -> str:  # noqa: S107 the name of a field
        return json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "AccessKeyId": f"key-{name}",
                "SecretAccessKey": "secret",
                token: f"token-{name}",
                "LastUpdated": "2020-01-01T00:00:00Z",
                "Expiration": self.aws.expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )

    def _sso(self, query: dict[str, str]) -> tuple[int, str]:
        self._note("sso", query)
        if self.headers.get("x-amz-sso_bearer_token") not in (SSO_TOKEN, REFRESHED_TOKEN):
            return 401, json.dumps({"message": "Session token not found or invalid"})
        keys = {
            "accessKeyId": f"key-{query['role_name']}",
            "secretAccessKey": "secret",
            "sessionToken": f"token-{query['role_name']}",
            "expiration": int(self.aws.expiry.timestamp() * 1000),
        }
        return 200, json.dumps({"roleCredentials": keys})

    def _sso_oidc(self, request: dict[str, str]) -> tuple[int, str]:
        self._note("sso-oidc", request)
        answer = {"accessToken": REFRESHED_TOKEN, "expiresIn": 3600, "refreshToken": "next", "tokenType": "Bearer"}
        return 200, json.dumps(answer)

    def _instance(self, path: str) -> tuple[int, str]:
        self._note("instance", {"path": path})
        folder = "/latest/meta-data/iam/security-credentials"
        if path == "/latest/api/token":
            return 200, "metadata-token"
        if path == f"{folder}/":
            return 200, INSTANCE_ROLE
        if path == f"{folder}/{INSTANCE_ROLE}":
            return 200, self._keys(INSTANCE_ROLE, "Token")
        return 404, ""

    def _sts(self, form: dict[str, str]) -> tuple[int, str]:
        self._note("sts", form)
        name = form["RoleArn"].rpartition("/")[2]
        if name == "forbidden":
            return 403, (
                f'<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>Sender</Type><Code>AccessDenied</Code>'
                "<Message>not authorized to assume it</Message></Error></ErrorResponse>"
            )
        action = form["Action"]
        return 200, (
            f'<{action}Response xmlns="{NAMESPACE}"><{action}Result><AssumedRoleUser><AssumedRoleId>r:s</AssumedRoleId>'
            f"<Arn>arn:aws:sts::1:assumed-role/{name}/s</Arn></AssumedRoleUser><Credentials>"
            f"<AccessKeyId>key-{name}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            f"<SessionToken>token-{name}</SessionToken><Expiration>{self.aws.expiry:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
            f"</Credentials></{action}Result></{action}Response>"
        )

    do_GET = do_PUT = do_POST = _serve  # noqa: N815 names of http.server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class FakeAws:
    """A running server. Every role `arn:…/NAME` gives the access key `key-NAME`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.expiry = datetime.now(UTC) + timedelta(hours=1)
        handler = type("Handler", (_Handler,), {"aws": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def services(self) -> list[str]:
        """The services that were asked, in order."""
        return [asked.service for asked in self.asked]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_args: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
