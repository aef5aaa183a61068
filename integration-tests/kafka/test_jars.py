"""Jars from the pinned list: only those with the right bytes, and fetched only once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from testbed import jars as module
from testbed.jars import BROKER, CONNECTOR, Jar, JarError, jars, pinned

GOOD, BAD = b"the jar", b"another jar"


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Jar:
    jar = Jar(frozenset({BROKER}), "org", "mod", "1", hashlib.sha256(GOOD).hexdigest())
    monkeypatch.setattr(module, "pinned", lambda: [jar])
    return jar


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[str]:
    """Let the repository have this; answers the list of what is asked of it."""
    asked: list[str] = []

    def ivy(wanted: Iterable[Jar], into: Path) -> str:
        for jar in wanted:
            asked.append(jar.file_name)
            if content is not None:
                (into / jar.file_name).write_bytes(content)
        return "what Ivy says"

    monkeypatch.setattr(module, "_ivy", ivy)
    return asked


def test_a_jar_is_fetched_once(one: Jar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = serve(monkeypatch, GOOD)
    assert [path.read_bytes() for path in jars(BROKER, tmp_path)] == [GOOD]
    assert jars(CONNECTOR, tmp_path) == []
    jars(BROKER, tmp_path)
    assert asked == [one.file_name]
    assert list(tmp_path.iterdir()) == [tmp_path / one.file_name]


def test_other_bytes_are_refused(one: Jar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, BAD)
    with pytest.raises(JarError, match="checksum"):
        jars(BROKER, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_was_damaged_in_the_cache_is_fetched_again(
    one: Jar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / one.file_name).write_bytes(BAD)
    serve(monkeypatch, GOOD)
    assert jars(BROKER, tmp_path)[0].read_bytes() == GOOD


def test_what_cannot_be_had_is_named(one: Jar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, None)
    with pytest.raises(JarError, match=r"(?s)mod 1 cannot be fetched.*what Ivy says"):
        jars(BROKER, tmp_path)


def test_the_list_is_whole() -> None:
    listed = pinned()
    assert {part for jar in listed for part in jar.parts} == {BROKER, CONNECTOR}
    assert len({jar.file_name for jar in listed}) == len(listed)
    assert all(len(jar.sha256) == 64 for jar in listed)
    clients = [jar for jar in listed if jar.module == "kafka-clients"]
    assert [jar.parts for jar in clients] == [{BROKER, CONNECTOR}]
