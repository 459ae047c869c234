"""Every flag of OGER's, LUFFY's, ExGRPO's and HPT's command lines (``verl.mix_src``): its default there and what it
is here.

`oger convert` reads commands by this table, and docs/oger_flags.md is written from it (`oger convert --table`). What
OGER adds to LUFFY's flags is nowhere documented; its own flags are read as their names and the paper say
(arXiv 2604.18530). LUFFY's are as its code treats them.
"""

from __future__ import annotations

from functools import partial

from oger_recipe.convert.values import UNSET, Flag, alone, bound_of, choice, dead, same, to, where
from oger_recipe.convert.verl import flags as shared
from oger_recipe.convert.verl.flags import PLACED, gae
from oger_recipe.convert.verl.rules import (
    ACTOR,
    KEEP_ALL,
    REF,
    ROLLOUT,
    TENSOR_PARALLEL,
    checkpoints,
    engines,
    forward_micro_batch,
    machine,
    micro_batch,
)
from oger_recipe.convert.verl_mix import rules

_UNREAD = "no code of LUFFY's reads it"
_OWN = "read from its name"

_bonus = partial(where, rules.only_bonus)
_replace = partial(where, rules.only_replacement)
_prefix = partial(where, rules.prefix_is_inert)
_shaped = partial(where, rules.only_shaped)
_shaped_rollouts = partial(where, rules.only_shaped_rollouts)
_replay = partial(where, rules.only_replay)
_switch = partial(where, rules.only_switch)
_SKIPS = "no update is left out for its size: a larger gradient is scaled down to grad_clip"

_DATA = (
    *shared.DATA,
    Flag("data.reward_impl_version", 0, rules.reward, "oger.math_rule, oger.math_extract, oger.task_name",
         "0 deepscaler, 1 deepscaler_format, 2 deepscaler_no_think, 3 math_verify_think, 4 math_verify, HPT's 5 and 6 "
         "math_verify of the last box. After several `</think>` the text behind the last one counts, there the text "
         "between the first two; 0 to 2, 5 and 6 compare with math-verify, there with another "
         "grader; the opening `<think>` is the prompt's matter", differs=True),
    dead("data.filter_targets", False, _UNREAD),
    alone("data.sample_target_ratio", 1.0, "every prompt keeps its teachers",
          "remove the teachers of a share of the rows from the data"),
    dead("data.filter_accuracy", False, "it belongs to trainer.acc_rebatch"),
    dead("data.accuracy_lower_bound", 0.0, "it belongs to trainer.acc_rebatch"),
    dead("data.accuracy_upper_bound", 1.0, "it belongs to trainer.acc_rebatch"),
    alone("data.add_tgt_with_acc", False, "teachers enter groups of every accuracy",
          "use oger.all_correct_group, which says what becomes of groups that are solved already"),
    dead("data.add_tgt_acc_upper_bound", 0.5, _UNREAD),
    same("data.disable_truncation_advantage", False, "oger.disable_truncation_advantage"),
)  # fmt: skip

_MODEL = (
    *shared.POLICY,
    Flag(ACTOR + "ppo_micro_batch_size", 64, micro_batch, "train.micro_batch_size",
         "prompts over all GPUs; here rollouts on one. No effect with use_dynamic_bsz"),
    dead(ACTOR + "fsdp_config.grad_offload", False, PLACED),
    Flag(REF + "use_ref", True, rules.kl, "algo.kl.init_coef",
         "a coefficient of 0 loads no reference; without one there is no KL"),
    Flag(REF + "fsdp_config.param_offload", False, where(
        lambda get: "" if rules.kl(None, get)["algo.kl.init_coef"] else "no reference is loaded", to("ref.offload")),
         "ref.offload"),
    dead(REF + "log_prob_micro_batch_size", UNSET, "the reference cuts batches as the policy does"),
)  # fmt: skip

