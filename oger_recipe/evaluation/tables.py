"""The metrics of an evaluation as a Markdown table, and those of two as lines of text."""

from __future__ import annotations

from typing import Any

from oger_recipe.evaluation.metrics import powers_up_to

Metrics = dict[str, Any]


def markdown_table(result: dict[str, Any]) -> str:
    """Write what `evaluate_answers` returns as a table: one row a benchmark, the average last, and notes if needed.

    Scores are percentages, avg@n with its 95 % interval; distinct@n is a number of solutions. Of the pass@k
    curve at most three k of each n are shown.
    """
    rows = [*result["benchmarks"].items(), ("average", result["average"])]
    ks = sorted({k for _, metrics in rows for k in _shown_ks(metrics.get("n"))})
    header = ["benchmark", "problems", "n", "avg@n", *(f"pass@{k}" for k in ks)]
    header += ["maj@n", "distinct@n", "length", "truncated", "format"]
    cells = [_row(name, metrics, ks) for name, metrics in rows]
    used = [column for column in range(len(header)) if any(row[column] for row in cells)]
    lines = [header, ["---", *["---:"] * len(header)], *cells]
    table = "\n".join("| " + " | ".join(line[column] for column in used) + " |" for line in lines)
    return "\n".join([table, "", *_notes(result), ""])


def ungraded(result: dict[str, Any]) -> list[str]:
    """Return the names of the benchmarks of which no answer could be graded."""
    return [name for name, each in result["benchmarks"].items() if each["ungraded"] == each["problems"] * each["n"]]


def headlines(result: dict[str, Any]) -> dict[str, Metrics]:
    """Pick the main metrics of `evaluate_answers`, by benchmark: problems, n, and `main_metrics` with their
    intervals. With several benchmarks, ``average`` is the last."""
    rows = dict(result["benchmarks"])
    if len(rows) > 1:
        rows["average"] = result["average"]
    return {name: _headline(metrics) for name, metrics in rows.items()}


def _headline(metrics: Metrics) -> Metrics:
    names = [name for key in main_metrics(metrics.get("n")) for name in (key, f"{key}_interval")]
    return {name: metrics[name] for name in ("problems", "n", *names) if name in metrics}


def main_metrics(n: int | None) -> list[str]:
    """Return the keys of avg@n, pass@n, maj@n, distinct@n. n: None for an average over benchmarks whose n differ."""
    if n is None:
        return ["avg_at_n"]
    return [f"avg_at_{n}"] + ([f"pass_at_{n}", f"maj_at_{n}", f"distinct_at_{n}"] if n > 1 else [])


def is_share(metric: str) -> bool:
    """Say whether a metric of `main_metrics` is a share of right answers, and no number of solutions."""
    return not metric.startswith("distinct_at_")


def comparison(moments: dict[str, dict[str, Metrics]]) -> str:
    """Write headlines by benchmark as lines of text: a column for each moment, and the difference of two."""
    lines = [["", "", *moments, "difference"]]
    for name in dict.fromkeys(name for benchmarks in moments.values() for name in benchmarks):
        of_name = [benchmarks.get(name, {}) for benchmarks in moments.values()]
        lines += _comparison_rows(name, of_name)
    if len(moments) != 2:
        lines = [line[:-1] for line in lines]
    return aligned(lines)


def aligned(lines: list[list[str]]) -> str:
    """Write rows of cells as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def _comparison_rows(name: str, of_moments: list[Metrics]) -> list[list[str]]:
    """Make a row for each metric, empty at a moment that lacks it."""
    rows: list[list[str]] = []
    for metric in dict.fromkeys(key for metrics in of_moments if metrics for key in main_metrics(metrics.get("n"))):
        values = [metrics[metric] for metrics in of_moments if metric in metrics]
        if values:
            difference = f"{values[1] - values[0]:+.3f}" if len(values) == 2 else ""
            cells = [share(metrics, metric) for metrics in of_moments]
            rows.append([name if not rows else "", metric_name(metric), *cells, difference])
    return rows


def metric_name(metric: str) -> str:
    """Return a metric's name as people write it: avg_at_8 is avg@8."""
    return metric.replace("_at_", "@")


def share(metrics: Metrics, metric: str) -> str:
    """Write the score with its interval, as progress lines have it; empty where there is none."""
    if metric not in metrics:
        return ""
    low, high = metrics[f"{metric}_interval"]
    return f"{metrics[metric]:.3f} [{low:.3f}, {high:.3f}]"


def _shown_ks(n: int | None) -> list[int]:
    """Pick all k but 1 where they are few, else every second one, counted from n: 2, 8, 32. (pass@1 is avg@n.)"""
    ks = [k for k in powers_up_to(n or 1) if k > 1]
    return ks if len(ks) <= 3 else ks[::-2][:3]


def _row(name: str, metrics: Metrics, ks: list[int]) -> list[str]:
    n = metrics.get("n")
    return [
        name,
        str(metrics["problems"]),
        "" if n is None else str(n),
        _percent(metrics, f"avg_at_{n or 'n'}", interval=True),
        *(_percent(metrics, f"pass_at_{k}") for k in ks),
        _percent(metrics, f"maj_at_{n}"),
        f"{metrics[distinct]:.2f}" if (distinct := f"distinct_at_{n}") in metrics else "",
        f"{metrics['response_length']:.0f}",
        _percent(metrics, "truncated"),
        _percent(metrics, "format"),
    ]


def _percent(metrics: Metrics, key: str, *, interval: bool = False) -> str:
    if key not in metrics:
        return ""
    text = f"{100 * metrics[key]:.1f}"
    if interval:
        low, high = metrics[f"{key}_interval"]
        text += f" [{100 * low:.1f}, {100 * high:.1f}]"
    return text


def _notes(result: dict[str, Any]) -> list[str]:
    notes = [
        "Scores are in %, avg@n with its 95 % bootstrap interval over problems. The average gives every benchmark the "
        "same weight. Length is the mean number of tokens in a response."
    ]
    for name, metrics in result["benchmarks"].items():
        if metrics["no_room"]:
            notes.append(
                f"{name}: {metrics['no_room']} of {metrics['problems']} problems do not fit into the model's context "
                "and count as unsolved."
            )
        if metrics["ungraded"]:
            notes.append(f"{name}: {metrics['ungraded']} answers could not be graded and count as wrong.")
    return notes
