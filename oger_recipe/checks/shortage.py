"""What a run would lack: teachers where its settings ask for them, prompts for a step, or most of its data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.data.rows import Row, teacher_columns
from oger_recipe.data.train_files import Budget
from oger_recipe.settings.grades import OFF
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.run import SftSettings

_LOST = {
    "teachers_wrong": "wrong",
    "teachers_too_long": "too long",
    "teachers_too_long_to_show": "too long to be shown in a prompt",
    "teachers_ungraded": "not graded",
    "teachers_other_source": "of other sources",
}
_ADVICE = {
    "teachers_wrong": "the verifier rejects them: check oger.task_name, oger.math_rule and oger.math_extract, or set "
    "oger.keep_wrong_teachers",
    "teachers_too_long": "raise rollout.max_new_tokens with data.max_len (and oger.max_prefix_len, if it is set), or "
    "set oger.long_teachers truncate",
    "teachers_too_long_to_show": "raise data.max_len by the tokens of a teacher and of oger.shown_template (and "
    "oger.max_prompt_length, if it is set), or shorten oger.shown_template",
    "teachers_ungraded": "raise oger.grading_time_limit or oger.grading_memory_limit",
    "teachers_other_source": "check oger.teacher_sources",
}


def require_teachers(value: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Raise RecipeError where the settings ask for teachers and no row has one; name columns that may hold them."""
    if not OgerSettings.of(value).needs_teachers or any(row.get("teachers") for row in rows):
        return
    columns = (
        ", ".join(teacher_columns(rows, value["data.input_key"], value["data.label_key"]))
        or "no column looks like one"
    )
    raise RecipeError(
        f"{_asking(value)}, and none of the {len(rows):,} rows of {value['data.prompt_dataset']} has one in its "
        f"column {value['oger.teacher_key']!r}: name the column of your teachers with oger.teacher_key ({columns}), "
        f"or train without them: {_without(value)}"
    )


def require_usable_teachers(value: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    """Raise RecipeError where the settings ask for teachers and none can be used."""
    if OgerSettings.of(value).needs_teachers and not counts.get("teachers"):
        lost = ", ".join(f"{counts[name]:,} {word}" for name, word in _LOST.items() if counts.get(name))
        raise RecipeError(
            f"{_asking(value)}, and none can be used ({lost or 'the remaining prompts have none'}): "
            f"{_advice(counts)}; or train without them: {_without(value)}"
        )


def require_supervised(value: Mapping[str, Any], teachers: int) -> None:
    """Raise RecipeError where teachers do not fill one optimizer step of the supervised training asked for."""
    settings = SftSettings.of(value)
    count = teachers if settings.max_samples is None else min(teachers, settings.max_samples)
    if settings.epochs and count < settings.batch_size:
        raise RecipeError(f"{count} teacher trajectories do not fill one oger.sft.batch_size of {settings.batch_size}")


def require_a_step(value: Mapping[str, Any], prompts: int) -> None:
    """Raise RecipeError where the prompts are fewer than a step takes."""
    batch = value["rollout.batch_size"]
    if prompts < batch:
        raise RecipeError(f"{prompts} prompts do not fill one step of rollout.batch_size {batch}")


def losses(value: Mapping[str, Any], counts: Mapping[str, int], budget: Budget) -> Iterator[str]:
    """Yield a sentence for each kind of data that loses more than half, with the reason and what would change it."""
    left_out = counts.get("prompts_too_long", 0)
    prompts = counts["prompts"] + left_out
    if 2 * left_out > prompts:
        yield (
            f"{left_out:,} of {prompts:,} prompts are left out: they are longer than "
            f"{budget.longest_prompt():,} tokens: {_limit(budget)}"
        )
    lost = {name: counts[name] for name in _LOST if counts.get(name) and name != "teachers_other_source"}
    teachers = counts.get("teachers", 0) + sum(lost.values())
    if 2 * sum(lost.values()) > teachers:
        reasons = ", ".join(f"{count:,} {_LOST[name]}" for name, count in lost.items())
        yield f"{sum(lost.values()):,} of {teachers:,} teachers are left out ({reasons}): {_advice(lost)}"
    without = counts.get("prompts_without_teacher", 0)
    if 2 * without > counts["prompts"] and OgerSettings.of(value).needs_teachers:
        yield f"{without:,} of {counts['prompts']:,} prompts have no teacher: they train as plain GRPO"


def _advice(lost: Mapping[str, int]) -> str:
    """Say what brings most lost teachers back."""
    return _ADVICE[max(_LOST, key=lambda name: lost.get(name, 0))]


def _limit(budget: Budget) -> str:
    if budget.longest_prompt() == budget.max_prompt_length:
        return "raise oger.max_prompt_length"
    if budget.max_new_tokens is None:
        return "raise data.max_len"
    return (
        f"data.max_len {budget.max_len:,} minus {budget.max_new_tokens:,} tokens for the response; raise data.max_len"
    )


def _asking(value: Mapping[str, Any]) -> str:
    return f"the settings ask for teachers ({', '.join(f'{name} {_said(value[name])}' for name in _uses(value))})"


def _without(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {OFF if isinstance(value[name], str) else 0}" for name in _uses(value))


def _said(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _uses(value: Mapping[str, Any]) -> list[str]:
    names = ("oger.max_replace_num", "oger.n_prefix", "oger.hint_share", "oger.sft.epochs")
    oger = OgerSettings.of(value)
    more = {"oger.grader": oger.grades.shows_teachers, "oger.bonus_weight": oger.has_bonus}
    return [name for name in names if value[name]] + [name for name, asks in more.items() if asks]
