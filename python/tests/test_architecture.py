"""The floors of docs/design.md: imports point downward, without a circle, and foreign libraries stay in their rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "spark_cec"
LAB = PACKAGE.with_name("spark_cec_lab")

Floors = tuple[tuple[str, ...], ...]

FLOORS: Floors = (
    # 0 words; packages are here because their __init__ imports nothing
    (
        *("errors", "extras", "ids", "settings", "version", "log", "checkpoint", "recovery", "adapters", "agent"),
        "availability",
    ),
    # 1 values
    (
        *("protocols", "protocols.messages", "protocols.choose", "protocols.coordinated", "protocols.uncoordinated"),
        *("protocols.communication_induced", "protocols.eventual", "protocols.none"),
        *("log.meta", "log.frame", "log.byte_planes", "log.record", "toolchain"),
        *("log.times", "availability.buckets", "availability.union", "availability.bucket_rows"),
        *("availability.failure", "availability.joins", "availability.replicas", "availability.tentative"),
        *("availability.keep",),
        *("checkpoint.columns", "checkpoint.footprints", "checkpoint.policy", "checkpoint.effort"),
    ),
    # 2 contracts
    ("log.storage", "log.delegating_storage", "log.segment", "log.index", "log.index_keys", "log.healed_index"),
    # 3 log
    (
        *("log.scan", "log.home", "log.writer", "log.reader", "log.readers", "log.repair", "log.trim", "log.manifest"),
        *("log.catalog", "log.output_rollbacks", "log.checked_json", "log.recent_objects"),
        *("log.bundles", "log.bundling", "log.boundary", "log.late", "log.borrowed", "log.other_sink"),
        *("availability.epochs",),
    ),
    # 4 engine
    (
        *("checkpoint.eventual", "checkpoint.commit_frames", "checkpoint.flush", "checkpoint.recovery_target"),
        "checkpoint.load_memory",
        *("recovery.decide", "recovery.facts", "recovery.fallback", "recovery.generations"),
        *("recovery.report", "recovery.requests", "recovery.overview", "recovery.past_recoveries"),
        *("recovery.query_files", "recovery.start_messages"),
        *("recovery.forecast", "recovery.margin", "recovery.replay_input", "recovery.sources"),
        *("recovery.query_runs", "recovery.rollback", "recovery.reach", "recovery.file_sources", "recovery.fork"),
        *("recovery.lost_output", "recovery.dirty_stores", "recovery.session_settings"),
        *("protocols.spec", "protocols.records", "protocols.runtime"),
        *("recovery.attempts", "recovery.migrated_away", "recovery.spark_logs", "recovery.unfinished_copy"),
        *("recovery.progressive", "checkpoint.readers", "tuning", "tuning.*"),
        *("pipeline.graph", "pipeline.status", "pipeline.draw", "pipeline.capacity"),
        *("pipeline.release", "pipeline.callback_errors", "pipeline.checkpointing"),
        *("pipeline.decide", "pipeline.facts", "pipeline.worker"),
    ),
    # 5 adapters
    ("adapters.*",),
    # 6 processes and sessions
    ("agent.*", "session", "operators", "build"),
    # 7 administration of logs, running pipelines
    (
        *("admin", "admin.*"),
        *("pipeline.declare", "pipeline.load", "pipeline.home", "pipeline.flows", "pipeline.supervise"),
        *("pipeline.cluster", "pipeline.outside", "pipeline.runs", "pipeline", "pipeline.running", "pipeline.runnable"),
        *("pipeline.start", "pipeline.joint_recovery", "pipeline.capacity_keeper"),
        *("pipeline.query_errors", "pipeline.query_progress", "pipeline.epoch_keeper", "pipeline.epoch_files"),
        *("pipeline.watermarks", "pipeline.options", "pipeline.changes", "pipeline.sink_formats"),
        *("pipeline.plans", "pipeline.replicas", "pipeline.replica_checks", "pipeline.sink_keeper"),
        *("pipeline.block_keeper", "pipeline.changes_table", "pipeline.input_checks"),
    ),
    # 8 migration of state, reports; "" is spark_cec/__init__.py
    ("migration", "migration.*", "query_report", ""),
    # 9 the command line
    ("cli", "cli.*"),
    # 10 commands that the command line finds by entry points
    ("pipeline_commands", "pipeline_commands.*"),
)
"""Floors from the ground up, names below `spark_cec`: a module may import lower ones, and its own without a circle."""

LAB_FLOORS: Floors = (
    # 0 what is measured, and simulations
    ("", "nexmark", "nexmark.*", "simulation", "simulation.*", "storage", "storage.*", "tuning", "tuning.*"),
    # 1 measuring
    ("bench", "bench.*"),
    # 2 commands that the command line finds by entry points
    ("commands",),
)
"""The same below `spark_cec_lab`, which may import `spark_cec`; nothing there imports the lab."""

HOUSES = {PACKAGE: FLOORS, LAB: LAB_FLOORS}

NEVER = (
    ("log.reader", "log.writer"),
    ("log.writer", "log.reader"),
    ("log.reader", "log.repair"),
    ("log.reader", "log.trim"),
    *((each, "log.writer") for each in ("admin.find_log", "admin.state", "admin.check")),
    *((each, "log.repair") for each in ("admin.find_log", "admin.state", "admin.check")),
    *((f"migration.{each}", "agent.queries") for each in ("migrate", "rewrite", "checkpoint")),
    *(("recovery.decide", f"log.{each}") for each in ("storage", "index", "reader", "writer", "catalog", "manifest")),
    *(("pipeline.decide", each) for each in ("log.storage", "log.manifest", "pipeline.facts", "recovery.rollback")),
    *(("recovery.reach", each) for each in ("log.storage", "log.manifest", "recovery.rollback")),
)
"""(importer, imported) pairs that the floors would allow.

