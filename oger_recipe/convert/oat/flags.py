"""Every flag of OAT's programs for reinforcement learning with rules: its default there and what it is here.

`oger convert` reads commands by this table, and docs/oat_flags.md is written from it (`oger convert --table oat`).
Where a later OAT changed a default, OAT's page of examples and Understand-R1-Zero each keep that of their time.
"""

from __future__ import annotations

from oger_recipe.convert.oat import rules
from oger_recipe.convert.oat.rules import by_program, evaluated, of_critic, of_page, saves
from oger_recipe.convert.values import UNSET, Flag, alone, dead, same, to

_PREFERENCES = "preference learning alone reads it"
_OWN_SUITE = "it evaluates on the benchmarks of --eval_data"
_DRY_RUN = (
    "it trains on made-up texts to measure memory: leave it out, and check the recipe with `oger train --dry-run`"
)
_ENGINES = "vllm.num_engines, vllm.tensor_parallel_size"

_MACHINES = (
    Flag("program", UNSET, rules.program, "oger.stop, oger.stop_token_ids, oger.non_stop_fixed_reward",
         "what is run. run_ppo: a response ends at a further question; r1_zero_math, r1_zero_countdown: with a Qwen "
         "model at four texts and two tokens, because a base model does not stop by itself; run_math_rl, "
         "train_zero_math: the prompt template decides, and a truncated response earns 0", kind=str),
    Flag("--gpus", 8, rules.gpus, 
         f"actor.num_gpus_per_node, ref.num_gpus_per_node, critic.num_gpus_per_node, {_ENGINES}",
         "by role. Without `--collocate` OAT gives half of them to rollouts"),
    Flag("--collocate", False, rules.collocate, "train.colocate_all, vllm.enable_sleep, ds.enable_sleep, "
         "train.colocate_actor_ref", "train.colocate_actor_ref: without it, where there is a reference"),
    Flag("--num_gpus_per_actor", 1, rules.engines, _ENGINES),
    Flag("--num_groups", 1, rules.groups, f"actor.num_nodes, ref.num_nodes, critic.num_nodes, {_ENGINES}",
         "machines"),
    *(dead(name, UNSET, "Ray connects the machines: scripts/slurm/train_oger.sbatch, or RAY_ADDRESS")
      for name in ("--group_rank", "--master_addr", "--master_port", "--launch_type", "--local_rank")),
    dead("--shm_size_mb", 5000, "rollouts travel through Ray"),
    alone("--asynchronous", False, "a step samples, then trains", "sampling with older weights is not supported: "
          "leave it out"),
    dead("--vllm_sleep", False, "with `--collocate` engines always sleep while the policy trains"),
    same("--vllm_gpu_ratio", 0.25, "vllm.gpu_memory_utilization"),
    same("--enable_prefix_caching", False, "vllm.enable_prefix_caching"),
    dead("--max_model_len", None, "an engine has room for data.max_len: prompt and response", kind=int),
    same("--gradient_checkpointing", False, "actor.gradient_checkpointing_enable", remark="the critic's too"),
    same("--gradient_checkpointing_use_reentrant", False, "actor.gradient_checkpointing_reentrant"),
    dead("--activation_offloading", False, "it saves memory only; lower train.micro_batch_size instead"),
    Flag("--flash_attn", True,
         lambda value, get: {"ds.attn_implementation": "flash_attention_2" if value else "eager"},
         "ds.attn_implementation"),
    Flag("--bf16", True, rules.data_type, "ds.param_dtype"),
    Flag("--fp16", False, rules.data_type, "ds.param_dtype"),
    same("--zero_stage", 2, "ds.zero_stage"),
    same("--zpg", 1, "ds.zpg"),
    Flag("--ref_offload", False, rules.of_reference(to("ref.offload")), "ref.offload"),
    same("--adam_offload", False, "ds.adam_offload"),
    dead("--model_offload", False, "nothing reads it there"),
    same("--grad_accum_dtype", None, "ds.grad_accum_dtype", kind=str),
    dead("--disable_trace_cache", False, "it is about ZeRO's speed"),
    same("--load_in_4bit", False, "ds.load_in_4bit"),
    dead("--use_fused_lm_head", True, "logits are always computed a few tokens at a time (oger.chunked_token_stats)"),
    same("--lora_rank", 0, "ds.lora.rank", remark="not with a critic (`--critic_type ppo`)"),
    same("--lora_alpha", 16, "ds.lora.alpha"),
    same("--lora_dropout", 0.0, "ds.lora.dropout"),
    same("--target_modules", "all-linear", "ds.lora.target_modules", kind=str),
    dead("--lora_sync_only", False, "engines get the weights with the adapter in them"),
)  # fmt: skip

