"""Remarks on settings that work but are easily not meant, printed before a run."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oger_recipe.algorithm.credit import STEP_ESTIMATORS, equal_rewards_teach
from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS
from oger_recipe.checks.grades import longest_shown
from oger_recipe.checks.machine import gpus_by_role
from oger_recipe.grading.verifiers import VERIFIERS
from oger_recipe.rewards.kinds import kind_of
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.rewards.spec import Keys
from oger_recipe.settings.fields import either
from oger_recipe.settings.oger import RULES, OgerSettings
from oger_recipe.settings.run import EvalSettings


def notes(value: Mapping[str, Any], default: Callable[[str], Any]) -> list[str]:
    """Return the remarks on ``value``, the settings by flag; ``default`` gives the default of a flag."""
    remarks = list(without_effect(value, default))
    oger = OgerSettings.of(value)
    bonus, shaping = oger.bonus, oger.bonus.similarity_shaping
    earns = oger.has_bonus and ALL_CORRECT_GROUPS[oger.teachers.all_correct_group].bonus
    if shaping in ("group_minmax", "group_rank") and earns:
        weight = max(bonus.bonus_weight, bonus.bonus_weight_end)
        remarks.append(
            f"oger.similarity_shaping {shaping} spreads the bonus of a group's right rollouts over 0 to {weight:g}, "
            "so in solved groups the least divergent of them are pushed down; lower oger.bonus_weight to "
            "weaken that, or set oger.all_correct_group skip to avoid it"
        )
    if value["ckpt.save_steps"] == -1 and not value["ckpt.disable_ds"]:
        remarks.append("ckpt.save_steps -1 saves only the last step: a run that ends early must start over")
    evaluates = value["eval.steps"] > 0 and math.isfinite(value["eval.steps"])
    if value["ckpt.save_steps"] == -1 and evaluates and not value["ckpt.disable_ds"]:
        if value["ckpt.best_metric_key"] != "none" and (value["eval.dataset"] or value["oger.task.name"]):
            remarks.append(
                "even with ckpt.save_steps -1 each new best evaluation writes a checkpoint with optimizer "
                "states, about 7 "
                "times the policy's weights, and as much again for a critic; --ckpt.disable_ds --ckpt.save_hf saves "
                "only the policy's weights (no run can resume from them), --ckpt.best_metric_key none saves no best"
            )
    if value["algo.kl.init_coef"] > 0:
        gpus = gpus_by_role(value).get("reference")
        where = f"takes {gpus} GPUs" if gpus else "shares the policy's GPUs"
        remarks.append(f"KL is on (algo.kl.init_coef {value['algo.kl.init_coef']}): a reference model {where}")
    samples = value["eval.n_samples_per_prompt"]
    evaluated = value["eval.dataset"] or value["oger.task.name"]
    if samples > 1 and evaluated and EvalSettings.of(value).is_greedy(value["eval.temperature"]):
        remarks.append(
            "evaluation is greedy (eval.temperature 0 or oger.eval.top_k 1), which gives the same answer every time, "
            f"so one sample is drawn, not eval.n_samples_per_prompt {samples}, and avg@1 is reported"
        )
    remarks += [*_of_steps(value, oger), *_of_worst(value, oger), *_of_filter(value, oger), *_of_grades(value, oger)]
    remarks += _of_answers(value, oger)
    if value["rollout.top_p"] < 1 or value["oger.top_k"] > 0:
        remarks.append(
            "rollouts are sampled from a part of the vocabulary (rollout.top_p, oger.top_k), but the policy's "
            "log-probabilities are over all of it"
        )
    return remarks


def _of_worst(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield a remark on sources whose worst value is not known; the recipe has passed its checks."""
    unknown = [spec.name for spec in sources_of(oger.reward.sources) if spec.learns_lowest]
    if unknown:
        yield (
            f"oger.reward.sources: the lowest value of {', '.join(unknown)} is unknown, so a response that is too "
            "long or makes the source fail gets the worst value of the run so far, never more than 0; set the "
            "key worst to change that"
        )


