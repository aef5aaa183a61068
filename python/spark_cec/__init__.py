"""Spark CEC: Continuous Eventual Checkpointing for Spark Structured Streaming.

What is here is fetched from its module when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cec.version import __version__

if TYPE_CHECKING:
    from spark_cec.operators import count_window
    from spark_cec.query_report import report
    from spark_cec.session import configure, jar_path

__all__ = ["__version__", "configure", "count_window", "jar_path", "report"]

_MODULES = {"configure": "session", "count_window": "operators", "jar_path": "session", "report": "query_report"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"spark_cec.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
