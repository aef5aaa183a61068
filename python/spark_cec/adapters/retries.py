"""Which failures of a request to an object store may pass, and how a request is repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from spark_cec.errors import CecError

DEFAULT_RETRY_S = 60.0
"""How long a request is repeated, if the setting `cec.storage.retry` is not given."""

_FIRST_S, _LONGEST_S = 0.1, 5.0
"""The longest first pause, and the longest pause. Each pause is a random share of a bound that doubles."""

_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})

CONFLICT = 409
"""S3's answer while another writer creates or deletes the same object."""

_PASSING_CLASSES = frozenset({
    "ConnectionError",  # Python's: refused, reset, aborted
    "TimeoutError",
    "IncompleteRead",  # http.client
    "HTTPClientError",  # botocore: no connection, a connection that broke, no answer in time
    "ResponseStreamingError",
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "ServiceRequestError",  # azure-core
    "ServiceResponseError",
})  # fmt: skip
"""Errors without an answer, by the names of their classes or base classes: the packages may be absent."""

_Answer = TypeVar("_Answer")


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error of s3fs, gcsfs or adlfs; None if the store gave no answer."""
    for each in causes(error):
        if any(known.__name__ in _PASSING_CLASSES for known in type(each).__mro__):
            return None  # such an error may carry a number that is no answer of the store
        response = getattr(each, "response", None)
        if isinstance(response, dict):  # botocore
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
        for name in ("status_code", "status", "code"):  # azure-core, aiohttp, gcsfs
            if isinstance(status := getattr(each, name, None), int):
                return status
    return None


def may_pass(error: BaseException, *, conflicts: bool = False) -> bool:
    """Whether the same request may succeed a little later. `conflicts`: also after `CONFLICT`."""
    status = status_of(error)
    if status is not None:
        return status in _PASSING_STATUSES or (conflicts and status == CONFLICT)
    return any(known.__name__ in _PASSING_CLASSES for each in causes(error) for known in type(each).__mro__)


def pauses(total_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    """The seconds to wait before each further attempt. Ends before `total_s` have passed since the first."""
    deadline, bound = clock() + total_s, _FIRST_S
    while clock() + (wait := bound * random.random()) < deadline:
        yield wait
        bound = min(2 * bound, _LONGEST_S)


def repeat(action: Callable[[], _Answer], passes: Callable[[Exception], bool], total_s: float) -> _Answer:
    """Does the action, again and again while its failure may pass, as `passes` says, for at most `total_s`.

    A `CecError` is an answer, and does not pass.
    """
    waits = pauses(total_s)
    while True:
        try:
            return action()
        except CecError:
            raise
        except Exception as error:
            wait = next(waits, None) if passes(error) else None
            if wait is None:
                raise
        time.sleep(wait)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
