"""What the tab costs: a watcher loads both pages again and again, and the ratios are those of each round."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.ui import Seen, Watcher, summarize


class Pages:
    """A user interface that answers by a table, and remembers what was asked."""

    def __init__(self, pages: dict[str, str], enough: int) -> None:
        self.asked: list[str] = []
        self.has_enough = threading.Event()
        self._pages, self._enough = pages, enough

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answers at this address."""
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = pages._pages.get(self.path)
                self.send_response(200 if found is not None else 404)
                self.end_headers()
                self.wfile.write((found or "").encode())
                pages.asked.append(self.path)
                if len(pages.asked) >= pages._enough:
                    pages.has_enough.set()

            def log_message(self, *_: object) -> None:
                return

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()


JSON = {"/cec/json": '{"queries": [{"id": "7"}, {"id": "8"}]}'}
PAGE, QUERY = "/cec/", "/cec/query/?id=7"


def test_a_watcher_loads_the_overview_and_the_page_of_the_query() -> None:
    pages = Pages({**JSON, PAGE: "a", QUERY: "b"}, enough=7)
    with pages.serve() as url:
        watcher = Watcher(url, every_s=0.001)
        assert pages.has_enough.wait(30)
        looks = watcher.stop()
    assert pages.asked[:7] == ["/cec/json", *[PAGE, QUERY] * 3]
    assert len(looks) == (len(pages.asked) - 1) // 2 and all(ms > 0 for ms in looks)


@pytest.mark.parametrize("pages", [{}, {"/cec/json": "no"}, {"/cec/json": '{"queries": []}'}, {**JSON, PAGE: "a"}])
def test_a_page_that_does_not_load_ends_the_run(pages: dict[str, str]) -> None:
    served = Pages(pages, enough=3 if PAGE in pages else 1)
    with served.serve() as url:
        watcher = Watcher(url, every_s=0.001)
        assert served.has_enough.wait(30)
        with pytest.raises(BenchError, match="did not load"):
            watcher.stop()


def test_only_a_run_with_a_user_interface_has_one() -> None:
    enabled = {seen: dict(seen.conf).get("spark.ui.enabled") for seen in Seen}
    assert enabled == {Seen.NONE: None, Seen.UNWATCHED: "true", Seen.WATCHED: "true"}


def test_the_ratios_are_those_of_each_round() -> None:
    def one(none: float, unwatched: float, watched: float) -> dict[Seen, dict[str, float]]:
        each = {Seen.NONE: none, Seen.UNWATCHED: unwatched, Seen.WATCHED: watched}
        return {seen: {"batch_ms": ms, "cpu_ms": 2 * ms} for seen, ms in each.items()}

    found = summarize([one(100, 101, 110), one(200, 190, 200), one(100, 103, 106)])
    assert found["medians"]["unwatched"] == {"batch_ms": 103, "cpu_ms": 206}
    assert found["ratios"]["unwatched over none"]["batch_ms"] == {"median": 1.01, "low": 0.95, "high": 1.03}
    assert found["ratios"]["watched over none"]["cpu_ms"] == {"median": 1.06, "low": 1.0, "high": 1.1}
    assert found["ratios"]["watched over unwatched"]["batch_ms"]["median"] == round(200 / 190, 4)
