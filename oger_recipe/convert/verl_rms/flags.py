"""Every flag of VeRL-with-RMs' command line: its default there and what it is here.

`oger convert` reads commands by this table, and docs/verl_rms_flags.md is written from it (`oger convert --table
verl_rms`). Flags are as that branch's code treats them, which its page does not always say.
"""

from __future__ import annotations

from functools import partial

from oger_recipe.convert.values import UNSET, Flag, alone, dead, refused, same, to, where
from oger_recipe.convert.verl import flags as shared
from oger_recipe.convert.verl.flags import VLLM, gae
from oger_recipe.convert.verl.rules import ACTOR, KEEP_ALL, MODEL, REF, ROLLOUT, TENSOR_PARALLEL, engines, machine
from oger_recipe.convert.verl_rms import rules
from oger_recipe.convert.verl_rms.rules import ENGINE, JUDGE, SIMILARITY_FLOOR, SOURCES

_STAGED = "an engine is started or woken, asked, and gives its memory back"
_OURS = "the trainer sets it itself"
_STANDARD = "the model's engine does without it"

_reward_kl = partial(where, rules.only_reward_kl)
_loss_kl = partial(where, rules.only_loss_kl)
_adaptive = partial(where, rules.only_adaptive)


def _source(name: str, default: object, key: str, remark: str = "", rule=rules.part_of_sources, **more) -> Flag:
    """Make a flag that has a part in the list of sources; ``key``: the key of an entry that it becomes."""
    said = f"`{key}` of the {'judge' if name != JUDGE + 'bge_weight' else 'similarity'}"
    return Flag(name, default, rule, SOURCES, f"{said}; {remark}" if remark else said, kind=object, **more)


