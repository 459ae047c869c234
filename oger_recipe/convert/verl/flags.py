"""The flags that all branches of verl have with the same default and the same meaning."""

from __future__ import annotations

from functools import partial

from oger_recipe.convert.values import UNSET, Flag, alone, choice, dead, inert, same, to, where
from oger_recipe.convert.verl import rules
from oger_recipe.convert.verl.rules import ACTOR, MODEL, REF, ROLLOUT

PLACED = "DeepSpeed leaves GPU memory while vLLM samples (ds.enable_sleep)"
VLLM = "vLLM chooses"

gae = partial(where, rules.only_gae)

DATA = (
    Flag("data.train_files", UNSET, rules.paths("data.prompt_dataset"), "data.prompt_dataset",
         "parquet files of verl are read as they are, LUFFY's and OGER's among them"),
    Flag("data.val_files", UNSET, rules.paths("eval.dataset"), "eval.dataset",
         "problems that a benchmark has several times, as LUFFY's file has AIME's 8 times, are asked once with as "
         "many times the samples (avg@8); benchmarks by name work as well: math500,aime24",
         differs=True),
    Flag("data.prompt_key", "prompt", lambda value, get: {"data.input_key": value, "data.apply_chat_template": True},
         "data.input_key, data.apply_chat_template", "prompts are chats, to which the model's template is applied"),
    alone("data.tokenizer", None, "the tokenizer is the model's", "put the tokenizer into the model's folder"),
    Flag("data.max_prompt_length", 512, rules.length("oger.max_prompt_length"), "oger.max_prompt_length, data.max_len",
         "longer prompts are left out; data.max_len is prompt and response together"),
    Flag("data.max_response_length", 512, rules.length("rollout.max_new_tokens"),
         "rollout.max_new_tokens, data.max_len"),
    same("data.train_batch_size", 1024, "rollout.batch_size", remark="prompts of a step"),
    dead("data.val_batch_size", UNSET, "the whole evaluation set is one batch, there as well"),
    alone("data.shuffle", True, "prompts are shuffled in every episode", "OpenRLHF always shuffles: leave it out"),
    dead("data.return_raw_input_ids", False, "there is no second tokenizer"),
    dead("data.return_raw_chat", False, "there is no second tokenizer"),
)  # fmt: skip

POLICY = (
    same(MODEL + "path", UNSET, "actor.model_name_or_path", kind=str),
    Flag("actor_rollout_ref.hybrid_engine", True,
         lambda value, get: {"train.colocate_all": value, "ds.enable_sleep": value},
         "train.colocate_all, ds.enable_sleep", "trainer and vLLM take turns on the same GPUs"),
    Flag(ACTOR + "strategy", "fsdp", choice("ds.zero_stage", {"fsdp": 3, "fsdp2": 3}), "ds.zero_stage",
         "fully sharded: ZeRO stage 3"),
    same(MODEL + "use_remove_padding", False, "ds.packing_samples"),
    same(MODEL + "enable_gradient_checkpointing", True, "actor.gradient_checkpointing_enable"),
    alone(MODEL + "external_lib", None, "no module is imported",
          "install the model's code, or choose a model of transformers"),
    alone(MODEL + "override_config", None, "nothing is overridden", "change config.json in a copy of the model"),
    same(ACTOR + "optim.lr", 1e-6, "actor.adam.lr"),
    same(ACTOR + "optim.betas", [0.9, 0.999], "actor.adam.betas"),
    same(ACTOR + "optim.weight_decay", 0.01, "actor.adam.weight_decay"),
    Flag(ACTOR + "optim.lr_warmup_steps_ratio", 0.0, rules.schedule, "actor.lr_scheduler, actor.lr_warmup_ratio"),
    Flag(ACTOR + "optim.warmup_style", "constant", rules.schedule, "actor.lr_scheduler"),
    Flag(ACTOR + "optim.min_lr_ratio", None, rules.minimum_rate, "actor.min_lr_ratio", kind=float),
    dead(ACTOR + "optim.total_training_steps", -1, "the run's steps are counted when it starts"),
    same(ACTOR + "grad_clip", 1.0, "actor.max_norm"),
    same(ACTOR + "ppo_mini_batch_size", 256, "oger.prompts_per_update",
          remark="prompts of an optimizer step; train.batch_size, which counts rollouts, follows"),
    same(ACTOR + "use_dynamic_bsz", False, "train.dynamic_batch_enable"),
    Flag(ACTOR + "ppo_max_token_len_per_gpu", 16384, rules.tokens_per_gpu,
         "train.max_tokens_per_gpu, rollout.max_tokens_per_gpu"),
    same(ACTOR + "ppo_epochs", 1, "train.max_epochs"),
    dead(ACTOR + "shuffle", False, "the order of rows within a step's batch is OpenRLHF's"),
    same(ACTOR + "ulysses_sequence_parallel_size", 1, "ds.ring_attn_size",
          remark="ring attention in place of Ulysses"),
    dead(ACTOR + "fsdp_config.param_offload", False, PLACED),
    same(ACTOR + "fsdp_config.optimizer_offload", False, "ds.adam_offload"),
    dead(ACTOR + "fsdp_config.wrap_policy.*", UNSET, "ZeRO shards every parameter"),
    alone(ACTOR + "fsdp_config.fsdp_size", -1, "ZeRO shards over all GPUs", "leave it out, or see ds.zpg"),
    dead(REF + "fsdp_config.wrap_policy.*", UNSET, "ZeRO shards every parameter"),
    dead(REF + "log_prob_use_dynamic_bsz", UNSET, "the reference cuts batches as the policy does"),
    dead(REF + "log_prob_max_token_len_per_gpu", UNSET, "the reference cuts batches as the policy does"),
    dead(REF + "ulysses_sequence_parallel_size", UNSET, "the reference cuts sequences as the policy does"),
)  # fmt: skip