_ROLLOUTS = (
    *(flag for flag in shared.ROLLOUTS if flag.name != ROLLOUT + "name"),
    Flag(ROLLOUT + "name", "vllm", rules.engine, remark="vllm, and ExGRPO's vllm_exp: rollouts come from vLLM"),
    Flag(ROLLOUT + "top_p", 1.0, rules.top_p, "rollout.top_p", "the evaluation samples from all tokens"),
    same(ROLLOUT + "n_val", 8, "eval.n_samples_per_prompt"),
    same(ROLLOUT + "val_temperature", 0.6, "eval.temperature"),
    dead(ROLLOUT + "val_top_p", UNSET, "HPT's rollout worker does not read it: evaluation samples from all tokens"),
    Flag(ROLLOUT + TENSOR_PARALLEL, 2, engines, "vllm.tensor_parallel_size, vllm.num_engines",
         "engines: GPUs / this"),
    same(ROLLOUT + "gpu_memory_utilization", 0.5, "vllm.gpu_memory_utilization"),
    Flag(ROLLOUT + "log_prob_micro_batch_size", 128, forward_micro_batch, "rollout.micro_batch_size"),
)  # fmt: skip

_PREFIX = (
    Flag(ROLLOUT + "max_prefix_len", 8192, where(rules.only_teachers, to("oger.max_prefix_len")),
         "oger.max_prefix_len",
         "longer trajectories are left out and counted, there they are cut: oger.long_teachers truncate",
         differs=True),
    Flag(ROLLOUT + "n_prefix", -1, rules.guidance, "oger.n_prefix",
         "in OGER's command no rollout is guided, because both ratios are 0"),
    Flag(ROLLOUT + "prefix_strategy", "random", _prefix(rules.strategy), "oger.prefix_strategy"),
    Flag(ROLLOUT + "min_prefix_ratio", 0.0, _prefix(to("oger.min_prefix_ratio")), "oger.min_prefix_ratio"),
    Flag(ROLLOUT + "max_prefix_ratio", 1.0, _prefix(to("oger.max_prefix_ratio")), "oger.max_prefix_ratio",
         "LUFFY's two ratios are 1.0: one rollout of a group is the whole trajectory of a teacher"),
    Flag(ROLLOUT + "prefix_share_across_samples", False, _prefix(to("oger.prefix_share_across_samples")),
         "oger.prefix_share_across_samples"),
    Flag(ROLLOUT + "prefix_steps", 1000, where(rules.only_windowed, to("oger.prefix_steps")), "oger.prefix_steps"),
    Flag(ROLLOUT + "prefix_linear_max_ratio", 0.8, where(rules.only_windowed, to("oger.prefix_linear_max_ratio")),
         "oger.prefix_linear_max_ratio"),
    dead(ROLLOUT + "prefix_linear_max_var", 0.1, "LUFFY's code reads another spelling of it, for a strategy that "
          "does not work"),
    dead(ROLLOUT + "prefix_reward_strategy", "all", _UNREAD),
    same(ROLLOUT + "prefix_reward_weight_alpha", 1.0, "oger.prefix_reward_weight_alpha"),
    same(ROLLOUT + "prefix_reward_weight_beta", 1.0, "oger.prefix_reward_weight_beta"),
    Flag(ACTOR + "use_sft_prefix_reward", False,
         where(rules.only_with_advantage, to("oger.use_sft_prefix_reward")), "oger.use_sft_prefix_reward"),
    Flag(ACTOR + "sft_prefix_reward_weight", 1.0,
         where(rules.only_with_advantage, to("oger.sft_prefix_reward_weight")), "oger.sft_prefix_reward_weight"),
)  # fmt: skip

