"""fake-gcs-server: Google Cloud Storage's JSON interface, with objects in memory; and a server of tokens beside it.

The key file of a service account names the server of tokens, so that no request leaves this machine.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from cec_it.servers.process import HOST, running
from cec_it.servers.programs import find_command, go_program
from cec_it.servers.server import Server

_MODULE, _VERSION = "github.com/fsouza/fake-gcs-server", "v1.56.1"
_TOKEN = "the-token-of-the-test"


class FakeGcs(Server):
    """The server. It checks no token; the server of tokens refuses the account `stranger`."""

    name: ClassVar[str] = "fake-gcs-server"
    version: ClassVar[str] = _VERSION
    secret: ClassVar[str] = _TOKEN

    def __init__(self, port: int, keys: Path) -> None:
        super().__init__(port)
        self._keys = keys

    def make_bucket(self) -> str:
        name = f"b-{uuid.uuid4().hex[:12]}"
        self._ask("?project=p", json.dumps({"name": name}).encode())
        return f"gs://{name}"

    def bucket_names(self) -> list[str]:
        return [str(each["name"]) for each in self._ask("?project=p").get("items", [])]

    def missing_bucket(self) -> tuple[str, str]:
        return "gs://not-there", "not-there"

    def settings(self, endpoint: str, *, wrong_key: bool = False) -> Mapping[str, str]:
        return {
            "fs.gs.storage.root.url": f"http://{endpoint}",
            "fs.gs.project.id": "p",
            "fs.gs.auth.service.account.json.keyfile": str(self._keys / f"{'stranger' if wrong_key else 'query'}.json"),
        }

    def _ask(self, more: str, body: bytes | None = None) -> dict[str, Any]:
        asked = urllib.request.Request(
            f"http://{self.endpoint}/storage/v1/b{more}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            found = json.load(answer)
        assert isinstance(found, dict)
        return found


@contextmanager
def run_fake_gcs() -> Iterator[FakeGcs]:
    """Runs both servers. Raises `Unavailable` if the server cannot be built."""
    program = go_program(_MODULE, _VERSION)
    with tempfile.TemporaryDirectory(prefix="fake-gcs-") as root, _serve_tokens() as tokens:
        _write_keys(Path(root), tokens)
        with running(
            lambda port: [
                *(str(program), "-backend", "memory", "-scheme", "http", "-host", HOST, "-port", str(port)),
                *("-public-host", f"{HOST}:{port}", "-log-level", "error"),
            ],
            Path(root, "log"),
        ) as port:  # fmt: skip
            yield FakeGcs(port, Path(root))


def _write_keys(root: Path, tokens: str) -> None:
    """The key files of two accounts."""
    key = root / "key.pem"
    command = [find_command("openssl"), "genpkey", "-algorithm", "RSA", "-out", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    for account in ("query", "stranger"):
        known = {
            "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": key.read_text(),
            "client_email": f"{account}@p.example", "client_id": "1", "token_uri": f"{tokens}/{account}",
        }  # fmt: skip
        (root / f"{account}.json").write_text(json.dumps(known))


class _Tokens(BaseHTTPRequestHandler):
    """Gives a token to every account but `stranger`."""

    def do_POST(self) -> None:
        """Answers a request for a token."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        granted = {"access_token": _TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        refused = {"error": "invalid_grant", "error_description": "Invalid grant: account not found"}
        is_known = self.path != "/stranger"
        content = json.dumps(granted if is_known else refused).encode()
        self.send_response(200 if is_known else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


@contextmanager
def _serve_tokens() -> Iterator[str]:
    server = ThreadingHTTPServer((HOST, 0), _Tokens)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="tokens", daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
