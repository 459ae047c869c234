"""Every flag of OGER's and LUFFY's command line (``verl.mix_src``): its default there and what it is here.

`oger convert` reads commands by this table, and docs/oger_flags.md is written from it (`oger convert --table`). What
OGER adds to LUFFY's flags is nowhere documented; its own flags are read as their names and the paper say
(arXiv 2604.18530). LUFFY's are as its code treats them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from oger_recipe.convert.values import UNSET, Flag, bound_of, choice, inert, only, to, where
from oger_recipe.convert.verl_mix import rules
from oger_recipe.convert.verl_mix.rules import ACTOR, REF, ROLLOUT, TENSOR_PARALLEL

MODEL = "actor_rollout_ref.model."
_PLACED = "DeepSpeed leaves GPU memory while vLLM samples (ds.enable_sleep)"
_UNREAD = "no code of LUFFY's reads it"
_EXGRPO = "this is ExGRPO's replay; oger.use_history_samples keeps earlier correct rollouts as references"
_VLLM = "vLLM chooses"
_OWN = "read from its name"

_bonus = partial(where, rules.only_bonus)
_replace = partial(where, rules.only_replacement)
_prefix = partial(where, rules.prefix_is_inert)
_shaped = partial(where, rules.only_shaped)
_gae = partial(where, rules.only_gae)


def _same(name: str, default: Any, target: str, **more: Any) -> Flag:
    """A flag that has its twin here, in the same unit."""
    return Flag(name, default, to(target), target, **more)


def _dead(name: str, default: Any, reason: str, **more: Any) -> Flag:
    return Flag(name, default, inert(reason), remark=reason, **more)


def _only(name: str, works: Any, reason: str, instead: str, **more: Any) -> Flag:
    word = "null" if works is None else works
    return Flag(name, works, only(works, reason, instead), remark=f"{word} alone: {reason}", **more)


def _refused(name: str, instead: str) -> Flag:
    """A flag that is neither OGER's nor LUFFY's, but met in their neighbourhood."""
    return Flag(name, UNSET, only(UNSET, "", instead), remark=f"refused: {instead}")


_DATA = (
    Flag("data.train_files", UNSET, rules.paths("data.prompt_dataset"), "data.prompt_dataset",
         "LUFFY's and OGER's parquet files are read as they are", "$DATA_DIR/luffy_offline_samples.parquet"),
    Flag("data.val_files", UNSET, rules.paths("eval.dataset"), "eval.dataset",
         "problems that a benchmark has several times, as LUFFY's file has AIME's 8 times, are asked once with as "
         "many times the samples (avg@8); benchmarks by name work as well: math500,aime24", "$DATA_DIR/valid.parquet",
         differs=True),
    Flag("data.prompt_key", "prompt", lambda value, get: {"data.input_key": value, "data.apply_chat_template": True},
         "data.input_key, data.apply_chat_template", "prompts are chats, to which the model's template is applied"),
    _only("data.tokenizer", None, "the tokenizer is the model's", "put the tokenizer into the model's folder"),
    Flag("data.max_prompt_length", 512, rules.length("oger.max_prompt_length"), "oger.max_prompt_length, data.max_len",
         "longer prompts are left out; data.max_len is prompt and response together", "1024"),
    Flag("data.max_response_length", 512, rules.length("rollout.max_new_tokens"),
         "rollout.max_new_tokens, data.max_len", published="8192"),
    _same("data.train_batch_size", 1024, "rollout.batch_size", remark="prompts of a step", published="128"),
    _dead("data.val_batch_size", 1312, "the whole evaluation set is one batch, there as well", published="512"),
    _only("data.shuffle", True, "prompts are shuffled in every episode", "OpenRLHF always shuffles: leave it out",
          published="True"),
    Flag("data.reward_impl_version", 0, rules.reward, "oger.math_rule, oger.math_extract, oger.task_name",
         "0 deepscaler, 1 deepscaler_format, 2 deepscaler_no_think, 3 math_verify_think, 4 math_verify. After several "
         "`</think>` the text behind the last one counts, there the text between the first two; 0 to 2 compare with "
         "math-verify, there with another grader; the opening `<think>` is the prompt's matter", "3", differs=True),
    _dead("data.return_raw_input_ids", False, "there is no second tokenizer"),
    _dead("data.return_raw_chat", False, "there is no second tokenizer"),
    _dead("data.filter_targets", False, _UNREAD),
    _only("data.sample_target_ratio", 1.0, "every prompt keeps its teachers",
          "remove the teachers of a share of the rows from the data"),
    _dead("data.filter_accuracy", False, "it belongs to trainer.acc_rebatch"),
    _dead("data.accuracy_lower_bound", 0.0, "it belongs to trainer.acc_rebatch"),
    _dead("data.accuracy_upper_bound", 1.0, "it belongs to trainer.acc_rebatch"),
    _only("data.add_tgt_with_acc", False, "teachers enter groups of every accuracy",
          "use oger.all_correct_group, which says what becomes of groups that are solved already"),
    _dead("data.add_tgt_acc_upper_bound", 0.5, _UNREAD),
    _same("data.disable_truncation_advantage", False, "oger.disable_truncation_advantage"),
)  # fmt: skip

_MODEL = (
    _same(MODEL + "path", UNSET, "actor.model_name_or_path", published="$MODEL_PATH", kind=str),
    Flag("actor_rollout_ref.hybrid_engine", True,
         lambda value, get: {"train.colocate_all": value, "ds.enable_sleep": value},
         "train.colocate_all, ds.enable_sleep", "trainer and vLLM take turns on the same GPUs"),
    Flag(ACTOR + "strategy", "fsdp", choice("ds.zero_stage", {"fsdp": 3}), "ds.zero_stage",
         "fully sharded: ZeRO stage 3"),
    _same(MODEL + "use_remove_padding", False, "ds.packing_samples", published="True"),
    _same(MODEL + "enable_gradient_checkpointing", True, "actor.gradient_checkpointing_enable", published="True"),
    _only(MODEL + "external_lib", None, "no module is imported",
          "install the model's code, or choose a model of transformers"),
    _only(MODEL + "override_config", None, "nothing is overridden", "change config.json in a copy of the model"),
    _same(ACTOR + "optim.lr", 1e-6, "actor.adam.lr", published="1e-6"),
    _same(ACTOR + "optim.betas", [0.9, 0.999], "actor.adam.betas"),
    _same(ACTOR + "optim.weight_decay", 0.01, "actor.adam.weight_decay"),
    Flag(ACTOR + "optim.lr_warmup_steps_ratio", 0.0, rules.schedule, "actor.lr_scheduler, actor.lr_warmup_ratio"),
    Flag(ACTOR + "optim.warmup_style", "constant", rules.schedule, "actor.lr_scheduler"),
    Flag(ACTOR + "optim.min_lr_ratio", None, rules.minimum_rate, "actor.min_lr_ratio", kind=float),
    _dead(ACTOR + "optim.total_training_steps", -1, "the run's steps are counted when it starts"),
    _same(ACTOR + "grad_clip", 1.0, "actor.max_norm"),
    _same(ACTOR + "ppo_mini_batch_size", 256, "oger.prompts_per_update",
          remark="prompts of an optimizer step; train.batch_size, which counts rollouts, follows", published="64"),
    Flag(ACTOR + "ppo_micro_batch_size", 64, rules.micro_batch, "train.micro_batch_size",
         "prompts over all GPUs; here rollouts on one. No effect with use_dynamic_bsz", "64"),
    _same(ACTOR + "use_dynamic_bsz", False, "train.dynamic_batch_enable", published="True"),
    Flag(ACTOR + "ppo_max_token_len_per_gpu", 16384, rules.tokens_per_gpu,
         "train.max_tokens_per_gpu, rollout.max_tokens_per_gpu", published="32768"),
    _same(ACTOR + "ppo_epochs", 1, "train.max_epochs"),
    _dead(ACTOR + "shuffle", False, "the order of rows within a step's batch is OpenRLHF's"),
    _same(ACTOR + "ulysses_sequence_parallel_size", 1, "ds.ring_attn_size",
          remark="ring attention in place of Ulysses", published="1"),
    _dead(ACTOR + "fsdp_config.param_offload", False, _PLACED, published="False"),
    _dead(ACTOR + "fsdp_config.grad_offload", False, _PLACED, published="False"),
    _same(ACTOR + "fsdp_config.optimizer_offload", False, "ds.adam_offload", published="False"),
    _dead(ACTOR + "fsdp_config.wrap_policy.*", UNSET, "ZeRO shards every parameter"),
    _only(ACTOR + "fsdp_config.fsdp_size", -1, "ZeRO shards over all GPUs", "leave it out, or see ds.zpg"),
    Flag(REF + "use_ref", True, rules.kl, "algo.kl.init_coef",
         "a coefficient of 0 loads no reference; without one there is no KL", "False"),
    Flag(REF + "fsdp_config.param_offload", False, where(
        lambda get: "" if rules.kl(None, get)["algo.kl.init_coef"] else "no reference is loaded", to("ref.offload")),
         "ref.offload", published="True"),
    _dead(REF + "fsdp_config.wrap_policy.*", UNSET, "ZeRO shards every parameter"),
    _dead(REF + "log_prob_micro_batch_size", 128, "the reference cuts batches as the policy does"),
    _dead(REF + "log_prob_use_dynamic_bsz", UNSET, "the reference cuts batches as the policy does"),
    _dead(REF + "log_prob_max_token_len_per_gpu", UNSET, "the reference cuts batches as the policy does"),
    _dead(REF + "ulysses_sequence_parallel_size", UNSET, "the reference cuts sequences as the policy does"),
)  # fmt: skip

_ROLLOUTS = (
    _only(ROLLOUT + "name", "vllm", "rollouts come from vLLM", "only vllm is here", published="vllm"),
    _same(ROLLOUT + "n", 1, "rollout.n_samples_per_prompt", published="8"),
    _same(ROLLOUT + "temperature", 1.0, "rollout.temperature", published="1.0"),
    Flag(ROLLOUT + "top_p", 1.0, rules.top_p, "rollout.top_p", "the evaluation samples from all tokens"),
    _same(ROLLOUT + "top_k", -1, "oger.top_k"),
    _only(ROLLOUT + "do_sample", True, "rollouts are sampled", "for greedy evaluation use eval.temperature 0"),
    _same(ROLLOUT + "n_val", 8, "eval.n_samples_per_prompt", published="1"),
    _same(ROLLOUT + "val_temperature", 0.6, "eval.temperature", published="0.6"),
    Flag(ROLLOUT + TENSOR_PARALLEL, 2, rules.engines, "vllm.tensor_parallel_size, vllm.num_engines",
         "engines: GPUs / this", "2"),
    _same(ROLLOUT + "gpu_memory_utilization", 0.5, "vllm.gpu_memory_utilization", published="0.60"),
    _same(ROLLOUT + "free_cache_engine", True, "vllm.enable_sleep"),
    _same(ROLLOUT + "enforce_eager", UNSET, "vllm.enforce_eager", kind=bool,
          remark="True there by default, because its vLLM could not free memory otherwise; that default is not "
          "carried over"),
    Flag(ROLLOUT + "log_prob_micro_batch_size", 128, rules.forward_micro_batch, "rollout.micro_batch_size"),
    _dead(ROLLOUT + "log_prob_use_dynamic_bsz", UNSET, "train.dynamic_batch_enable is for both passes"),
    Flag(ROLLOUT + "log_prob_max_token_len_per_gpu", None, rules.tokens_per_gpu, "rollout.max_tokens_per_gpu",
         kind=int),
    _only(ROLLOUT + "dtype", "bfloat16", "models are in bf16", "leave it out"),
    _only(ROLLOUT + "ignore_eos", False, "responses end", "leave it out"),
    _dead(ROLLOUT + "prompt_length", UNSET, "data.max_prompt_length decides"),
    Flag(ROLLOUT + "response_length", UNSET, rules.response_length, remark="data.max_response_length decides",
         kind=int),
    _dead(ROLLOUT + "load_format", UNSET, "weights reach vLLM from the trainer"),
    _dead(ROLLOUT + "max_num_batched_tokens", UNSET, _VLLM),
    _dead(ROLLOUT + "max_num_seqs", UNSET, _VLLM),
    _dead(ROLLOUT + "enable_chunked_prefill", UNSET, _VLLM),
    _dead(ROLLOUT + "disable_log_stats", UNSET, "vLLM's log is in the run folder"),
)  # fmt: skip

_PREFIX = (
    Flag(ROLLOUT + "max_prefix_len", 8192, where(rules.only_teachers, to("oger.max_prefix_len")),
         "oger.max_prefix_len",
         "longer trajectories are left out and counted, there they are cut: oger.long_teachers truncate", "8192",
         differs=True),
    Flag(ROLLOUT + "n_prefix", -1, rules.guidance, "oger.n_prefix",
         "in OGER's command no rollout is guided, because both ratios are 0", "1"),
    Flag(ROLLOUT + "prefix_strategy", "random", _prefix(rules.strategy), "oger.prefix_strategy", published="random"),
    Flag(ROLLOUT + "min_prefix_ratio", 0.0, _prefix(to("oger.min_prefix_ratio")), "oger.min_prefix_ratio",
         published="0.0"),
    Flag(ROLLOUT + "max_prefix_ratio", 1.0, _prefix(to("oger.max_prefix_ratio")), "oger.max_prefix_ratio",
         "LUFFY's two ratios are 1.0: one rollout of a group is the whole trajectory of a teacher", "0.0"),
    Flag(ROLLOUT + "prefix_share_across_samples", False, _prefix(to("oger.prefix_share_across_samples")),
         "oger.prefix_share_across_samples", published="False"),
    Flag(ROLLOUT + "prefix_steps", 1000, where(rules.only_windowed, to("oger.prefix_steps")), "oger.prefix_steps"),
    Flag(ROLLOUT + "prefix_linear_max_ratio", 0.8, where(rules.only_windowed, to("oger.prefix_linear_max_ratio")),
         "oger.prefix_linear_max_ratio"),
    _dead(ROLLOUT + "prefix_linear_max_var", 0.1, "LUFFY's code reads another spelling of it, for a strategy that "
          "does not work"),
    _dead(ROLLOUT + "prefix_reward_strategy", "all", _UNREAD),
    _same(ROLLOUT + "prefix_reward_weight_alpha", 1.0, "oger.prefix_reward_weight_alpha", published="1.0"),
    _same(ROLLOUT + "prefix_reward_weight_beta", 1.0, "oger.prefix_reward_weight_beta"),
    _same(ACTOR + "use_sft_prefix_reward", False, "oger.use_sft_prefix_reward", published="False"),
    _same(ACTOR + "sft_prefix_reward_weight", 1.0, "oger.sft_prefix_reward_weight"),
)  # fmt: skip

_ADVANTAGE = (
    Flag("algorithm.adv_estimator", "gae", rules.estimator, "algo.advantage.estimator, oger.advantage_baseline",
         "grpo: dr_grpo, with grpo_use_std group_norm; grpo_split: with oger.advantage_baseline rollouts; "
         "reinforce_plus_plus: reinforce", "grpo"),
    Flag("algorithm.grpo_use_std", True, rules.use_std, "algo.advantage.estimator", "True: group_norm", "False"),
    Flag("algorithm.gamma", 1.0, _gae(to("algo.advantage.gamma")), "algo.advantage.gamma"),
    Flag("algorithm.lam", 1.0, _gae(to("algo.advantage.lambd")), "algo.advantage.lambd"),
    Flag("algorithm.kl_ctrl.kl_coef", 0.001, where(rules.only_reward_kl, rules.kl), "algo.kl.init_coef",
         "the KL in the reward", "0.000"),
    _only("algorithm.kl_ctrl.type", "fixed", "the coefficient is constant",
          "give algo.kl.target and algo.kl.horizon"),
    Flag("algorithm.kl_penalty", "kl", where(rules.only_reward_kl, rules.kl_kind), "algo.kl.estimator",
         "kl: k1, mse: k2, low_var_kl: k3"),
    _dead("algorithm.surprisal_base", 0.0, _UNREAD),
    Flag(ACTOR + "use_kl_loss", True, rules.kl, "algo.kl.use_loss, algo.kl.init_coef",
         "LUFFY stops when it meets use_off_policy_loss; here both work", "False"),
    Flag(ACTOR + "kl_loss_coef", 0.001, where(rules.only_loss_kl, rules.kl), "algo.kl.init_coef",
         "in the unit of entropy_coeff", "0.00", differs=True),
    Flag(ACTOR + "kl_loss_type", "low_var_kl", where(rules.only_loss_kl, rules.kl_kind), "algo.kl.estimator",
         "kl: k1, mse: k2, low_var_kl: k3", "low_var_kl"),
    Flag("critic.optim.lr", 1e-5, _gae(to("critic.adam.lr")), "critic.adam.lr"),
    Flag("critic.model.path", UNSET, _gae(to("critic.model_name_or_path")), "critic.model_name_or_path", kind=str),
    Flag("critic.cliprange_value", 0.5, _gae(to("critic.value_clip")), "critic.value_clip"),
    Flag("critic.grad_clip", 1.0, _gae(to("critic.max_norm")), "critic.max_norm"),
    Flag("critic.*", UNSET, _gae(inert("the critic is trained as the policy is")),
         remark="the critic, with gae alone, is cut into batches, sharded and scheduled as the policy is"),
    _only("reward_model.enable", False, "rewards come from verifiers", "see reward.model_name_or_path"),
    _dead("reward_model.*", UNSET, "rewards come from verifiers"),
)  # fmt: skip

_LOSS = (
    Flag(ACTOR + "use_off_policy_loss", False, rules.teacher_loss, "oger.off_policy_loss",
         "True: reshape; False: ppo, or sft with use_sft_multitask_loss", "True"),
    _only(ACTOR + "off_policy_loss_impl", "token", "the loss is one of tokens",
          "LUFFY has no loss of that name: use token", published="token"),
    Flag(ACTOR + "off_policy_reshape", "no_reshape", _shaped(rules.reshape("oger.off_policy_reshape")),
         "oger.off_policy_reshape", published="p_div_p_0.1"),
    Flag(ACTOR + "off_policy_reshape_weight", 0.1, _shaped(to("oger.off_policy_reshape_weight")),
         "oger.off_policy_reshape_weight"),
    Flag(ACTOR + "off_policy_reshape_pow_exp", 0.5, _shaped(to("oger.off_policy_reshape_pow_exp")),
         "oger.off_policy_reshape_pow_exp"),
    Flag(ACTOR + "off_policy_max_clip", -1.0, _shaped(bound_of("oger.off_policy_max_clip")),
         "oger.off_policy_max_clip", "-1: null"),
    Flag(ACTOR + "off_policy_min_clip", -1.0, _shaped(bound_of("oger.off_policy_min_clip")),
         "oger.off_policy_min_clip", "-1: null"),
    Flag(ACTOR + "use_off_policy_probs", False, _shaped(to("oger.use_off_policy_probs")),
         "oger.use_off_policy_probs"),
    _dead(ACTOR + "off_policy_normalize", False, "LUFFY's loss does not use it", published="False"),
    _dead(ACTOR + "off_policy_cliprange", 0.2, "LUFFY's loss does not use it"),
    _dead(ACTOR + "use_off_policy_clip", False, _UNREAD),
    Flag(ACTOR + "on_policy_reshape", "no_reshape", _shaped(rules.reshape("oger.on_policy_reshape")),
         "oger.on_policy_reshape"),
    Flag(ACTOR + "on_policy_reshape_weight", 0.1, _shaped(to("oger.on_policy_reshape_weight")),
         "oger.on_policy_reshape_weight"),
    Flag(ACTOR + "on_policy_reshape_pow_exp", 0.5, _shaped(to("oger.on_policy_reshape_pow_exp")),
         "oger.on_policy_reshape_pow_exp"),
    Flag(ACTOR + "all_max_clip", -1.0, _shaped(bound_of("oger.all_max_clip")), "oger.all_max_clip", "-1: null"),
    Flag(ACTOR + "use_sft_multitask_loss", False, rules.teacher_loss, "oger.off_policy_loss", "True: sft"),
    Flag(ACTOR + "sft_loss_coef", 1.0, where(rules.only_supervised, rules.of_micro_batches("oger.sft_loss_coef")),
         "oger.sft_loss_coef", "in the unit of entropy_coeff", differs=True),
    Flag(ACTOR + "loss_remove_token_mean", False,
         choice("oger.loss_aggregation", {True: "constant", False: "token_mean"}), "oger.loss_aggregation",
         "True: constant, the mean over rows of (sum of token losses / longest response). There it is not divided by "
         "the rows: with OGER's 64 rows on each GPU that loss is 64 times ours. AdamW evens this out, except where "
         "gradients are clipped (actor.max_norm) and against the entropy term. False: token_mean, over the optimizer "
         "step, there over each micro-batch", "True", differs=True),
    _same(ACTOR + "loss_remove_clip", False, "oger.loss_remove_clip", published="True"),
    Flag(ACTOR + "clip_ratio", 0.2, rules.clip, "actor.eps_clip"),
    Flag(ACTOR + "clip_upper_bound", 1.0, rules.clip, "actor.eps_clip_low_high",
         "the ratio's upper bound, where it is above 1 + clip_ratio"),
    Flag(ACTOR + "entropy_coeff", 0.001, rules.of_micro_batches("actor.entropy_coef"), "actor.entropy_coef",
         "the entropy is averaged over the optimizer step; there over each of a GPU's K micro-batches, and these are "
         "added up, beside loss_remove_token_mean's sum over its R rows. The same weight here is K / R times the "
         "coefficient: 6.25e-5 for OGER's 0.001, 64 rows and 32,768 tokens a micro-batch, where responses have 2,048 "
         "tokens, a quarter of the longest. There the weight grows with the responses (3.1e-5 at 1,024 tokens, "
         "1.25e-4 at 4,096), here it stays", "0.001", differs=True),
    _only(ACTOR + "use_ppo_kl_loss", False, "there is no loss on the distance to the rollouts' policy",
          "use algo.kl.use_loss, the distance to the reference"),
    _dead(ACTOR + "ppo_kl_loss_coef", 0.01, "it belongs to use_ppo_kl_loss"),
    _only(ACTOR + "use_adaptive_temperature", False, "the entropy's coefficient is constant", "use entropy_coeff"),
    _only(ACTOR + "use_adaptive_temperature_fixed", False, "the entropy's coefficient is constant",
          "use entropy_coeff"),
    _dead(ACTOR + "adaptive_temperature_clip", -1, "it belongs to use_adaptive_temperature"),
    _dead(ACTOR + "adaptive_temperature_target_entropy", 1.0, "it belongs to use_adaptive_temperature"),
    _dead(ACTOR + "alpha_lr", 1e-2, "it belongs to use_adaptive_temperature"),
    _dead(ACTOR + "use_sft_reward", False, _UNREAD),
    _dead(ACTOR + "use_target_lst", False, f"{_UNREAD}; all teachers of a row are used"),
    _dead(ACTOR + "debug", False, _UNREAD),
    _refused(ACTOR + "skip_grad_bound", "this is ExGRPO's: leave it out; gradients are clipped by grad_clip"),
)  # fmt: skip

_OGER = (
    Flag(ROLLOUT + "replace_after_rm", False, rules.replacement, "oger.replace_after_rm, oger.max_replace_num",
         "True: teachers take the place of graded rollouts; False: the prefix is the only way in, and "
         "oger.max_replace_num is 0", "True"),
    Flag("trainer.max_replace_num", UNSET, _replace(to("oger.max_replace_num")), "oger.max_replace_num", published="1",
         kind=int),
    Flag("trainer.replace_mode", UNSET, _replace(rules.replace_mode), "oger.replace_mode",
         published="similarity_mean_des", kind=str),
    Flag("trainer.similarity_embedding", False, rules.embedding, "oger.embedding_model",
         "False is possible where nothing is compared, or with similarity_reranker", "True"),
    Flag("trainer.similarity_embedding_model", None, rules.similarity_model,
         "oger.embedding_model, oger.similarity_reranker", published="/path/to/embedding_model", kind=str),
    Flag("trainer.similarity_reranker", False, rules.reranker, "oger.similarity_reranker",
         f"{_OWN}: similarity_embedding_model is then a cross-encoder", "False"),
    Flag("trainer.use_similarity_score", False, choice("oger.bonus_weight", {True: 1.0, False: 0.0}),
         "oger.bonus_weight", "True: 1; False: 0", "True"),
    Flag("trainer.similarity_reverse", False, _bonus(to("oger.similarity_reverse")), "oger.similarity_reverse",
         published="True"),
    Flag("trainer.similarity_reverse_fail", False, _bonus(to("oger.similarity_reverse_fail")),
         "oger.similarity_reverse_fail", f"{_OWN}: wrong rollouts earn the opposite measure", "False"),
    Flag("trainer.similarity_shaping", False,
         _bonus(choice("oger.similarity_shaping", {True: "group_minmax", False: "none"})), "oger.similarity_shaping",
         f"{_OWN}; True: group_minmax", "False"),
    Flag("trainer.last_token_enp_reward", None, _bonus(rules.entropy_weight), "oger.last_token_enp_reward",
         "exp_neg_enp: exp_neg_entropy, neg_enp: neg_entropy, enp: entropy, False: none", "exp_neg_enp"),
    Flag("trainer.use_mu_schedule", False, _bonus(rules.mu_schedule), "oger.bonus_schedule, oger.bonus_weight_end",
         f"{_OWN}; True: linear, to 0 at the end of the run", "False"),
    Flag("trainer.repeating_check", False, _bonus(to("oger.repeating_check")), "oger.repeating_check",
         f"{_OWN}: degenerate repetition earns no bonus", "False"),
    Flag("trainer.skip_all_success", False, choice("oger.all_correct_group", {True: "skip", False: "keep"}),
         "oger.all_correct_group", f"{_OWN}; True: skip, False: keep", "False"),
    _same("trainer.use_history_samples", False, "oger.use_history_samples", published="False",
          remark=f"{_OWN}: the policy's earlier correct rollouts are references, too"),
)  # fmt: skip

_TRAINER = (
    Flag("trainer.n_gpus_per_node", 8, rules.machine("num_gpus_per_node"),
         "actor.num_gpus_per_node, ref.num_gpus_per_node, critic.num_gpus_per_node, vllm.num_engines",
         "of the roles that the run has", "8"),
    Flag("trainer.nnodes", 1, rules.machine("num_nodes"),
         "actor.num_nodes, ref.num_nodes, critic.num_nodes, vllm.num_engines", published="1"),
    _same("trainer.total_training_steps", None, "oger.total_training_steps", published="2000", kind=int),
    _same("trainer.total_epochs", 30, "train.num_episodes", remark="passes over the prompts"),
    _same("trainer.save_freq", -1, "ckpt.save_steps", published="50"),
    _same("trainer.test_freq", -1, "eval.steps", published="10"),
    _same("trainer.val_before_train", True, "oger.val_before_train", published="False"),
    Flag("trainer.max_optim_to_keep", 3, rules.checkpoints, "ckpt.max_num",
         f"-1: {rules.KEEP_ALL}, so that all are kept (LUFFY's code would delete the first two). Here whole "
         "checkpoints are counted, there optimizer states", "-1", differs=True),
    _same("trainer.default_local_dir", UNSET, "oger.run_dir", remark="its folder checkpoints/ holds them",
          published="$save_dir/$PROJECT_NAME/$EXPERIMENT_NAME", kind=str),
    _only("trainer.default_hdfs_dir", None, "nothing is copied to HDFS", "copy the run folder when the run is over",
          published="null"),
    Flag("trainer.resume_mode", UNSET, rules.resume, "ckpt.load_enable",
         "auto, there the default: true; here a run is continued where that is asked for"),
    _only("trainer.resume_from_path", False, "checkpoints are found in the run folder",
          "give the run's folder as oger.run_dir, with ckpt.load_enable"),
    _only("trainer.remove_previous_ckpt_in_save", False, "ckpt.max_num decides", "use ckpt.max_num"),
    _only("trainer.del_local_ckpt_after_load", False, "checkpoints are not deleted by loading", "leave it out"),
    Flag("trainer.critic_warmup", 0, rules.critic_warmup, "critic.freezing_steps", "with gae alone", "0"),
    Flag("trainer.logger", UNSET, rules.logger, remark="the console and TensorBoard are always written to; wandb: "
         "`--logger.wandb.key env` with `WANDB_API_KEY`", published="['console','tensorboard']"),
    _same("trainer.project_name", "verl_examples", "logger.wandb.project", published="$PROJECT_NAME"),
    _same("trainer.experiment_name", "gsm8k", "logger.wandb.run_name",
          remark="TensorBoard's folder has it as well", published="$EXPERIMENT_NAME"),
    _dead("trainer.val_generations_to_log_to_wandb", 0, "every evaluated response is in the run folder"),
    _dead("trainer.rejection_sample", False, "LUFFY's trainer does not read it"),
    _dead("trainer.rejection_sample_multiplier", 2, "LUFFY's trainer does not read it"),
    _only("trainer.acc_rebatch", False, "groups of all accuracies are trained on",
          "LUFFY stops there at its first step; use algo.dynamic_filtering_enable with algo.dynamic_filtering_range"),
    _dead("trainer.skip_valid_mask", False, "LUFFY's trainer makes that mask and never applies it"),
    _dead("trainer.add_full_target_when_none", False, "there is no code behind it"),
    _dead("trainer.skip_by_step", False, _UNREAD),
    _dead("trainer.debug", False, "`oger train --oger.verbose` shows the workers' logs"),
    _only("trainer.experience", False, "there is no replay", _EXGRPO),
    _dead("trainer.experience_*", UNSET, "it belongs to trainer.experience, ExGRPO's replay"),
    _dead("trainer.exp_*", UNSET, "it belongs to trainer.experience, ExGRPO's replay"),
    _dead("trainer.constant_data", None, "it belongs to trainer.experience, ExGRPO's replay"),
    _dead("hydra.*", UNSET, "Hydra is not used; the run folder has the resolved recipe"),
)  # fmt: skip

SECTIONS: dict[str, tuple[Flag, ...]] = {
    "OGER's own flags": _OGER,
    "Data and reward": _DATA,
    "Policy, optimizer, batches": _MODEL,
    "Rollouts and evaluation": _ROLLOUTS,
    "Prefixes of teachers (LUFFY)": _PREFIX,
    "Advantage, KL, critic": _ADVANTAGE,
    "Loss": _LOSS,
    "The run": _TRAINER,
}

# Exported variables that are settings.
ENVIRONMENT: tuple[Flag, ...] = (
    _same("TENSORBOARD_DIR", UNSET, "logger.tensorboard_dir", published="/path/to/your/log", kind=str),
    _dead("VLLM_ATTENTION_BACKEND", UNSET, "vLLM chooses its attention itself", published="XFORMERS"),
)