_POLICY = (
    same("--pretrain", "trl-lib/pythia-1b-deduped-tldr-sft", "actor.model_name_or_path",
         remark="reference and critic start from it as well"),
    Flag("--ref_pretrain", None, rules.as_policy("reference"), remark="refused unless it is --pretrain", kind=str),
    Flag("--critic_pretrain", UNSET, of_critic(to("critic.model_name_or_path")), "critic.model_name_or_path",
         kind=str),
    Flag("--tokenizer", "", rules.as_policy("tokenizer"), remark="refused unless it is --pretrain"),
    same("--disable_fast_tokenizer", False, "data.disable_fast_tokenizer"),
    dead("--algo", UNSET, "these programs train PPO, whatever it says; --critic_type is the algorithm"),
    Flag("--critic_type", by_program("ppo", "drgrpo"), rules.critic_type,
         "algo.advantage.estimator, oger.loss_aggregation",
         "ppo: gae; grpo: group_norm, both with sequence_mean; drgrpo: dr_grpo and constant. Left out: ppo when the "
         "page was written, drgrpo since 0.0.9, so that the page's PPO command trains Dr. GRPO with a later OAT",
         kind=str),
    Flag("--remove_std_bias", False, rules.critic_type, "algo.advantage.estimator, oger.loss_aggregation",
         "with grpo: dr_grpo"),
    Flag("--remove_len_bias", False, rules.critic_type, "algo.advantage.estimator, oger.loss_aggregation",
         "with grpo and ppo: constant"),
    Flag("--learning_rate", 5e-7, to("actor.adam.lr"), "actor.adam.lr"),
    Flag("--critic_learning_rate", 9e-6, of_critic(to("critic.adam.lr")), "critic.adam.lr"),
    Flag("--adam_beta_1", 0.9, rules.betas, "actor.adam.betas, critic.adam.betas"),
    Flag("--adam_beta_2", 0.95, rules.betas, "actor.adam.betas, critic.adam.betas"),
    Flag("--l2", 0.0, rules.both("adam.weight_decay"), "actor.adam.weight_decay, critic.adam.weight_decay"),
    Flag("--max_norm", 1.0, rules.both("max_norm"), "actor.max_norm, critic.max_norm"),
    Flag("--lr_scheduler", "cosine_with_min_lr", rules.schedule,
         "actor.lr_scheduler, critic.lr_scheduler, critic.min_lr_ratio",
         "polynomial: linear to 1e-7; cosine_with_min_lr: to a tenth of --learning_rate, the critic's too"),
    Flag("--lr_warmup_ratio", 0.03, rules.both("lr_warmup_ratio"), "actor.lr_warmup_ratio, critic.lr_warmup_ratio",
         "rounded up: 0.0000001 is one step"),
    Flag("--max_step_adjustment", 1.0, rules.horizon, remark="OAT plans the learning rate without counting rollouts "
         "of a prompt and passes, so the user multiplies by 8 x 2; OpenRLHF counts both. `oger convert` warns where "
         "the command does not"),
    Flag("--critic_max_step_adjustment", 1.0, rules.horizon, remark="the same for the critic"),
    same("--num_ppo_epochs", by_program(2, 1), "train.max_epochs", kind=int, remark="passes over one rollout batch"),
    Flag("--beta", 0.1, rules.kl_loss, "algo.kl.init_coef, algo.kl.use_loss, algo.kl.estimator",
         "the KL in the loss (k3). Above 0 it loads the reference; left out, it does"),
    Flag("--kl_penalty_coef", 0.0, rules.kl_reward, "oger.kl_penalty_coef, algo.kl.init_coef, algo.kl.estimator",
         "the KL in the reward (k1) beside it; alone, it is `algo.kl.init_coef` with `k1`"),
    Flag("--cliprange", 0.2, to("actor.eps_clip"), "actor.eps_clip"),
    Flag("--cliprange_value", 0.2, of_critic(to("critic.value_clip")), "critic.value_clip"),
    Flag("--gamma", 1.0, of_critic(to("algo.advantage.gamma")), "algo.advantage.gamma"),
    Flag("--lam", 1.0, of_critic(to("algo.advantage.lambd")), "algo.advantage.lambd"),
    alone("--vf_coef", 1.0, "the critic has an optimizer of its own, there as well", "use --critic_learning_rate"),
    dead("--whiten_adv", False, "advantages of a critic are always whitened, in OAT up to 0.0.9 as well; those of a "
         "group never"),
    dead("--whiten_rewards", False, "nothing reads it there"),
    alone("--reinforce_update", False, "the loss is PPO's", "leave it out; with one pass and one optimizer step a "
          "batch PPO's gradient is the same"),
    Flag("--tis_c", lambda get: 2.0 if get("program") == "run_math_rl" else None, rules.engine_correction,
         ", ".join(f"algo.advantage.is_correction_{name}" for name in ("level", "mode", "gating", "threshold")),
         "truncated importance sampling, which OAT has from 0.2.1 on; refused with `--top_p` below 1 or `--top_k`. "
         "None: nothing is corrected", kind=float, or_null=True),
)  # fmt: skip

