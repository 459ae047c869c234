"""Recorded rollouts through everything that this recipe does with them, without Ray and without a model.

What is replayed: ``oger train`` on a recipe file of ``configs/``, with flags that make it small (CASES): two or four
steps of six prompts with eight rollouts each. The command line reads the recipe and prepares the data. Where it would
start Ray, OpenRLHF's controller, rollout actor, policy and critic (the recipe's classes, in their places) run in this
process: prompts are drawn, teachers enter, answers are graded by the grading pool, experience is made, and every
micro-batch passes through the losses and back. Not replayed: evaluation, the supervised stage, teacher prefixes that
are not whole, dynamic batches, several ranks, and whatever is inside a model (chunked logits, how long texts are
embedded).

What is recorded (``inputs/``) answers in place of the models, by tokens or text: the engine's tokens and
log-probabilities, the policy's log-probabilities and entropies before and after the updates of the recorded step, the
reference's log-probabilities, the critic's values before and after, and the embeddings. While the policy trains, it
says what it said after the updates: so ratios are not 1. Where the replay stops with a KeyError of doubles.py, the
code asked for a trajectory that it did not ask for before, another teacher maybe.

What comes out (``expected/``, written by record.py) is compared by test_replay.py: the experience that policy and
critic are given, the loss and the gradients of every micro-batch, metrics.jsonl and samples/. More keys are allowed.

How the inputs were made, on 22 November 2026: by two runs of ``oger train`` on a machine with two cores and without
CUDA, two steps each, of a copy of this repository that also wrote down what RolloutRayActor.generate returned, what
the policy and the critic said of these tokens and of the prompts' teachers at the beginning and at the end of
``ppo_train``, what the reference's ``forward`` returned, and what the encoder made of each text. The encoder embedded
the texts of prompts without teachers afterwards, as no run had asked for them.
- group.npz: configs/oger_cpu.yaml, rollout.batch_size 64, oger.prompts_per_update 32, rollout.temperature 0.6,
  rollout.max_new_tokens 44. Used by all recipes whose models are the policy alone.
- ppo.npz: configs/oat_gsm8k_ppo_cpu.yaml, rollout.batch_size 32, train.batch_size 128, rollout.max_new_tokens 44.
Both began with the policy that 20 steps of oat_gsm8k_ppo_cpu.yaml made of countdown_cpu.yaml's (``policy/`` has its
tokenizer), and with the first 128 problems that countdown_cpu.yaml trains on, every fourth without its teachers. Of
each run twelve prompts are kept: some that all rollouts solve, some that none solves, with and without teachers, and
some with cut rollouts.
"""

import asyncio
import contextlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from doubles import Engine, Group, Model, Recorded, Remote, Strategy, embedding_server
from safetensors.torch import save_file

# Every name of this recipe that the replay holds on to, besides flags, recipe files and the files of a run's folder.
from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.cli import train
from oger_recipe.cli.train_ppo_ray import build_parser
from oger_recipe.pipeline.driver import launch  # its function launch(tokens, run_dir, *, environment, ...) starts Ray
from oger_recipe.pipeline.driver.install import install