_REWARD = (
    Flag(JUDGE + "enable", False, rules.enabled, SOURCES, "True alone: the sources are the rule, the similarity and "
         "the judges. Every model's gate is rule_equals_1: a score counts only where the rule gave exactly 1"),
    Flag(JUDGE + "combine_reward", True, rules.combined, f"{SOURCES}, oger.task_name",
         "True alone: the rule comes first. There it is code that data_source chooses, here a verifier: set its name"),
    Flag(JUDGE + "reward_model_type", "grm", rules.judge_type, SOURCES, "grm: kind judge. BT, scalar and cloud have "
         "no code there; here they are kind classifier, or a judge with a url"),
    _source(JUDGE + "reward_function", ["rider_reward"], "plugin", "a file of that name, used unchanged; beside the "
            "recipe", rules.sources),
    _source(JUDGE + "model.path", ["~/models/FsfairX-LLaMA3-RM-v0.1"], "model"),
    _source(JUDGE + "reward_weight", [0.5], "weight"),
    _source(JUDGE + "reward_combine_func", ["add"], "combine", "add or mul, from the left"),
    _source(ENGINE + "temperature", [0.6], "temperature"),
    _source(ENGINE + "gpu_memory_utilization", [0.8], "gpu_memory_utilization"),
    _source(ENGINE + "rollout_response_length", 4096, "max_new_tokens"),
    _source(ENGINE + "top_p", 1, "top_p"),
    _source(ENGINE + "prompt_length", None, "max_model_len", "with response_length; there by default those of the "
          "data"),
    _source(ENGINE + "response_length", None, "max_model_len", "with prompt_length"),
    _source(ENGINE + "max_model_len", None, "max_model_len", "null: prompt_length + response_length, into which "
          "the prompt and the reply of the judge must fit there, too"),
    _source(JUDGE + "model." + TENSOR_PARALLEL, 1, "tensor_parallel_size", "one number for all judges there, which "
            "must suit the policy's; here each may have its own"),
    Flag(ENGINE + TENSOR_PARALLEL, 1, rules.engine_width, SOURCES, "must be reward_model.model."
         f"{TENSOR_PARALLEL}, there as well"),
    Flag(JUDGE + "use_bge", True, rules.similarity, f"{SOURCES}, oger.embedding_model, oger.embedding_num_gpus, "
         "oger.embedding_max_tokens, oger.embedding_long_texts", "the source `similar`; there the field Response of a "
         "JSON answer is compared, and 0.3 + 0.7 x the curve counts, which is the same curve from "
         f"{SIMILARITY_FLOOR}"),
    _source(JUDGE + "bge_weight", 0.5, "weight", rule=rules.similarity_weight),
    alone(ENGINE + "name", "vllm", "judges run in vLLM", "for SGLang give an entry of oger.reward.sources its url"),
    alone(ENGINE + "mode", "sync", "all rows of a step are asked at once", "use sync"),
    alone(ENGINE + "top_k", -1, "a judge samples from all tokens", "use top_p"),
    alone(ENGINE + "n", 1, "a judge replies once", "list the judge twice in oger.reward.sources"),
    alone(ENGINE + "do_sample", True, "a judge samples", "use temperature 0"),
    alone(ENGINE + "ignore_eos", False, "replies end", "leave it out"),
    alone(ENGINE + "use_fire_sampling", False, "a judge samples plainly", "leave it out"),
    dead(ENGINE + "reward_batch_name", UNSET, _OURS),
    dead(ENGINE + "rm_prompt_name", UNSET, f"{_OURS}: the columns are rm_prompt_0, rm_prompt_1 and so on"),
    dead(ENGINE + "free_cache_engine", UNSET, _STAGED),
    dead(ENGINE + "*", UNSET, VLLM),
    dead(JUDGE + "model.input_tokenizer", UNSET, "rows have the text that the policy wrote"),
    dead(JUDGE + "model.fsdp_config.param_offload", UNSET, _STAGED),
    dead(JUDGE + "model.fsdp_config.*", UNSET, "judges are not sharded by the trainer"),
    dead(JUDGE + "model.external_lib", UNSET, _STANDARD),
    dead(JUDGE + "model.use_shm", UNSET, _STANDARD),
    dead(JUDGE + "model.use_remove_padding", UNSET, _STANDARD),
    dead(JUDGE + "model.use_fused_kernels", UNSET, _STANDARD),
    alone(JUDGE + "model.trust_remote_code", False, "a judge's own code does not run",
          "see oger.trust_remote_code, or serve the judge yourself and give its url"),
    dead(JUDGE + "strategy", UNSET, "judges run in vLLM alone"),
    dead(JUDGE + "reward_worker_idx", UNSET, _OURS),
    dead(JUDGE + "micro_batch_size", UNSET, "all rows are asked at once, there as well"),
    dead(JUDGE + "micro_batch_size_per_gpu", UNSET, "all rows are asked at once, there as well"),
    dead(JUDGE + "max_length", UNSET, "no code of that branch reads it"),
    dead(JUDGE + "ulysses_sequence_parallel_size", UNSET, "no code of that branch reads it"),
    dead(JUDGE + "use_dynamic_bsz", UNSET, "all rows are asked at once, there as well"),
    dead(JUDGE + "forward_max_token_len_per_gpu", UNSET, "all rows are asked at once, there as well"),
    alone(JUDGE + "reward_manager", "naive", "a rule is a verifier", "write it as a verifier (oger.verifiers)"),
    alone(JUDGE + "launch_reward_fn_async", False, "that trainer stops with it", "leave it out; answers are graded "
          "while others are sampled"),
    refused(JUDGE + "sandbox_fusion.url", "answers are graded here; write a verifier that asks your sandbox "
            "(oger.verifiers)"),
    dead(JUDGE + "sandbox_fusion.*", UNSET, "it belongs to sandbox_fusion.url"),
    refused(JUDGE + "reward_kwargs.*", "give your verifier its options by a TaskSpec (docs/verifiers.md)"),
    alone("custom_reward_function.path", None, "a rule is a verifier",
          "give the function as oger.verifiers mytask=module:function, and oger.task_name mytask"),
    dead("custom_reward_function.*", UNSET, "it belongs to custom_reward_function.path"),
)  # fmt: skip

