"""Advice for users who hand another trainer's command to `oger train` or `oger convert`."""

import re
from collections.abc import Sequence

from oger_recipe.settings.upstream import METHOD_DEFAULTS

OPENRLHF = (
    "this is a command of OpenRLHF. `python -m oger_recipe.cli.train_ppo_ray` takes its flags unchanged in place of "
    "openrlhf.cli.train_ppo_ray (without teachers add --oger.max_replace_num 0 --oger.bonus_weight 0; defaults that "
    "differ: "
    + ", ".join(f"{name} {value}" for name, value in METHOD_DEFAULTS.items() if name != "reward.remote_url")
    + "); in a recipe file for `oger train`, --a.b VALUE is the line `a: {b: VALUE}`"
)
VERL = (
    "this is a command of verl itself. `oger convert` reads the commands of OGER and LUFFY "
    "(verl.mix_src.main_mix_ppo) "
    "and of VeRL-with-RMs (with reward_model.reward_function). docs/verl_rms_flags.md has verl's keys and ours, e.g.\n"
    "    data.train_files                    data.prompt_dataset (with data.input_key and data.label_key)\n"
    "    data.train_batch_size               rollout.batch_size\n"
    "    data.max_response_length            rollout.max_new_tokens (and data.max_len, prompt and response together)\n"
    "    actor_rollout_ref.model.path        actor.model_name_or_path\n"
    "    ...actor.optim.lr                   actor.adam.lr\n"
    "    ...actor.ppo_mini_batch_size        oger.prompts_per_update\n"
    "    ...actor.kl_loss_coef               algo.kl.init_coef with algo.kl.use_loss\n"
    "    ...rollout.n, .temperature          rollout.n_samples_per_prompt, rollout.temperature\n"
    "    algorithm.adv_estimator=grpo        algo.advantage.estimator group_norm\n"
    "    custom_reward_function.path         oger.verifiers (docs/verifiers.md)\n"
    "  put them into a recipe file below the line `extends: grpo.yaml`"
)
AMPO = (
    "this is AMPO's: `oger train --recipe ampo` has its method and published sizes (configs/ampo.yaml); the rest is "
    "actor.model_name_or_path, data.prompt_dataset with several teachers of each prompt, and oger.teacher_sources"
)
TRL = (
    "this is TRL's; its names and ours:\n"
    "    model, model_name_or_path           actor.model_name_or_path\n"
    "    train_dataset, dataset_name         data.prompt_dataset with data.input_key and data.label_key\n"
    "    reward_funcs                        oger.verifiers mytask=module:function (docs/verifiers.md)\n"
    "    num_generations                     rollout.n_samples_per_prompt\n"
    "    per_device_train_batch_size x devices x gradient_accumulation_steps\n"
    "                                        train.batch_size (rollouts a step of the optimizer)\n"
    "    num_iterations                      train.max_epochs\n"
    "    max_completion_length               rollout.max_new_tokens\n"
    "    learning_rate, temperature          actor.adam.lr, rollout.temperature\n"
    "    beta, epsilon                       algo.kl.init_coef with algo.kl.use_loss, actor.eps_clip\n"
    "    scale_rewards, loss_type            algo.advantage.estimator group_norm or dr_grpo, oger.loss_aggregation\n"
    "  put them into a recipe file below the line `extends: grpo.yaml`"
)
OPENR = (
    "this is OpenR's; `oger convert` reads its train_math.py alone. For test_math.py use `oger eval`, which also "
    "grades; for its trainers of process reward models use `oger prm train`"
)
OPENRLHF_SFT = (
    "this is supervised training, which a recipe has as oger.sft.epochs: on teacher trajectories, before "
    "reinforcement learning, or alone with oger.total_training_steps 0"
)
OAT = (
    "this is OAT's preference learning, supervised training or evaluation; `oger convert` reads its reinforcement "
    "learning with rules (run_ppo, run_math_rl, r1_zero_math, r1_zero_countdown, train_zero_math). For supervised "
    "training on teachers see oger.sft.epochs; for evaluate_model.py use `oger eval`; for preference learning, "
    "OpenRLHF's openrlhf.cli.train_dpo"
)
# The first that a page of text matches counts.
_SIGNS = (
    (re.compile(r"\boat\.experiment\.|\bevaluate_model\.py"), OAT),
    (re.compile(r"\btest_math\.py|\bfinetune_(?:qwen|math_shep|llama)\w*\.py"), OPENR),
    (re.compile(r"openrlhf[./]cli[./]train_sft"), OPENRLHF_SFT),
    (re.compile(r"openrlhf[./]cli[./]"), OPENRLHF),
    (re.compile(r"verl[./]adaptive_mix_src\b"), AMPO),
    (re.compile(r"verl[./](?!mix_src)\w+[./]main|\b(?:actor_rollout_ref|algorithm|trainer)\.[\w.]+="), VERL),
    (re.compile(r"(?:^|\s)trl\s+\w+\s+-|(?:from|import)\s+trl\b|\b(?:GRPO|SFT|PPO|RLOO)(?:Trainer|Config)\b"), TRL),
)
_TRL_FLAGS = frozenset(
    "num_generations per_device_train_batch_size gradient_accumulation_steps max_completion_length dataset_name "
    "max_prompt_length model_name_or_path learning_rate reward_funcs num_iterations use_vllm scale_rewards".split()
)


def recognised(text: str) -> str | None:
    """Say what to do with a script or page of another trainer. Return None where it is none."""
    return next((advice for sign, advice in _SIGNS if sign.search(text)), None)


def recognised_flags(words: Sequence[str]) -> str | None:
    """Say the same of words that stand where flags of `oger train` are expected."""
    names = {word.removeprefix("--").partition("=")[0] for word in words}
    return TRL if names & _TRL_FLAGS else recognised(" ".join(words))