ROLLOUTS = (
    alone(ROLLOUT + "name", "vllm", "rollouts come from vLLM", "only vllm is here"),
    Flag(ROLLOUT + "n", 1,
         lambda value, get: {"rollout.n_samples_per_prompt": value, "vllm.enable_prefix_caching": value > 1},
         "rollout.n_samples_per_prompt, vllm.enable_prefix_caching", "a prompt is read once for its rollouts"),
    same(ROLLOUT + "temperature", 1.0, "rollout.temperature"),
    same(ROLLOUT + "top_k", -1, "oger.top_k"),
    alone(ROLLOUT + "do_sample", True, "rollouts are sampled", "for greedy evaluation use eval.temperature 0"),
    same(ROLLOUT + "free_cache_engine", True, "vllm.enable_sleep"),
    same(ROLLOUT + "enforce_eager", True, "vllm.enforce_eager",
          remark="True there by default, because its vLLM could not free memory otherwise; here as OpenRLHF's scripts "
          "with sleeping engines"),
    dead(ROLLOUT + "log_prob_use_dynamic_bsz", UNSET, "train.dynamic_batch_enable is for both passes"),
    Flag(ROLLOUT + "log_prob_max_token_len_per_gpu", None, rules.tokens_per_gpu, "rollout.max_tokens_per_gpu",
         kind=int),
    alone(ROLLOUT + "dtype", "bfloat16", "models are in bf16", "leave it out"),
    alone(ROLLOUT + "ignore_eos", False, "responses end", "leave it out"),
    dead(ROLLOUT + "prompt_length", UNSET, "data.max_prompt_length decides"),
    Flag(ROLLOUT + "response_length", UNSET, rules.response_length, remark="data.max_response_length decides",
         kind=int),
    dead(ROLLOUT + "load_format", UNSET, "weights reach vLLM from the trainer"),
    dead(ROLLOUT + "max_num_batched_tokens", UNSET, VLLM),
    dead(ROLLOUT + "max_num_seqs", UNSET, VLLM),
    dead(ROLLOUT + "enable_chunked_prefill", UNSET, VLLM),
    dead(ROLLOUT + "disable_log_stats", UNSET, "vLLM's log is in the run folder"),
)  # fmt: skip

CRITIC = (
    Flag("critic.optim.lr", 1e-5, gae(to("critic.adam.lr")), "critic.adam.lr"),
    Flag("critic.model.path", UNSET, gae(to("critic.model_name_or_path")), "critic.model_name_or_path", kind=str),
    Flag("critic.cliprange_value", 0.5, gae(to("critic.value_clip")), "critic.value_clip"),
    Flag("critic.grad_clip", 1.0, gae(to("critic.max_norm")), "critic.max_norm"),
    Flag("critic.*", UNSET, gae(inert("the critic is trained as the policy is")),
         remark="the critic, with gae alone, is cut into batches, sharded and scheduled as the policy is"),
)  # fmt: skip

RUN = (
    same("trainer.total_training_steps", None, "oger.total_training_steps", kind=int),
    same("trainer.total_epochs", 30, "train.num_episodes", remark="passes over the prompts"),
    same("trainer.save_freq", -1, "ckpt.save_steps"),
    same("trainer.test_freq", -1, "eval.steps"),
    same("trainer.val_before_train", True, "oger.val_before_train"),
    same("trainer.default_local_dir", UNSET, "oger.run_dir", remark="its folder checkpoints/ holds them", kind=str),
    alone("trainer.default_hdfs_dir", None, "nothing is copied to HDFS", "copy the run folder when the run is over"),
    Flag("trainer.resume_mode", UNSET, rules.resume, "ckpt.load_enable",
         "auto, there the default: true; here a run is continued where that is asked for"),
    alone("trainer.del_local_ckpt_after_load", False, "checkpoints are not deleted by loading", "leave it out"),
    Flag("trainer.critic_warmup", 0, rules.critic_warmup, "critic.freezing_steps", "with gae alone"),
    Flag("trainer.logger", UNSET, rules.logger, remark="the console and TensorBoard are always written to; wandb: "
         "`--logger.wandb.key env` with `WANDB_API_KEY`"),
    same("trainer.project_name", "verl_examples", "logger.wandb.project"),
    same("trainer.experiment_name", "gsm8k", "logger.wandb.run_name",
          remark="TensorBoard's folder has it as well"),
    dead("hydra.*", UNSET, "Hydra is not used; the run folder has the resolved recipe"),
)  # fmt: skip