_DATA = (
    *shared.DATA,
    Flag("data.filter_overlong_prompts", False, rules.overlong, "oger.overlong_prompts",
         "True: drop; False with truncation=error: refuse"),
    Flag("data.truncation", "error", rules.overlong, "oger.overlong_prompts",
         "error alone, or filter_overlong_prompts: prompts are not cut"),
    dead("data.filter_overlong_prompts_workers", UNSET, "the tokenizer has threads of its own"),
    dead("data.reward_fn_key", "data_source", "oger.task_name, or a column `task`, names the verifier"),
    dead("data.return_full_prompt", False, "no code needs it"),
    dead("data.validation_shuffle", False, "the order of an evaluation is of no matter"),
    dead("data.use_shm", False, "files are read once"),
    dead("data.image_key", UNSET, "prompts are texts"),
    dead("data.video_key", UNSET, "prompts are texts"),
    alone("data.trust_remote_code", False, "data bring no code", "see oger.trust_remote_code"),
    alone("data.custom_cls.path", None, "rows are read as they are", "prepare the rows beforehand (docs/data.md)"),
    dead("data.custom_cls.name", UNSET, "it belongs to custom_cls.path"),
)  # fmt: skip

_POLICY = (
    *shared.POLICY,
    Flag(ACTOR + "ppo_micro_batch_size_per_gpu", None, rules.rows_of_gpu("train.micro_batch_size"),
         "train.micro_batch_size", "rollouts, here as there. No effect with use_dynamic_bsz", kind=int),
    Flag(ACTOR + "ppo_micro_batch_size", None, rules.deprecated, remark="null alone: it is deprecated there",
         kind=int),
    Flag(ROLLOUT + "log_prob_micro_batch_size_per_gpu", None, rules.rows_of_gpu("rollout.micro_batch_size"),
         "rollout.micro_batch_size", "rollouts, here as there. No effect with use_dynamic_bsz", kind=int),
    Flag(ROLLOUT + "log_prob_micro_batch_size", None, rules.deprecated, remark="null alone: it is deprecated there",
         kind=int),
    dead(REF + "log_prob_micro_batch_size_per_gpu", UNSET, "the reference cuts batches as the policy does"),
    dead(REF + "log_prob_micro_batch_size", UNSET, "the reference cuts batches as the policy does"),
    Flag(REF + "fsdp_config.param_offload", False, where(
        lambda get: "" if rules.kl_coefficient(get) else "no reference is loaded", to("ref.offload")), "ref.offload"),
    dead(REF + "fsdp_config.*", UNSET, "ZeRO shards every parameter"),
    dead(REF + "strategy", UNSET, "the reference is sharded as the policy is"),
    dead(REF + "use_torch_compile", UNSET, "entropies are made a few tokens at a time"),
    dead(ACTOR + "use_torch_compile", True, "entropies are made a few tokens at a time"),
    dead(ACTOR + "fsdp_config.*", UNSET, "ZeRO shards every parameter"),
    dead(ACTOR + "checkpoint.*", UNSET, "a checkpoint holds model, optimizer and the place in the data"),
    alone(ACTOR + "optim.lr_warmup_steps", -1, "the warm-up is a share of the run", "use lr_warmup_steps_ratio"),
    alone(ACTOR + "optim.num_cycles", 0.5, "a cosine goes down once", "leave it out"),
    dead(MODEL + "use_shm", False, _STANDARD),
    alone(MODEL + "enable_activation_offload", False, "activations stay on the GPU", "use gradient checkpointing"),
    same(MODEL + "lora_rank", 0, "ds.lora.rank", remark="not with a critic"),
    same(MODEL + "lora_alpha", 16, "ds.lora.alpha"),
    Flag(MODEL + "target_modules", "all-linear", rules.target_modules, "ds.lora.target_modules", kind=object),
    same(MODEL + "use_liger", False, "ds.use_liger_kernel"),
    dead(MODEL + "use_fused_kernels", False, "log-probabilities are made a few tokens at a time"),
    same(MODEL + "trust_remote_code", False, "oger.trust_remote_code"),
    Flag(MODEL + "is_custome_model", False, rules.template, remark="False alone: the model's own chat template is "
         "used"),
    dead(MODEL + "chat_template", UNSET, "it belongs to is_custome_model"),
)  # fmt: skip

