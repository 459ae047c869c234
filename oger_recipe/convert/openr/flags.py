"""Every flag of OpenR's command line: its default there and what it is here.

`oger convert` reads commands by this table, and docs/openr_flags.md is written from it (`oger convert --table openr`).
Flags are as OpenR's code treats them, which its page does not always say: where the code sets a value of its own over
the flag's, that value is the default here, and a flag that is given counts.
"""

from __future__ import annotations

from oger_recipe.convert.openr import rules
from oger_recipe.convert.openr.rules import BUFFER_STEPS, MOST_STEPS, SOURCES, of_critic
from oger_recipe.convert.values import UNSET, Flag, dead, only, same, to

_NO_STATE = "a transformer reads the whole text again, and has no recurrent state"
_NO_FRAMES = "frames are of games; the prompt has all steps before"
_ONE_AGENT = "there is one agent, and policy and critic read the same text"
_PRETRAINED = "the networks are pretrained language models, with norms and weights of their own"
_MASKED = "only tokens that were sampled are trained on"


def _counts(name: str, default: object, rule, ours: str, remark: str = "", shown: object = None) -> Flag:
    """Make a flag that OpenR's code sets to ``default``. ``shown``: that value, where the table holds none."""
    said = f"its code sets it to {default if shown is None else shown}, whatever the command says; here it counts"
    return Flag(name, default, rule, ours, f"{said}. {remark}" if remark else said, kind=int if default is UNSET else
                None, differs=True)  # fmt: skip


def _refused(name: str, left_out: object, reason: str, instead: str = "leave it out") -> Flag:
    """Make a flag without a meaning here, of which OpenR too takes ``left_out`` alone."""
    return Flag(name, left_out, only(left_out, reason, f"{reason}: {instead}"), remark=f"refused: {reason}")


_MODELS = (
    Flag("--model_name_or_path", UNSET, to("actor.model_name_or_path"), "actor.model_name_or_path",
         "the policy. There LoRA of rank 8 on q_proj and v_proj in float16, here all weights in bfloat16. Without a "
         "critic (GRPO) ds.lora.* trains adapters here, too", kind=str),
    Flag("--prm_model_name_or_path", "", rules.reward_model, SOURCES, "`model` of the source `prm`, which is of kind "
         "process. It is the only reward, there as well: no answer is compared"),
    Flag("--prm_type", "MS", rules.reward_type, SOURCES,
         "`format` of the source: MS: math_shepherd, Qwen: openr_qwen"),
    Flag("--prm_checkpoint_path", "", rules.adapter, SOURCES, "`adapter` of the source, for Qwen; MS loads none"),
    _refused("--model_dir", None, "nothing reads it there", "give the folder as --model_name_or_path"),
    dead("--vacab_size", 151936, "the model has its own; nothing reads it there"),
)  # fmt: skip

_DATA = (
    Flag("--dataset_path", UNSET, to("data.prompt_dataset"), "data.prompt_dataset",
         "its rows have `problem` and `final_answer` (data.input_key, data.label_key)", kind=str),
    Flag("--dataset_name", "prealgebra", rules.run_folder, "oger.run_dir", "a label: a part of the folder's name"),
    _counts("--n_rollout_threads", 4, rules.number(1, rules.threads), "rollout.batch_size, rollout.micro_batch_size, "
            "oger.total_training_steps, train.num_episodes",
            "Problems of an update, each answered once"),
    _counts("--episode_length", UNSET, rules.number(1, rules.episode_length), "oger.steps.max_steps, "
            "rollout.max_new_tokens, data.max_len, rollout.batch_size, rollout.micro_batch_size, "
            "oger.total_training_steps, train.num_episodes",
            f"Steps of reasoning that a thread adds to an update: the most that a response has, up to {MOST_STEPS}, "
            f"which its environment allows; with 20, say, a thread answers two problems. Left out: {MOST_STEPS} steps "
            "a response, and updates counted as there", BUFFER_STEPS),
    _counts("--num_env_steps", 50000, rules.number(1, rules.updates), "oger.total_training_steps, train.num_episodes",
            "Over episode_length x n_rollout_threads it is the number of updates"),
    Flag("--max_new_tokens", 96, rules.number(1, rules.lengths), "oger.steps.max_step_tokens, oger.steps.max_steps, "
         "rollout.max_new_tokens, data.max_len", "of a step of reasoning"),
    dead("--n_training_threads", 16, "export OMP_NUM_THREADS; nothing reads it there"),
    dead("--n_render_rollout_threads", 1, "there is nothing to render"),
)  # fmt: skip