_ADVANTAGE = (
    Flag("algorithm.adv_estimator", "gae", rules.estimator, "algo.advantage.estimator, oger.advantage_baseline",
         "grpo: dr_grpo, with grpo_use_std group_norm; grpo_split: with oger.advantage_baseline rollouts; "
         "reinforce_plus_plus: reinforce"),
    Flag("algorithm.grpo_use_std", True, rules.use_std, "algo.advantage.estimator", "True: group_norm"),
    Flag("algorithm.gamma", 1.0, gae(to("algo.advantage.gamma")), "algo.advantage.gamma"),
    Flag("algorithm.lam", 1.0, gae(to("algo.advantage.lambd")), "algo.advantage.lambd"),
    Flag("algorithm.kl_ctrl.kl_coef", 0.001, where(rules.only_reward_kl, rules.kl), "algo.kl.init_coef",
         "the KL in the reward"),
    alone("algorithm.kl_ctrl.type", "fixed", "the coefficient is constant",
          "give algo.kl.target and algo.kl.horizon"),
    Flag("algorithm.kl_penalty", "kl", where(rules.only_reward_kl, rules.kl_kind), "algo.kl.estimator",
         "kl: k1, abs: abs, mse: k2, low_var_kl: k3"),
    dead("algorithm.surprisal_base", 0.0, _UNREAD),
    Flag(ACTOR + "use_kl_loss", True, rules.kl, "algo.kl.use_loss, algo.kl.init_coef",
         "LUFFY stops when it meets use_off_policy_loss; here both work"),
    Flag(ACTOR + "kl_loss_coef", 0.001, where(rules.only_loss_kl, rules.kl), "algo.kl.init_coef",
         "in the unit of entropy_coeff", differs=True),
    Flag(ACTOR + "kl_loss_type", "low_var_kl", where(rules.only_loss_kl, rules.kl_kind), "algo.kl.estimator",
         "kl: k1, abs: abs, mse: k2, low_var_kl: k3"),
    alone("reward_model.enable", False, "rewards come from verifiers", "see reward.model_name_or_path"),
    dead("reward_model.*", UNSET, "rewards come from verifiers"),
    *shared.CRITIC,
)  # fmt: skip

