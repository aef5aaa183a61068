"""An emulated S3 (moto) on loopback whose conditional writes hold among concurrent writers, as those of S3 do.

moto looks for the object, then writes it, and a thread may come in between: of eight writers two sometimes succeeded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ONE_AT_A_TIME = threading.Lock()
_MARK = "_writes_one_at_a_time"


@contextmanager
def run_emulated_s3() -> Iterator[str]:
    """Runs a server, and yields its host and port. The servers of one process have their objects in common.

    Raises `ImportError` if moto is not installed.
    """
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    _write_one_at_a_time(S3Response)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would log each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"{host}:{port}"
    finally:
        server.stop()


def _write_one_at_a_time(responses: Any) -> None:
    written = responses.put_object
    if hasattr(written, _MARK):
        return

    def put_object(self: Any) -> Any:
        with _ONE_AT_A_TIME:
            return written(self)

    setattr(put_object, _MARK, True)
    responses.put_object = put_object
