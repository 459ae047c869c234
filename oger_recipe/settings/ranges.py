"""What every number may be, one range for each flag, in one table."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, both among them unless open, and those of ``also``.

    ``text`` ends the sentence "it has to be ..."; infinity and nan are in no range unless ``also`` names them.
    """

    text: str
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    also: tuple[float, ...] = ()
    multiple: int | None = None

    def __contains__(self, number: float) -> bool:
        if number in self.also:
            return True
        if self.multiple and number % self.multiple:
            return False
        above = number > self.low if self.low_open else number >= self.low
        below = number < self.high if self.high_open else number <= self.high
        return above and below and math.isfinite(number)


_COUNT = Range("1 or more", 1)
_COUNT_OR_NONE = Range("0 or more", 0)
_TOP_K = Range("-1 (all tokens) or 1 or more", 1, also=(-1,))
_STEPS_OR_NEVER = Range("-1 (never) or 1 or more", 1, also=(-1,))
_WEIGHT = Range("0 or more", 0)
_POSITIVE = Range("above 0", 0, low_open=True)
_RATE = Range("0 to 1", 0, 1)
_SHARE = Range("0 to 1", 0, 1)
_PART = Range("above 0 and at most 1", 0, 1, low_open=True)
_MOMENTUM = Range("0 or more and below 1", 0, 1, high_open=True)
_SEED = Range("0 to 4294967295", 0, 2**32 - 1)  # what NumPy takes

# Every number of the command line is here or in UNBOUNDED.
_NAMES: tuple[tuple[Range, tuple[str, ...]], ...] = (
    (
        _COUNT,
        (
            "rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt",
            "rollout.max_new_tokens", "rollout.vllm_generate_batch_size", "rollout.max_tokens_per_gpu",
            "train.batch_size", "train.micro_batch_size", "train.max_tokens_per_gpu", "train.num_episodes",
            "train.max_epochs", "train.async_queue_size", "eval.n_samples_per_prompt", "data.max_len",
            "data.max_samples", "actor.num_nodes", "actor.num_gpus_per_node", "ref.num_nodes",
            "ref.num_gpus_per_node", "critic.num_nodes", "critic.num_gpus_per_node", "reward.num_nodes",
            "reward.num_gpus_per_node", "vllm.num_engines", "vllm.tensor_parallel_size", "ds.ring_attn_size",
            "ds.ring_attn_head_stride", "ds.tensor_parallel_size", "ds.zpg", "ds.lora.alpha", "ckpt.max_num",
            "logger.logging_steps", "algo.kl.horizon", "actor.muon.ns_steps", "critic.muon.ns_steps",
            "oger.prompts_per_update", "oger.logical_gpus", "oger.max_prompt_length",
            "oger.eval.max_new_tokens", "oger.eval.max_samples", "oger.grading_workers", "oger.grading_memory_limit",
            "oger.max_prefix_len", "oger.history_size", "oger.prefix_steps", "oger.bonus_schedule_steps",
            "oger.embedding_max_tokens", "oger.embedding_batch_size", "oger.sft.max_samples", "oger.sft.batch_size",
            "oger.sft.micro_batch_size", "oger.task.train_problems", "oger.task.eval_problems",
            "oger.task.warm_start_steps", "oger.task.warm_start_batch_size", "oger.task.warm_start_problems",
            "oger.task.num_layers", "oger.task.max_target",
        ),
    ),
    (
        _COUNT_OR_NONE,
        (
            "oger.max_replace_num", "oger.total_training_steps", "oger.sft.epochs", "oger.stop_token_ids",
            "data.dataloader_num_workers",
            "data.max_images_per_prompt", "ds.lora.rank",
        ),
    ),
    (_TOP_K, ("oger.top_k", "oger.eval.top_k")),
    (Range("-1 (all) or 0 or more", 0, also=(-1,)), ("oger.n_prefix",)),
    (_STEPS_OR_NEVER, ("eval.steps", "ckpt.save_steps")),
    (Range("-1 (none) or 0 or more", 0, also=(-1,)), ("critic.freezing_steps",)),
    (Range("0, 1, 2 or 3", 0, 3), ("ds.zero_stage",)),
    (Range("2 or more", 2), ("oger.task.max_number",)),
    (Range("2 to 6", 2, 6), ("oger.task.num_numbers", "oger.task.eval_numbers")),
    (_SEED, ("train.seed", "oger.task.data_seed")),
    (
        _WEIGHT,
        (
            "oger.bonus_weight", "oger.bonus_weight_end", "oger.prefix_reward_weight_alpha",
            "oger.prefix_reward_weight_beta", "oger.sft_prefix_reward_weight", "oger.sft_loss_coef",
            "oger.off_policy_reshape_weight", "oger.off_policy_reshape_pow_exp", "oger.on_policy_reshape_weight",
            "oger.on_policy_reshape_pow_exp", "oger.off_policy_max_clip", "oger.off_policy_min_clip",
            "oger.all_max_clip", "oger.max_logprob_difference", "oger.kl_penalty_coef", "actor.entropy_coef",
            "actor.aux_loss_coef", "actor.adam.weight_decay", "critic.adam.weight_decay", "actor.max_norm",
            "critic.max_norm", "algo.kl.init_coef", "algo.kl.target", "algo.advantage.is_correction_threshold",
            "reward.overlong_buffer_len", "reward.overlong_penalty_factor",
        ),
    ),
    (
        _RATE,
        (
            "actor.adam.lr", "critic.adam.lr", "actor.muon.lr", "critic.muon.lr", "oger.sft.lr",
            "oger.task.warm_start_lr",
        ),
    ),
    (
        _SHARE,
        (
            "oger.min_prefix_ratio", "oger.max_prefix_ratio", "oger.prefix_linear_max_ratio",
            "oger.max_reward_error_rate", "oger.max_embedding_error_rate", "oger.task.wrong_teacher_share",
            "oger.task.warm_start_decay", "actor.lr_warmup_ratio", "critic.lr_warmup_ratio", "actor.min_lr_ratio",
            "critic.min_lr_ratio", "algo.advantage.lambd", "algo.advantage.gamma", "train.ema_beta",
            "algo.dynamic_filtering_range",
        ),
    ),
    (_PART, ("rollout.top_p", "oger.eval.top_p", "oger.entropy_top_share", "vllm.gpu_memory_utilization")),
    (
        _MOMENTUM,
        ("actor.adam.betas", "critic.adam.betas", "actor.muon.momentum", "critic.muon.momentum", "ds.lora.dropout"),
    ),
    (
        _POSITIVE,
        (
            "oger.grading_time_limit", "actor.adam.eps", "critic.adam.eps", "actor.eps_clip",
            "actor.eps_clip_low_high", "actor.dual_clip", "critic.value_clip",
        ),
    ),
    (Range("above 0, or inf (no limit)", 0, low_open=True, also=(math.inf,)), ("ckpt.max_mem",)),
    (Range("above 0 and at most 10", 0, 10, low_open=True), ("rollout.temperature",)),
    (Range("0 (greedy) to 10", 0, 10), ("eval.temperature",)),
    (Range("a multiple of 32, the width of one attention head", 32, multiple=32), ("oger.task.hidden_size",)),
)  # fmt: skip