_REWARD = (
    dead("--oracle_type", "preference", "the reward is a verifier's; comparing oracles are for preference learning"),
    Flag("--oracle", "pairrm", rules.oracle, "oger.task_name, oger.gsm8k_strict_oat, oger.countdown_strict_oat",
         "without the two `strict` switches numbers are compared as numbers, and Countdown's loopholes (`**`, `//`, "
         "decimals as two numbers) are closed. run_math_rl and train_zero_math grade math, whatever it says"),
    Flag("--prompt_template", "qwen_math", rules.prompt_template,
         "oger.prompt_template, oger.math_rule, oger.math_extract",
         "of run_math_rl and train_zero_math. r1: the answer in its tag after the thought; r1_distill_qwen: boxed "
         "after the thought; qwen_math, qwen3, no: boxed"),
    dead("--verifier_version", "fast", "there is one rule for math: what is equal as text, as a number or by "
         "math_verify is right"),
    alone("--correct_reward", 1.0, "a right answer earns 1", "weigh the rule in oger.reward.sources instead"),
    alone("--incorrect_reward", 0.0, "a wrong answer earns 0", "grade by a function of yours (docs/rewards.md)"),
    Flag("--non_stop_penalty", 0.0, rules.truncated, "oger.non_stop_penalty, oger.non_stop_fixed_reward",
         "added to the reward of a truncated response"),
    Flag("--non_stop_fixed_reward", None, rules.truncated, "oger.non_stop_fixed_reward, oger.non_stop_penalty",
         kind=float),
    same("--ignore_no_eos", False, "oger.disable_truncation_advantage"),
    alone("--reward_scale", 1.0, "rewards count as they are", "weigh the rule in oger.reward.sources instead"),
    *(dead(name, UNSET, "rewards are a rule's") for name in
      ("--oracle_batch_size", "--remote_rm_url", "--remote_rm_client_workers")),
)  # fmt: skip