_LOSS = (
    Flag(ACTOR + "use_off_policy_loss", False, rules.teacher_loss, "oger.off_policy_loss",
         "True: reshape; False: ppo, or sft with use_sft_multitask_loss"),
    alone(ACTOR + "off_policy_loss_impl", "token", "the loss is one of tokens",
          "LUFFY has no loss of that name: use token"),
    Flag(ACTOR + "off_policy_reshape", "no_reshape", _shaped(rules.reshape("oger.off_policy_reshape")),
         "oger.off_policy_reshape"),
    Flag(ACTOR + "off_policy_reshape_weight", 0.1, _shaped(to("oger.off_policy_reshape_weight")),
         "oger.off_policy_reshape_weight"),
    Flag(ACTOR + "off_policy_reshape_pow_exp", 0.5, _shaped(to("oger.off_policy_reshape_pow_exp")),
         "oger.off_policy_reshape_pow_exp"),
    Flag(ACTOR + "off_policy_max_clip", -1.0, _shaped(bound_of("oger.off_policy_max_clip")),
         "oger.off_policy_max_clip", "-1: null"),
    Flag(ACTOR + "off_policy_min_clip", -1.0, _shaped(bound_of("oger.off_policy_min_clip")),
         "oger.off_policy_min_clip", "-1: null"),
    Flag(ACTOR + "use_off_policy_probs", False, _shaped(rules.teacher_probs),
         "oger.use_off_policy_probs"),
    dead(ACTOR + "off_policy_normalize", False, "LUFFY's loss does not use it"),
    dead(ACTOR + "off_policy_cliprange", 0.2, "LUFFY's loss does not use it"),
    dead(ACTOR + "use_off_policy_clip", False, _UNREAD),
    Flag(ACTOR + "on_policy_reshape", "no_reshape", _shaped_rollouts(rules.reshape("oger.on_policy_reshape")),
         "oger.on_policy_reshape"),
    Flag(ACTOR + "on_policy_reshape_weight", 0.1, _shaped_rollouts(to("oger.on_policy_reshape_weight")),
         "oger.on_policy_reshape_weight"),
    Flag(ACTOR + "on_policy_reshape_pow_exp", 0.5, _shaped_rollouts(to("oger.on_policy_reshape_pow_exp")),
         "oger.on_policy_reshape_pow_exp"),
    Flag(ACTOR + "all_max_clip", -1.0, _shaped(bound_of("oger.all_max_clip")), "oger.all_max_clip", "-1: null"),
    Flag(ACTOR + "use_sft_multitask_loss", False, rules.teacher_loss, "oger.off_policy_loss", "True: sft"),
    Flag(ACTOR + "sft_loss_coef", 1.0, where(rules.only_supervised, rules.sft_coefficient),
         "oger.sft_loss_coef, oger.sft_prefix_reward_weight",
         "in the unit of entropy_coeff; with unify_strategy switch, times rollout.n, the advantage of a teacher's "
         "tokens beside the rollouts': there it is shared by the teachers of a micro-batch", differs=True),
    Flag(ACTOR + "loss_remove_token_mean", False,
         choice("oger.loss_aggregation", {True: "constant", False: "token_mean"}), "oger.loss_aggregation",
         "True: constant, the mean over rows of (sum of token losses / longest response). There it is not divided by "
         "the rows: with OGER's 64 rows on each GPU that loss is 64 times ours. AdamW evens this out, except where "
         "gradients are clipped (actor.max_norm) and against the entropy term. False: token_mean, over the optimizer "
         "step, there over each micro-batch", differs=True),
    same(ACTOR + "loss_remove_clip", False, "oger.loss_remove_clip"),
    Flag(ACTOR + "clip_ratio", 0.2, rules.clip, "actor.eps_clip"),
    Flag(ACTOR + "clip_upper_bound", 1.0, rules.clip, "actor.eps_clip_low_high",
         "the ratio's upper bound, where it is above 1 + clip_ratio"),
    Flag(ACTOR + "entropy_coeff", 0.001, rules.of_micro_batches("actor.entropy_coef"), "actor.entropy_coef",
         "the entropy is averaged over the optimizer step; there over each of a GPU's K micro-batches, and these are "
         "added up, beside loss_remove_token_mean's sum over its R rows. The same weight here is K / R times the "
         "coefficient: 6.25e-5 for OGER's 0.001, 64 rows and 32,768 tokens a micro-batch, where responses have 2,048 "
         "tokens, a quarter of the longest. There the weight grows with the responses (3.1e-5 at 1,024 tokens, "
         "1.25e-4 at 4,096), here it stays", differs=True),
    alone(ACTOR + "use_ppo_kl_loss", False, "there is no loss on the distance to the rollouts' policy",
          "use algo.kl.use_loss, the distance to the reference"),
    dead(ACTOR + "ppo_kl_loss_coef", 0.01, "it belongs to use_ppo_kl_loss"),
    alone(ACTOR + "use_adaptive_temperature", False, "the entropy's coefficient is constant", "use entropy_coeff"),
    alone(ACTOR + "use_adaptive_temperature_fixed", False, "the entropy's coefficient is constant",
          "use entropy_coeff"),
    dead(ACTOR + "adaptive_temperature_clip", -1, "it belongs to use_adaptive_temperature"),
    dead(ACTOR + "adaptive_temperature_target_entropy", 1.0, "it belongs to use_adaptive_temperature"),
    dead(ACTOR + "alpha_lr", 1e-2, "it belongs to use_adaptive_temperature"),
    dead(ACTOR + "use_sft_reward", False, _UNREAD),
    dead(ACTOR + "use_target_lst", False, f"{_UNREAD}; all teachers of a row are used"),
    dead(ACTOR + "debug", False, _UNREAD),
    Flag(ACTOR + "offline_loss_type", UNSET, rules.offline_loss,
         "oger.off_policy_loss, oger.off_policy_reshape, oger.off_policy_reshape_weight, oger.use_sft_prefix_reward, "
         "oger.sft_token_weight, oger.sft_loss_coef, oger.rollout_advantage, oger.on_policy_reshape",
         "HPT's; off_policy: reshape, sft: sft, with unify_strategy switch log p with a fixed advantage, srft: "
         "reshape_sft with SRFT's weights, of which the supervised one is 0.5 in the unit of entropy_coeff", kind=str),
    alone(ACTOR + "srft_type", "paper", "SRFT's loss is the paper's", "there is one SRFT: leave it out"),
    dead(ACTOR + "skip_grad_bound", UNSET, f"ExGRPO's bound: {_SKIPS}"),
    dead(ACTOR + "max_grad_norm", UNSET, f"HPT's bound: {_SKIPS}"),
)  # fmt: skip

