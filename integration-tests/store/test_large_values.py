"""Values of kilobytes to hundreds of megabytes, in a JVM whose Arrow buffers end at 128 MB instead of at 2 GB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from store_it.jvm import Refused, Stores
from store_it.providers import Provider

MB = 1 << 20
BUFFER_BYTES = 128 * MB
OPTIONS = (
    "-Xmx2g",
    f"-Darrow.vector.max_allocation_bytes={BUFFER_BYTES}",
    f"-Dio.netty.maxDirectMemory={BUFFER_BYTES + 32 * MB}",
)
Large = dict[tuple[int, ...], tuple[int, int]]
"""Seed and size of the value of each key."""


@pytest.fixture(scope="module")
def small_buffers(driver_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    stores = Stores(driver_class_path, tmp_path_factory.mktemp("small-buffers"), OPTIONS)
    yield stores
    stores.close()


def put(provider: Provider, version: int, values: Large) -> int:
    store = provider.store(version)
    store.do(("put_large", [[key, seed, size] for key, (seed, size) in values.items()]))
    return store.commit()


def read(provider: Provider, version: int) -> Large:
    store = provider.store(version, read=True)
    found = store.do(("large",), ("release",))[0]
    provider.jvm.ask("close_provider", name=provider.name)
    assert all(same for *_, same in found), [key for key, *_, same in found if not same]
    return {tuple(key): (seed, size) for key, seed, size, _ in found}


@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "grouped"])
def test_a_batch_of_rows_with_more_bytes_than_a_buffer(small_buffers: Stores, tmp_path: Path, grouped: bool) -> None:
    """Fewer rows than one batch of the spool may have, but more bytes than a buffer or all direct memory; both ways."""
    size = 64 << 10
    provider = Provider(small_buffers, str(tmp_path / "checkpoint"), grouped)
    keys = [(key // 100, key) if grouped else (key,) for key in range(3 * BUFFER_BYTES // 2 // size)]
    values = {key: (number, size) for number, key in enumerate(keys)}
    assert put(provider, 0, values) == 1
    assert read(provider.fresh(), 1) == values


def test_small_rows_beside_a_value_that_fills_a_buffer(small_buffers: Stores, tmp_path: Path) -> None:
    provider = Provider(small_buffers, str(tmp_path / "checkpoint"))
    values = {(key,): (key, BUFFER_BYTES if key == 500 else 32) for key in range(1000)}
    assert put(provider, 0, values) == 1
    assert read(provider.fresh(), 1) == values
    assert put(provider, 1, {(1,): (7, 2 * MB)}) == 2
    assert read(provider.fresh(), 2) == {**values, (1,): (7, 2 * MB)}


def test_a_value_too_large_for_a_buffer_is_refused_by_name(jvm: Stores, tmp_path: Path) -> None:
    """At `put`, while the task that made it is there to be blamed; the batch can go on without it."""
    provider = Provider(jvm, str(tmp_path / "checkpoint"), partition=3)
    store = provider.store(0).put({(1,): (1, 1)})
    with pytest.raises(Refused, match=r"partitionId=3.* value of 1073741832 bytes \(its key has 16\).*1073741824"):
        store.do(("put_oversized", (2,), (1 << 30) + 8))
    assert store.commit() == 1
    assert provider.fresh().read(1) == {(1,): (1, 1)}


@pytest.mark.parametrize("unsafe", [True, False], ids=["unsafe", "generic"])
def test_output_rows_with_more_bytes_than_a_buffer(small_buffers: Stores, unsafe: bool) -> None:
    lengths = [64 << 10] * (BUFFER_BYTES * 3 // 2 // (64 << 10)) + [60 * MB] + [1] * 100
    path = Path(small_buffers.ask("output", lengths=lengths, unsafe=unsafe, conf=small_buffers.conf()))
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        sizes = [batch.nbytes for batch in stream]
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        assert pc.binary_length(stream.read_all()["text"]).to_pylist() == lengths
    path.unlink()
    assert max(sizes) <= 64 * MB
    assert len(sizes) <= 5, "batches are as large as they may be"