_DATA = (
    same("--prompt_data", "lkevinzc/tldr-with-sft-reference", "data.prompt_dataset",
         remark="a Hub dataset, `config@owner/name` for one of its configurations, a folder saved to disk, .jsonl, "
         ".json or .parquet"),
    same("--train_split", "train", "data.prompt_split"),
    same("--input_key", "prompt", "data.input_key", remark="column of the problem"),
    same("--output_key", "output", "data.label_key", remark="column of the answer"),
    Flag("--max_train", lambda get: "999999" if get("program") == "run_math_rl" else "50000", rules.max_train,
         "data.max_samples, oger.total_training_steps",
         "rows; 999999 and more are all. Except in run_math_rl, a run also ends after as many rollouts", kind=str),
    Flag("--max_queries", -1, rules.max_queries, "oger.total_training_steps", "rollouts after which the run ends"),
    same("--num_prompt_epoch", 1, "train.num_episodes"),
    Flag("--apply_chat_template", False, rules.chat_template, "data.apply_chat_template",
         "other prompt formats: `oger.prompt_template`"),
    Flag("--prompt_max_length", 1024, rules.length("oger.max_prompt_length"), "oger.max_prompt_length, data.max_len",
         "longer prompts are left out and counted"),
    Flag("--generate_max_length", by_program(53, 512), rules.length("rollout.max_new_tokens"),
         "rollout.max_new_tokens, data.max_len", "data.max_len is prompt and response together", kind=int),
    same("--num_samples", 2, "rollout.n_samples_per_prompt"),
    same("--temperature", by_program(0.7, 1.0), "rollout.temperature", kind=float,
         remark="the policy divides its logits by it, too"),
    same("--top_p", 1.0, "rollout.top_p"),
    same("--top_k", -1, "oger.top_k"),
    Flag("--rollout_batch_size", 128, rules.rollout_batch, "rollout.batch_size", "prompts of a step"),
    Flag("--rollout_batch_size_per_device", 16, rules.rollout_batch, "rollout.batch_size",
         "prompts go to the engine with the least to do; a step has whole batches of all learning GPUs"),
    same("--train_batch_size", 128, "train.batch_size", remark="rollouts of an optimizer step"),
    Flag("--train_batch_size_per_device", 1, rules.micro_batch, "train.micro_batch_size, rollout.micro_batch_size"),
    Flag("--mini_train_batch_size_per_device", UNSET, rules.micro_batch,
         "train.micro_batch_size, rollout.micro_batch_size", "the same as the one before; a later OAT has it no more",
         kind=int),
    Flag("--pi_buffer_maxlen_per_device", 16, rules.buffer, remark="refused unless it is exactly one step's "
         "rollouts, which is what OpenRLHF always trains on; a longer buffer would replay old ones"),
    alone("--sync_params_every", 1, "weights reach the engines after every step", "leave it out"),
    *(dead(name, UNSET, "a step trains on its own rollouts alone") for name in
      ("--buffer_clear_every", "--max_sgd_steps", "--r_buffer_maxlen", "--max_epochs")),
    dead("--dump_all_buffer", False, "every sample is written (samples/)"),
    dead("--dump_replay_every", UNSET, "every sample is written (samples/)"),
    same("--seed", 42, "train.seed"),
    dead("--rnd_seed", by_program(True, False), "OAT draws a seed from the clock; here it is a setting, so that a run "
         "can be repeated: `--train.seed $RANDOM` draws one and the run folder keeps it", kind=bool),
)  # fmt: skip

_EVALUATION = (
    Flag("--eval_steps", 20, rules.every("eval.steps"), "eval.steps", "-1: never; else also before the first and "
         "after the last step (`oger.val_before_train`, `oger.val_after_train`)"),
    Flag("--debug", False, evaluated(lambda value, get: {"oger.val_before_train": not value}),
         "oger.val_before_train"),
    Flag("--eval_data", "", evaluated(rules.eval_data), "eval.dataset, eval.split, oger.eval.input_key, "
         "oger.eval.label_key", "left out: the prompt data. run_math_rl and train_zero_math: a folder with a "
         "benchmark in each of its own, which become a list; columns problem and answer"),
    Flag("--test_split", "all", evaluated(rules.benchmarks), "eval.dataset, eval.split",
         "benchmarks, of run_math_rl and train_zero_math; all: the five of both repositories"),
    Flag("--eval_split", "test", of_page(_OWN_SUITE, to("eval.split")), "eval.split"),
    Flag("--max_eval", 1000, of_page(_OWN_SUITE, to("oger.eval.max_samples")), "oger.eval.max_samples"),
    Flag("--eval_input_key", "", rules.eval_key("oger.eval.input_key"), "oger.eval.input_key",
         "unset: the training data's"),
    Flag("--eval_output_key", "", rules.eval_key("oger.eval.label_key"), "oger.eval.label_key"),
    Flag("--eval_n", 1, evaluated(to("eval.n_samples_per_prompt")), "eval.n_samples_per_prompt"),
    Flag("--eval_temperature", 0.0, evaluated(to("eval.temperature")), "eval.temperature"),
    Flag("--eval_top_p", by_program(0.95, 1.0), evaluated(to("oger.eval.top_p")), "oger.eval.top_p", kind=float),
    Flag("--eval_top_k", -1, evaluated(to("oger.eval.top_k")), "oger.eval.top_k"),
    Flag("--eval_generate_max_length", by_program(200, 512), evaluated(rules.length("oger.eval.max_new_tokens")),
         "oger.eval.max_new_tokens, data.max_len", kind=int),
    dead("--eval_batch_size", -1, "vLLM schedules the whole set"),
    dead("--online_evaluation", False, "rewards are a rule's, which needs no other evaluation"),
    alone("--eval_query_interval", -1, "evaluation follows --eval_steps", "use --eval_steps"),
    alone("--best_of_n_eval", False, "pass@k of eval.n_samples_per_prompt is always reported", "use --eval_n"),
)  # fmt: skip

