"""Finds a pipeline in a Python file: `shop.py`, or `shop.py:name` if the file has several."""

from __future__ import annotations

import difflib
import runpy
import sys
from pathlib import Path

from spark_cec.errors import CecError
from spark_cec.pipeline.callback_errors import describe_callback_error
from spark_cec.pipeline.runnable import Pipeline

RUN_NAME = "__cec__"
"""The file's `__name__` while it is read, so that the part behind `if __name__ == "__main__"` does not run."""


class NoPipeline(CecError):
    """A file lacks the wanted pipeline. The message names the pipelines that it has."""


def load_pipeline(place: str) -> Pipeline:
    """The pipeline at `FILE[:name]`; `name` is a variable of the file.

    Raises `NoPipeline`, and `GraphError` if the declaration is wrong.
    """
    path, colon, variable = place.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, variable = place, ""
    if not Path(path).is_file():
        raise NoPipeline(f"{path}: no such file; give FILE.py or FILE.py:name")
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        found = runpy.run_path(path, run_name=RUN_NAME)
    except CecError:
        raise
    except Exception as error:
        raise NoPipeline(f"{path} cannot be run: {describe_callback_error(error, path)}") from error
    finally:
        sys.path.pop(0)
    pipelines = {name: value for name, value in found.items() if isinstance(value, Pipeline)}
    if not pipelines:
        raise NoPipeline(f"{path} has no Pipeline among its variables: make one, shop = Pipeline('shop', home=...)")
    if variable:
        if variable not in pipelines:
            near = difflib.get_close_matches(variable, pipelines, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(pipelines)}"
            raise NoPipeline(f"{path} has no pipeline {variable}: {hint}")
        return pipelines[variable]
    if len({id(each) for each in pipelines.values()}) > 1:
        raise NoPipeline(f"{path} has several pipelines: give one, as {path}:{next(iter(pipelines))}")
    return next(iter(pipelines.values()))