_ALGORITHM = (
    Flag("--algorithm_name", "ERL", rules.algorithm, "algo.advantage.estimator, oger.ratio_level, "
         "oger.critic.hidden_sizes, oger.critic.head_only, critic.num_gpus_per_node, critic.adam.betas",
         "APPO: appo with a ratio for each step; TPPO: tppo with one for each token; GRPO: process_grpo_batch with "
         "one for each step, and no critic. The default there, ERL, is none of these"),
    Flag("--gamma", 0.95, of_critic(to("algo.advantage.gamma")), "algo.advantage.gamma", "between steps of reasoning"),
    Flag("--gae_lambda", 0.95, of_critic(to("algo.advantage.lambd")), "algo.advantage.lambd",
         "between steps of reasoning; TPPO: between tokens"),
    _refused("--use_gae", True, "advantages are GAE's, there with or without it", "for sums of rewards give "
             "--gae_lambda 1"),
    _refused("--use_proper_time_limits", False, "a response that was cut has ended, there as well"),
    Flag("--clip_param", 0.2, rules.clip, "actor.eps_clip, critic.value_clip"),
    Flag("--use_clipped_value_loss", True, of_critic(rules.clip), "critic.value_clip, actor.eps_clip",
         "given: values are not clipped; there they are, with or without it"),
    Flag("--entropy_coef", 0.01, to("actor.entropy_coef"), "actor.entropy_coef"),
    Flag("--use_max_grad_norm", True, rules.max_norm, "actor.max_norm, critic.max_norm",
         "given: no bound (0); there the policy's stays"),
    Flag("--max_grad_norm", 0.5, rules.max_norm, "actor.max_norm, critic.max_norm"),
    Flag("--num_mini_batch", 4, rules.mini_batches, "train.batch_size, train.micro_batch_size",
         "a part of an update's responses; there of their steps"),
    same("--ppo_epoch", 5, "train.max_epochs", remark="passes over an update's rollouts"),
    Flag("--gradient_cp_steps", 2, rules.number(1, rules.mini_batches), "train.batch_size, train.micro_batch_size",
         "passes forward and back in a mini-batch; here they do not change what is learnt, there advantages are "
         "standardised in each"),
    _refused("--num_accumulation_steps", 1, "a mini-batch is one optimizer step, there as well",
             "for larger ones lower --num_mini_batch"),
    _refused("--use_policy_active_masks", True, _MASKED),
)  # fmt: skip

_CRITIC = (
    Flag("--hidden_size", UNSET, of_critic(rules.number(1, rules.value_head)), "oger.critic.hidden_sizes",
         "width of the value head's hidden layers; there 64 by default, and nothing reads it: left out, they have the "
         "widths of its code, 1024 and 512", kind=int),
    Flag("--layer_N", UNSET, of_critic(rules.number(0, rules.value_head)), "oger.critic.hidden_sizes",
         "number of the value head's hidden layers; there 2 by default, and nothing reads it", kind=int),
    _refused("--use_ReLU", True, "the value head has ReLU, there with or without it"),
    Flag("--use_huber_loss", True, of_critic(rules.huber), "oger.critic.huber_delta", "given: the squared error"),
    Flag("--huber_delta", 10.0, of_critic(rules.huber), "oger.critic.huber_delta",
         "there errors below -10 cost nothing; here both sides count"),
    _refused("--value_loss_coef", 1.0, "the critic has an optimizer of its own, there as well, and Adam divides "
             "such a factor out", "use --critic_lr"),
    _refused("--use_value_active_masks", True, _MASKED),
    _refused("--use_popart", False, "values are learnt as they are: rewards are probabilities"),
    dead("--use_valuenorm", True, "values are not normalised, there as well: nothing reads it"),
)  # fmt: skip

