"""Which failures of a request to an object store may pass, and how a request is repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

_EXPIRED = frozenset({
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"),  # S3 and STS
    "ExpiredAuthenticationToken",  # Azure
})  # fmt: skip
"""The words of stores for keys that were good once."""

_UNKNOWN = frozenset({
    *("InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId", "UnrecognizedClientException"),  # S3 and STS
    *("AuthenticationFailed", "InvalidAuthenticationInfo"),  # Azure
    "400",  # S3's answer to a HEAD has no word, and is this if a token has expired
})  # fmt: skip
"""The words of stores for keys that are not good, or not any more."""

_OF_GOOGLE = "RefreshError"
"""The class of google-auth's error if a key gets no token."""

_NO_UPLOAD = "NoSuchUpload"
_UNAUTHORIZED = 401

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """A store refuses keys. `word`: its word for that. `has_expired`: the keys were good once, as the store says."""

    word: str
    has_expired: bool


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


def refusal_of(error: BaseException) -> KeyRefusal | None:
    """What a store says of the keys of a request; None if that is not what the error is about."""
    for each in causes(error):
        response = getattr(each, "response", None)
        code = getattr(each, "error_code", None)  # azure-core
        if isinstance(response, dict):  # botocore
            code = response.get("Error", {}).get("Code")
        word = str(getattr(code, "value", code))
        if word in _EXPIRED or word in _UNKNOWN:
            return KeyRefusal(word, word in _EXPIRED)
        if type(each).__name__ == _OF_GOOGLE:
            return KeyRefusal(_OF_GOOGLE, has_expired=False)
    return KeyRefusal(str(_UNAUTHORIZED), has_expired=False) if status_of(error) == _UNAUTHORIZED else None


def lender_of(error: BaseException) -> str | None:
    """The call to STS that failed, and its word for why; None if the error is of another call."""
    for each in causes(error):
        call, response = getattr(each, "operation_name", None), getattr(each, "response", None)
        if isinstance(call, str) and call.startswith("AssumeRole") and isinstance(response, dict):
            return f"{call}: {response.get('Error', {}).get('Code')}"
    return None


def has_lost_upload(error: BaseException) -> bool:
    """Whether S3 has no such upload in parts. It was completed, and the answer got lost; or the store has deleted it.

    The error may hide that of the request that completes the upload: after that one s3fs gives the upload up.
    """
    responses = [getattr(each, "response", None) for each in causes(error)]
    return any(isinstance(each, dict) and each.get("Error", {}).get("Code") == _NO_UPLOAD for each in responses)


def may_pass(error: BaseException, *, conflicts: bool = False) -> bool:
    """Whether the same request may succeed a little later. `conflicts`: also after `CONFLICT`."""
    if has_lost_upload(error):
        return True
    status = status_of(error)
    if status is not None:
        return status in _PASSING_STATUSES or (conflicts and status == CONFLICT)
    return any(known.__name__ in _PASSING_CLASSES for each in causes(error) for known in type(each).__mro__)


def pauses(total_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    """The seconds to wait before each further attempt. Ends before `total_s` have passed since it began."""
    deadline, bound = clock() + total_s, _FIRST_S
    while clock() + (wait := bound * random.random()) < deadline:
        yield wait
        bound = min(2 * bound, _LONGEST_S)


def repeat(
    action: Callable[[], _Answer],
    passes: Callable[[Exception], bool],
    total_s: float,
    confirm: Callable[[], object] = lambda: None,
) -> _Answer:
    """Does the action, again and again while its failure may pass, as `passes` says, for at most `total_s`.

    The time begins with the first failure. A `CecError` is an answer, and does not pass. `confirm` is called before
    each further attempt, and ends the repetition with its error if what allowed the action holds no more.
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
        confirm()


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
