"""Settings of the method that do not go together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from oger_recipe.algorithm.credit import (
    BATCH_ESTIMATORS,
    CRITIC_ESTIMATORS,
    ESTIMATORS,
    ROLLOUT_ADVANTAGES,
    STEP_ESTIMATORS,
    group_estimators,
)
from oger_recipe.algorithm.engine_ratio import EngineCorrection
from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS
from oger_recipe.algorithm.reshape import reshape_probability
from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.estimators import estimator_problems
from oger_recipe.checks.grades import grade_problems
from oger_recipe.data.templates import PLACEHOLDER, TEACHER
from oger_recipe.grading.verifiers import look_in
from oger_recipe.rewards.compose import ON_ERROR, by_steps_problem
from oger_recipe.rewards.kinds import kind_of
from oger_recipe.rewards.kinds.entries import entry_problems
from oger_recipe.rewards.spec import Keys
from oger_recipe.settings.credit import AdvantageSettings
from oger_recipe.settings.critic import CriticSettings
from oger_recipe.settings.grades import OFF
from oger_recipe.settings.loss import BEFORE_UPDATE, OF_UPDATE, LossSettings, updates_again
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.task import NUMBERS, TaskSettings
from oger_recipe.settings.teachers import PrefixSettings, TeacherSettings
from oger_recipe.teachers.draw import weights


def combination_problems(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for every combination in ``value``, settings by flag, that no machine could train with."""
    oger = OgerSettings.of(value)
    yield from _loss(oger.loss)
    yield from _ratio_of_steps(value["algo.advantage.estimator"], oger.loss)
    yield from _engine_correction(value)
    yield from _old_log_probs(value, oger)
    yield from _value_head(value, oger.critic)
    yield from _kl_and_template(value, oger)
    yield from _adaptive_kl(value)
    yield from _draws(oger)
    yield from _warm_start_numbers(oger.task)
    yield from _shown_template(oger.teachers.shown_template)
    yield from _hints(value["rollout.max_new_tokens"], oger)
    yield from _prefixes(value["rollout.n_samples_per_prompt"], oger.teachers, oger.prefix)
    yield from _replacement(oger)
    yield from grade_problems(value, oger)
    yield from _baselines(value, oger)
    yield from estimator_problems(value, oger)
    yield from _truncation(value["reward.stop_properly_penalty_coef"], oger.advantage)
    yield from _overlong(value)
    yield from _sources(value, oger)
    yield from _steps(value, oger)


