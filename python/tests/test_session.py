"""`spark_cec.configure`, `spark_cec.jar_path`, and that importing the package costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import spark_cec
from spark_cec import session
from spark_cec.toolchain import BuildError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR = "/opt/cec/spark-cec.jar"
PREFIX = "spark.sql.streaming.stateStore."


class FakeBuilder:
    """Keeps options as Spark's own builder does."""

    def __init__(self, **options: str) -> None:
        self._options: dict[str, Any] = {key.replace("_", "."): value for key, value in options.items()}

    def config(self, key: str, value: str) -> FakeBuilder:
        self._options[key] = value
        return self


@pytest.fixture(autouse=True)
def known_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "build", lambda quiet: Path(JAR))


def configured(builder: FakeBuilder) -> dict[str, Any]:
    """The options after `configure`, which must return the very builder that it was given."""
    assert cast(object, spark_cec.configure(cast("SparkSession.Builder", builder))) is builder
    return builder._options


@pytest.fixture(autouse=True)
def nothing_said_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_it_sets_the_jar_the_provider_and_the_pythons_and_nothing_else() -> None:
    assert configured(FakeBuilder()) == {
        "spark.jars": JAR,
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.cec.CecCheckpointFileManager",
        PREFIX + "providerClass": "org.apache.spark.sql.cec.CecStateStoreProvider",
        PREFIX + "cec.python": sys.executable,
        PREFIX + "cec.driver.python": sys.executable,
    }


def test_a_checkpoint_file_manager_of_the_users_stays() -> None:
    key = "spark.sql.streaming.checkpointFileManagerClass"
    builder = FakeBuilder()
    builder.config(key, "org.example.Manager")
    assert configured(builder)[key] == "org.example.Manager"


PACKED = "./environment/bin/python"
ENVIRONMENTS: list[tuple[dict[str, str], str | None, str]] = [
    ({}, None, sys.executable),
    ({}, PACKED, PACKED),
    ({"spark.pyspark.python": PACKED}, None, PACKED),
    ({"spark.pyspark.python": PACKED}, "/opt/other/python", PACKED),
    ({PREFIX + "cec.python": PACKED}, "/opt/other/python", PACKED),
    ({PREFIX + "cec.python": PACKED, "spark.pyspark.python": "/opt/other/python"}, None, PACKED),
]
"""What the builder has, what `PYSPARK_PYTHON` says, and which Python executors must be told."""


@pytest.mark.parametrize(("said", "environment", "wanted"), ENVIRONMENTS)
def test_executors_run_the_agent_in_the_python_that_they_were_given(
    said: dict[str, str], environment: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", environment)
    options = configured(FakeBuilder(**said))
    assert options[PREFIX + "cec.python"] == wanted
    assert options[PREFIX + "cec.driver.python"] == sys.executable
    assert options.get("spark.pyspark.python") == said.get("spark.pyspark.python")


def test_what_the_builder_says_of_the_drivers_python_stays() -> None:
    key = PREFIX + "cec.driver.python"
    assert configured(FakeBuilder(**{key: "/opt/other/python"}))[key] == "/opt/other/python"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", JAR),
        ("a.jar", f"a.jar,{JAR}"),
        ("a.jar, b.jar , ,", f"a.jar,b.jar,{JAR}"),
        (f"{JAR},a.jar", f"{JAR},a.jar"),
        (f"{JAR}.old", f"{JAR}.old,{JAR}"),
    ],
)
def test_jars_that_the_builder_has_stay(before: str, after: str) -> None:
    assert configured(FakeBuilder(spark_jars=before))["spark.jars"] == after


def test_doing_it_twice_is_doing_it_once() -> None:
    builder = FakeBuilder(spark_jars="a.jar", spark_master="local[2]")
    once = dict(configured(builder))
    assert configured(builder) == once
    assert once["spark.master"] == "local[2]"


def test_a_real_builder_takes_it() -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config("spark.jars", "a.jar")
    assert spark_cec.configure(builder)._options["spark.jars"] == f"a.jar,{JAR}"


def test_a_jar_that_cannot_be_built_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(quiet: bool) -> Path:
        raise BuildError("no `java` on the search path")

    monkeypatch.setattr(session, "build", refuse)
    builder = FakeBuilder(spark_jars="a.jar")
    with pytest.raises(BuildError, match="no `java`"):
        configured(builder)
    assert builder._options == {"spark.jars": "a.jar"}


def test_the_path_of_the_jar_is_a_string() -> None:
    assert spark_cec.jar_path() == JAR


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, spark_cec; assert {'configure', 'jar_path', '__version__'} <= set(dir(spark_cec));"
        "spark_cec.configure; spark_cec.jar_path;"
        "print(sorted({'pyspark', 'pyarrow', 'numpy', 'fsspec', 'rocksdict', 'py4j', 'typer'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_with_package())
    assert done.stdout == "[]\n"


def _with_package() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(spark_cec.__file__).parents[1])}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'spark_cec' has no attribute 'confgure'"):
        spark_cec.__getattr__("confgure")
