"""Azurite: Azure's blob service, with blobs in memory."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from cec_it.servers.process import HOST, running
from cec_it.servers.programs import find_command, npm_script
from cec_it.servers.server import Server

_PACKAGE, _VERSION, _SCRIPT = "azurite", "3.37.0", "dist/src/blob/main.js"
_ACCOUNT, _KEY, _OTHER_KEY = "shop", "dGhlLWtleS1vZi10aGUtdGVzdA==", "YW5vdGhlci1rZXktb2YtYS10ZXN0"
_HOST = f"{_ACCOUNT}.dfs.core.windows.net"


class Azurite(Server):
    """The server. It checks signatures."""

    name: ClassVar[str] = "azurite"
    version: ClassVar[str] = _VERSION
    secret: ClassVar[str] = _KEY

    @property
    def _client(self) -> Any:
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient.from_connection_string(_connection(self.endpoint, _KEY))

    def make_bucket(self) -> str:
        name = f"c-{uuid.uuid4().hex[:12]}"
        self._client.create_container(name)
        return f"abfss://{name}@{_HOST}"

    def bucket_names(self) -> list[str]:
        return [str(each.name) for each in self._client.list_containers()]

    def missing_bucket(self) -> tuple[str, str]:
        return f"abfss://not-there@{_HOST}", "not-there"

    def settings(self, endpoint: str, *, wrong_key: bool = False) -> Mapping[str, str]:
        return {f"fs.azure.account.key.{_HOST}": _OTHER_KEY if wrong_key else _KEY}

    def options(self, endpoint: str, *, wrong_key: bool = False) -> Mapping[str, Mapping[str, Any]]:
        """Hadoop has no setting for another host of the blob service, and adlfs takes it in a connection string only.

        The key of the connection string counts then, not that of the setting.
        """
        return {"abfs": {"connection_string": _connection(endpoint, _OTHER_KEY if wrong_key else _KEY)}}


def _connection(endpoint: str, key: str) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={key};"
        f"BlobEndpoint=http://{endpoint}/{_ACCOUNT};"
    )


@contextmanager
def run_azurite() -> Iterator[Azurite]:
    """Runs the server. Raises `Unavailable` if it cannot be fetched."""
    node, script = find_command("node"), npm_script(_PACKAGE, _VERSION, _SCRIPT)
    with (
        tempfile.TemporaryDirectory(prefix="azurite-") as root,
        running(
            lambda port: [
                *(node, str(script), "--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence"),
                *("--disableTelemetry", "--silent", "--skipApiVersionCheck"),
            ],
            Path(root, "log"), {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"},
        ) as port,
    ):  # fmt: skip
        yield Azurite(port)
