"""docs/metrics.md: ``python -m oger_recipe.report.metric_page > docs/metrics.md`` writes it anew."""

from collections.abc import Iterable, Iterator

from oger_recipe.report.metric_table import FIRST, GROUPS, TABLE, Metric

_HEAD = """\
# Metrics

Written by `python -m oger_recipe.report.metric_page > docs/metrics.md`, from `oger_recipe/report/metric_table.py`.

Every step appends a line to the run folder's `metrics.jsonl`; evaluations are in `eval/`. Trackers get the same names
behind `train/` and `eval/` ([running.md](running.md#trackers)). A part in braces varies: `reward/{source}` is
`reward/rule` for the source of that name, and `eval_{benchmark}_avg_at_{n}` is `eval_math500_avg_at_4`. What does not
apply to a recipe is not written, or is 0; what could not be measured is `nan`.

A range is a reason to look, not a verdict. Those marked as a rule of thumb come from practice and depend on the task;
the others are limits that the run itself checks, or follow from what the number is. Where there is no range, compare
with the first steps of the same run.
"""


def page() -> str:
    by_name = {each.name: each for each in TABLE}
    first = [by_name[name] for name in FIRST]
    parts = [_HEAD, "## The ten to look at first\n", *_table(first)]
    for group in GROUPS:
        parts += [f"## {group.capitalize()}\n", *_table(each for each in TABLE if each.group == group)]
    return "\n".join(parts)


def _table(metrics: Iterable[Metric]) -> Iterator[str]:
    yield "| metric | unit | what it is | over | healthy | outside of it |\n|---|---|---|---|---|---|"
    for each in metrics:
        meaning = f"**{each.title[0].upper()}{each.title[1:]}.** {each.meaning}"
        cells = (f"`{each.name}`", each.unit, meaning, each.rows, each.healthy_text, each.advice)
        yield "| " + " | ".join(cell.replace("|", r"\|").replace("<", "&lt;") for cell in cells) + " |"
    yield ""


if __name__ == "__main__":
    print(page(), end="")