HERE = Path(__file__).parent
CONFIGS = HERE.parents[2] / "configs"
_GROUPS = ["--oger.prompts_per_update=3", "--rollout.temperature=0.6", "--oger.total_training_steps=2"]
_PPO = ["--train.batch_size=24", "--oger.total_training_steps=2"]
CASES: dict[str, tuple[str, str, list[str]]] = {  # recipe, inputs, flags
    "oger_cpu": ("oger_cpu", "group", [*_GROUPS, "--oger.loss_remove_clip"]),  # recorded before oger.yaml was clipped
    "oger_paper_cpu": ("oger_paper_cpu", "group", _GROUPS),
    "luffy_cpu": ("luffy_cpu", "group", _GROUPS),
    "grpo_cpu": ("grpo_cpu", "group", _GROUPS),
    "oat_gsm8k_ppo_cpu": ("oat_gsm8k_ppo_cpu", "ppo", _PPO),
    # Options that no recipe above has; every prompt comes twice, so that there are earlier rollouts to compare with.
    "oger_cpu with options": ("oger_cpu", "group", [
        *_GROUPS, "--oger.total_training_steps=4", "--oger.use_history_samples", "--oger.history_size=2",
        "--oger.bonus_schedule=linear", "--oger.bonus_weight_end=0.25", "--oger.bonus_schedule_steps=3",
        "--oger.similarity_shaping=group_rank", "--oger.similarity_reverse_fail", "--oger.entropy_position=top",
        "--oger.max_replace_num=2", "--oger.replace_mode=wrong_first_similarity_max_des", "--oger.repeating_check",
        "--oger.teacher_draw=round_robin", "--oger.advantage_baseline=group", "--oger.all_correct_group=clip",
        "--oger.prefix_reward_weight_alpha=1.5", "--oger.prefix_reward_weight_beta=0.5", "--oger.off_policy_loss=ppo",
        "--oger.loss_aggregation=token_mean", "--oger.non_stop_penalty=-0.25", "--oger.loss_remove_clip",
    ]),
    "luffy_cpu with options": ("luffy_cpu", "group", [
        *_GROUPS, "--algo.advantage.estimator=group_norm", "--oger.use_sft_prefix_reward",
        "--oger.sft_prefix_reward_weight=2", "--oger.non_stop_fixed_reward=0.5", "--oger.disable_truncation_advantage",
        "--oger.off_policy_loss=sft", "--oger.sft_loss_coef=0.5", "--oger.loss_aggregation=sequence_mean",
        "--oger.on_policy_reshape=pow", "--oger.all_max_clip=0.99", "--no-oger.loss_remove_clip",
    ]),
    "grpo_cpu with options": ("grpo_cpu", "group", [
        *_GROUPS, "--algo.advantage.estimator=rloo", "--oger.max_replace_num=2", "--no-oger.replace_after_rm",
        "--oger.replace_mode=random", "--oger.max_prefix_len=34", "--oger.teacher_draw=shortest",
        "--oger.bonus_weight=0.5", "--oger.last_token_enp_reward=entropy", "--oger.entropy_position=mean",
        "--no-oger.similarity_reverse", "--oger.similarity_shaping=ratio", "--oger.off_policy_reshape=square_root",
        "--oger.off_policy_max_clip=0.9",
    ]),
    "oat_gsm8k_ppo_cpu with options": ("oat_gsm8k_ppo_cpu", "ppo", [
        *_PPO, "--algo.advantage.gamma=0.99", "--algo.advantage.lambd=0.9", "--oger.kl_penalty_coef=0.05",
        "--oger.non_stop_penalty=-0.5",
    ]),
}  # fmt: skip
FLAGS = [
    "--data.apply_chat_template", "--rollout.batch_size=6", "--rollout.micro_batch_size=16",
    "--rollout.max_new_tokens=44", "--train.micro_batch_size=12", "--ckpt.save_steps=-1", "--ckpt.disable_ds",
    "--no-oger.chunked_token_stats", "--oger.grading_time_limit=60",
]  # fmt: skip
_OF_TOKENS = ("action_log_probs", "base_action_log_probs", "rollout_log_probs", "values", "returns", "advantages")
_OF_ROWS = ("rewards", "scores", "truncated", "response_length", "total_length")


