"""The graph of a pipeline: how it is declared, what is wrong with one, and how it is shown."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.draw import layers, to_dot
from spark_cec.pipeline.graph import (
    Graph,
    GraphError,
    Node,
    Part,
    check_graph,
    check_recorded,
    choose_flows,
    to_json,
)
from spark_cec.pipeline.load import NoPipeline, load_pipeline
from spark_cec.pipeline_commands.app import make_app

SHOP = """
from spark_cec.pipeline import Pipeline

shop = Pipeline("shop", home="/data/shop/")

@shop.flow
def bids(spark): ...

@shop.flow(partitions=4, trigger={"processingTime": "1 second"}, output_mode="update")
def per_minute(bids): ...

@shop.flow(kept=True)
def joined(bids, per_minute, spark): ...

@shop.sink(priority=5)
def alerts(per_minute): ...

if __name__ == "__main__":
    raise SystemExit("this must not run")
"""


def graph_of(**inputs: str) -> Graph:
    """`c="a b"` reads a and b; a name in capitals is a sink."""
    return Graph("p", {name: Node(name, tuple(read.split()), name.isupper()) for name, read in inputs.items()})


def complaints(graph: Graph, **options: Any) -> list[str]:
    with pytest.raises(GraphError) as found:
        check_graph(graph, **options)
    return list(found.value.complaints)


def test_parameters_are_inputs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    shop = load_pipeline(str(tmp_path / "shop.py"))
    graph = shop.graph()
    assert {name: node.inputs for name, node in graph.nodes.items()} == {
        "bids": (), "per_minute": ("bids",), "joined": ("bids", "per_minute"), "alerts": ("per_minute",),
    }  # fmt: skip
    assert shop.home == "/data/shop"
    assert shop.flows["joined"].parameters == ("bids", "per_minute", "spark")
    assert (shop.flows["per_minute"].partitions, shop.flows["per_minute"].output_mode) == (4, "update")
    (query,) = graph.queries()
    assert (query.name, query.priority) == ("alerts", 5.0)
    assert query.flows == {"bids", "per_minute", "alerts"}
    assert graph.downstream("bids") == {"bids", "per_minute", "joined", "alerts"}


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (graph_of(), ["it has no flow"]),
        (graph_of(bids="", S="bid"), ["reads bid, which is no flow: did you mean bids?", "no flow reads flow bids"]),
        (graph_of(a="", SINK="zzz"), ["reads zzz, which is no flow: there are a", "no flow reads flow a"]),
        (graph_of(a="", S="a", T="S"), ["S is a sink, whose rows leave the pipeline, and is read by T"]),
        (graph_of(a="a"), ["no flow reads flow a"]),
    ],
)
def test_what_is_wrong_is_said_all_at_once(graph: Graph, says: list[str]) -> None:
    found = complaints(graph)
    assert len(found) == len(says)
    assert all(part in each for part, each in zip(says, found, strict=True))


def test_cycles_are_allowed_named_and_may_be_forbidden() -> None:
    graph = graph_of(edges="", paths="edges paths", a="edges b", b="a", S="paths b")
    check_graph(graph)
    assert graph.cycles() == [("paths",), ("a", "b")]
    assert complaints(graph, cycles=False) == [
        "paths feed itself, and cycles=False forbids that", "a and b feed one another, and cycles=False forbids that",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_order_and_cycles_by_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"f{i}" for i in range(rng.randint(1, 14))]
    reads = {name: rng.sample(names, rng.randint(0, min(3, len(names)))) for name in names}
    graph = Graph("p", {name: Node(name, tuple(read)) for name, read in reads.items()})
    fed = {name: {name} for name in names}
    for _ in names:
        for name in names:
            fed[name] = fed[name].union(*(fed[read] for read in reads[name]))
    order = graph.order()
    knots = {frozenset(other for other in names if other in fed[name] and name in fed[other]) for name in names}
    assert {frozenset(each) for each in order} == knots, f"seed {seed}"
    place = {name: i for i, members in enumerate(order) for name in members}
    assert all(place[read] <= place[name] for name, each in reads.items() for read in each), f"seed {seed}"
    cycles = {knot for knot in knots if len(knot) > 1 or any(name in reads[name] for name in knot)}
    assert {frozenset(each) for each in graph.cycles()} == cycles, f"seed {seed}"
    for name in names:
        assert graph.upstream(name) == fed[name], f"seed {seed}"
        assert graph.downstream(name) == {other for other in names if name in fed[other]}, f"seed {seed}"
    assert set(layers(graph)) == set(names)


def test_a_long_chain_is_no_recursion() -> None:
    names = [f"f{i}" for i in range(20_000)]
    chain = {name: Node(name, (names[i - 1],) if i else ()) for i, name in enumerate(names)}
    assert [members[0] for members in Graph("p", dict(reversed(chain.items()))).order()] == names


def test_a_graph_that_was_recorded_may_grow_but_not_change() -> None:
    recorded = json.loads(json.dumps(to_json(graph_of(a="", b="a", S="b"))))
    assert check_recorded(graph_of(a="", b="a", c="a", S="b", T="c"), recorded, "/home") == ["c", "T"]
    with pytest.raises(GraphError) as found:
        check_recorded(graph_of(a="", b="", S="b"), recorded, "/home")
    assert list(found.value.complaints) == [
        (
            "b was rewired, from a flow of a to a flow of a source: give the new one another name, or delete "
            "/home/flows/b to begin it anew (and the folders of the flows that read it, because they have read the old "
            "channel, with the files that sinks among them have written)"
        )
    ]
    with pytest.raises(
        GraphError,
        match=r"sink S was removed: bring it back \(if its function was renamed, declare @sink\(name='S'\)\), or "
        r"delete /home/flows/S, with .* and the files that it has written",
    ):
        check_recorded(graph_of(a="", b="a"), recorded, "/home")
    with pytest.raises(GraphError, match="is the home of pipeline p: give each a home of its own"):
        check_recorded(Graph("q", {}), recorded, "/home")


def test_in_replicas_no_flow_is_to_begin_anew() -> None:
    """Sinks would go on with the old channel of the other replica, and the old agreements would stay."""
    recorded = json.loads(json.dumps(to_json(graph_of(web="", b="web", S="b"))))
    home, base = "/home/replicas/a", "/home"

    def refused(graph: Graph, recorded: dict[str, Any] = recorded) -> str:
        with pytest.raises(GraphError) as found:
            check_recorded(graph, recorded, home, base=base)
        return "; ".join(found.value.complaints)

    assert refused(graph_of(web="", b="", S="b")).endswith("to a flow of a source: give the new one another name")
    assert refused(graph_of(web="", b="web", S="web")).endswith("to a sink of web: give the new one another name")
    many = json.loads(json.dumps(to_json(in_instances().graph())))
    of_count, of_sink = refused(in_instances(4).graph(), many).split("; out was rewired")
    assert of_count.endswith("go back to 3, or give it another name") and "delete" not in of_sink
    assert refused(in_instances(3, {"bids": "other"}).graph(), many).endswith("give the flow another name")
    unwanted = "if you no longer want its rows"
    assert f"delete {home}/flows/web, with its checkpoint and its channel, and /home/agreed/web, {unwanted}" in refused(
        graph_of(b="", S="b")
    )
    assert f"delete {home}/flows/b, with its checkpoint and its channel, {unwanted}" in refused(
        graph_of(web="", S="web")
    )
    gone = refused(graph_of(web="", b="web"))
    assert "delete /home/sinks/S, with its checkpoint and its channel, and the files that it has written" in gone


def test_what_was_deleted_as_told_is_not_asked_for_again() -> None:
    recorded = json.loads(json.dumps(to_json(graph_of(a="", b="a", S="b"))))
    assert check_recorded(graph_of(a="", b="a"), recorded, "/home", lambda name: name == "S") == []
    assert check_recorded(graph_of(a="", b="", S="b"), recorded, "/home", lambda name: name == "b") == []


def test_what_cannot_be_declared() -> None:
    made = Pipeline("p", "/home")

    @made.flow
    def a(spark: object) -> None: ...

    def many(*flows: object) -> None: ...

    def nothing() -> None: ...

    def reads(a: object, option: int = 3) -> None: ...

    for declare, says in (
        (lambda: made.flow(a), "two flows of the name a"),
        (lambda: made.flow(name="x y")(reads), "'x y' cannot be a name"),
        (lambda: made.flow(name="spark")(reads), "'spark' cannot be a name"),
        (lambda: made.flow(many), r"many has the parameter \*flows: name each"),
        (lambda: made.flow(nothing), "flow nothing has no parameter"),
        (lambda: made.sink(nothing), "sink nothing reads no flow"),
        (lambda: made.sink(priority=0)(reads), "priority=0: give a number above 0"),
        (lambda: made.flow(partitions=0)(reads), "partitions=0: give 1 or more"),
        (lambda: made.flow(reads={"path": "x"})(reads), "of a read are failOnDataLoss, maxBatchesPerTrigger, maxRows"),
        (lambda: Pipeline("a/b", "/home"), "'a/b' cannot be a name"),
    ):
        with pytest.raises(GraphError, match=says):
            declare()
    assert list(made.flows) == ["a"]
    made.sink(reads)
    assert made.flows["reads"].node.inputs == ("a",)


def in_instances(count: int = 3, key: Any = "k") -> Pipeline:
    made = Pipeline("p", "/home")

    @made.flow
    def bids(spark: Any) -> None: ...

    @made.flow(instances=count, key=key)
    def counts(bids: Any) -> None: ...

    @made.sink
    def out(counts: Any, bids: Any) -> None: ...

    return made


def test_a_flow_in_instances_is_as_many() -> None:
    graph = in_instances().graph()
    assert list(graph.nodes) == ["bids", "counts-1-of-3", "counts-2-of-3", "counts-3-of-3", "out"]
    assert graph.nodes["out"].inputs == ("counts-1-of-3", "counts-2-of-3", "counts-3-of-3", "bids")
    assert graph.readers("bids") == ("counts-1-of-3", "counts-2-of-3", "counts-3-of-3", "out")
    flow = in_instances().flows["counts-2-of-3"]
    assert flow.node.part == Part("counts", 2, 3, "bids.k")
    assert [flow.list_channels(each) for each in flow.parameters] == [("bids",)]
    assert in_instances().flows["out"].list_channels("counts") == graph.nodes["out"].inputs[:3]
    assert list(in_instances(1, None).graph().nodes) == ["bids", "counts", "out"]
    assert choose_flows(graph, ["counts", "out"]) == {"counts-1-of-3", "counts-2-of-3", "counts-3-of-3", "out"}
    assert choose_flows(graph, ["counts-2-of-3"]) == {"counts-2-of-3"}
    with pytest.raises(GraphError, match="there is no flow count: did you mean counts"):
        choose_flows(graph, ["count"])


@pytest.mark.parametrize(
    ("count", "key", "says"),
    [
        (0, "k", "counts has instances=0: give 1 or more"),
        (2, None, r"counts runs in 2 instances: give the column .*, key='column', or .*, key={'bids': \.\.\.}"),
        (2, {"bid": "k"}, "counts runs in 2 instances: give the column"),
    ],
)
def test_instances_that_cannot_be(count: int, key: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        in_instances(count, key)


@pytest.mark.parametrize("first", ["counts", "counts-2-of-3"])
def test_names_of_instances_are_taken(first: str) -> None:
    made = Pipeline("p", "/home")
    both = {"counts": {"instances": 3, "key": "k"}, "counts-2-of-3": {}}
    for name in sorted(both, reverse=first != "counts"):
        declare = made.flow(name=name, **both[name])  # type: ignore[call-overload]
        if name == first:
            declare(lambda bids: None)
    with pytest.raises(GraphError, match="an instance and a flow are both called counts-2-of-3"):
        declare(lambda bids: None)
    with pytest.raises(GraphError, match="cannot be a name"):
        made.flow(name="n" * 100, instances=2, key="k")(lambda bids: None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keept": True}, r"@flow\(keept=\.\.\.\): there is no such option; did you mean kept"),
        ({"priority": 2}, r"@flow\(priority=\.\.\.\): there is no such option; "),
        ({"output_mode": "appnd"}, "counts has output_mode='appnd': give append, update or complete"),
        ({"trigger": "2 seconds"}, r"counts has trigger='2 seconds': give a trigger of Spark, {'processingTime': "),
        ({"trigger": {"processing_time": "2 seconds"}}, r"counts has trigger={'processing_time': .*: give a trigger"),
        ({"trigger": {"processingTime": "two seconds"}}, "give an interval such as '10 seconds'"),
        ({"reads": {"maxRowsPerTrigger": "many"}}, "'maxRowsPerTrigger': 'many'}: give a whole number from 1 on"),
        ({"reads": {"maxRows": "1"}}, "the options of a read are failOnDataLoss, maxBatchesPerTrigger, maxRowsPer"),
        ({"reads": {"failOnDataLoss": "no"}}, "give 'true' or 'false'"),
        ({"conf": ["a"]}, r"counts has conf=\['a'\]: give a dict"),
        ({"conf": {"spark.sql.streaming.stateStore.cec.Qq": "1"}}, "a wrong Spark CEC setting in conf: .*Qq.*did you"),
        ({"partitions": "two"}, "counts has partitions='two': give 1 or more"),
    ],
)
def test_options_that_are_wrong_are_found_before_anything_starts(options: dict[str, Any], says: str) -> None:
    made = Pipeline("p", "/home")
    with pytest.raises(GraphError, match=says):
        made.flow(name="counts", **options)(lambda bids: None)
    with pytest.raises(GraphError, match=r"@sink\(kept=\.\.\.\): there is no such option"):
        made.sink(name="out", kept=True)(lambda bids: None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options",
    [
        {"trigger": {"processingTime": "10 seconds"}}, {"trigger": {"processingTime": "1 minute 30 seconds"}},
        {"trigger": {"processingTime": "interval 500 milliseconds"}}, {"trigger": {"availableNow": True}},
        {"trigger": {"processingTime": "0 seconds"}}, {"reads": {"maxRowsPerTrigger": 7, "failOnDataLoss": False}},
        {"conf": {"spark.sql.shuffle.partitions": 3}, "output_mode": "complete"},
        {"conf": {"spark.sql.streaming.stateStore.cec.CI": "9h"}},
    ],
)  # fmt: skip
def test_options_that_are_fine(options: dict[str, Any]) -> None:
    Pipeline("p", "/home").flow(name="counts", **options)(lambda bids: None)


def test_a_source_has_one_instance() -> None:
    made = Pipeline("p", "/home")
    with pytest.raises(GraphError, match="bids reads a source, so it cannot run in instances: let another flow"):
        made.flow(name="bids", instances=2, key="k")(lambda spark: None)


def test_other_instances_or_another_key_are_refused() -> None:
    """The rows of a key would be in two of them."""
    recorded = json.loads(json.dumps(to_json(in_instances().graph())))
    assert check_recorded(in_instances().graph(), recorded, "/home") == []
    with pytest.raises(GraphError) as found:
        check_recorded(in_instances(4).graph(), recorded, "/home")
    assert found.value.complaints[0].startswith("flow counts ran in 3 instances, and is to run in 4 instances: the")
    assert "out was rewired" in found.value.complaints[1]
    with pytest.raises(GraphError, match=r"flow counts ran in 3 instances, and is to run in one instance"):
        check_recorded(in_instances(1).graph(), recorded, "/home")
    alone = json.loads(json.dumps(to_json(in_instances(1).graph())))
    with pytest.raises(GraphError, match=r"flow counts ran in one instance, and is to run in 3 instances"):
        check_recorded(in_instances(3).graph(), alone, "/home")
    with pytest.raises(GraphError, match=r"counts-1-of-3 took its rows by bids\.k, and now by bids\.other"):
        check_recorded(in_instances(3, {"bids": "other"}).graph(), recorded, "/home")


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(SHOP)

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(make_app(), ["graph", *arguments])
        return result.exit_code, result.stdout, result.stderr

    code, out, _ = run(str(file))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["flow", "bids", "per_minute", "joined", "alerts"]
    assert "from outside" in out
    assert json.loads(run(str(file), "--json")[1])["flows"]["alerts"]["inputs"] == ["per_minute"]
    code, out, _ = run(f"{file}:shop", "--dot", "--png", str(tmp_path / "shop.png"))
    assert '"per_minute" -> "alerts";' in out and out == to_dot(load_pipeline(str(file)).graph()) + "\n"
    assert (tmp_path / "shop.png").read_bytes()[:4] == b"\x89PNG"
    file.write_text(SHOP.replace("def alerts(per_minute)", "def alerts(per_minutes)"))
    code, out, errors = run(str(file))
    assert (code, out) == (1, "") and "did you mean per_minute?" in errors


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (None, "nowhere.py", "no such file"), ("a = 1", "f.py", "has no Pipeline"),
        ("a = 1\nb = a / 0", "f.py", "f.py cannot be run: line 2: ZeroDivisionError: division by zero"),
        ("def a(:\n  pass", "f.py", "f.py cannot be run: line 1: invalid syntax"),
        ("from spark_cec.pipeline import Pipeline\np = Pipeline('a')", "f.py", "line 2: TypeError: .*missing .*home"),
        ("from spark_cec import Pipelines", "f.py", "line 1: ImportError: cannot import name 'Pipelines'"),
        (SHOP, "f.py:shp", "did you mean shop?"), (SHOP + "\nother = Pipeline('o', '/o')", "f.py", "several pipelines"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_say_which_pipeline(tmp_path: Path, text: str | None, place: str, says: str) -> None:
    if text is not None:
        (tmp_path / "f.py").write_text(text)
    with pytest.raises(NoPipeline, match=says.replace("?", r"\?")):
        load_pipeline(f"{tmp_path}/{place}")
