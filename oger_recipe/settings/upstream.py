"""What this recipe says about OpenRLHF's own flags: other defaults, and what their numbers may be."""

import math
from pathlib import Path
from typing import Any

import oger_recipe
from oger_recipe.base.ranges import (
    COUNT,
    COUNT_OR_NONE,
    FINITE,
    MOMENTUM,
    PART,
    POSITIVE,
    SEED,
    SHARE,
    STEPS_OR_NEVER,
    WEIGHT,
    Range,
)  # fmt: skip

# What this recipe trains by default, where OpenRLHF's own default is another method.
METHOD_DEFAULTS: dict[str, Any] = {
    "algo.advantage.estimator": "dr_grpo",
    "algo.kl.init_coef": 0.0,
    "rollout.n_samples_per_prompt": 8,
    "data.input_key": "prompt",
    "data.label_key": "answer",
    "data.apply_chat_template": None,  # not said: on for the policy of the built-in task, else off
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

_NAMES: tuple[tuple[Range, tuple[str, ...]], ...] = (
    (
        COUNT,
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
        ),
    ),
    (COUNT_OR_NONE, ("data.dataloader_num_workers", "data.max_images_per_prompt", "ds.lora.rank")),
    (STEPS_OR_NEVER, ("eval.steps", "ckpt.save_steps")),
    (Range("-1 (none) or 0 or more", 0, also=(-1,)), ("critic.freezing_steps",)),
    (Range("0, 1, 2 or 3", 0, 3), ("ds.zero_stage",)),
    (SEED, ("train.seed",)),
    (
        WEIGHT,
        (
            "actor.entropy_coef", "actor.aux_loss_coef", "actor.adam.weight_decay", "critic.adam.weight_decay",
            "actor.max_norm", "critic.max_norm", "algo.kl.init_coef",
            "algo.advantage.is_correction_threshold", "reward.overlong_buffer_len", "reward.overlong_penalty_factor",
        ),
    ),
    (
        SHARE,
        (
            "actor.adam.lr", "critic.adam.lr", "actor.muon.lr", "critic.muon.lr", "actor.lr_warmup_ratio",
            "critic.lr_warmup_ratio", "actor.min_lr_ratio", "critic.min_lr_ratio", "algo.advantage.lambd",
            "algo.advantage.gamma", "train.ema_beta", "algo.dynamic_filtering_range",
        ),
    ),
    (PART, ("rollout.top_p", "vllm.gpu_memory_utilization")),
    (
        MOMENTUM,
        ("actor.adam.betas", "critic.adam.betas", "actor.muon.momentum", "critic.muon.momentum", "ds.lora.dropout"),
    ),
    (
        POSITIVE,
        (
            "actor.adam.eps", "critic.adam.eps", "actor.eps_clip", "actor.eps_clip_low_high", "actor.dual_clip",
            "critic.value_clip", "algo.kl.target",
        ),
    ),
    (Range("above 0, or inf (no limit)", 0, low_open=True, also=(math.inf,)), ("ckpt.max_mem",)),
    (Range("above 0 and at most 10", 0, 10, low_open=True), ("rollout.temperature",)),
    (Range("0 (greedy) to 10", 0, 10), ("eval.temperature",)),
    (FINITE, ("reward.clip_range", "reward.stop_properly_penalty_coef", "local_rank")),
)  # fmt: skip

RANGES: dict[str, Range] = {name: allowed for allowed, names in _NAMES for name in names}

# Pairs of numbers whose first is the smaller one.
ORDERED = ("reward.clip_range", "algo.dynamic_filtering_range", "algo.advantage.is_correction_threshold")