def replayed(case: str, folder: Path) -> dict[str, Any]:
    """What comes out of a case's steps: arrays by name, and the run's own records as ``json``."""
    recipe, inputs, flags = CASES[case]
    recorded, rows = Recorded(HERE / "inputs" / f"{inputs}.npz"), folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in recorded.rows))
    policy = shutil.copytree(HERE / "policy", folder / "policy")
    save_file({"none": torch.zeros(1)}, policy / "model.safetensors")  # a model without any file of weights is refused
    with _one_process(recorded, folder) as patch, embedding_server(recorded.vectors) as url:
        places = {
            "data.prompt_dataset": rows, "actor.model_name_or_path": policy, "oger.run_dir": folder / "run",
            "oger.data_cache": folder / "data", "oger.embedding_cache": folder / "embeddings",
            "oger.embedding_url": url,
        }  # fmt: skip
        given = [f"--{flag}={value}" for flag, value in places.items()]
        groups = _train(_settings(patch, recipe, [*given, *FLAGS, *flags]))
    found = {
        f"step_{step}/{name}": values
        for step, micro_batches in enumerate(groups["policy"].appended, start=1)
        for name, values in _rows(micro_batches).items()
    }
    for group, model in (("policy", "actor"), ("critic", "critic")):
        for number, micro_batch in enumerate(getattr(groups[group].actor, model).trained if group in groups else ()):
            found |= {f"{group}/{number:02}/{name}": values.numpy() for name, values in micro_batch.items()}
    return found | {"json": _records(folder / "run")}


class _Started(BaseException):
    """In place of Ray; no Exception, which a run reports as its failure."""


def _settings(patch: pytest.MonkeyPatch, recipe: str, flags: list[str]) -> Any:
    """``args`` as OpenRLHF's main makes them, of a run whose data is prepared and whose environment is set."""
    from openrlhf.utils.config import hierarchize

    started: dict[str, Any] = {}

    def launched(tokens: list[str], run_dir: Path, *, environment: dict[str, str], **_: Any) -> None:
        started.update(tokens=tokens, environment=environment | {"OGER_RUN_DIR": str(run_dir)})
        raise _Started

    patch.setattr(launch, "launch", launched)
    with pytest.raises(_Started):
        train.main(["--recipe", str(CONFIGS / f"{recipe}.yaml"), *flags])
    for name, value in started["environment"].items():
        patch.setenv(name, value)
    args = hierarchize(build_parser(cpu=True).parse_args(started["tokens"]))
    args.actor.eps_clip_low_high = args.actor.eps_clip_low_high or (args.actor.eps_clip, args.actor.eps_clip)
    args.reward.remote_url = args.reward.remote_url.split(",")
    args.rollout.vllm_generate_batch_size = args.rollout.vllm_generate_batch_size or args.rollout.batch_size
    has_critic = args.algo.advantage.estimator in CRITIC_ESTIMATORS
    args.critic.model_name_or_path = args.actor.model_name_or_path if has_critic else None
    args.logger.tensorboard_dir = None
    return args


def _train(args: Any) -> dict[str, Group]:
    """As ``train`` of openrlhf.cli.train_ppo_ray does it, with the classes that are in their places."""
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine

    strategy, model = Strategy(args), args.actor.model_name_or_path
    actors = {"policy": ppo_actor.PolicyModelActor}
    if args.algo.kl.init_coef > 0:
        actors["reference"] = launcher.ReferenceModelActor
    if args.critic.model_name_or_path:
        actors["critic"] = ppo_critic.CriticModelActor
    groups = {name: Group(_plain(actor)(1, 0, "127.0.0.1", 1)) for name, actor in actors.items()}
    trainer = _plain(ppo_trainer.PPOTrainer)(
        model, strategy, groups["policy"], groups.get("critic"), None, groups.get("reference"),
        [Remote(_rollout_actor(vllm_engine.RolloutRayActor, args))], do_sample=True, max_len=args.data.max_len,
        max_new_tokens=args.rollout.max_new_tokens, temperature=args.rollout.temperature, top_p=args.rollout.top_p,
    )  # fmt: skip
    for name, group in groups.items():
        schedule = {} if name == "reference" else {"max_steps": trainer.get_max_steps()}
        group.actor.init_model_from_pretrained(strategy, model, **schedule)
    trainer.fit()
    return groups