_ROLLOUTS = (
    *shared.ROLLOUTS,
    Flag(ROLLOUT + TENSOR_PARALLEL, 1, engines, "vllm.tensor_parallel_size, vllm.num_engines", "engines: GPUs / this"),
    same(ROLLOUT + "gpu_memory_utilization", 0.8, "vllm.gpu_memory_utilization"),
    same(ROLLOUT + "top_p", 1.0, "rollout.top_p"),
    Flag(ROLLOUT + "val_kwargs.temperature", 0.0, rules.greedy_or, "eval.temperature", "0 without do_sample"),
    Flag(ROLLOUT + "val_kwargs.do_sample", False, rules.greedy_or, "eval.temperature"),
    same(ROLLOUT + "val_kwargs.n", 1, "eval.n_samples_per_prompt"),
    same(ROLLOUT + "val_kwargs.top_p", 1.0, "oger.eval.top_p"),
    alone(ROLLOUT + "val_kwargs.top_k", -1, "an evaluation samples from all tokens", "use val_kwargs.top_p"),
    alone(ROLLOUT + "mode", "sync", "rollouts are made for one step at a time", "use sync"),
    alone(ROLLOUT + "use_fire_sampling", False, "rollouts are sampled plainly", "leave it out"),
    alone(ROLLOUT + "multi_turn.enable", False, "a rollout has one turn", "tools and turns are not here"),
    dead(ROLLOUT + "multi_turn.*", UNSET, "it belongs to multi_turn.enable"),
    dead(ROLLOUT + "layered_summon", UNSET, "weights reach vLLM from the trainer"),
    dead(ROLLOUT + "max_model_len", UNSET, "data.max_prompt_length and data.max_response_length decide"),
    dead(ROLLOUT + "engine_kwargs.*", UNSET, VLLM),
)  # fmt: skip

_CREDIT = (
    Flag("algorithm.adv_estimator", "gae", rules.estimator, "algo.advantage.estimator",
         "reinforce_plus_plus: reinforce, reinforce_plus_plus_baseline: reinforce_baseline, grpo: group_norm, or "
         "dr_grpo without norm_adv_by_std_in_grpo; rloo, gae"),
    Flag("algorithm.norm_adv_by_std_in_grpo", True, rules.use_std, "algo.advantage.estimator", "True: group_norm"),
    Flag("algorithm.gamma", 1.0, rules.discount, "algo.advantage.gamma"),
    Flag("algorithm.lam", 1.0, gae(to("algo.advantage.lambd")), "algo.advantage.lambd"),
    Flag("algorithm.use_kl_in_reward", False, rules.kl, "algo.kl.init_coef, oger.kl_penalty_coef",
         "True: the KL in the reward; beside use_kl_loss by oger.kl_penalty_coef"),
    Flag("algorithm.kl_ctrl.kl_coef", 0.001, _reward_kl(rules.kl), "algo.kl.init_coef, oger.kl_penalty_coef",
         "of the KL in the reward: without use_kl_in_reward nothing reads it, there as well"),
    Flag("algorithm.kl_ctrl.type", "fixed", _reward_kl(rules.controller),
         "algo.kl.init_coef, algo.kl.target, algo.kl.horizon",
         "adaptive: with target_kl and horizon, by the same formula"),
    Flag("algorithm.kl_ctrl.horizon", 10000, _adaptive(rules.kl), "algo.kl.target, algo.kl.horizon", "in rollouts"),
    Flag("algorithm.kl_ctrl.target_kl", 0.1, _adaptive(rules.kl), "algo.kl.target"),
    Flag("algorithm.kl_penalty", "kl", _reward_kl(rules.kl), "algo.kl.estimator",
         "kl: k1, abs: abs, mse: k2, low_var_kl: k3; full is not implemented there"),
    Flag(ACTOR + "use_kl_loss", False, rules.kl, "algo.kl.use_loss, algo.kl.init_coef"),
    Flag(ACTOR + "kl_loss_coef", 0.001, _loss_kl(rules.kl), "algo.kl.init_coef", "of the KL in the loss"),
    Flag(ACTOR + "kl_loss_type", "low_var_kl", _loss_kl(rules.kl), "algo.kl.estimator",
         "kl: k1, abs: abs, mse: k2, low_var_kl: k3; full is not implemented there"),
    alone("algorithm.use_pf_ppo", False, "rows are trained once each", "leave it out"),
    dead("algorithm.pf_ppo.*", UNSET, "it belongs to use_pf_ppo"),
    Flag(ACTOR + "loss_agg_mode", "token-mean", rules.aggregation, "oger.loss_aggregation",
         "token-mean: token_mean, over the optimizer step, there over each micro-batch; seq-mean-token-mean: "
         "sequence_mean"),
    same(ACTOR + "entropy_coeff", 0.0, "actor.entropy_coef", remark="0: the entropy is told, and no part of the loss"),
    Flag(ACTOR + "clip_ratio_low", 0.2, rules.clip, "actor.eps_clip, actor.eps_clip_low_high", kind=object),
    Flag(ACTOR + "clip_ratio_high", 0.2, rules.clip, "actor.eps_clip, actor.eps_clip_low_high", kind=object),
    Flag(ACTOR + "clip_ratio", 0.2, rules.clip_ratio, "actor.eps_clip",
         "where one of clip_ratio_low and clip_ratio_high is null, which are 0.2 there by default"),
    same(ACTOR + "clip_ratio_c", 3.0, "actor.dual_clip"),
    *shared.CRITIC,
)  # fmt: skip