_RUN = (
    Flag("--save_path", UNSET, to("oger.run_dir"), "oger.run_dir", kind=str),
    Flag("--save_steps", -1, rules.save_steps, "ckpt.save_steps, ckpt.save_hf", "-1: the final model is saved all "
         "the same"),
    dead("--save_from", 0, "models are saved from the first interval on"),
    dead("--save_ckpt", False, "a saved step can always be resumed (ckpt.load_enable)"),
    Flag("--max_save_num", 5, saves(to("ckpt.max_num")), "ckpt.max_num"),
    Flag("--max_save_mem", 1000, saves(to("ckpt.max_mem")), "ckpt.max_mem", "GB"),
    alone("--resume_dir", "", "the run starts from --pretrain", "OAT's checkpoints cannot be resumed here: give the "
          "model that it saved as --pretrain"),
    dead("--resume_tag", UNSET, "it needs --resume_dir"),
    same("--logging_steps", 1, "logger.logging_steps"),
    dead("--use_wb", False, "log there by logger.wandb.key env and WANDB_API_KEY; TensorBoard, metrics.jsonl and "
         "every sample are always written"),
    Flag("--wb_run_name", UNSET, to("logger.wandb.run_name"), "logger.wandb.run_name", kind=str),
    Flag("--wb_project", UNSET, to("logger.wandb.project"), "logger.wandb.project", kind=str),
    Flag("--wb_group", UNSET, to("logger.wandb.group"), "logger.wandb.group", kind=str),
    Flag("--wb_org", UNSET, to("logger.wandb.org"), "logger.wandb.org", kind=str),
    alone("--dry_run", False, "it trains", _DRY_RUN),
    dead("--dry_run_prompt_len", 1024, "there is no --dry_run"),
    dead("--dry_run_response_len", 1024, "there is no --dry_run"),
)  # fmt: skip

_OF_PREFERENCES = tuple(
    dead(name, UNSET, _PREFERENCES)
    for name in """--sft_weight --label_smoothing --gamma_beta_ratio --dpo_positive_lambda --len_reg_alpha --bt_sample
    --preference_flip_prob --num_ensemble --enn_max_try --enn_lambda --rm_lr --rm_wd --rm_hidden_dim --rm_act_fn
    --rm_sgd_steps --rm_train_budget --rm_backbone --rm_pretrain --encoding_dim --exp_method --max_model_data_ratio
    --burn_in_period --model_data_strategy --num_bon --bon_temperature""".split()
) + tuple(
    alone(name, False, _PREFERENCES, "leave it out")
    for name in """--sft_sum_loss --learn_rm --rm_fixed_reg --learn_rm_only --exp_rnd_sample --exp_allow_second_best
    --model_rollout --pure_model_based""".split()
)

SECTIONS: dict[str, tuple[Flag, ...]] = {
    "Program and machines": _MACHINES,
    "Policy, optimizer, losses": _POLICY,
    "Reward and prompt": _REWARD,
    "Data, rollouts, batches": _DATA,
    "Evaluation": _EVALUATION,
    "The run": _RUN,
    "Preference learning": _OF_PREFERENCES,
}
