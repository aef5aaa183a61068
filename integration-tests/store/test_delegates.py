"""A wrapped source or sink has the object inside answer each call: no default of an interface answers instead."""

from __future__ import annotations

import zipfile

import pytest
from store_it.jvm import Stores

from spark_cec.session import jar_path

PACKAGE = "org/apache/spark/sql/cec/recovery/"
WRAPPERS = ("Delegate", "Wrapped", "Confirmed", "StartedRun$$anon")


def wrappers() -> list[str]:
    """The heirs; one with more traits is anonymous."""
    with zipfile.ZipFile(jar_path()) as jar:
        names = [name.removesuffix(".class") for name in jar.namelist() if name.startswith(PACKAGE)]
    return [name.replace("/", ".") for name in names if name.removeprefix(PACKAGE).startswith(WRAPPERS)]


def delegates() -> list[str]:
    with zipfile.ZipFile(jar_path()) as jar:
        names = [name.removesuffix(".class") for name in jar.namelist() if name.startswith(PACKAGE)]
    return [name.replace("/", ".") for name in names if name.endswith("Delegate")]


@pytest.mark.parametrize("name", sorted({*delegates(), *wrappers()}))
def test_no_default_of_an_interface_answers(jvm: Stores, name: str) -> None:
    assert jvm.ask("interface_answers", **{"class": name}) == []


def test_there_are_such_classes() -> None:
    assert len(delegates()) >= 8
    assert len([name for name in wrappers() if "$anon" in name]) >= 14