_OPTIMIZER = (
    _counts("--lr", 1e-6, to("actor.adam.lr"), "actor.adam.lr"),
    _counts("--critic_lr", 5e-5, of_critic(to("critic.adam.lr")), "critic.adam.lr"),
    Flag("--opti_eps", 1e-5, rules.both("adam.eps"), "actor.adam.eps, critic.adam.eps",
         "of Adam; there it is always 1e-5"),
    Flag("--weight_decay", 0.0, rules.both("adam.weight_decay"), "actor.adam.weight_decay, critic.adam.weight_decay",
         "there it is always 0"),
    Flag("--use_linear_lr_decay", False, rules.schedule, "actor.lr_scheduler, critic.lr_scheduler, "
         "actor.lr_warmup_ratio, critic.lr_warmup_ratio", "given: linear to 0; there it is always constant"),
    same("--seed", 1, "train.seed", remark="there the order of the problems is not seeded"),
)  # fmt: skip

_EVALUATION = (
    Flag("--use_eval", False, rules.evaluation, "eval.dataset, eval.steps, eval.n_samples_per_prompt, "
         "eval.temperature, oger.eval.top_k, oger.eval.max_samples", "there evaluation is switched off in the code"),
    Flag("--eval_interval", UNSET, rules.number(1, rules.evaluation), "eval.dataset, eval.steps, "
         "eval.n_samples_per_prompt, eval.temperature, oger.eval.top_k, oger.eval.max_samples",
         "in updates, 5 by default; given, it evaluates. There evaluation is switched off in the code", kind=int),
    Flag("--eval_episodes", 10, rules.number(1, rules.evaluation), "eval.dataset, eval.steps, "
         "eval.n_samples_per_prompt, eval.temperature, oger.eval.top_k, oger.eval.max_samples",
         "problems of an evaluation, the same each time"),
    dead("--n_eval_rollout_threads", 1, "the engine asks as many problems at a time as it has room for"),
    _counts("--log_interval", 1, to("logger.logging_steps"), "logger.logging_steps",
            "In updates; metrics.jsonl has every one"),
    Flag("--save_interval", 200, lambda value, get: {"ckpt.save_steps": value, "ckpt.save_hf": True},
         "ckpt.save_steps, ckpt.save_hf", "in updates; ckpt.max_num says how many stay"),
    Flag("--experiment_name", "check", rules.experiment, "oger.run_dir, logger.wandb.run_name"),
    Flag("--user_name", UNSET, to("logger.wandb.org"), "logger.wandb.org", "with logger.wandb.key", kind=str),
    dead("--use_wandb", False, "log there by logger.wandb.key env and WANDB_API_KEY; nothing reads it there"),
    _refused("--cuda", True, "it is a recipe for GPUs, there with or without it",
             "for a machine without one see the recipes *_cpu"),
    dead("--cuda_deterministic", True, "nothing reads it there. A run repeats by train.seed as far as its kernels do; "
         "train.full_determinism_enable makes these repeat"),
)  # fmt: skip

_OTHERS = (
    _refused("--use_recurrent_policy", False, _NO_STATE),
    _refused("--use_naive_recurrent_policy", False, _NO_STATE),
    _refused("--recurrent_N", 1, _NO_STATE),
    _refused("--data_chunk_length", 10, _NO_STATE),
    _refused("--stacked_frames", 1, _NO_FRAMES),
    _refused("--use_stacked_frames", False, _NO_FRAMES),
    _refused("--share_policy", True, _ONE_AGENT),
    _refused("--use_centralized_V", True, _ONE_AGENT),
    _refused("--use_obs_instead_of_state", False, _ONE_AGENT),
    _refused("--use_feature_normalization", True, _PRETRAINED),
    _refused("--use_orthogonal", True, _PRETRAINED),
    _refused("--gain", 0.01, _PRETRAINED),
)  # fmt: skip

SECTIONS: dict[str, tuple[Flag, ...]] = {
    "Models": _MODELS,
    "Problems, responses, updates": _DATA,
    "Algorithm": _ALGORITHM,
    "Critic": _CRITIC,
    "Optimizer, seed": _OPTIMIZER,
    "Evaluation, logs, checkpoints": _EVALUATION,
    "Of games and recurrent networks": _OTHERS,
}

ENVIRONMENT: tuple[Flag, ...] = (
    dead("CUDA_VISIBLE_DEVICES", UNSET, "it works here as well: export it where `oger train` starts"),
)
