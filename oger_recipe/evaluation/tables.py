"""The figures of an evaluation as a Markdown table."""

from __future__ import annotations

from typing import Any

from oger_recipe.evaluation.metrics import powers_up_to

Figures = dict[str, Any]


def markdown_table(result: dict[str, Any]) -> str:
    """A table of what `evaluate_answers` returns: one row a benchmark, the average last, and notes where needed.

    Scores are percentages, avg@n with its 95 % interval. Of the pass@k curve at most three k of each n are shown.
    """
    rows = [*result["benchmarks"].items(), ("average", result["average"])]
    ks = sorted({k for _, figures in rows for k in _shown_ks(figures.get("n"))})
    header = ["benchmark", "problems", "n", "avg@n", *(f"pass@{k}" for k in ks)]
    header += ["maj@n", "length", "truncated", "format"]
    cells = [_row(name, figures, ks) for name, figures in rows]
    used = [column for column in range(len(header)) if any(row[column] for row in cells)]
    lines = [header, ["---", *["---:"] * len(header)], *cells]
    table = "\n".join("| " + " | ".join(line[column] for column in used) + " |" for line in lines)
    return "\n".join([table, "", *_notes(result), ""])


def _shown_ks(n: int | None) -> list[int]:
    """All but 1 where they are few, else every second one, counted from n: 2, 8, 32. (pass@1 is avg@n.)"""
    ks = [k for k in powers_up_to(n or 1) if k > 1]
    return ks if len(ks) <= 3 else ks[::-2][:3]


def _row(name: str, figures: Figures, ks: list[int]) -> list[str]:
    n = figures.get("n")
    return [
        name,
        str(figures["problems"]),
        "" if n is None else str(n),
        _percent(figures, f"avg_at_{n or 'n'}", interval=True),
        *(_percent(figures, f"pass_at_{k}") for k in ks),
        _percent(figures, f"maj_at_{n}"),
        f"{figures['response_length']:.0f}",
        _percent(figures, "truncated"),
        _percent(figures, "format"),
    ]


def _percent(figures: Figures, key: str, *, interval: bool = False) -> str:
    if key not in figures:
        return ""
    text = f"{100 * figures[key]:.1f}"
    if interval:
        low, high = figures[f"{key}_interval"]
        text += f" [{100 * low:.1f}, {100 * high:.1f}]"
    return text


def _notes(result: dict[str, Any]) -> list[str]:
    notes = [
        "Scores in %, avg@n with its 95 % bootstrap interval over problems; the average gives every benchmark the "
        "same weight; length is the mean number of tokens of a response."
    ]
    for name, figures in result["benchmarks"].items():
        if figures["no_room"]:
            notes.append(
                f"{name}: {figures['no_room']} of {figures['problems']} problems do not fit into the model's context "
                "and count as unsolved."
            )
        if figures["ungraded"]:
            notes.append(f"{name}: the grader failed on {figures['ungraded']} answers, which count as wrong.")
    return notes
