"""The contract of a state store, case by case, after Spark's `StateStoreSuiteBase`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_it.jvm import Refused, Stores
from store_it.operators import State
from store_it.providers import Provider

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import MemoryIndex
from spark_cec.settings import PREFIX

WITH_IDS = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
LEASE_TIMEOUT = "spark.sql.streaming.stateStore.rocksdb.lockAcquireTimeoutMs"

Make = Callable[..., Provider]


_partitions = itertools.count()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint, and so one log, for all stores."""
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(params=["50%", "4KiB"])
def make(request: pytest.FixtureRequest, jvm: Stores, checkpoint: Path) -> Make:
    """Makes providers of stores that no other test has; all windows are in the heap, or most of them on the disk."""

    def made(grouped: bool = False, conf: dict[str, str] | None = None, **more: Any) -> Provider:
        both = {PREFIX + "memory": request.param, **(conf or {})}
        return Provider(jvm, str(checkpoint), grouped, partition=next(_partitions), conf=both, **more)

    return made


@pytest.fixture(params=[False, True], ids=["plain", "grouped"])
def provider(request: pytest.FixtureRequest, make: Make) -> Provider:
    """A plain and a grouped one."""
    return make(request.param)


def k(provider: Provider, key: int) -> tuple[int, ...]:
    """A key: its group has two keys, if there are groups."""
    return (key // 2, key) if provider.grouped else (key,)


def entries(provider: Provider, **values: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """`k3=7` is key 3 with value (7, 0)."""
    return {k(provider, int(name[1:])): (value, 0) for name, value in values.items()}


def test_get_put_remove_commit(provider: Provider) -> None:
    store = provider.store(0)
    assert store.iterate() == {}
    assert store.get(*k(provider, 1)) is None
    store.put(entries(provider, k1=1, k2=2, k3=3))
    assert store.get(*k(provider, 1)) == (1, 0)
    store.put(entries(provider, k1=10)).remove(k(provider, 2), k(provider, 99))
    assert store.get(*k(provider, 1)) == (10, 0)
    assert store.get(*k(provider, 2)) is None
    assert store.do(("committed",)) == [False]
    assert store.commit() == 1
    assert store.do(("committed",)) == [True]
    assert store.iterate() == entries(provider, k1=10, k3=3), "a committed store can still be read"
    assert provider.read(1) == provider.fresh().read(1) == entries(provider, k1=10, k3=3)


def test_several_keys_at_once(provider: Provider) -> None:
    """In the order asked for, nothing for a key that is not there; in a store for reading too."""
    keys = [k(provider, key) for key in (3, 9, 1, 3)]
    store = provider.store(0).put(entries(provider, k1=1, k2=2, k3=3))
    assert store.do(("multi_get", keys)) == [[[3, 0], None, [1, 0], [3, 0]]]
    store.commit()
    reader = provider.fresh().store(1, read=True)
    assert reader.do(("multi_get", keys), ("multi_get", []), ("release",))[:2] == [[[3, 0], None, [1, 0], [3, 0]], []]


def test_rows_that_the_caller_uses_again_are_copied(provider: Provider) -> None:
    store = provider.store(0)
    store.do(("put_reused", [[k(provider, key), (key, key)] for key in range(6)]))
    assert store.iterate() == {k(provider, key): (key, key) for key in range(6)}
    store.commit()
    assert provider.fresh().read(1) == {k(provider, key): (key, key) for key in range(6)}


def test_remove_while_iterating(provider: Provider) -> None:
    store = provider.store(0).put({k(provider, key): (key, 0) for key in range(20)})
    store.do(("open", "it"))
    seen = []
    while found := store.do(("next", "it", 1))[0]:
        seen.append(tuple(found[0][0]))
        store.remove(seen[-1])
    assert sorted(seen) == sorted(k(provider, key) for key in range(20))
    assert store.iterate() == {}
    store.commit()
    assert provider.fresh().read(1) == {}


def test_put_while_iterating(provider: Provider) -> None:
    """Nothing fails, what was there is seen once, and new windows that make the table grow do no harm."""
    old = {k(provider, key): (key, 0) for key in range(20)}
    store = provider.store(0).put(old)
    store.do(("open", "it"))
    first = store.do(("next", "it", 5))[0]
    store.put({k(provider, key): (key, 1) for key in range(1000, 1400)})
    store.put({k(provider, key): (-1, 1) for key in range(20)})
    seen = [tuple(key) for key, _ in first + store.do(("next", "it", 10_000))[0]]
    assert len(seen) == len(set(seen))
    assert set(old) <= set(seen)
    store.commit()
    assert provider.fresh().read(1) == store.iterate()


@pytest.mark.parametrize("step", [("put", (0, 1), (1, 1)), ("remove", (0, 1)), ("commit",)], ids=lambda step: step[0])
@pytest.mark.parametrize("end", ["commit", "abort", "release"])
def test_updates_after_the_end_are_refused(make: Make, step: tuple[object, ...], end: str) -> None:
    store = make(True).store(0).put({(0, 1): (1, 1)})
    store.do((end,))
    with pytest.raises(Refused, match=f"cannot {step[0]}: store .* is (Committed|Aborted|Released)"):
        store.do(step)


@pytest.mark.parametrize("end", ["abort", "release"])
def test_reads_after_the_end_are_refused(make: Make, end: str) -> None:
    provider = make()
    store = provider.store(0).put({(1,): (1, 1)})
    store.do((end,), (end,), ("abort",))
    for step in (("get", (1,)), ("iterate",)):
        with pytest.raises(Refused, match="was aborted or released"):
            store.do(step)
    reader = provider.store(0, read=True)
    reader.do(("release",), ("abort",))
    with pytest.raises(Refused, match="was released"):
        reader.do(("iterate",))


@pytest.mark.parametrize("end", ["abort", "release"])
def test_a_batch_that_is_given_up_leaves_no_trace(provider: Provider, end: str) -> None:
    before = entries(provider, k1=1, k2=2, k3=3)
    provider.put(0, before)
    store = provider.store(1).put(entries(provider, k1=9, k7=7)).remove(k(provider, 2), k(provider, 3))
    store.do((end,))
    assert provider.read(1) == before
    assert provider.put(1, entries(provider, k8=8)) == 2
    assert provider.read(2) == provider.fresh().read(2) == before | entries(provider, k8=8)


def test_abort_after_commit_changes_nothing(provider: Provider) -> None:
    store = provider.store(0).put(entries(provider, k1=1))
    store.commit()
    store.abort()
    assert provider.read(1) == provider.fresh().read(1) == entries(provider, k1=1)


def test_older_versions_can_be_read_and_continued(provider: Provider) -> None:
    states: list[State] = [{}]
    for version in range(6):
        provider.put(
            version,
            entries(provider, k1=version, **{f"k{10 + version}": version}),
            *([k(provider, 10)] if version == 3 else []),
        )
        states.append(provider.store(version + 1, read=True).iterate())
    for version in (2, 6, 4, 1, 5, 3):
        assert provider.read(version) == states[version]
        assert provider.fresh().read(version) == states[version]
    assert provider.put(3, entries(provider, k77=77)) == 4
    assert provider.read(4) == provider.fresh().read(4) == states[3] | entries(provider, k77=77)


def test_a_committed_batch_run_again_replaces_the_first_attempt(provider: Provider) -> None:
    provider.put(0, entries(provider, k1=1, k2=2))
    provider.put(1, entries(provider, k1=10, k5=5), k(provider, 2))
    provider.put(1, entries(provider, k2=20, k6=6), k(provider, 1))
    wanted = entries(provider, k2=20, k6=6)
    assert provider.read(2) == provider.fresh().read(2) == wanted
    provider.put(2, entries(provider, k7=7))
    assert provider.fresh().read(3) == wanted | entries(provider, k7=7)


def test_a_window_may_close_and_open_again(provider: Provider) -> None:
    provider.put(0, entries(provider, k1=1))
    provider.store(1).remove(k(provider, 1)).put(entries(provider, k1=2)).commit()
    assert provider.fresh().read(2) == entries(provider, k1=2)
    provider.put(2, {}, k(provider, 1))
    assert provider.fresh().read(3) == {}
    provider.put(3, entries(provider, k1=3))
    provider.store(4).put(entries(provider, k9=9)).remove(k(provider, 9), k(provider, 1)).commit()
    assert provider.read(5) == provider.fresh().read(5) == {}
    assert provider.fresh().read(4) == entries(provider, k1=3)


def test_two_providers_on_one_checkpoint(provider: Provider) -> None:
    other = provider.fresh()
    provider.put(0, entries(provider, k1=1))
    assert other.put(1, entries(provider, k2=2)) == 2
    assert provider.put(2, entries(provider, k3=3)) == 3
    assert other.read(3) == entries(provider, k1=1, k2=2, k3=3)


def test_partitions_of_one_checkpoint_keep_apart(make: Make, jvm: Stores) -> None:
    first = make()
    second = Provider(jvm, first.checkpoint, partition=next(_partitions))
    for version in range(3):
        first.put(version, {(version,): (1, 1)})
        second.put(version, {(version,): (2, 2)})
    assert first.fresh().read(3) == {(0,): (1, 1), (1,): (1, 1), (2,): (1, 1)}
    assert second.fresh().read(3) == {(0,): (2, 2), (1,): (2, 2), (2,): (2, 2)}


def test_metrics_count_keys_and_records(provider: Provider) -> None:
    store = provider.store(0).put({k(provider, key): (key, 0) for key in range(10)})
    store.commit()
    first = store.metrics()
    assert (first["numKeys"], first["cecOpened"], first["cecClosed"]) == (10, 10, 0)
    assert first["memoryUsedBytes"] > 0
    assert first["cecLogBytes"] > 0
    assert first["cecDirty"] == first["cecReplay"] == 0, "without the rule's word a store is eager"
    store = provider.store(1).remove(*[k(provider, key) for key in range(4)])
    store.commit()
    second = store.metrics()
    assert (second["numKeys"], second["cecOpened"]) == (6, 0)
    assert second["cecClosed"] == (2 if provider.grouped else 4), "windows that closed"
    aborted = provider.store(2).put({k(provider, 50): (1, 1)})
    aborted.abort()
    store = provider.store(2).put({k(provider, key): (key, 0) for key in range(100, 1100)})
    store.commit()
    third = store.metrics()
    assert third["numKeys"] == 1006
    assert third["memoryUsedBytes"] - second["memoryUsedBytes"] > 1000 * 24, "more than the bytes of the rows"


def test_prefix_scan(make: Make) -> None:
    provider = make(True)
    store = provider.store(0).put({(group, key): (group, key) for group in range(5) for key in range(group)})
    for group in range(5):
        assert store.scan(group) == {(group, key): (group, key) for key in range(group)}
    store.remove((3, 1))
    store.commit()
    assert provider.fresh().store(1, read=True).scan(3) == {(3, 0): (3, 0), (3, 2): (3, 2)}
    assert provider.store(1, read=True).scan(77) == {}


def test_a_large_commit_and_its_load(provider: Provider) -> None:
    """More rows than one Arrow batch of the spool holds, both ways."""
    rows = {k(provider, key): (key, -key) for key in range(70_000)}
    assert provider.put(0, rows) == 1
    assert provider.fresh().read(1) == rows
    provider.put(1, {}, *[key for key in rows if key[-1] % 3])
    assert provider.fresh().read(2) == {key: value for key, value in rows.items() if key[-1] % 3 == 0}


def test_a_commit_without_changes(provider: Provider) -> None:
    assert provider.put(0, {}) == 1
    assert provider.put(1, entries(provider, k1=1)) == 2
    assert provider.put(2, {}) == 3
    assert provider.read(3) == provider.fresh().read(3) == entries(provider, k1=1)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (("scan", (1,)), "prefixScan without a prefix"),
        (("get", None), "the key may not be null"),
        (("put", None, (1, 1)), "the key may not be null"),
        (("put", (1,), None), "Cannot put a null value"),
        (("remove", None), "the key may not be null"),
        (("get_family", (1,), "other"), "UNSUPPORTED_FEATURE.STATE_STORE_MULTIPLE_COLUMN_FAMILIES"),
        (("put_family", (1,), (1, 1), "other"), "UNSUPPORTED_FEATURE.STATE_STORE_MULTIPLE_COLUMN_FAMILIES"),
        (("family",), "UNSUPPORTED_FEATURE.STATE_STORE_MULTIPLE_COLUMN_FAMILIES"),
        (("merge", (1,), (1, 1)), "merge.*not supported"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_a_store_refuses(make: Make, step: tuple[object, ...], says: str) -> None:
    provider = make()
    store = provider.store(0).put({(1,): (1, 1)})
    with pytest.raises(Refused, match=says):
        store.do(step)
    assert store.commit() == 1, "a refusal spoils nothing"
    assert provider.fresh().read(1) == {(1,): (1, 1)}


@pytest.mark.parametrize(
    ("version", "says"),
    [(-1, "version -1 is negative"), (-3, "version -3 is negative"), (7, "no commit frame of version 7")],
)
def test_a_version_that_cannot_be(make: Make, version: int, says: str) -> None:
    provider = make()
    provider.put(0, {(1,): (1, 1)})
    for read in (False, True):
        with pytest.raises(Refused, match=rf"\[CANNOT_LOAD_STATE_STORE\..*{says}"):
            provider.store(version, read=read)
    assert provider.put(1, {(2,): (2, 2)}) == 2, "the lock is free, and the store can go on"


@pytest.mark.parametrize(
    ("extra", "says"),
    [({"families": True}, "MULTIPLE_COLUMN_FAMILIES"), ({"multiple": True}, "multipleValuesPerKey")],
    ids=["column families", "several values"],
)
def test_what_a_provider_refuses(make: Make, extra: dict[str, bool], says: str) -> None:
    with pytest.raises(Refused, match=says):
        make(extra=extra)


def test_a_wrong_setting_is_named(make: Make) -> None:
    with pytest.raises(Refused, match=r"stateStore\.cec\.q='3': unknown setting; did you mean .*\.cec\.Q\?") as refused:
        make(conf={PREFIX + "q": "3"}).store(0)
    assert refused.value.kind == "SettingsError"


def test_a_second_thread_waits_for_the_first(make: Make, jvm: Stores) -> None:
    provider = make()
    store = provider.store(0)
    ticket = jvm.ask(
        "get_store", provider=provider.name, store="second", version=1, id=None, thread="other", later=True
    )
    assert jvm.ask("blocked", ticket=ticket, by="other") is True
    store.put({(1,): (1, 1)}).commit()
    jvm.ask("join", ticket=ticket)
    assert jvm.do("second", ("iterate",), ("release",), thread="other")[0] == [[[1], [1, 1]]]


def test_a_thread_that_waits_too_long_is_told_who_has_the_store(make: Make, jvm: Stores) -> None:
    provider = make(conf={LEASE_TIMEOUT: "50"})
    store = provider.store(0)
    with pytest.raises(Refused, match=r"is still in use by .* after 50 ms"):
        provider.store(0, thread="other")
    assert store.commit() == 1


def test_a_task_keeps_the_store_until_it_ends(make: Make, jvm: Stores) -> None:
    """A store is read after its commit, so its task has it until then; what a task leaves half done is taken back."""
    provider = make()
    jvm.ask("task_begin", task=1, thread="a")
    jvm.ask("get_store", provider=provider.name, store="a", version=0, id=None, thread="a")
    jvm.do("a", ("put", (1,), (1, 1)), ("commit",), thread="a")
    jvm.ask("task_begin", task=2, thread="b")
    ticket = jvm.ask("get_store", provider=provider.name, store="b", version=1, id=None, thread="b", later=True)
    assert jvm.ask("blocked", ticket=ticket, by="b") is True
    assert jvm.do("a", ("iterate",), thread="a") == [[[[1], [1, 1]]]]
    jvm.ask("task_end", thread="a")
    jvm.ask("join", ticket=ticket)
    jvm.do("b", ("put", (2,), (2, 2)), ("remove", (1,)), thread="b")
    jvm.ask("task_end", thread="b")
    assert provider.read(1) == {(1,): (1, 1)}


def test_threads_that_come_and_go_leave_no_connections(make: Make, jvm: Stores) -> None:
    """Tasks and queries have new threads for as long as the JVM lives, and the agent a thread for each connection."""
    provider = make()
    provider.store(0).abort()
    before = connections(jvm)
    for version in range(40):
        store = provider.store(version, thread=f"passing-{version}")
        jvm.do(store.name, ("put", (1,), (version, 0)), ("commit",), thread=f"passing-{version}")
    assert connections(jvm) <= before + 2
    assert set(jvm.ask("lasting_threads")) <= {"main", "DestroyJavaVM"}, "a thread that keeps the JVM from ending"


def connections(jvm: Stores) -> int:
    """The connections that the agent has."""
    descriptors = Path(f"/proc/{jvm.agent_pid()}/fd")
    return sum(str(descriptor.readlink()).startswith("socket:") for descriptor in descriptors.iterdir())


def test_whoever_only_reads_begins_no_log(jvm: Stores, tmp_path: Path) -> None:
    """Spark's `statestore` reader on a checkpoint whose log is gone: an empty one would stand in the way of the old."""
    (tmp_path / "cec").mkdir()
    (tmp_path / "state/0/0").mkdir(parents=True)
    query = {"log_home": "cec/log", "log_id": "ab" * 16, "generation": 3}
    (tmp_path / "cec/query.json").write_text(json.dumps(query))
    with pytest.raises(
        Refused, match=f"the query writes log {'ab' * 16}, but .* finds no log there. If it was removed, restore it"
    ):
        Provider(jvm, str(tmp_path)).store(2, read=True)
    assert [path.name for path in (tmp_path / "cec").iterdir()] == ["query.json"]


def test_checkpoint_ids_name_the_attempt(provider: Provider) -> None:
    """With Spark's checkpoint format 2 an id is asked for: the attempt with that id, not the newest, is what comes."""
    provider.conf.update(WITH_IDS)
    provider = provider.fresh()
    attempts: list[tuple[str, str, int]] = []
    provider.put(0, entries(provider, k1=1))
    for value in (10, 20, 30):
        store = provider.store(1).put(entries(provider, k1=value))
        store.commit()
        version, checkpoint_id, base = store.do(("checkpoint",))[0]
        assert (version, base) == (2, attempts[0][1] if attempts else base)
        attempts.append((checkpoint_id, base, value))
    for checkpoint_id, _, value in (attempts[1], attempts[0], attempts[2]):
        for asked in (provider, provider.fresh()):
            store = asked.store(2, checkpoint_id, read=True)
            assert store.iterate() == entries(provider, k1=value)
            store.do(("release",))
    fork = provider.store(2, attempts[0][0]).put(entries(provider, k2=2))
    fork.commit()
    assert fork.do(("checkpoint",))[0][2] == attempts[0][0], "it rests on the attempt that was asked for"
    assert provider.fresh().read(3) == entries(provider, k1=10, k2=2)
    with pytest.raises(Refused, match="no commit frame of version 2 with checkpoint id 0000"):
        provider.store(2, "00" * 16)


def test_without_checkpoint_ids_none_are_reported(make: Make) -> None:
    store = make().store(0).put({(1,): (1, 1)})
    store.commit()
    assert store.do(("checkpoint",)) == [[1, None, None]]


def test_a_provider_closed_is_no_loss(provider: Provider, jvm: Stores) -> None:
    provider.put(0, entries(provider, k1=1))
    jvm.ask("close_provider", name=provider.name)
    assert provider.read(1) == entries(provider, k1=1)


def test_windows_that_nobody_touches_are_written_again_before_they_are_old(make: Make, checkpoint: Path) -> None:
    """Eager and without time for checks: nothing but the bound on age asks for a record."""
    provider = make(settings={"CI": "0ms", "footprintAge": "10"})
    provider.put(0, {(key,): (key, 0) for key in range(30)})
    checked = []
    for version in range(1, 40):
        store = provider.store(version)
        store.commit()
        checked.append(store.metrics()["cecChecked"])
    assert sum(checked) >= 3 * 30, checked
    assert max(checked) <= 6, f"not a little at a time: {checked}"
    index = MemoryIndex(str(read_log_id(storage := open_storage(f"{checkpoint}/cec/log"))))
    Catalog(storage, index).refresh()
    metas = [entry.meta for entry in index.commits(StoreId(0, provider.partition), 1, 40)]
    assert len(metas) == 40
    assert max(meta.version - meta.oldest_footprint for meta in metas) <= 10
    assert provider.fresh().read(40) == {(key,): (key, 0) for key in range(30)}


def test_a_batch_that_is_run_again_with_the_same_result_is_committed_once(provider: Provider) -> None:
    """A function for `foreachBatch` that looks at its rows twice: the first commit stands, with its checkpoint id."""
    provider.conf.update(WITH_IDS)
    provider = provider.fresh()
    provider.put(0, entries(provider, k1=1, k2=2, k3=3))

    def again() -> tuple[str, str]:
        store = provider.store(1).put(entries(provider, k1=10, k5=5)).remove(k(provider, 2))
        store.commit()
        version, checkpoint_id, base = store.do(("checkpoint",))[0]
        assert version == 2
        return checkpoint_id, base

    after = entries(provider, k1=10, k3=3, k5=5)
    first = again()
    assert [again() for _ in range(3)] == [first] * 3
    assert provider.read(2) == provider.fresh().read(2) == after
    assert provider.store(2, first[0]).put(entries(provider, k7=7)).commit() == 3
    assert provider.fresh().read(3) == {**after, **entries(provider, k7=7)}


@pytest.mark.parametrize("end", ["abort", "release"])
def test_a_second_run_that_is_given_up_leaves_the_commit(provider: Provider, end: str) -> None:
    """A look at one row ends half way. The commit before it stands, and so does what a later run takes back."""
    provider.put(0, entries(provider, k1=1, k2=2, k3=3))
    batch, after = entries(provider, k1=10, k5=5), entries(provider, k1=10, k3=3, k5=5)
    provider.put(1, batch, k(provider, 2))
    for value in range(3):
        given_up = provider.store(1).put(entries(provider, k1=70 + value, k3=80, k9=9)).remove(k(provider, 2))
        given_up.do((end,))
    assert provider.read(1) == entries(provider, k1=1, k2=2, k3=3)
    assert provider.read(2) == after
    provider.put(1, entries(provider, k1=11))
    assert provider.read(2) == provider.fresh().read(2) == entries(provider, k1=11, k2=2, k3=3)
    assert provider.put(2, entries(provider, k4=4)) == 3
    assert provider.fresh().read(3) == entries(provider, k1=11, k2=2, k3=3, k4=4)