def _of_answers(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    task = VERIFIERS.get(value["oger.task_name"] or "")
    for entry in oger.reward.sources if task is not None and task.names_solutions is False else ():
        if entry.get("kind") == "uniqueness" and entry.get("by") == "answer":
            yield (
                f"oger.reward.sources: {entry['name']!r} tells right rollouts apart by their answers, and a problem "
                f"of {value['oger.task_name']} has one right answer: only its spellings would be paid"
            )


def _of_steps(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    steps = oger.steps
    if oger.cuts_steps(value["algo.advantage.estimator"]) and not steps.cuts:
        yield ("every response is one step of reasoning: set delimiters or max_step_tokens of oger.steps to cut it")
    for name, texts in (("delimiters", steps.delimiters), ("last_step_text", (steps.last_step_text or "",))):
        if any("\\n" in text for text in texts):
            yield (
                f"oger.steps.{name} has a backslash and an n, not a newline: write it in double quotes in a recipe "
                "file, and in a JSON list on the command line"
            )
    if steps.sample_by_step and not value["vllm.enable_prefix_caching"]:
        yield (
            "oger.steps.sample_by_step sends the prompt and all earlier steps with every request: set "
            "vllm.enable_prefix_caching, or the engine computes them again for each step"
        )


def _of_grades(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield a remark where rows that show a grader its teacher may be longer than a dynamic batch."""
    longest, flag = longest_shown(value, oger), "rollout.max_tokens_per_gpu"
    if value[flag] is None:
        flag = "train.max_tokens_per_gpu"
    if oger.grades.shows_teachers and value["train.dynamic_batch_enable"] and longest > value[flag]:
        yield (
            f"rows of grades may have {longest:,} tokens (data.max_len and a shown teacher), more than {flag} "
            f"{value[flag]:,}: a longer one is a batch of its own, and takes the memory of its length; raise it, or "
            "lower oger.max_prefix_len"
        )


def without_effect(value: Mapping[str, Any], default: Callable[[str], Any]) -> Iterator[str]:
    """Yield a sentence for every flag of ``value`` that is not at its default and changes nothing, and for a bonus
    that is listed and adds nothing."""
    oger = OgerSettings.of(value)
    for flag, rules in RULES.items():
        missing = next((need for need in rules.needs if not need.holds(oger, value)), None)
        if missing and value[flag] != default(flag):
            yield f"{flag} has no effect: it needs {missing.text}"
    for entry in oger.reward.sources:
        if (kind_of(entry) or Keys).is_bonus and not oger.bonus.is_on:
            yield f"oger.reward.sources: {entry['name']!r} adds nothing: oger.bonus_weight is 0"
    yield from _steps_unpaid(oger, value["algo.advantage.estimator"])


def _of_filter(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield a sentence where dynamic filtering can be certain of no group (pipeline/controller/refill.py)."""
    low, high = value["algo.dynamic_filtering_range"]
    charges = [
        flag for flag in ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef") if value[flag] is not None
    ]
    charges += ["oger.reward.sources"] * any(not (kind.is_rule or kind.is_bonus) for kind in oger.reward.kinds)
    estimator, own = value["algo.advantage.estimator"], oger.advantage.rollout_advantage
    why = f"with {' and '.join(charges)} the rewards of equally right rollouts may differ" if charges else None
    if equal_rewards_teach(estimator, own):
        why = (
            f"with algo.advantage.estimator {estimator} and oger.rollout_advantage {own} groups of equal rewards teach"
        )
    if value["algo.dynamic_filtering_enable"] and low == 0 and high == 1 and why:
        yield (
            f"algo.dynamic_filtering_enable leaves no group out: {why}; to filter by the solve rate set "
            "algo.dynamic_filtering_range 0.01 0.99"
        )


def _steps_unpaid(oger: OgerSettings, estimator: str) -> Iterator[str]:
    """Yield sentences for step rewards that no estimator takes, and for an estimator of them that gets none."""
    pays = [entry for entry in oger.reward.sources if (kind_of(entry) or Keys).reads_steps]
    if estimator not in STEP_ESTIMATORS:
        for entry in pays:
            if entry.get("credit", "sum") != "sum":
                yield (
                    f"oger.reward.sources: credit of {entry['name']!r} has no effect: it needs "
                    f"algo.advantage.estimator {either(STEP_ESTIMATORS)}; under {estimator} a row gets its "
                    "aggregate"
                )
    elif not pays and not any(kind.is_own for kind in oger.reward.kinds):  # a user's kind may pay steps
        yield (
            f"algo.advantage.estimator {estimator} credits steps of reasoning, but no source of "
            "oger.reward.sources scores steps, so all rewards are at the last step; add a source of kind process "
            "to score them"
        )