_OGER = (
    Flag(ROLLOUT + "replace_after_rm", False, rules.replacement, "oger.replace_after_rm, oger.max_replace_num",
         "True: teachers take the place of graded rollouts; False: the prefix is the only way in, and "
         "oger.max_replace_num is 0"),
    Flag("trainer.max_replace_num", UNSET, _replace(to("oger.max_replace_num")), "oger.max_replace_num",
         kind=int),
    Flag("trainer.replace_mode", UNSET, _replace(rules.replace_mode), "oger.replace_mode", kind=str),
    Flag("trainer.similarity_embedding", False, rules.embedding, "oger.embedding_model, oger.embedding_num_gpus",
         "False is possible where nothing is compared, or with similarity_reranker"),
    Flag("trainer.similarity_embedding_model", None, rules.similarity_model,
         "oger.embedding_model, oger.embedding_num_gpus, oger.similarity_reranker", kind=str),
    Flag("trainer.similarity_reranker", False, rules.reranker, "oger.similarity_reranker",
         f"{_OWN}: similarity_embedding_model is then a cross-encoder"),
    Flag("trainer.use_similarity_score", False, choice("oger.bonus_weight", {True: 1.0, False: 0.0}),
         "oger.bonus_weight", "True: 1; False: 0"),
    Flag("trainer.similarity_reverse", False, _bonus(to("oger.similarity_reverse")), "oger.similarity_reverse"),
    Flag("trainer.similarity_reverse_fail", False, _bonus(to("oger.similarity_reverse_fail")),
         "oger.similarity_reverse_fail", f"{_OWN}: wrong rollouts earn the opposite measure"),
    Flag("trainer.similarity_shaping", False,
         _bonus(choice("oger.similarity_shaping", {True: "group_minmax", False: "none"})), "oger.similarity_shaping",
         f"{_OWN}; True: group_minmax"),
    Flag("trainer.last_token_enp_reward", None, _bonus(rules.entropy_weight), "oger.last_token_enp_reward",
         "exp_neg_enp: exp_neg_entropy, neg_enp: neg_entropy, enp: entropy, False: none"),
    Flag("trainer.use_mu_schedule", False, _bonus(rules.mu_schedule), "oger.bonus_schedule, oger.bonus_weight_end",
         f"{_OWN}; True: linear, to 0 at the end of the run"),
    Flag("trainer.repeating_check", False, _bonus(to("oger.repeating_check")), "oger.repeating_check",
         f"{_OWN}: degenerate repetition earns no bonus"),
    Flag("trainer.skip_all_success", False, choice("oger.all_correct_group", {True: "skip", False: "keep"}),
         "oger.all_correct_group", f"{_OWN}; True: skip, False: keep"),
    same("trainer.use_history_samples", False, "oger.use_history_samples",
          remark=f"{_OWN}: the policy's earlier correct rollouts are references, too"),
)  # fmt: skip

_EXGRPO = (
    Flag("trainer.experience", False, rules.replay,
         "oger.use_history_samples, oger.history_enters, oger.history_size, oger.teacher_sources, "
         "oger.max_replace_num, oger.replace_mode",
         "there half of a step's prompts are drawn from those with a success; here prompts come in the order of the "
         "data, and a success enters its group from the second episode on. There one rollout less is sampled, and all "
         "successes are kept", differs=True),
    Flag("trainer.exp_is_correct", True, _replay(rules.replay_ratio),
         "oger.use_off_policy_probs, oger.off_policy_reshape_ratio"),
    Flag("trainer.exp_metric", "random", _replay(rules.replay_draw), "oger.teacher_draw",
         "ent: lowest_entropy, with the entropy when it was sampled, there of the policy of the step; random: uniform",
         differs=True),
    Flag("trainer.exp_select_mode", "argmin", _replay(rules.replay_draw), "oger.teacher_draw"),
    Flag("trainer.exp_bucket_manager", None, _replay(rules.replay_gate), "oger.teacher_gate_low, oger.teacher_gate",
         "normal: half of the rollouts right, and up to two more or less; there the chance of a prompt is N(n / 2, 1) "
         "of its right rollouts when it came last, which lies in these bounds in 99 of 100 draws", kind=str,
         differs=True),
    Flag("trainer.experience_lbound", 0, _replay(rules.replay_gate), "oger.teacher_gate_low, oger.teacher_gate"),
    Flag("trainer.experience_rbound", 7, _replay(rules.replay_gate), "oger.teacher_gate_low, oger.teacher_gate"),
    dead("trainer.experience_ratio", 0.5, "as many groups have a success as the gates let in"),
    dead("trainer.experience_start_sratio", 0.35, "there is no success to enter before the second episode"),
    alone("trainer.exp_sample_range", "all", "all prompts with a success count", "leave it out"),
    dead("trainer.exp_is_weighting", False, "ExGRPO's loss does not use it"),
    alone("trainer.constant_data", None, "a group has a success of its own prompt", "leave it out"),
)  # fmt: skip

