"""The tests of a storage on a real server; a module of tests inherits them and gives a `server` fixture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from cec_it.servers.server import Server
from spark_cec.adapters.fsspec_storage import open_storage, remove_all
from spark_cec.agent.object_lease import ObjectLease, Timing, newest_number
from spark_cec.errors import AlreadyExists, Fenced, LogLocationError
from spark_cec.ids import StoreId
from spark_cec.log.storage import Storage, StoredFile
from spark_cec.settings import PREFIX
from spark_cec_lab.storage.proxy import PASS, Kind, Order, Request, StorageProxy
from tests.agent.support import Agent, window
from tests.checkpoint.support import Tip
from tests.log.storage_contract import StorageContract

STRANGE_NAMES = (
    *("with space", "100%", "50%25", "a+b", "ünïcödé", "日本", "q?x=1", "h#1", "a&b=c", "semi;colon", "~tilde"),
    *("quote'", "[brackets]", "star*", "comma,"),
)
STORES = tuple(StoreId(0, partition) for partition in range(3))
RESETS = (Kind.PUT, Kind.OTHER)
"""A write is a PUT on S3 and Azure, a POST on Google Cloud Storage."""


def once(order: Order, *kinds: Kind) -> Callable[[Request], Order]:
    """Gives `order` to the first request of these kinds. All other requests pass."""
    left = [order]
    return lambda request: left.pop() if left and request.kind in kinds else PASS


@contextmanager
def behind(server: Server, decide: Callable[[Request], Order]) -> Iterator[tuple[Storage, StorageProxy]]:
    """A storage in a bucket of its own, which reaches its server through a proxy."""
    bucket = server.make_bucket()
    with StorageProxy(server.endpoint, decide) as proxy, server.in_use(proxy.url.removeprefix("http://")):
        yield open_storage(f"{bucket}/log"), proxy


class ServerSuite(StorageContract):
    """The contract, and what only a server can get wrong."""

    @pytest.fixture(autouse=True)
    def _in_use(self, server: Server) -> Iterator[None]:
        with server.in_use():
            yield

    @pytest.fixture
    def bucket(self, server: Server) -> str:
        return server.make_bucket()

    @pytest.fixture
    def storage(self, bucket: str) -> Storage:
        return open_storage(f"{bucket}/a query/with%20signs")

    def test_the_probe_passes_with_many_creators(self, storage: Storage) -> None:
        for _ in range(5):
            storage.probe_writable()
        assert storage.list("") == []

    @pytest.mark.parametrize("name", STRANGE_NAMES)
    def test_a_strange_name_is_one_file(self, storage: Storage, name: str) -> None:
        storage.create(f"d/{name}", b"1")
        with pytest.raises(AlreadyExists):
            storage.create(f"d/{name}", b"2")
        assert storage.list("d") == [StoredFile(name, 1)]
        assert (storage.read(f"d/{name}"), storage.size(f"d/{name}")) == (b"1", 1)
        storage.replace(f"d/{name}", b"new")
        assert storage.read(f"d/{name}") == b"new"
        storage.delete_all([f"d/{name}", "d/nowhere"])
        assert storage.list("d") == []

    @pytest.mark.parametrize("name", ["a query/%41 b", "ünïcödé 日本", "a+b&c=d"])
    def test_a_strange_root_has_its_own_files(self, bucket: str, name: str) -> None:
        one, other = open_storage(f"{bucket}/{name}"), open_storage(f"{bucket}/{name} too")
        one.create("d/x", b"1")
        assert one.list("d") == [StoredFile("x", 1)] and other.list("d") == []
        assert one.read("d/x") == b"1" and not other.exists("d/x")

    def test_a_megabyte_is_read_in_ranges(self, storage: Storage) -> None:
        data = bytes(range(256)) * (9 * 4096)
        storage.create("big", data)
        assert storage.size("big") == len(data)
        assert storage.read("big", 5_000_000, 1000) == data[5_000_000:5_001_000]
        assert storage.read("big", len(data) - 10) == data[-10:]
        assert storage.read("big") == data

    @pytest.mark.parametrize(("offset", "length"), [(0, None), (0, 1), (1, 1), (5, None), (0, 0)])
    def test_ranges_of_an_empty_file(self, storage: Storage, offset: int, length: int | None) -> None:
        storage.create("empty", b"")
        assert storage.read("empty", offset, length) == b""
        with pytest.raises(AlreadyExists):
            storage.create("empty", b"no more")

    def test_a_range_of_a_missing_file_is_missing(self, storage: Storage) -> None:
        for offset, length in ((0, 1), (7, None), (7, 3)):
            with pytest.raises(FileNotFoundError):
                storage.read("nowhere", offset, length)

    def test_a_listing_of_many_is_whole(self, storage: Storage) -> None:
        """S3 and its like answer a listing in pages. So they do a deletion of many."""
        names = [f"d/{number:05d}" for number in range(1_100)]
        for name in names:
            storage.replace(name, b"1")
        assert [f"d/{each.name}" for each in storage.list("d")] == names
        storage.delete_all(names[:-1])
        assert storage.list("d") == [StoredFile("01099", 1)]

    def test_all_below_a_place_is_removed(self, bucket: str) -> None:
        one, other = open_storage(f"{bucket}/one"), open_storage(f"{bucket}/one more")
        for storage in (one, other):
            storage.create("a/b/c", b"1")
        remove_all(f"{bucket}/one")
        assert one.list("a/b") == [] and other.list("a/b") == [StoredFile("c", 1)]
        remove_all(f"{bucket}/one")

    def test_a_missing_bucket_is_named_and_not_made(self, server: Server) -> None:
        url, name = server.missing_bucket()
        storage = open_storage(f"{url}/log")
        began = time.monotonic()
        with pytest.raises(LogLocationError, match=r"does not exist.*create it, or correct the URL") as refused:
            storage.probe_writable()
        assert f"{url}/log" in str(refused.value)
        with pytest.raises(FileNotFoundError):
            storage.replace("x", b"1")
        with pytest.raises(FileNotFoundError):
            storage.read("x")
        assert storage.list("") == []
        assert name not in server.bucket_names()
        assert time.monotonic() - began < 15

    def test_a_wrong_key_is_one_sentence_without_secrets(self, server: Server, bucket: str) -> None:
        with (
            server.in_use(wrong_key=True, retry="2s"),
            pytest.raises(LogLocationError, match="cannot be written: no permission") as refused,
        ):
            open_storage(f"{bucket}/wrong").probe_writable()
        failed = refused.value.__cause__
        assert isinstance(failed, PermissionError) and str(failed.filename).startswith(f"{bucket}/wrong/probe-")
        for said in (str(refused.value), str(failed)):
            assert server.secret not in said and "\n" not in said and len(said) < 500, said

    def test_a_refusal_of_this_user_is_one_sentence(self, server: Server) -> None:
        with (
            behind(server, lambda _: Order(status=403)) as (storage, _),
            pytest.raises(PermissionError) as failed,
        ):
            storage.create("x", b"1")
        assert str(failed.value.filename).endswith("/log/x") and "\n" not in str(failed.value)

    def test_refused_keys_are_read_again(self, server: Server) -> None:
        with behind(server, once(Order(status=401), *RESETS)) as (storage, proxy):
            before = storage._filesystem  # type: ignore[attr-defined]
            storage.create("d/x", b"mine")
            assert [each.status for each in proxy.seen()].count(401) == 1 and storage.read("d/x") == b"mine"
            assert storage._filesystem is not before  # type: ignore[attr-defined]

    def test_a_creation_whose_answer_was_lost_has_succeeded(self, server: Server) -> None:
        with behind(server, once(Order(lost=True), *RESETS)) as (storage, proxy):
            storage.create("d/x", b"mine")
            assert [each.order.lost for each in proxy.seen()].count(True) == 1
            with pytest.raises(AlreadyExists):
                storage.create("d/x", b"another's")
            assert storage.read("d/x") == b"mine"

    def test_a_lost_answer_of_an_empty_file(self, server: Server) -> None:
        with behind(server, once(Order(lost=True), *RESETS)) as (storage, _):
            storage.create("d/empty", b"")
            assert storage.read("d/empty") == b""

    def test_a_replacement_and_a_deletion_whose_answers_were_lost(self, server: Server) -> None:
        with behind(server, once(Order(lost=True), *RESETS)) as (storage, proxy):
            storage.replace("x", b"1")
            proxy.decide = once(Order(lost=True), Kind.DELETE, Kind.BULK_DELETE)
            storage.delete("x")
            assert not storage.exists("x")

    def test_of_two_creators_with_equal_bytes(self, server: Server, storage: Storage) -> None:
        """Without marks the second one may take the object for its own."""
        storage.create("commits/7", b"v1")
        if not server.has_marks:
            storage.create("commits/7", b"v1")
            return
        with pytest.raises(AlreadyExists):
            storage.create("commits/7", b"v1")

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_request_that_is_refused_for_now_is_repeated(self, server: Server, status: int) -> None:
        with behind(server, once(Order(status=status), *RESETS)) as (storage, proxy):
            storage.create("d/x", b"1")
            for call in (
                lambda: storage.read("d/x"), lambda: storage.list("d"), lambda: storage.size("d/x"),
                lambda: storage.delete("d/x"),
            ):  # fmt: skip
                proxy.decide = once(Order(status=status), *Kind)
                began = time.monotonic()
                call()
                assert time.monotonic() - began < 10, "the pauses are ours"
            assert [each.status for each in proxy.seen()].count(status) == 5

    def test_a_reset_and_a_body_cut_short_are_no_answer(self, server: Server) -> None:
        with behind(server, once(Order(refused=True), *RESETS)) as (storage, proxy):
            storage.create("x", b"1" * 1000)
            proxy.decide = once(Order(body_bytes=10), Kind.GET)
            assert storage.read("x") == b"1" * 1000
            proxy.decide = once(Order(body_bytes=0), Kind.GET)
            assert storage.read("x", 10, 500) == b"1" * 500

    def test_a_lease_is_taken_refused_and_released(self, storage: Storage) -> None:
        timing = Timing(beat_s=0.2, valid_s=15.0, silent_s=20.0, poll_s=0.1, patience_s=1.0)
        holder = ObjectLease(storage, "the query q", timing)
        holder.take(time.monotonic() + 10)
        holder.confirm()
        with pytest.raises(Fenced, match="the query q is running already"):
            ObjectLease(storage, "the query q", timing).take(time.monotonic() + 2)
        holder.confirm()
        holder.release()
        taker = ObjectLease(storage, "the query q", timing)
        taker.take(time.monotonic() + 10)
        assert newest_number(storage) == 2 and len(storage.list("lease")) == 1
        taker.release()

    def test_a_log_is_written_loaded_and_trimmed_and_its_output_read(self, bucket: str, tmp_path: Path) -> None:
        agent = _agent_on(f"{bucket}/a checkpoint", tmp_path, "one")
        generation = agent.begin_run(decision={"mode": "deferred", "operators": [], "reason": "test", "provider": True})
        tips = dict.fromkeys(STORES, Tip())
        for batch in range(12):
            tips = _commit(agent, tips, batch)
            _publish(agent, batch, generation)
        fresh = _agent_on(f"{bucket}/a checkpoint", tmp_path, "two")
        fresh.ask("open_log")
        _load_all(fresh, tips)
        removed = agent.ask("trim", version=12, generation=generation, retained=2)["removed"]
        assert removed, "each batch has checked all windows"
        after = _agent_on(f"{bucket}/a checkpoint", tmp_path, "three")
        after.ask("open_log")
        _load_all(after, tips)
        splits = after.ask("view_splits", view="output", first=0, last=99, whole=True)["splits"]
        rows = [row["n"] for split in splits for row in after.rows(after.ask("read_split", split=split, columns=None))]
        assert rows == list(range(12))
        agent.ask("release")
        for each in (agent, fresh, after):
            each.calls.close()


def _agent_on(checkpoint: str, scratch: Path, name: str) -> Agent:
    """An agent with an index and a spool of its own, for a checkpoint with this URL."""
    place = scratch / name
    place.mkdir()
    agent = Agent(place)
    agent.checkpoint, agent.home = checkpoint, f"{checkpoint}/cec/log"
    agent.conf[PREFIX + "log.segmentBytes"] = "4KiB"
    return agent


def _commit(agent: Agent, tips: dict[StoreId, Tip], batch: int) -> dict[StoreId, Tip]:
    """One batch of all stores, in one call."""
    sent, after = [], {}
    for store, tip in tips.items():
        changes = {**window(b"a", b"%d" % batch), **window(b"w%d" % batch)}
        after[store], arguments = agent.append_arguments(store, tip, changes, set(tip.state))
        sent.append(arguments)
    agent.write(*sent)
    return after


def _publish(agent: Agent, batch: int, generation: int) -> None:
    spool = agent.spool(pa.table({"n": pa.array([batch], pa.int64())}))
    asked = {"batch": batch, "generation": generation}
    frame = agent.write_output(batch, spool, 1, generation=generation)
    assert agent.ask("publish", frames=[frame], rows=1, schema="{}", truncate=False, sources=[], **asked)["first"]


def _load_all(agent: Agent, tips: dict[StoreId, Tip]) -> None:
    for store, tip in tips.items():
        answer = agent.ask(
            "load", store=store, version=tip.version, checkpoint_id=tip.checkpoint_id.hex(), retained=100
        )
        found = {row["window"]: (row["value"], row["footprint"]) for row in agent.rows(answer)}
        assert found == {name: (tip.seen[name][name], tip.footprints[name]) for name in tip.state}
