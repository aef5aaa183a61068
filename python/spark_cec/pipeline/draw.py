"""Draws the graph of a pipeline: as DOT, and as a PNG."""

from __future__ import annotations

from pathlib import Path

from spark_cec.pipeline.graph import Graph

_DPI = 100


def to_dot(graph: Graph) -> str:
    """The graph for Graphviz: sinks are boxes, and edges of cycles are dashed."""
    in_cycles = {name for cycle in graph.cycles() for name in cycle}
    lines = [f'digraph "{graph.name}" {{', "  rankdir=LR;"]
    for node in graph.nodes.values():
        shape = "box" if node.is_sink else "ellipse"
        label = f"{node.name}\\npriority {node.priority:g}" if node.is_sink else node.name
        lines.append(f'  "{node.name}" [shape={shape}, label="{label}"];')
    for node in graph.nodes.values():
        for read in dict.fromkeys(node.inputs):
            style = " [style=dashed]" if {read, node.name} <= in_cycles else ""
            lines.append(f'  "{read}" -> "{node.name}"{style};')
    return "\n".join([*lines, "}"])


def layers(graph: Graph) -> dict[str, int]:
    """The column of each flow: one after the last column of its inputs outside its cycle."""
    depth: dict[str, int] = {}
    for members in graph.order():
        outside = {read for name in members for read in graph.nodes[name].inputs} - set(members)
        at = max((depth[read] + 1 for read in outside), default=0)
        for i, name in enumerate(members):
            depth[name] = at + i
    return depth


def save_png(graph: Graph, target: Path) -> None:
    """Draws the graph from left to right. Raises `OSError` if the file cannot be written."""
    from matplotlib.figure import Figure

    depth = layers(graph)
    columns: dict[int, list[str]] = {}
    for name, at in depth.items():
        columns.setdefault(at, []).append(name)
    tallest = max(map(len, columns.values()))
    places = {
        name: (at, (tallest - len(names)) / 2.0 + i) for at, names in columns.items() for i, name in enumerate(names)
    }
    figure = Figure(figsize=(2.4 * len(columns) + 0.5, 0.9 * tallest + 0.8), layout="constrained")
    axes = figure.add_subplot()
    boxes = {}
    for node in graph.nodes.values():
        label = f"{node.name}\npriority {node.priority:g}" if node.is_sink else node.name
        box = {"boxstyle": "square" if node.is_sink else "round", "facecolor": "white"}
        text = axes.text(*places[node.name], label, ha="center", va="center", fontsize="small", bbox=box)
        boxes[node.name] = text.get_bbox_patch()
    for node in graph.nodes.values():
        for read in dict.fromkeys(node.inputs):
            back = depth[read] >= depth[node.name]
            axes.annotate(
                "", xy=places[node.name], xytext=places[read], zorder=0,
                arrowprops={"arrowstyle": "-|>", "mutation_scale": 16, "color": "tab:red" if back else "dimgray",
                            "patchA": boxes[read], "patchB": boxes[node.name], "shrinkA": 1, "shrinkB": 1,
                            "connectionstyle": f"arc3,rad={0.4 if back else 0.0}"},
            )  # fmt: skip
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(tallest - 0.5, -0.5)
    axes.set_axis_off()
    axes.set_title(graph.name)
    figure.savefig(target, dpi=_DPI)