_HPT = (
    Flag("trainer.unify_strategy", UNSET, rules.unify, "oger.max_replace_num, oger.replace_mode, oger.taught_group",
         "switch: teachers alone are trained where the gate lets them in; no: they enter as LUFFY's do", kind=str),
    Flag("trainer.switch_gate", 0, _switch(rules.switch_gate), "oger.teacher_gate",
         "right rollouts: a share of n_verify"),
    Flag("trainer.switch_gate_off", 2, _switch(rules.switch_gate_off), remark="no more than switch_gate"),
    Flag(ROLLOUT + "n_verify", 4, _switch(rules.switch_rollouts), remark="the value of rollout.n alone"),
    alone("trainer.remove_sfted_data", False, "every prompt stays in the data", "leave it out"),
    dead("trainer.remove_p", "all", "it belongs to strategies other than switch and no"),
    dead("trainer.remove_on", False, "it belongs to strategies other than switch and no"),
    dead("trainer.soft_type", 0, "it belongs to strategies other than switch and no"),
)  # fmt: skip

_TRAINER = (
    *shared.RUN,
    Flag("trainer.n_gpus_per_node", 8, machine("num_gpus_per_node", rules.kl_coefficient),
         "actor.num_gpus_per_node, ref.num_gpus_per_node, critic.num_gpus_per_node, vllm.num_engines",
         "of the roles that the run has"),
    Flag("trainer.nnodes", 1, machine("num_nodes", rules.kl_coefficient),
         "actor.num_nodes, ref.num_nodes, critic.num_nodes, vllm.num_engines"),
    Flag("trainer.max_optim_to_keep", 3, checkpoints, "ckpt.max_num",
         f"-1: {KEEP_ALL}, so that all are kept (LUFFY's code would delete the first two). Here whole "
         "checkpoints are counted, there optimizer states", differs=True),
    alone("trainer.resume_from_path", False, "checkpoints are found in the run folder",
          "give the run's folder as oger.run_dir, with ckpt.load_enable"),
    alone("trainer.remove_previous_ckpt_in_save", False, "ckpt.max_num decides", "use ckpt.max_num"),
    dead("trainer.val_generations_to_log_to_wandb", 0, "every evaluated response is in the run folder"),
    dead("trainer.rejection_sample", False, "LUFFY's trainer does not read it"),
    dead("trainer.rejection_sample_multiplier", 2, "LUFFY's trainer does not read it"),
    alone("trainer.acc_rebatch", False, "groups of all accuracies are trained on",
          "LUFFY stops there at its first step; use algo.dynamic_filtering_enable with algo.dynamic_filtering_range"),
    dead("trainer.skip_valid_mask", False, "LUFFY's trainer makes that mask and never applies it"),
    dead("trainer.add_full_target_when_none", False, "there is no code behind it"),
    dead("trainer.skip_by_step", False, _UNREAD),
    dead("trainer.debug", False, "`oger train --oger.verbose` shows the workers' logs"),
)  # fmt: skip

SECTIONS: dict[str, tuple[Flag, ...]] = {
    "OGER's own flags": _OGER,
    "Data and reward": _DATA,
    "Policy, optimizer, batches": _MODEL,
    "Rollouts and evaluation": _ROLLOUTS,
    "Prefixes of teachers (LUFFY)": _PREFIX,
    "Advantage, KL, critic": _ADVANTAGE,
    "Loss": _LOSS,
    "Replay (ExGRPO)": _EXGRPO,
    "Teachers where rollouts fail (HPT)": _HPT,
    "The run": _TRAINER,
}

# Exported variables that are settings.
ENVIRONMENT: tuple[Flag, ...] = (
    same("TENSORBOARD_DIR", UNSET, "logger.tensorboard_dir", kind=str),
    dead("VLLM_ATTENTION_BACKEND", UNSET, "vLLM chooses its attention itself"),
)

