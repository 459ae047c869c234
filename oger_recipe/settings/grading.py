"""Settings of the verifiers, and the rules for grading that they make."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import COUNT, POSITIVE
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.grading.rules import EXTRACTIONS, GSM8K_FORMATS, MATH_EXTRACT, MATH_RULES, GradingRules
from oger_recipe.grading.verifiers import VERIFIERS, allow, look_in, resolve, resolved
from oger_recipe.settings.fields import FREE, Section, setting
from oger_recipe.settings.rollouts import RolloutSettings


@dataclass(frozen=True)
class VerifierSettings(Section):
    title: ClassVar[str] = "oger.grading"
    about: ClassVar[str] = "verifiers, where they look for answers, and limits of grading"

    task_name: str | None = setting(
        None, "verifier of rows without a 'task' column: a name or package.module:function"
    )
    math_rule: str = setting("math_verify", "form that a right answer to a math problem must have", choices=MATH_RULES)
    math_extract: tuple[str, ...] = setting(
        MATH_EXTRACT,
        "where to look for a math answer, in order (default: first where the prompt template asks for it)",
        choices=EXTRACTIONS,
    )
    gsm8k_answer_format: str = setting(
        "last_number",
        "where a GSM8K answer is (default: where the prompt template asks for it, else the last number)",
        choices=GSM8K_FORMATS,
    )
    gsm8k_strict_oat: bool = setting(False, "compare GSM8K answers as strings, as OAT does")
    countdown_strict_oat: bool = setting(False, "score Countdown as OAT does, loopholes included")
    verifiers: tuple[str, ...] = setting((), "your own: task=package.module:function")
    allow_task: tuple[str, ...] = setting(
        (), "import paths (package.module:function) that rows may name as their task; no others are imported"
    )
    verifier_path: tuple[str, ...] = setting(
        (), "folders to import your own verifiers from (default: the recipe file's and the working directory)"
    )
    grading_workers: int | None = setting(
        None, "grading processes per engine (default: cores, at most 8)", range=COUNT, resume=FREE
    )
    grading_time_limit: float = setting(
        5.0, "time limit for grading one answer, in seconds", range=POSITIVE, resume=FREE
    )
    grading_memory_limit: int = setting(2048, "memory limit for grading one answer, in MiB", range=COUNT, resume=FREE)

    @property
    def own(self) -> dict[str, str]:
        """The user's verifiers: task -> import path. Raises RecipeError for an entry that is not
        task=module:function."""
        found = {}
        for entry in self.verifiers:
            task, separator, path = entry.partition("=")
            if not separator or not task or ":" not in path:
                raise RecipeError(f"oger.verifiers: {entry!r} is not task=package.module:function")
            found[task] = path
        return found

    @property
    def allowed(self) -> tuple[str, ...]:
        """The import paths that a task may be: those that the user names."""
        named = (*self.own.values(), *self.allow_task, self.task_name or "")
        return tuple(path for path in dict.fromkeys(named) if ":" in path)

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """Keyword arguments of the verifiers by task, where they differ from the verifiers' defaults."""
        own = {task: resolved(path) for task, path in self.own.items()}
        chosen = {task: spec.options for task, spec in (VERIFIERS | own).items() if spec is not None}
        names = {key for keys in chosen.values() for key in keys.values()}
        if unknown := names - {each.name for each in fields(self)}:
            raise RecipeError(
                f"oger.verifiers: options of a TaskSpec that are not settings of grading: {', '.join(unknown)}"
            )
        set_here = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        given = {
            task: {name: getattr(self, key) for name, key in keys.items() if key in set_here}
            for task, keys in chosen.items()
        }
        return {task: keywords for task, keywords in given.items() if keywords}


def grading_rules(settings: Mapping[str, Any], *, evaluation: bool = False) -> GradingRules:
    """Return the rules for grading of a run's settings; in an evaluation OAT's scoring strips responses.

    Raises RecipeError for an entry of oger.verifiers that is not task=module:function.
    """
    from oger_recipe.settings.rewards import RewardSettings  # loads torch, which an import of this module must not

    verifiers, rollouts = VerifierSettings.of(settings), RolloutSettings.of(settings)
    allow(verifiers.allowed)
    template = TEMPLATES.get(rollouts.prompt_template or "")
    return GradingRules(
        verifiers.options,
        verifiers.own,
        template.place if template else None,
        tuple(stop for stop in rollouts.stop_texts if stop not in rollouts.stop_kept),
        evaluation and verifiers.countdown_strict_oat,
        RewardSettings.of(settings).reads_rows and not evaluation,
    )


def grading_problems(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps the verifiers from grading by these settings, in whichever command."""
    yield from answer_places(value)
    verifiers = VerifierSettings.of(value)
    if not verifiers.math_extract:
        yield "oger.math_extract is empty: name the places to look for a math answer, e.g. boxed"
    try:
        own = verifiers.own
    except RecipeError as error:
        yield str(error)
        return
    look_in(verifiers.verifier_path)
    allow(verifiers.allowed)
    named = [("oger.verifiers", path) for path in own.values()]
    named += [("oger.allow_task", path) for path in verifiers.allow_task]
    if verifiers.task_name is not None:
        named.append(("oger.task_name", own.get(verifiers.task_name, verifiers.task_name)))
    said: set[str] = set()
    for key, name in named:
        if name not in VERIFIERS:
            try:
                resolve(name)
            except ValueError as error:
                reason = repr(error.__cause__ or error)  # a mistake in a file fails all its verifiers
                if reason not in said:
                    yield f"{key}: {error}"
                said.add(reason)
    try:
        _ = verifiers.options
    except RecipeError as error:
        yield str(error)


def answer_places(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps verifiers from finding the answer where the prompt template asks for it."""
    verifiers, rollouts = VerifierSettings.of(value), RolloutSettings.of(value)
    name, rule, extract = rollouts.prompt_template, verifiers.math_rule, verifiers.math_extract
    template, reads = TEMPLATES.get(name or ""), MATH_RULES[rule]
    place = template.place if template else None
    for stop in rollouts.stop:
        if stop.strip() in ("</think>", "<answer>", "\\boxed{"):
            yield f"oger.stop {stop.strip()} ends a response before its answer: stop after it, e.g. at </answer>"
    if place == "answer_tag" and reads.boxed_only:
        yield (
            f"oger.math_rule {rule} reads only boxes, but oger.prompt_template {name} asks for <answer>: use "
            "math_verify or math_verify_think, or a template that asks for a box (qwen_math, qwen3, r1_distill)"
        )
    if template and template.thinks is False and reads.needs_think:
        yield (
            f"oger.math_rule {rule} reads what follows </think>, and oger.prompt_template {name} asks for no thought: "
            "use math_verify or deepscaler_no_think, or a template with a thought (r1, qwen3, r1_distill, tinyzero)"
        )
    if place and extract != MATH_EXTRACT and place not in extract:
        yield (
            f"oger.math_extract {' '.join(extract)} does not look where oger.prompt_template {name} asks for the "
            f"answer: put {place} first, or leave it out"
        )
    if place == "boxed" and verifiers.countdown_strict_oat:
        yield f"oger.countdown_strict_oat reads <answer>, and oger.prompt_template {name} asks for a box: use tinyzero"
    if place and verifiers.gsm8k_answer_format == "hashes":
        yield (
            f"oger.gsm8k_answer_format hashes looks behind ####, and oger.prompt_template {name} asks for the answer "
            f"elsewhere: use {place}, or leave it out"
        )
