"""What this recipe declares of OpenRLHF's own flags: other defaults, ranges, needs, what a resumed run may change."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import oger_recipe
from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS, STEP_ESTIMATORS
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
from oger_recipe.settings.fields import (
    FREE,
    OF_DATA,
    OF_LENGTHS,
    OF_OPTIMIZER,
    OF_STEPS,
    OF_WEIGHTS,
    Need,
    Rules,
    need,
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


def _all(names: str, **rules: Any) -> dict[str, Rules]:
    """Make the rules that several flags share."""
    return dict.fromkeys(names.split(), Rules(**rules))


def _both(names: str, **rules: Any) -> dict[str, Rules]:
    """Make the rules that flags of the policy and the same ones of the critic share."""
    return {f"{role}.{name}": Rules(**rules) for role in ("actor", "critic") for name in names.split()}


_RANKS = "the checkpoint holds one shard of the optimizer per rank"
_KL = need("algo.kl.init_coef")
_CLIPS = Need("PPO's clipping: leave oger.loss_remove_clip", lambda oger, value: not value["oger.loss_remove_clip"])
_CORRECTED = need("algo.advantage.is_correction_level", "token", "seq")
_ESTIMATOR = "algo.advantage.estimator"
_WHITENED = (name for name, each in STEP_ESTIMATORS.items() if each.whitened is not None)

# Flags whose value is no free choice; every other may be anything, and a resumed run follows it with a note.
RULES: dict[str, Rules] = {
    # Policy and critic
    **_both("model_name_or_path", resume=OF_WEIGHTS),
    **_both("num_nodes num_gpus_per_node", range=COUNT, resume=_RANKS),
    **_both("optim muon.nesterov lr_scheduler", resume=OF_OPTIMIZER),
    **_both("adam.lr muon.lr lr_warmup_ratio min_lr_ratio", range=SHARE, resume=OF_OPTIMIZER),
    **_both("adam.betas muon.momentum", range=MOMENTUM, resume=OF_OPTIMIZER),
    **_both("adam.eps", range=POSITIVE, resume=OF_OPTIMIZER),
    **_both("adam.weight_decay", range=WEIGHT, resume=OF_OPTIMIZER),
    **_both("muon.ns_steps", range=COUNT, resume=OF_OPTIMIZER),
    **_both("max_norm", range=WEIGHT),
    **_all("actor.eps_clip actor.eps_clip_low_high", range=POSITIVE, needs=(_CLIPS,)),
    "actor.dual_clip": Rules(range=Range("above 1", 1, low_open=True)),
    "critic.value_clip": Rules(range=POSITIVE),
    **_all("actor.entropy_coef actor.aux_loss_coef", range=WEIGHT),
    "critic.freezing_steps": Rules(range=Range("-1 (none) or 0 or more", 0, also=(-1,))),
    # Advantages and KL
    _ESTIMATOR: Rules(resume="the method would change"),
    "algo.advantage.gamma": Rules(range=SHARE, needs=(need(_ESTIMATOR, "reinforce", *CRITIC_ESTIMATORS),)),
    "algo.advantage.lambd": Rules(range=SHARE, needs=(need(_ESTIMATOR, *CRITIC_ESTIMATORS),)),
    "algo.advantage.no_std_norm": Rules(
        needs=(need(_ESTIMATOR, "gae", "reinforce", "reinforce_baseline", *_WHITENED),)
    ),
    **_all("algo.advantage.is_correction_mode algo.advantage.is_correction_gating", needs=(_CORRECTED,)),
    "algo.advantage.is_correction_threshold": Rules(range=WEIGHT, needs=(_CORRECTED,)),
    "algo.kl.init_coef": Rules(range=WEIGHT),
    **_all("algo.kl.estimator algo.kl.use_loss", needs=(_KL,)),
    "algo.kl.unbiased_gradient": Rules(needs=(_KL, need("algo.kl.use_loss"))),
    "algo.kl.target": Rules(range=POSITIVE),
    "algo.kl.horizon": Rules(range=COUNT, needs=(need("algo.kl.target"),)),
    "algo.dynamic_filtering_range": Rules(range=SHARE),
    # Rollouts and training steps
    **_all("rollout.batch_size rollout.n_samples_per_prompt train.batch_size train.max_epochs",
           range=COUNT, resume=OF_STEPS),
    **_all("rollout.micro_batch_size rollout.vllm_generate_batch_size train.micro_batch_size train.num_episodes",
           range=COUNT, resume=FREE),
    **_all("rollout.max_tokens_per_gpu train.max_tokens_per_gpu train.async_queue_size", range=COUNT),
    "rollout.temperature": Rules(range=Range("above 0 and at most 10", 0, 10, low_open=True)),
    "rollout.top_p": Rules(range=PART),
    "train.seed": Rules(range=SEED, resume="prompts and teachers would come in another order"),
    "train.ema_beta": Rules(range=SHARE),
    # Data
    **_all("data.max_len rollout.max_new_tokens", range=COUNT, resume=OF_LENGTHS),
    **_all("data.prompt_dataset data.prompt_split data.input_key data.label_key", resume=OF_DATA),
    "data.max_samples": Rules(range=COUNT, resume=OF_DATA),
    **_all("data.dataloader_num_workers data.max_images_per_prompt", range=COUNT_OR_NONE),
    # Reward and reference
    **_all("ref.num_nodes ref.num_gpus_per_node reward.num_nodes reward.num_gpus_per_node", range=COUNT),
    "reward.overlong_buffer_len": Rules(range=WEIGHT),
    "reward.overlong_penalty_factor": Rules(range=WEIGHT, needs=(need("reward.overlong_buffer_len"),)),
    **_all("reward.clip_range reward.stop_properly_penalty_coef local_rank", range=FINITE),
    # DeepSpeed
    "ds.zero_stage": Rules(range=Range("0, 1, 2 or 3", 0, 3), resume=_RANKS),
    **_all("ds.tensor_parallel_size ds.ring_attn_size", range=COUNT, resume=_RANKS),
    **_all("ds.ring_attn_head_stride ds.zpg", range=COUNT),
    **_all("ds.param_dtype ds.lora.target_modules", resume=OF_WEIGHTS),
    "ds.lora.rank": Rules(range=COUNT_OR_NONE, resume=OF_WEIGHTS),
    "ds.lora.alpha": Rules(range=COUNT, resume=OF_WEIGHTS),
    "ds.lora.dropout": Rules(range=MOMENTUM, resume=OF_WEIGHTS),
    # How far, how fast and how loud a run goes on: nothing of what is learnt
    **_all("eval.steps ckpt.save_steps", range=STEPS_OR_NEVER, resume=FREE),
    **_all("eval.n_samples_per_prompt ckpt.max_num logger.logging_steps vllm.num_engines vllm.tensor_parallel_size",
           range=COUNT, resume=FREE),
    "eval.temperature": Rules(range=Range("0 (greedy) to 10", 0, 10), resume=FREE),
    "ckpt.max_mem": Rules(range=Range("above 0, or inf (no limit)", 0, low_open=True, also=(math.inf,)), resume=FREE),
    "vllm.gpu_memory_utilization": Rules(range=PART, resume=FREE),
    **_all("eval.dataset eval.split ckpt.path ckpt.output_dir ckpt.save_hf ckpt.disable_ds ckpt.load_enable "
           "ckpt.best_metric_key logger.wandb.key logger.wandb.org logger.wandb.group logger.wandb.project "
           "logger.wandb.run_name logger.tensorboard_dir vllm.sync_backend vllm.sync_with_ray "
           "vllm.enable_prefix_caching vllm.enforce_eager vllm.enable_sleep", resume=FREE),
}  # fmt: skip

# Pairs of numbers whose first is the smaller one.
ORDERED = ("reward.clip_range", "algo.dynamic_filtering_range", "algo.advantage.is_correction_threshold")


def why_fixed(flag: str, value: Mapping[str, Any]) -> str | None:
    """Return why a resumed run has to keep what two flags say together."""
    adapts = flag == "algo.kl.init_coef" and value["algo.kl.target"] is not None
    return "the checkpoint holds the coefficient, which adapts" if adapts else None