Reading and writing stay apart, reading never removes, the agent's calls are for the JVM alone, and what decides a
start neither reads nor writes.
"""

LIBRARIES: dict[str, str] = {
    "fsspec": "adapters.filesystems",
    "hdfs_native": "adapters.hdfs_client",
    "rocksdict": "adapters.rocksdict_index",
    "py4j": "adapters.py4j_server",
}
"""Foreign libraries, and the one module that imports each."""

_OF_PIPELINES = (
    *("pipeline.declare", "pipeline.runnable", "pipeline.flows", "pipeline.watermarks", "pipeline.plans"),
    *("pipeline.supervise", "pipeline.running", "pipeline.start", "pipeline_commands.run", "pipeline.cluster"),
    *("pipeline.query_errors", "pipeline.query_progress", "pipeline.epoch_keeper", "pipeline.changes"),
    *("pipeline.sink_formats", "pipeline.replica_checks", "pipeline.outside"),
)

SPARK_USERS = ("session", "operators", "cli.migrate", "migration.*", *_OF_PIPELINES)
"""Who may import pyspark: the agent runs without it."""

Imports = dict[str, set[str]]


def _modules(package: Path) -> dict[str, Path]:
    """Each module's name below the package, and its file."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _imported(code: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Every import of a module, wherever it stands: (module, names taken from it)."""
    return tuple(_imports(ast.parse(code)))