def _plain(actor_class: Any) -> Any:
    """The class that ``@ray.remote`` wrapped."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def _rollout_actor(actor_class: Any, args: Any) -> Any:
    class Here(_plain(actor_class)):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:  # Ray awaits a constructor, Python does not
            asyncio.run(super().__init__(**settings))

        def _configure_vllm_env(self, *_: Any) -> None: ...  # it asks Ray for its address

    return Here(
        model=args.actor.model_name_or_path, max_model_len=args.data.max_len, num_gpus=1,
        distributed_executor_backend="uni", remote_rm_url=args.reward.remote_url,
    )  # fmt: skip


@contextlib.contextmanager
def _one_process(recorded: Recorded, folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """The recipe is installed, models are recorded ones, Ray's promises are results; all is put back in the end.

    The names in the list are rebound by `install` and by the recipe's policy.
    """
    import datasets.config
    import openrlhf.utils
    import vllm
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine
    from transformers import AutoTokenizer

    end = AutoTokenizer.from_pretrained(HERE / "policy").eos_token_id
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
            patch.setenv(name, "")  # written by an actor's constructor
        for module, name in (
            (ppo_trainer, "PPOTrainer"), (ppo_actor, "PolicyModelActor"), (vllm_engine, "RolloutRayActor"),
            (launcher, "ReferenceModelActor"), (launcher, "RewardModelActor"), (ppo_critic, "CriticModelActor"),
            (openrlhf.utils, "get_strategy"), (ppo_actor, "DataLoader"), (ppo_actor, "iter_grad_accum_global_norm"),
        ):  # fmt: skip
            patch.setattr(module, name, getattr(module, name))
        install()
        patch.setattr(ray, "get", lambda refs, **_: refs)
        patch.setattr(ray, "put", lambda value: value)
        patch.setattr(ray, "wait", lambda refs, **_: (refs[:1], refs[1:]))
        patch.setattr(vllm, "AsyncEngineArgs", lambda *_, **settings: settings)
        patch.setattr(vllm, "AsyncLLMEngine", SimpleNamespace(from_engine_args=lambda _: Engine(recorded, end)))
        patch.setattr(ppo_actor, "Actor", lambda *_, **__: Model(recorded, "log_probs", "entropy"))
        patch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
        patch.setattr(launcher, "Actor", lambda *_, **__: Model(recorded, "reference"))
        patch.setattr(ppo_critic, "get_llm_for_sequence_regression", lambda *_, **__: Model(recorded, "value"))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
        yield patch


def _rows(micro_batches: list[Any]) -> dict[str, np.ndarray]:
    """A step's experience in the order of its rows, however it was cut: one row after the other.

    What belongs to tokens is that of the response alone, but for ``tokens``.
    """
    columns: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
    for batch in micro_batches:
        for position, row in enumerate(batch.index):
            columns["tokens"][row] = batch.sequences[position][batch.attention_mask[position].bool()]
            for name in _OF_TOKENS:
                if (values := getattr(batch, name)) is not None:
                    columns[name][row] = values[position][batch.action_mask[position].bool()]
            for name in _OF_ROWS:
                columns[name][row] = getattr(batch, name)[position].reshape(1)
            for name, values in batch.info.items():
                columns[f"info/{name}"][row] = torch.as_tensor(values[position]).reshape(1)
    return {name: torch.cat([values[row] for row in sorted(values)]).numpy() for name, values in columns.items()}


def _records(run_dir: Path) -> dict[str, Any]:
    """metrics.jsonl without what a clock measured, and samples/*.jsonl."""

    def lines(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    metrics = [
        {name: value for name, value in step.items() if not name.startswith("timing/") and name != "tokens_per_second"}
        for step in lines(run_dir / "metrics.jsonl")
    ]
    return {
        "metrics": metrics,
        "samples": {path.name: lines(path) for path in sorted((run_dir / "samples").iterdir())},
    }