# The command that OGER's page publishes.
PUBLISHED: dict[str, str] = {
    "actor_rollout_ref.rollout.replace_after_rm": "True",
    "trainer.max_replace_num": "1",
    "trainer.replace_mode": "similarity_mean_des",
    "trainer.similarity_embedding": "True",
    "trainer.similarity_embedding_model": "/path/to/embedding_model",
    "trainer.similarity_reranker": "False",
    "trainer.use_similarity_score": "True",
    "trainer.similarity_reverse": "True",
    "trainer.similarity_reverse_fail": "False",
    "trainer.similarity_shaping": "False",
    "trainer.last_token_enp_reward": "exp_neg_enp",
    "trainer.use_mu_schedule": "False",
    "trainer.repeating_check": "False",
    "trainer.skip_all_success": "False",
    "trainer.use_history_samples": "False",
    "data.train_files": "$DATA_DIR/luffy_offline_samples.parquet",
    "data.val_files": "$DATA_DIR/valid.parquet",
    "data.max_prompt_length": "1024",
    "data.max_response_length": "8192",
    "data.train_batch_size": "128",
    "data.val_batch_size": "512",
    "data.shuffle": "True",
    "data.reward_impl_version": "3",
    "actor_rollout_ref.model.path": "$MODEL_PATH",
    "actor_rollout_ref.model.use_remove_padding": "True",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "True",
    "actor_rollout_ref.actor.optim.lr": "1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "64",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "64",
    "actor_rollout_ref.actor.use_dynamic_bsz": "True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "32768",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": "1",
    "actor_rollout_ref.actor.fsdp_config.param_offload": "False",
    "actor_rollout_ref.actor.fsdp_config.grad_offload": "False",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "False",
    "actor_rollout_ref.ref.use_ref": "False",
    "actor_rollout_ref.ref.fsdp_config.param_offload": "True",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": "8",
    "actor_rollout_ref.rollout.temperature": "1.0",
    "actor_rollout_ref.rollout.n_val": "1",
    "actor_rollout_ref.rollout.val_temperature": "0.6",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "2",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "0.60",
    "actor_rollout_ref.rollout.max_prefix_len": "8192",
    "actor_rollout_ref.rollout.n_prefix": "1",
    "actor_rollout_ref.rollout.prefix_strategy": "random",
    "actor_rollout_ref.rollout.min_prefix_ratio": "0.0",
    "actor_rollout_ref.rollout.max_prefix_ratio": "0.0",
    "actor_rollout_ref.rollout.prefix_share_across_samples": "False",
    "actor_rollout_ref.rollout.prefix_reward_weight_alpha": "1.0",
    "actor_rollout_ref.actor.use_sft_prefix_reward": "False",
    "algorithm.adv_estimator": "grpo",
    "algorithm.grpo_use_std": "False",
    "algorithm.kl_ctrl.kl_coef": "0.000",
    "actor_rollout_ref.actor.use_kl_loss": "False",
    "actor_rollout_ref.actor.kl_loss_coef": "0.00",
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.use_off_policy_loss": "True",
    "actor_rollout_ref.actor.off_policy_loss_impl": "token",
    "actor_rollout_ref.actor.off_policy_reshape": "p_div_p_0.1",
    "actor_rollout_ref.actor.off_policy_normalize": "False",
    "actor_rollout_ref.actor.loss_remove_token_mean": "True",
    "actor_rollout_ref.actor.loss_remove_clip": "True",
    "actor_rollout_ref.actor.entropy_coeff": "0.001",
    "trainer.n_gpus_per_node": "8",
    "trainer.nnodes": "1",
    "trainer.total_training_steps": "2000",
    "trainer.save_freq": "50",
    "trainer.test_freq": "10",
    "trainer.val_before_train": "False",
    "trainer.max_optim_to_keep": "-1",
    "trainer.default_local_dir": "$save_dir/$PROJECT_NAME/$EXPERIMENT_NAME",
    "trainer.default_hdfs_dir": "null",
    "trainer.critic_warmup": "0",
    "trainer.logger": "['console','tensorboard']",
    "trainer.project_name": "$PROJECT_NAME",
    "trainer.experiment_name": "$EXPERIMENT_NAME",
    "TENSORBOARD_DIR": "/path/to/your/log",
    "VLLM_ATTENTION_BACKEND": "XFORMERS",
}
