"""The file systems of fsspec: their options, limits and keys."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Mapping
from typing import Any

import fsspec

from spark_cec.adapters.hadoop_settings import find_options, find_retry_s
from spark_cec.adapters.retries import pauses
from spark_cec.adapters.s3_keys import forget_sessions
from spark_cec.errors import LogLocationError

EXCLUSIVE = frozenset({"s3", "gs", "gcs", "abfs", "az"})
"""Protocols whose `pipe_file(mode="create")` is a conditional write of the store (s3fs, gcsfs, adlfs)."""

_EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs", "abfs": "azure", "az": "azure"}
"""The extra that brings the package for a protocol."""

ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs"}
_GOOGLE = frozenset({"gs", "gcs"})

_ONE_ATTEMPT = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
"""Turns botocore's own retries off: `retries` repeats a request, for as long as the setting says."""

_GOOGLE_LIMITS = {"sock_connect": 20.0, "sock_read": 60.0}
"""The seconds that gcsfs waits for a connection, and for the next bytes of an answer: by itself it waits for ever.

They are those of Azure's client. s3fs has shorter ones.
"""

_SAY_KEYS = frozenset({"key", "anon", "session"})
_KEYS = frozenset({"key", "secret", "token", "anon", "profile", "session", "username", "password"})
"""Options of s3fs that say where keys come from: those that Hadoop's settings lead to, and all."""


def _make_filesystem(url: str, known_url: str, protocol: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the root there. Raises `LogLocationError`."""
    try:
        options = find_options(protocol, url)
        if protocol == "s3":
            configured = fsspec.config.conf.get("s3", {})
            if options.keys() & _SAY_KEYS:  # fsspec's own configuration has keys for queries that have none
                configured = {name: value for name, value in configured.items() if name not in _KEYS}
            options = _merge(_ONE_ATTEMPT, configured, options)
        if protocol in EXCLUSIVE:
            # A cached listing would break guarantee 5: another thread may have begun it before this one asked.
            options = {**options, "use_listings_cache": False}
        if protocol in _GOOGLE:
            filesystem, root = _google_filesystem(known_url, options)
        else:
            filesystem, root = fsspec.core.url_to_fs(known_url, **options)
    except LogLocationError:
        raise
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        mend = f"pip install 'spark-cec[{extra}]'" if extra is not None else "install it"
        raise LogLocationError(url, f"a package is missing on this machine ({error}); {mend}") from error
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        raise LogLocationError(url, f"{reason}; use a directory, or a protocol that fsspec knows") from error
    return filesystem, str(root).rstrip("/")


def await_filesystem(url: str, known_url: str, protocol: str) -> tuple[Any, str]:
    """As `_make_filesystem`. If keys were good there, it waits for a key file that is being written.

    It waits for as long as a request is repeated.
    """
    waits = pauses(find_retry_s())
    while True:
        try:
            return _make_filesystem(url, known_url, protocol)
        except LogLocationError as error:
            is_awaited = had_good_keys(bucket_of(url)) and is_of_keys(error)
            wait = next(waits, None) if is_awaited else None
            if wait is None:
                raise
        time.sleep(wait)


def is_of_keys(error: LogLocationError) -> bool:
    """Whether it may be about keys that are being written: it is the failure of the store's own package."""
    return error.__cause__ is not None and not isinstance(error.__cause__, ImportError)


_good_keys: set[tuple[str, str]] = set()
"""The buckets whose stores have taken keys of this process. Each request may come from a storage of its own.

Several threads may add to it, and look into it.
"""


def note_good_keys(bucket: tuple[str, str]) -> None:
    """Notes that the store has taken keys of this process for the bucket."""
    _good_keys.add(bucket)


def had_good_keys(bucket: tuple[str, str]) -> bool:
    """Whether the store has taken keys of this process for the bucket."""
    return bucket in _good_keys


def forget_good_keys() -> None:
    """Forgets which stores have taken keys of this process."""
    _good_keys.clear()


def bucket_of(url: str) -> tuple[str, str]:
    """The kind of store of a URL, and its bucket, or its container and account."""
    protocol, _, rest = url.partition(":")
    known = ALIASES.get(protocol, protocol)
    return _EXTRAS.get(known, known), rest.lstrip("/").partition("/")[0]


_renewing = threading.Lock()


def renew_filesystem(url: str, known_url: str, protocol: str, failed: Any) -> Any:
    """A file system whose keys were read after those of `failed`: another storage may have made it already."""
    with _renewing:
        filesystem, _ = _make_filesystem(url, known_url, protocol)
        if filesystem is not failed:
            return filesystem
        type(failed).clear_instance_cache()
        forget_sessions()
        return _make_filesystem(url, known_url, protocol)[0]


def _google_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """gcsfs's class for plain buckets.

    Its class for other kinds asks a second service before each request, which emulators do not have. It would then wait
    for a minute each time. In a zonal bucket it overwrites an object that it must only create.
    """
    plain = importlib.import_module("gcsfs.core").GCSFileSystem
    return plain(**{**_google_limits(), **options}), str(plain._strip_protocol(url))


def _google_limits() -> dict[str, Any]:
    """The option of gcsfs for its limits, unless fsspec's own configuration has it. A whole request has no limit."""
    if any("requests_timeout" in fsspec.config.conf.get(each, {}) for each in _GOOGLE):
        return {}
    return {"requests_timeout": importlib.import_module("aiohttp").ClientTimeout(total=None, **_GOOGLE_LIMITS)}


def _merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The options of all layers; a later one wins, and options that are mappings are merged in the same way."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = merged.get(key)
            merged[key] = _merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


def local_filesystem() -> Any:
    """fsspec's file system of this machine."""
    return fsspec.filesystem("file")