def _steps(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield what would keep responses from having steps of reasoning."""
    steps, rollouts = oger.steps, oger.rollouts
    try:
        ends = steps.sampling
    except RecipeError as error:
        yield str(error)
        return
    if not oger.cuts_steps(value["algo.advantage.estimator"]) and ends is None:
        return
    if steps.sample_by_step and not steps.cuts:
        yield (
            "oger.steps.sample_by_step needs to know where a step ends: set oger.steps.delimiters, "
            "oger.steps.delimiter_token_ids or oger.steps.max_step_tokens"
        )
    for delimiter in steps.delimiters:
        for stop in rollouts.stop_texts:
            if stop in delimiter:
                yield (
                    f"oger.steps.delimiters {delimiter!r} contains {stop!r}, which ends a response (oger.stop, or "
                    "the prompt template's), so no response would have a second step: leave one of them out"
                )
    for token in sorted({*steps.delimiter_token_ids} & {*rollouts.stop_token_ids}):
        yield (
            f"oger.steps.delimiter_token_ids {token} is in oger.stop_token_ids, which ends a response, so no response "
            "would have a second step: leave one of them out"
        )


def _loss(loss: LossSettings) -> Iterator[str]:
    for key in ("off_policy_reshape", "on_policy_reshape"):
        try:
            reshape_probability(torch.zeros(1), getattr(loss, key), 0.1, 0.5)
        except ValueError as error:
            yield f"oger.{key}: {error}"
    if loss.on_policy_reshape == "logp" and not loss.loss_remove_clip:
        yield (
            "oger.on_policy_reshape logp starts at 0, and clipping would raise it to 1 - eps: set "
            "oger.loss_remove_clip"
        )
    for key in ("sft_loss_coef", "sft_loss_coef_end"):
        if loss.sft_loss_mixture and getattr(loss, key) > 1:
            yield f"oger.{key} {getattr(loss, key)} with oger.sft_loss_mixture is a share: use 0 to 1"


_BY_TOKEN = ("gae", "tppo")  # estimators whose advantages differ within a step of reasoning


def _ratio_of_steps(estimator: str, loss: LossSettings) -> Iterator[str]:
    if loss.ratio_level != "step":
        return
    if estimator in _BY_TOKEN:
        yield (
            f"oger.ratio_level step needs one advantage for each step of reasoning, and algo.advantage.estimator "
            f"{estimator} gives one for each token: use appo, or oger.ratio_level token"
        )
    by_probability = {
        "on_policy_reshape": loss.on_policy_reshape != "no_reshape",
        "all_max_clip": loss.all_max_clip is not None,
    }
    for key in (key for key, is_set in by_probability.items() if is_set):
        yield (
            f"oger.{key} goes by the probability of single tokens, but oger.ratio_level step weighs each step of "
            "a rollout as a whole: leave it out, or use oger.ratio_level token"
        )


def _engine_correction(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps the loss from being corrected for the engine."""
    level, mode, gating, threshold = (
        value[f"algo.advantage.is_correction_{key}"] for key in ("level", "mode", "gating", "threshold")
    )
    if level == "off":
        return
    if len(threshold) > 2:
        yield f"algo.advantage.is_correction_threshold has {len(threshold)} numbers: give LOW HIGH, or HIGH alone"
        return
    correction = EngineCorrection.named(level, mode, gating, threshold)
    assert correction is not None
    bounds = f"algo.advantage.is_correction_threshold {' '.join(f'{each:g}' for each in threshold)}"
    if correction.clips and (correction.by_sequence or gating != "ratio"):
        yield (
            "algo.advantage.is_correction_mode clip bounds the ratio of each token: it needs is_correction_level "
            "token and is_correction_gating ratio; or use is_correction_mode mask"
        )
    if gating != "ratio" and correction.low > 0:
        yield f"{bounds}: {gating} is a distance, with an upper bound alone: give one number, such as 0.05"
    if gating == "ratio" and not correction.low <= 1 <= correction.high:
        yield f"{bounds} excludes 1, the ratio of a token on which engine and policy agree: use 0.5 5, for example"
    for flag, is_part in (("rollout.top_p", value["rollout.top_p"] < 1), ("oger.top_k", value["oger.top_k"] > 0)):
        if is_part:
            yield (
                f"algo.advantage.is_correction_level {level} cannot be used with {flag} {value[flag]}: the engine's "
                "log-probabilities are then of a part of the vocabulary, the policy's of all of it, and their ratio "
                f"says nothing of the engine: use {flag} {'1' if flag == 'rollout.top_p' else '-1'}, or leave the "
                "correction off"
            )
    if value["oger.ratio_level"] == "step":
        yield (
            f"algo.advantage.is_correction_level {level} weighs tokens, but oger.ratio_level step has one loss for "
            "each step of reasoning: use oger.ratio_level token, or leave the correction off"
        )


def _old_log_probs(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield what needs the log-probabilities of all rows before the update, where they come from the update itself."""
    if oger.loss.old_log_probs != OF_UPDATE:
        return
    readers = {
        "more than one optimizer step on a batch of rollouts (train.max_epochs, train.batch_size): the ratio would be "
        "1 in all": updates_again(oger, value),
        "algo.kl.init_coef above 0": value["algo.kl.init_coef"] > 0,
        "algo.advantage.is_correction_level": value["algo.advantage.is_correction_level"] != "off",
        f"the critic of algo.advantage.estimator {value['algo.advantage.estimator']}": (
            value["algo.advantage.estimator"] in CRITIC_ESTIMATORS
        ),
        f"oger.grader {oger.grades.grader}": oger.grades.grader != OFF,
        "oger.history_enters": oger.teachers.history_enters,
        f"oger.rollout_advantage {oger.advantage.rollout_advantage}": (
            ROLLOUT_ADVANTAGES[oger.advantage.rollout_advantage] is not None
        ),
    } | {
        f"the source {entry['name']!r} of oger.reward.sources": (kind_of(entry) or Keys).reads_log_probs
        for entry in oger.reward.sources
    }
    for reader in (reader for reader, is_there in readers.items() if is_there):
        yield f"oger.old_log_probs {OF_UPDATE} cannot be used with {reader}: use oger.old_log_probs {BEFORE_UPDATE}"


def _value_head(value: Mapping[str, Any], critic: CriticSettings) -> Iterator[str]:
    if not critic.hidden_sizes:
        return
    others = {
        "ds.load_in_4bit": (value["ds.load_in_4bit"], "its layers would be quantized to 4 bits"),
        "ds.tensor_parallel_size above 1": (value["ds.tensor_parallel_size"] > 1, "its layers would be split"),
    }
    for flag, (is_set, reason) in others.items():
        if is_set:
            yield f"oger.critic.hidden_sizes cannot be used with {flag}: {reason}"


def _kl_and_template(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    if oger.advantage.kl_penalty_coef > 0 and not (value["algo.kl.use_loss"] and value["algo.kl.init_coef"] > 0):
        yield (
            "oger.kl_penalty_coef adds an in-reward KL to a loss-side one: set algo.kl.use_loss, and "
            "algo.kl.init_coef above 0; for an in-reward KL alone use algo.kl.init_coef without algo.kl.use_loss"
        )
    template = oger.rollouts.prompt_template
    chats = value["data.apply_chat_template"] and template != "chat"  # which says the same
    if template and (chats or value["data.input_template"]):
        yield f"choose one of oger.prompt_template {template} and data.apply_chat_template or data.input_template"


def _adaptive_kl(value: Mapping[str, Any]) -> Iterator[str]:
    target, horizon = value["algo.kl.target"], value["algo.kl.horizon"]
    rows = value["rollout.batch_size"] * value["rollout.n_samples_per_prompt"]
    if not target:
        return
    if not value["algo.kl.init_coef"]:
        yield f"algo.kl.target {target} multiplies the coefficient, and algo.kl.init_coef is 0: set it above 0"
    if rows >= 5 * horizon:  # a step's factor is 1 - 0.2 * rows / horizon at the least
        yield (
            f"algo.kl.horizon {horizon} is too short for the {rows} rollouts of a step: with a KL far below "
            f"algo.kl.target one step would bring the coefficient to 0; use more than {rows // 5}, e.g. {10 * rows}"
        )


def _warm_start_numbers(task: TaskSettings) -> Iterator[str]:
    name = "oger.task.warm_start_numbers"
    try:
        numbers = weights(task.warm_start_numbers)
    except ValueError as error:
        yield f"{name}: {error}"
        return
    for number in numbers:
        if not (number.isdecimal() and int(number) in NUMBERS):
            yield f"{name}: a problem has {NUMBERS.text} numbers, not {number!r}; write words, e.g. 3=0.5 4=0.5"


def _draws(oger: OgerSettings) -> Iterator[str]:
    teachers = oger.teachers
    try:
        weights(teachers.teacher_source_weights)
    except ValueError as error:
        yield f"oger.teacher_source_weights: {error}"
    if teachers.teacher_draw == "lowest_entropy" and not teachers.history_enters:
        yield (
            "oger.teacher_draw lowest_entropy goes by the policy's entropy when it sampled a teacher, which only its "
            "own earlier rollouts have: set oger.history_enters, or use shortest"
        )
    if teachers.teacher_draw == "likeliest_answer":
        others = {
            "oger.n_prefix": oger.prefix.n_prefix != 0,
            "--no-oger.replace_after_rm": teachers.max_replace_num > 0 and not teachers.replace_after_rm,
            "oger.hint_share": teachers.hint_share > 0,
            f"oger.grader {oger.grades.grader}": oger.grades.shows_teachers,
        }
        for name in (name for name, is_set in others.items() if is_set):
            yield (
                "oger.teacher_draw likeliest_answer asks the policy about the teachers of groups that are graded, and "
                f"{name} draws teachers elsewhere: leave it out, or use another oger.teacher_draw"
            )
    if teachers.teacher_source_weights and teachers.teacher_draw != "source_weights":
        yield "oger.teacher_source_weights has no effect: set oger.teacher_draw source_weights"


def _shown_template(template: str) -> Iterator[str]:
    questions, teachers = template.count(PLACEHOLDER), template.count(TEACHER)
    if not questions or teachers != 1:
        yield (
            f"oger.shown_template has {PLACEHOLDER} {questions} times and {TEACHER} {teachers} times: it is the text "
            "of a prompt that shows a teacher trajectory, and needs the first, and the second once"
        )


def _hints(max_new_tokens: int | None, oger: OgerSettings) -> Iterator[str]:
    if not oger.teachers.hint_share:
        return
    if max_new_tokens is None:
        yield "oger.hint_share makes prompts longer and would shorten their responses: set rollout.max_new_tokens"
    if oger.prefix.n_prefix:
        yield (
            "oger.hint_share and oger.n_prefix both give a rollout the beginning of a teacher trajectory, in its "
            "prompt and in its response: set one of them to 0"
        )


def _prefixes(samples: int, teachers: TeacherSettings, prefix: PrefixSettings) -> Iterator[str]:
    if prefix.n_prefix != 0 and teachers.max_replace_num > 0:
        yield (
            "oger.n_prefix and oger.max_replace_num both bring teachers into a group, and teachers would replace "
            "the rollouts with a prefix first: set oger.max_replace_num 0, or oger.n_prefix 0"
        )
    if prefix.n_prefix > samples:
        yield f"oger.n_prefix {prefix.n_prefix} is above rollout.n_samples_per_prompt {samples}; -1 is all"
    least, most = prefix.min_prefix_ratio, prefix.max_prefix_ratio
    if least > most:
        yield f"oger.min_prefix_ratio {least} is above oger.max_prefix_ratio {most}"


def _replacement(oger: OgerSettings) -> Iterator[str]:
    teachers, guides = oger.teachers, oger.prefix.n_prefix != 0
    replaces_unsampled = teachers.max_replace_num > 0 and not teachers.replace_after_rm
    if replaces_unsampled and teachers.replace_mode != "random":
        yield (
            f"oger.replace_mode {teachers.replace_mode} compares rollouts, but without oger.replace_after_rm "
            "the replaced ones are never sampled: use oger.replace_mode random"
        )
    if oger.loss.use_off_policy_probs and (guides or not teachers.replace_after_rm):
        yield (
            "oger.use_off_policy_probs needs whole teachers in place of rollouts: set oger.replace_after_rm "
            "and oger.n_prefix 0"
        )
    if not ALL_CORRECT_GROUPS[teachers.all_correct_group].teachers_enter and oger.teachers_enter_in_rollout:
        yield (
            f"oger.all_correct_group {teachers.all_correct_group} keeps teachers out of solved groups, but with "
            "oger.n_prefix or without oger.replace_after_rm they enter before grading: use keep or clip"
        )
    for key, value, open_end in (("", teachers.teacher_gate, 1), ("_low", teachers.teacher_gate_low, 0)):
        if value != open_end and oger.teachers_enter_in_rollout:
            yield (
                f"oger.teacher_gate{key} {value} goes by the graded rollouts of a group, but with oger.n_prefix or "
                "without oger.replace_after_rm teachers enter before grading: use "
                f"oger.teacher_gate{key} {open_end}, or oger.n_prefix 0 and oger.replace_after_rm"
            )
    if teachers.teacher_gate_low > teachers.teacher_gate:
        yield f"oger.teacher_gate_low {teachers.teacher_gate_low} is above oger.teacher_gate {teachers.teacher_gate}"
    if teachers.history_enters and oger.teachers_enter_in_rollout and oger.rollouts.ends_responses:
        yield (
            "oger.history_enters with oger.n_prefix or without oger.replace_after_rm: the engine knows the end of an "
            "earlier rollout by its end-of-sequence token, and oger.stop, oger.stop_token_ids or the prompt template "
            "ends rollouts before it: use oger.replace_after_rm and oger.n_prefix 0, or leave these out"
        )


def _baselines(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    estimator, n_prefix = value["algo.advantage.estimator"], oger.prefix.n_prefix
    solved, ours = oger.teachers.all_correct_group, _listed([*ESTIMATORS])
    if ALL_CORRECT_GROUPS[solved].spares_teachers and estimator not in ESTIMATORS:
        yield f"oger.all_correct_group {solved} is for {ours}, not {estimator}: use keep, online or skip"
    if oger.advantage.rollout_advantage != "estimator" and estimator not in ESTIMATORS:
        yield f"oger.rollout_advantage {oger.advantage.rollout_advantage} is for {ours}, not {estimator}"
    if oger.teachers.taught_group == "teachers" and estimator in CRITIC_ESTIMATORS:
        yield (
            f"oger.taught_group teachers leaves rollouts out, from which the critic of {estimator} learns: use "
            "hybrid, or an estimator without a critic"
        )
    if oger.advantage.advantage_baseline != "rollouts":
        return
    if estimator not in group_estimators():
        yield f"oger.advantage_baseline rollouts is for {_listed(group_estimators())}, not {estimator}"
    if n_prefix in (-1, value["rollout.n_samples_per_prompt"]):
        yield (
            f"oger.advantage_baseline rollouts with oger.n_prefix {n_prefix}: every rollout begins "
            "with a teacher, so none sets the baseline; use oger.advantage_baseline group, or a smaller oger.n_prefix"
        )
    how = ESTIMATORS.get(estimator)
    if how and how.shift_invariant and how.scale_invariant and oger.has_bonus:
        yield (
            f"oger.advantage_baseline rollouts with {estimator} and a bonus: right rollouts differ by the bonus "
            "alone, and dividing by so small a std gives a right teacher an advantage of -10; use "
            "algo.advantage.estimator dr_grpo, oger.advantage_baseline group, or oger.bonus_weight 0"
        )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _truncation(stop_properly: float | None, advantage: AdvantageSettings) -> Iterator[str]:
    fixed, penalty = advantage.non_stop_fixed_reward, advantage.non_stop_penalty
    if fixed is not None and penalty:
        yield "oger.non_stop_fixed_reward and oger.non_stop_penalty both change truncated rollouts; choose one"
    if stop_properly is not None and (fixed is not None or penalty):
        yield (
            "reward.stop_properly_penalty_coef and oger.non_stop_* both change the reward of truncated rollouts; "
            "choose one"
        )


def _overlong(value: Mapping[str, Any]) -> Iterator[str]:
    longest, buffer = value["rollout.max_new_tokens"] or value["data.max_len"], value["reward.overlong_buffer_len"]
    if buffer is not None and buffer > longest:
        yield (
            f"reward.overlong_buffer_len {buffer:g} is above the {longest} tokens that a response may have "
            "(rollout.max_new_tokens), of which it is the last part: use a smaller one"
        )


def _sources(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    estimator = value["algo.advantage.estimator"]
    look_in(oger.verifiers.verifier_path)
    yield from entry_problems(oger.reward.sources)
    if estimator in BATCH_ESTIMATORS:
        yield from _in_its_order(value, estimator, oger)
    listed, adds_bonus = oger.reward.sources, oger.has_bonus
    if (
        listed
        and not adds_bonus
        and all(entry.get("weight", 1) == 0 or (kind_of(entry) or Keys).is_bonus for entry in listed)
    ):
        yield "oger.reward.sources: every weight is 0 (the bonus has oger.bonus_weight), so every reward would be 0"
    for entry in listed if value["rollout.n_samples_per_prompt"] == 1 else ():
        if entry.get("normalize") == "group":
            yield (
                f"oger.reward.sources: {entry['name']!r} has normalize group, and a group of one "
                "(rollout.n_samples_per_prompt "
                "1) has nothing to compare with: use normalize running"
            )
    for entry in listed if estimator in STEP_ESTIMATORS else ():
        pays_steps = (kind_of(entry) or Keys).reads_steps
        if pays_steps and (entry.get("combine") == "mul" or entry.get("normalize", "none") != "none"):
            yield f"oger.reward.sources: {by_steps_problem(entry['name'])}"
    yield from _misfits(value, listed)
    how, in_groups = oger.reward.on_error, [*group_estimators(), "rloo"]
    if ON_ERROR[how].drops_group and estimator not in in_groups:
        yield (
            f"oger.reward.on_error {how} is for {_listed(in_groups)}, not {estimator}, which "
            "compares groups with each other, or trains a critic on all of them: use zero, neutral or stop"
        )
    for entry in listed if estimator not in in_groups else ():
        if entry.get("on_overflow") == "drop_group":
            yield (
                f"oger.reward.sources: {entry['name']!r} has on_overflow drop_group, which is for "
                f"{_listed(in_groups)}, not {estimator}: use worst"
            )


def _misfits(value: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what kinds say of a run's settings that they do not go with."""
    for entry in entries:
        kind = kind_of(entry)
        if kind is not None and not [*kind.problems(entry)]:
            yield from kind.of(entry).misfits(entry["name"], value)


def _in_its_order(value: Mapping[str, Any], estimator: str, oger: OgerSettings) -> Iterator[str]:
    """Yield what keeps a BATCH_ESTIMATORS entry from adding up sources that were each compared in their group."""
    for entry in oger.reward.sources:
        name, how = entry["name"], entry.get("normalize", "group")
        if how != "group":
            yield (
                f"algo.advantage.estimator {estimator} compares every source within its group, and {name!r} has "
                f"normalize {how}: leave it out"
            )
        if entry.get("combine") == "mul":
            yield f"algo.advantage.estimator {estimator} adds up its sources, and {name!r} has combine mul: use add"
    after = {
        "oger.non_stop_fixed_reward": oger.advantage.non_stop_fixed_reward,
        "reward.stop_properly_penalty_coef": value["reward.stop_properly_penalty_coef"],
        "reward.overlong_buffer_len": value["reward.overlong_buffer_len"],
    }
    for flag, setting in after.items():
        if setting is not None:
            yield (
                f"{flag} changes the sum of the sources, and algo.advantage.estimator {estimator} compares each "
                "source before it adds them: leave it out, or use oger.non_stop_penalty or a source of kind length"
            )
