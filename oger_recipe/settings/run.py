"""Settings of the run as a whole: its folder and length, evaluation, supervised training first, guards."""

from dataclasses import dataclass
from typing import Any, ClassVar

from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE, PART, SHARE, TOP_K, WEIGHT
from oger_recipe.settings.fields import FREE, OF_STEPS, Section, need, setting

# Trackers beside OpenRLHF's own, TensorBoard and W&B: the modules that each imports, and the packages that have them.
TRACKERS = {
    "trackio": {"trackio": "trackio"},
    "mlflow": {"mlflow": "mlflow-skinny", "sqlalchemy": "sqlalchemy", "alembic": "alembic"},
}


@dataclass(frozen=True)
class RunSettings(Section):
    title: ClassVar[str] = "oger.run"
    about: ClassVar[str] = "run folder, steps, evaluation before and after"

    run_dir: str | None = setting(
        None, "folder that receives everything the run writes (default: runs/<name of the recipe>)", resume=FREE
    )
    prompts_per_update: int | None = setting(
        None, "prompts per optimizer step; sets train.batch_size, which counts rollouts", range=COUNT, resume=OF_STEPS
    )
    total_training_steps: int | None = setting(
        None,
        "stop after this many steps; 0: only evaluate, after oger.sft if that is set (default: all steps of the "
        "episodes)",
        range=COUNT_OR_NONE,
        resume=FREE,
    )
    val_before_train: bool = setting(True, "evaluate on --eval.dataset before the first step", resume=FREE)
    val_after_train: bool = setting(True, "evaluate on --eval.dataset after the last step", resume=FREE)
    samples_steps: int = setting(
        1, "write the rollouts of the first and of every N-th step to samples/ (1: of every step)", range=COUNT
    )
    logical_gpus: int | None = setting(
        None,
        "GPUs to declare to Ray on a machine without CUDA (default: as many as the run needs)",
        range=COUNT,
        resume=FREE,
    )
    stall_minutes: float | None = setting(
        None,
        "end the run as if it had died when nothing happens for so many minutes in a phase that was reached before; "
        "0: never (default: 10 times the longest silence in the phase so far, at least 10 minutes, and 30 where "
        "answers are waited for)",
        range=WEIGHT,
        resume=FREE,
    )
    trackers: tuple[str, ...] = setting(
        (),
        "log metrics there, too, beside TensorBoard and W&B (--logger.*); project and name of the run are those of "
        "logger.wandb",
        choices=TRACKERS,
        resume=FREE,
    )
    verbose: bool = setting(False, "show the logs of all workers, not only the progress", resume=FREE)
    trust_remote_code: bool = setting(False, "run code from the model's folder or repository")


@dataclass(frozen=True)
class EvalSettings(Section):
    title: ClassVar[str] = "oger.eval"
    about: ClassVar[str] = "settings of the evaluation that differ from those of rollouts"
    prefix: ClassVar[str] = "eval."
    resume: ClassVar[str] = FREE

    top_p: float | None = setting(None, "top-p (nucleus) of the evaluation (default: rollout.top_p)", range=PART)
    top_k: int = setting(-1, "top-k of the evaluation; -1: all tokens", range=TOP_K)
    max_new_tokens: int | None = setting(
        None, "longest response of the evaluation, in tokens (default: rollout.max_new_tokens)", range=COUNT
    )
    max_samples: int | None = setting(
        None, "problems to evaluate on, from the start of the dataset (default: all)", range=COUNT
    )
    input_key: str | None = setting(None, "column of the problem in eval.dataset (default: data.input_key)")
    label_key: str | None = setting(None, "column of the answer in eval.dataset (default: data.label_key)")

    def is_greedy(self, temperature: float) -> bool:
        """Say whether all samples of a problem are one and the same."""
        return temperature == 0 or self.top_k == 1

    def sampling(self, top_p: float, max_new_tokens: int | None) -> dict[str, Any]:
        """Return how an evaluation samples responses, in a run with these settings of the rollouts."""
        return {
            "top_p": top_p if self.top_p is None else self.top_p,
            "top_k": self.top_k,
            "max_new_tokens": self.max_new_tokens or max_new_tokens,
        }


_SFT = need("oger.sft.epochs")


@dataclass(frozen=True)
class SftSettings(Section):
    title: ClassVar[str] = "oger.sft"
    about: ClassVar[str] = "supervised training on the teachers first"
    prefix: ClassVar[str] = "sft."
    resume: ClassVar[str] = "it was done before the first step"

    epochs: int = setting(0, "epochs over the teacher trajectories; 0: none", range=COUNT_OR_NONE)
    max_samples: int | None = setting(
        None, "teacher trajectories to learn from (default: all)", range=COUNT, needs=_SFT
    )
    batch_size: int = setting(64, "teacher trajectories per optimizer step", range=COUNT, needs=_SFT)
    micro_batch_size: int = setting(8, "teacher trajectories per forward pass and device", range=COUNT, needs=_SFT)
    lr: float = setting(1e-5, "peak learning rate", range=SHARE, needs=_SFT)


@dataclass(frozen=True)
class GuardSettings(Section):
    title: ClassVar[str] = "oger.guards"
    about: ClassVar[str] = "when a run stops itself"

    max_reward_error_rate: float = setting(
        0.05, "stop the run when more than this share of a step's rollouts could not be graded", range=SHARE
    )
    max_logprob_difference: float | None = setting(
        None,
        "stop the run when engine and policy differ by more than this (mean |log p| per token; default: 3 times "
        "the value of step 1)",
        range=WEIGHT,
    )
    max_engine_kl: float = setting(
        0.02,
        "stop the run when the engine's log-probabilities of its tokens are higher than the policy's by more than "
        "this (mean per token, vllm_kl); raise it where they differ by more on equal weights, as in mixtures of "
        "experts, and the loss is corrected (algo.advantage.is_correction_level)",
        range=WEIGHT,
    )
    max_skipped_updates: int = setting(
        3,
        "stop the run when so many updates in a row were skipped because a loss or gradient is not finite. In "
        "float16, where the loss scale skips updates, DeepSpeed stops it",
        range=COUNT,
        resume=FREE,
    )
