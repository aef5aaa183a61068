"""What the model accepts: scalars or arrays of finite numbers, checked here by name."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_cec.errors import CecError

FloatArray: TypeAlias = npt.NDArray[np.float64]
Quantity: TypeAlias = np.float64 | FloatArray
"""A result: one number where every argument was one, else an array of their common (broadcast) shape."""


class ModelInputError(CecError, ValueError):
    """An argument is outside of what the model means anything for: fix the named argument.

    Attributes: `name`, the argument; `value`, the first offending value; `mend`, what to give instead.
    """

    def __init__(self, name: str, value: object, mend: str) -> None:
        super().__init__(f"{name}={value}: {mend}")
        self.name = name
        self.value = value
        self.mend = mend


def positive(name: str, value: npt.ArrayLike) -> FloatArray:
    """`value` as an array, each element finite and above 0, else `ModelInputError`."""
    array = _numbers(name, value)
    return _refuse(name, array, array <= 0, "must be greater than 0")


def not_negative(name: str, value: npt.ArrayLike) -> FloatArray:
    """`value` as an array, each element finite and at least 0, else `ModelInputError`."""
    array = _numbers(name, value)
    return _refuse(name, array, array < 0, "must not be negative")


def whole(name: str, value: npt.ArrayLike) -> FloatArray:
    """`value` as an array of whole numbers of at least 1, else `ModelInputError`."""
    array = _numbers(name, value)
    return _refuse(name, array, (array < 1) | (array != np.floor(array)), "must be a whole number of at least 1")


def interval(name: str, value: npt.ArrayLike, checkpoint_s: FloatArray) -> FloatArray:
    """`value` as an array, each element longer than the checkpoint it has to hold, else `ModelInputError`."""
    array = positive(name, value)
    shaped, cost = np.broadcast_arrays(array, checkpoint_s)
    too_short = shaped <= cost
    if too_short.any():
        mend = f"must be longer than the checkpoint itself (checkpoint_s={cost[too_short].flat[0]:g})"
        raise ModelInputError(name, f"{shaped[too_short].flat[0]:g}", mend)
    return array


def collapse(result: FloatArray) -> Quantity:
    """A zero-dimensional result as a number, any other as it is."""
    return np.float64(result) if result.ndim == 0 else result


def _numbers(name: str, value: npt.ArrayLike) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelInputError(name, repr(value), "must be a number or an array of numbers") from error
    return _refuse(name, array, ~np.isfinite(array), "must be finite")


def _refuse(name: str, array: FloatArray, bad: npt.NDArray[np.bool_], mend: str) -> FloatArray:
    if bad.any():
        raise ModelInputError(name, f"{array[bad].flat[0]:g}", mend)
    return array