def _imports(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield dots + (node.module or ""), tuple(alias.name for alias in node.names)


def imports_within(package: Path) -> Imports:
    """For each module, the modules of the same package that it imports."""
    modules = _modules(package)
    graph: Imports = {name: set() for name in modules}
    for name, path in modules.items():
        for module, taken in _imported(path.read_text()):
            if module.startswith("."):
                raise AssertionError(f"{name}: relative import: write {package.name}. in full")
            if module != package.name and not module.startswith(package.name + "."):
                continue
            target = module[len(package.name) + 1 :]
            children = {f"{target}.{each}".lstrip(".") for each in taken} & modules.keys()
            graph[name] |= children or {target}
    return graph


def floor_of(name: str, floors: Floors = FLOORS) -> int:
    """The floor of a module: an exact name before a pattern."""
    for exact in (True, False):
        for number, rooms in enumerate(floors):
            if any(room == name if exact else "*" in room and fnmatchcase(name, room) for room in rooms):
                return number
    table = "FLOORS" if floors is FLOORS else "LAB_FLOORS"
    raise AssertionError(f"{name} is on no floor: add it to the table {table} in {Path(__file__).name}")


def upward(graph: Imports, floors: Floors = FLOORS) -> list[str]:
    """Imports of a higher floor."""
    return [
        f"{name} (floor {floor_of(name, floors)}) imports {target} (floor {floor_of(target, floors)})"
        for name, targets in graph.items()
        for target in sorted(targets)
        if floor_of(target, floors) > floor_of(name, floors)
    ]


def circle(graph: Imports) -> list[str]:
    """A circle of imports, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def too_close(graph: Imports) -> list[str]:
    """Imports of the table `NEVER`."""
    return [f"{name} imports {target}" for name, target in NEVER if target in graph.get(name, ())]


def users_of(library: str, package: Path) -> set[str]:
    """The modules that import `library`, or something below it."""
    return {
        name
        for name, path in _modules(package).items()
        if any(module.split(".")[0] == library for module, _ in _imported(path.read_text()))
    }


@pytest.mark.parametrize("package", HOUSES, ids=lambda package: package.name)
def test_every_module_is_on_a_floor(package: Path) -> None:
    for name in _modules(package):
        floor_of(name, HOUSES[package])


def test_the_walk_finds_modules() -> None:
    assert {"", "errors", "log", "log.frame"} <= _modules(PACKAGE).keys()
    assert {"", "bench.command", "simulation.protocols.engine"} <= _modules(LAB).keys()


@pytest.mark.parametrize("package", HOUSES, ids=lambda package: package.name)
def test_imports_point_downward(package: Path) -> None:
    assert upward(imports_within(package), HOUSES[package]) == []


@pytest.mark.parametrize("package", HOUSES, ids=lambda package: package.name)
def test_nothing_runs_in_a_circle(package: Path) -> None:
    assert circle(imports_within(package)) == []


def test_the_product_does_not_know_the_lab() -> None:
    assert users_of("spark_cec_lab", PACKAGE) == set()


def test_the_lab_leaves_foreign_libraries_to_the_adapters() -> None:
    assert {name for library in LIBRARIES for name in users_of(library, LAB)} == set()


def test_rooms_that_must_stay_apart_do() -> None:
    assert too_close(imports_within(PACKAGE)) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_foreign_library_is_imported_in_one_adapter(library: str) -> None:
    assert users_of(library, PACKAGE) == {LIBRARIES[library]}


def test_only_the_faces_to_spark_import_it() -> None:
    strangers = {name for name in users_of("pyspark", PACKAGE) if not any(fnmatchcase(name, p) for p in SPARK_USERS)}
    assert strangers == set()


FOREIGN_BASES = {"Thread", "Process", "Timer"}
"""Classes of the standard library whose subclass may replace a method that they keep for themselves, by its name."""


def foreign_children(code: str) -> list[str]:
    """The classes of a module that derive from one of `FOREIGN_BASES`."""
    return [
        node.name
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] in FOREIGN_BASES for base in node.bases)
    ]


@pytest.mark.parametrize("package", HOUSES, ids=lambda package: package.name)
def test_nothing_derives_from_a_thread(package: Path) -> None:
    assert foreign_children("class A(threading.Thread): ...") == ["A"]
    assert [found for path in _modules(package).values() for found in foreign_children(path.read_text())] == []


OF_EXAMPLES = "test_purchases_parts.py"
"""The tests of the examples' own parts, which import them."""


def borrowed(root: Path) -> list[str]:
    """Where a file below `root` imports a test or an example: what several need is in `support`, or `cec_it`."""
    return [
        f"{path.relative_to(root)} imports {module}"
        for path in sorted(root.rglob("*.py"))
        for module, taken in _imported(path.read_text())
        if any(part.startswith("test_") for part in (*module.split("."), *taken))
        or (module.split(".")[0].endswith("_demo") and path.name != OF_EXAMPLES)
    ]


@pytest.mark.parametrize("root", ["python/tests", "integration-tests"])
def test_no_test_imports_another_one_or_an_example(root: str) -> None:
    assert borrowed(PACKAGE.parents[1] / root) == []


@pytest.mark.parametrize(
    "code",
    [
        *("from tests.log.test_a import x", "import test_a", "from tests import test_a"),
        *("from kafka_demo import job", "import purchases_demo.events"),
    ],
)
def test_a_test_that_imports_another_one_or_an_example_is_found(tmp_path: Path, code: str) -> None:
    (tmp_path / "test_it.py").write_text(code)
    assert len(borrowed(tmp_path)) == 1


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small sound package to plant faults in."""
    package = tmp_path / "spark_cec"
    for name in ("", "log"):
        (package / name).mkdir()
        (package / name / "__init__.py").write_text("")
    (package / "errors.py").write_text("import os\n")
    (package / "log" / "storage.py").write_text("from spark_cec import errors\n")
    (package / "log" / "reader.py").write_text("from spark_cec.log.storage import Storage\n")
    (package / "log" / "writer.py").write_text("import spark_cec.log.storage\n")
    return package


def test_the_walk_sees_each_way_of_importing(house: Path) -> None:
    graph = imports_within(house)
    assert graph["log.storage"] == {"errors"}
    assert graph["log.reader"] == graph["log.writer"] == {"log.storage"}
    assert upward(graph) == circle(graph) == too_close(graph) == []


@pytest.mark.parametrize(
    ("module", "code", "found"),
    [
        ("errors", "from spark_cec.log import reader", ["errors (floor 0) imports log.reader (floor 3)"]),
        ("errors", "def f():\n    import spark_cec.log.index", ["errors (floor 0) imports log.index (floor 2)"]),
        ("ids", "from spark_cec import __version__", ["ids (floor 0) imports  (floor 8)"]),
    ],
)
def test_an_upward_import_is_found(house: Path, module: str, code: str, found: list[str]) -> None:
    (house / "log" / "index.py").write_text("")
    (house / f"{module}.py").write_text(code)
    assert upward(imports_within(house)) == found


def test_a_circle_is_found_even_for_type_checking(house: Path) -> None:
    lazy = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from spark_cec.log.scan import Found\n"
    (house / "log" / "home.py").write_text(lazy)
    (house / "log" / "scan.py").write_text("from spark_cec.log.home import Home\n")
    assert set(circle(imports_within(house))) == {"log.home", "log.scan"}


def test_a_reader_that_writes_is_found(house: Path) -> None:
    (house / "log" / "reader.py").write_text("from spark_cec.log.writer import SegmentWriter\n")
    assert too_close(imports_within(house)) == ["log.reader imports log.writer"]


def test_an_unknown_module_is_found(house: Path) -> None:
    (house / "attic.py").write_text("")
    with pytest.raises(AssertionError, match=r"attic is on no floor: add it to the table FLOORS"):
        upward(imports_within(house) | {"errors": {"attic"}})


def test_a_relative_import_is_found(house: Path) -> None:
    (house / "log" / "reader.py").write_text("from .storage import Storage\n")
    with pytest.raises(AssertionError, match="relative import"):
        imports_within(house)


def test_a_product_that_imports_the_lab_is_found(house: Path) -> None:
    (house / "errors.py").write_text("def f():\n    from spark_cec_lab.bench import job\n")
    assert users_of("spark_cec_lab", house) == {"errors"}


def test_a_stray_library_is_found(house: Path) -> None:
    (house / "log" / "reader.py").write_text("def f():\n    from fsspec.core import url_to_fs\n")
    assert users_of("fsspec", house) == {"log.reader"}