RANGES: dict[str, Range] = {name: allowed for allowed, names in _NAMES for name in names}

# Rewards and what is added to them may be anything; so may what only DeepSpeed's launcher sets.
UNBOUNDED = (
    "oger.non_stop_penalty", "oger.non_stop_fixed_reward", "reward.clip_range", "reward.stop_properly_penalty_coef",
    "local_rank",
)  # fmt: skip

# Pairs of numbers whose first is the smaller one.
_ORDERED = ("reward.clip_range", "algo.dynamic_filtering_range", "algo.advantage.is_correction_threshold")


def out_of_range(value: Mapping[str, Any], where: Mapping[str, str] | None = None) -> Iterator[str]:
    """A sentence for every number of ``value``, settings by flag, that is not in its range.

    ``where`` has the place in a file where a flag is set, which is then named.
    """
    places = {key: f" ({place})" for key, place in (where or {}).items()}
    for key, setting in value.items():
        for number in setting if isinstance(setting, list | tuple) else [setting]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            allowed = RANGES.get(key)
            if allowed and number in allowed:
                continue
            if not math.isfinite(number):
                yield f"{key} is {number}: it has to be a finite number{places.get(key, '')}"
            elif allowed:
                yield f"{key} is {number}: it has to be {allowed.text}{places.get(key, '')}"
    for key in _ORDERED:
        pair = value[key]
        if pair and len(pair) == 2 and pair[0] > pair[1]:
            yield f"{key} is {pair[0]} {pair[1]}: the first is the smaller one{places.get(key, '')}"