_RUN = (
    *shared.RUN,
    Flag("trainer.n_gpus_per_node", 8, machine("num_gpus_per_node", rules.kl_coefficient),
         "actor.num_gpus_per_node, ref.num_gpus_per_node, critic.num_gpus_per_node, vllm.num_engines",
         "of the roles that the run has"),
    Flag("trainer.nnodes", 1, machine("num_nodes", rules.kl_coefficient),
         "actor.num_nodes, ref.num_nodes, critic.num_nodes, vllm.num_engines"),
    alone("trainer.resume_from_path", None, "checkpoints are found in the run folder",
          "give the run's folder as oger.run_dir, with ckpt.load_enable"),
    Flag("trainer.max_actor_ckpt_to_keep", None, rules.kept, "ckpt.max_num", f"null: {KEEP_ALL}, so that all are kept",
         kind=int),
    dead("trainer.max_critic_ckpt_to_keep", UNSET, "a checkpoint holds the critic as well"),
    dead("trainer.balance_batch", True, "every rank gets short and long rows"),
    dead("trainer.log_val_generations", 0, "every evaluated response is in the run folder"),
    dead("trainer.rollout_data_dir", UNSET, "every rollout is in the run folder, with what each source said of it"),
    dead("trainer.validation_data_dir", UNSET, "every evaluated response is in the run folder"),
    alone("trainer.val_only", False, "a run trains", "use oger eval"),
    alone("trainer.device", "cuda", "it is a recipe for GPUs", "for a machine without one see the recipes *_cpu"),
    dead("trainer.ray_wait_register_center_timeout", UNSET, "a worker that does not come is named"),
    dead("ray_init.*", UNSET, "`oger train` starts Ray, or joins the one of RAY_ADDRESS"),
)  # fmt: skip

SECTIONS: dict[str, tuple[Flag, ...]] = {
    "Rewards": _REWARD,
    "Data": _DATA,
    "Policy, optimizer, batches": _POLICY,
    "Rollouts and evaluation": _ROLLOUTS,
    "Advantage, KL, loss, critic": _CREDIT,
    "The run": _RUN,
}

ENVIRONMENT: tuple[Flag, ...] = (
    dead("PYTORCH_CUDA_ALLOC_CONF", UNSET, "it works here as well: export it where `oger train` starts"),
    dead("PYTHONUNBUFFERED", UNSET, "lines are printed as they come"),
    dead("PATH", UNSET, "activate the environment of `oger train`"),
)
