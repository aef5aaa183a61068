"""What the tests of a server need of it, whatever protocol it speaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import fsspec

from spark_cec.adapters import hadoop_settings


class Server(ABC):
    """A running server. `endpoint` is its host and port; `secret` is a text that no error may contain."""

    name: ClassVar[str]
    version: ClassVar[str]
    secret: ClassVar[str]
    has_marks: ClassVar[bool] = False
    """Whether a created object has the mark of its writer."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"

    @abstractmethod
    def make_bucket(self) -> str:
        """Makes a bucket or container with a fresh name; its URL."""

    @abstractmethod
    def bucket_names(self) -> list[str]:
        """The names of all buckets or containers."""

    @abstractmethod
    def missing_bucket(self) -> tuple[str, str]:
        """The URL of a bucket that does not exist, and its name."""

    @abstractmethod
    def settings(self, endpoint: str, *, wrong_key: bool = False) -> Mapping[str, str]:
        """Hadoop's settings for the server at `endpoint`, as a user of Spark gives them."""

    def options(self, endpoint: str, *, wrong_key: bool = False) -> Mapping[str, Mapping[str, Any]]:
        """Options of fsspec for which Hadoop has no name, by protocol."""
        return {}

    @contextmanager
    def in_use(self, endpoint: str | None = None, *, wrong_key: bool = False, retry: str = "20s") -> Iterator[None]:
        """Makes the server that of this process's storages. `retry`: how long a request is repeated."""
        place, known = endpoint or self.endpoint, dict(fsspec.config.conf)
        fsspec.config.conf.update({key: dict(each) for key, each in self.options(place, wrong_key=wrong_key).items()})
        own = {"spark.sql.streaming.stateStore.cec.storage.retry": retry}
        hadoop_settings.use_settings({**self.settings(place, wrong_key=wrong_key), **own})
        try:
            yield
        finally:
            hadoop_settings.use_settings({})
            fsspec.config.conf.clear()
            fsspec.config.conf.update(known)
