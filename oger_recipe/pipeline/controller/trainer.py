"""The controller: OpenRLHF's PPO trainer with the recipe's experience maker, evaluation and records."""

import contextlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import torch
from deepspeed.checkpoint.constants import CHECKPOINT_PARALLEL_DIMS
from openrlhf.trainer import ppo_trainer

from oger_recipe.base.errors import RecipeError, RunStopped, SourceFailed
from oger_recipe.base.files import append_json, read_jsonl
from oger_recipe.evaluation.tables import headlines
from oger_recipe.pipeline import give_way_to_engine, undecorated
from oger_recipe.pipeline.controller import nonfinite
from oger_recipe.pipeline.controller.alarms import Alarms
from oger_recipe.pipeline.controller.answers import evaluate_samples, logs_of
from oger_recipe.pipeline.controller.experience_maker import OgerExperienceMaker
from oger_recipe.pipeline.controller.interrupts import interruptible
from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.controller.trackers import Trackers
from oger_recipe.run_folder import checkpoints, room
from oger_recipe.run_folder import records as run_folder
from oger_recipe.run_folder.hashes import Hashing
from oger_recipe.settings.alarms import AlarmSettings
from oger_recipe.settings.run import EvalSettings, GuardSettings, RunSettings

# PPOTrainer and BasePPOTrainer build these by name, which is looked up in this process.
ppo_trainer.SamplesGenerator = OgerSamplesGenerator
ppo_trainer.RemoteExperienceMaker = OgerExperienceMaker
# These begin in fit, which knows from where the run resumes.
ppo_trainer.WandbLogger = ppo_trainer.TensorboardLogger = lambda args: None

# Means over all trained rows, teachers included; kept apart from metrics of the policy's own rollouts.
HYBRID_KEYS = (
    "reward", "score", "return", "response_length", "total_length", "truncated", "response_clip_ratio", "kl",
    "logprobs_diff", "reward_format", "reward_error", "reward_timeout", "off_policy_tokens", "group_reward_std",
)  # fmt: skip
# Phases in which the policy is as the last step left it: a run that ends there loses no trained step. In those of
# judging, a source that learns may already be a step ahead.
_SAMPLING, _JUDGING = ("rollouts", "answers"), ("experience", "judges", "loading")
_HASHING_S = 5.0  # what a run that is asked to end at once waits for hashes
KL_COEFFICIENT = "kl_coefficient"  # of the next step, in a checkpoint; of the step, among its metrics
CONTROLLER = "controller"  # in a checkpoint: the experience maker's state


@dataclass
class Progress:
    """How far this attempt of a run has come; every field is set in the one place that is named, once it has begun."""

    solved: bool = False  # whether the policy has not collapsed by the last step: save_logs_and_checkpoints
    step: int = 0  # the last that was trained: save_logs_and_checkpoints
    client_states: dict[str, Any] = field(default_factory=dict)  # that step's, for its checkpoint: likewise
    saved: int = 0  # the step of the newest checkpoint: _save
    evaluation: dict[str, Any] = field(default_factory=dict)  # the metrics of the last one: evaluate


class OgerPPOTrainer(undecorated(ppo_trainer.PPOTrainer)):  # type: ignore[misc]
    """Evaluates on scores before and after, records every step, and can stop after a number of steps."""

    best_eval_metric_value: float

    def __init__(self, pretrain, strategy, *args, **kwargs) -> None:
        give_way_to_engine()
        torch.manual_seed(strategy.args.train.seed)  # the sampler of the prompts draws its order's seed from here
        super().__init__(pretrain, strategy, *args, **kwargs)
        self.settings, self.guards = RunSettings.of(self.args.oger), GuardSettings.of(self.args.oger)
        self.run_dir = Path(self.args.oger.run_dir)
        self.checkpoints = Path(self.args.ckpt.path)
        # Saving is _save's: upstream would save in the middle of save_logs_and_checkpoints and nothing after the last.
        self.save_steps, self.args.ckpt.save_steps = self.args.ckpt.save_steps, math.inf
        self.phases = run_folder.Phases(self.run_dir)
        self.trackers = Trackers(self.run_dir)  # none before fit
        self.progress = Progress()
        excused = self.experience_maker.reward_sources.watch.excused
        self.alarms = Alarms(self.run_dir, AlarmSettings.of(self.args.oger), excused)
        self.hashing = Hashing()

    def get_max_steps(self) -> int:
        """Count the optimizer steps of the run, for the learning-rate schedule."""
        limit = self.settings.total_training_steps
        rows = self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt
        per_step = rows // self.args.train.batch_size * self.args.train.max_epochs
        return self.max_steps if limit is None else min(self.max_steps, limit * per_step)

    def planned_steps(self) -> int:
        """Count the rollout steps of the run."""
        per_episode = len(self.prompts_dataloader) // self.args.rollout.batch_size
        planned = per_episode * self.args.train.num_episodes
        limit = self.settings.total_training_steps
        return planned if limit is None else min(planned, limit)

    def init_checkpoint_states(self) -> dict[str, Any]:
        """Return upstream's. After a batch with which the data ended, the loader's state begins the next episode."""
        states: dict[str, Any] = super().init_checkpoint_states()
        states.pop(CHECKPOINT_PARALLEL_DIMS, None)  # DeepSpeed's own, which no checkpoint may be given
        if states["data_loader_state_dict"].get("_iterator_finished"):
            states["episode"] += 1
        return states

    def fit(self, global_step: int = 0) -> None:
        states = self.init_checkpoint_states()
        resumed_at = states["global_step"]
        self.trackers = Trackers.of_run(self.args, self.run_dir, resumed_at)
        with contextlib.closing(self.trackers):
            try:
                with interruptible(self.run_dir, self._may_end):
                    self._fit(states, global_step)
            except KeyboardInterrupt:
                if not self._stop_is_asked():
                    raise
                self._save_last()
                self._finish_hashing()
                raise RunStopped from None

    def _fit(self, states: dict[str, Any], global_step: int) -> None:
        resumed_at = states["global_step"]
        if self.args.algo.kl.target:
            self.kl_ctl.value = states.get(KL_COEFFICIENT, self.kl_ctl.value)
        if self.settings.total_training_steps is not None:
            self.samples_generator.steps_left = max(self.settings.total_training_steps - resumed_at, 0)
        self.samples_generator.step = resumed_at
        self.samples_generator.planned_steps = self.planned_steps()
        self.samples_generator.sent = self.experience_maker.prompts_sent
        self.samples_generator.arrived = self.experience_maker.rollout_arrived
        self.samples_generator.counted = self._responses_came
        self.samples_generator.stop_is_asked = self._stop_is_asked
        self.experience_maker.engines.told = self._replies_came
        self.experience_maker.resume(resumed_at, self.planned_steps(), states.get(CONTROLLER, {}))
        self.samples_generator.history = self.experience_maker.history
        for facts in ray.get([engine.engine_facts.remote() for engine in self.vllm_engines[:1]]):  # all are alike
            run_folder.write_engine(self.run_dir, facts)
        sources = self.experience_maker.reward_sources.names
        steps, asked = self.planned_steps(), self.settings.total_training_steps
        run_folder.event(self.run_dir, "ready", steps=steps, asked=asked, resumed_at=resumed_at, sources=sources)
        if self.settings.val_before_train and not resumed_at:
            self._evaluate_as("before", 0)
        self.progress.step = self.progress.saved = resumed_at
        self.progress.client_states = states
        if resumed_at:
            self._hash_resumed(resumed_at)
            self.restore_best_checkpoint_state(states)
            self.save_best_checkpoint(self._evaluation_at(resumed_at), resumed_at, states)
        run_folder.event(self.run_dir, "training")
        super().fit(global_step)
        run_folder.event(self.run_dir, "trained", steps=self.progress.step)
        self._save_last()
        if self._stop_is_asked():
            self._finish_hashing()
            raise RunStopped
        if self.settings.val_after_train:
            self._evaluate_after()
        self._finish_hashing()
        room.check_model(Path(self.args.ckpt.output_dir))
        run_folder.event(self.run_dir, "finished")

    def _may_end(self) -> bool:
        """Say whether the run loses nothing that it has trained if it ends now."""
        learns = self.experience_maker.reward_sources.learns
        return self.phases.phase in (_SAMPLING if learns else _SAMPLING + _JUDGING)

    def _evaluation_at(self, step: int) -> dict[str, float]:
        """Return the logs of the evaluation that follows the step's checkpoint; none where none is due.

        Makes it where the attempt before broke off earlier, and reads it where that may have broken off between it and
        its best checkpoint.
        """
        if step % self.args.eval.steps or self.eval_dataloader is None:
            return {}
        events = read_jsonl(self.run_dir / "events.jsonl")
        if not any(each["event"] == "evaluated" and each["step"] == step for each in events):
            self.broadcast_to_vllm()
            return self._evaluate_as("during", step)
        result = run_folder.read_evaluation(self.run_dir, step)
        return logs_of(result) if result else {}

    def _evaluate_after(self) -> None:
        done, step = self.progress.evaluation, self.progress.step
        if done and step and step % self.args.eval.steps == 0:  # it was evaluated then
            run_folder.event(self.run_dir, "evaluated", when="after", step=step, **done)
        else:
            logs = self._evaluate_as("after", step)
            if math.isfinite(self.args.eval.steps):  # best checkpoints are kept: this may be one
                self.save_best_checkpoint(logs, step, self.progress.client_states)

    def _responses_came(self, phase: str, done: int, of: int) -> None:
        self.phases.at(phase, step=self.samples_generator.step, done=done, of=of)

    def _replies_came(self, model: str, done: int, of: int) -> None:
        self.phases.at("judges" if of else "loading", step=self.experience_maker.step, model=model, done=done, of=of)

    def train_step(self, rollout_samples, global_step: int):
        self.experience_maker.step = global_step + 1
        self.phases.at("experience", step=global_step + 1)
        of_kl = self._kl_coefficient()
        try:
            status, global_step = super().train_step(rollout_samples, global_step)
        except SourceFailed:  # before the policy was trained: the steps so far are not lost
            if not self.experience_maker.reward_sources.learns:  # which is a step ahead
                self._save_last()
            raise
        status = {f"hybrid_batch/{key}" if key in HYBRID_KEYS else key: value for key, value in status.items()}
        metrics = self.experience_maker.current.metrics | self.samples_generator.filtering
        return status | of_kl | metrics, global_step

    def _kl_coefficient(self) -> dict[str, float]:
        """Return the KL coefficient where it adapts; else it is algo.kl.init_coef."""
        return {KL_COEFFICIENT: float(self.kl_ctl.value)} if self.args.algo.kl.target else {}

    def ppo_train(self, global_steps: int) -> dict[str, float]:
        self.phases.at("training", step=global_steps + 1)
        status = super().ppo_train(global_steps)
        nonfinite.keep_skipped(self.experience_maker.current, status, global_steps + 1, self.run_dir)
        if not math.isfinite(status.get("kl", 0.0)):
            del status["kl"]  # of a skipped update; it would stay in a coefficient that adapts
        return status

    def broadcast_to_vllm(self) -> None:
        self.phases.at("weights", step=self.samples_generator.step)
        super().broadcast_to_vllm()

    def _compute_rollout_stats(self, experiences) -> dict[str, float]:
        """Return no metrics: upstream's count teachers as rollouts; the experience maker has the rollouts' own."""
        return {}

    def save_logs_and_checkpoints(self, global_step: int, logs_dict=None, client_states=None) -> None:
        client_states = (client_states or {}) | self._kl_coefficient() | {CONTROLLER: self.experience_maker.state()}
        self.progress.step, self.progress.client_states = global_step, client_states
        metrics = {key: value for key, value in (logs_dict or {}).items() if key != "generated_samples"}
        metrics["tokens_per_second"] = metrics["rollout/response_tokens"] / metrics["timing/step_total"]
        metrics |= self.alarms.stepped(global_step, metrics)
        append_json(self.run_dir / "metrics.jsonl", {"step": global_step} | metrics)
        if bad := nonfinite.broken_parameters(metrics):
            raise RecipeError(f"step {global_step} went wrong and is not saved: {bad}")
        run_folder.event(self.run_dir, "step", step=global_step, **metrics)
        self.progress.solved = self.alarms.still_solves
        if global_step % self.args.logger.logging_steps == 0:
            self.trackers.log_train(global_step, (logs_dict or {}) | metrics)
        if bad := nonfinite.skipped_too_often(metrics, limit=self.guards.max_skipped_updates):
            self._save_last(keeps_older=True)
            raise RecipeError(f"training stopped itself after step {global_step}: {bad}. {self._what_is_saved()}")
        self._stop_on_alarm()
        if global_step % self.save_steps == 0:
            self._save(global_step)
        elif self._stop_is_asked():  # an evaluation may be due, and not be waited for
            self._save_last()

    def _stop_is_asked(self) -> bool:
        return bool(run_folder.stop_asked(self.run_dir))

    def _stop_on_alarm(self) -> None:
        """End the run where an alarm asks for it, with what it has trained saved."""
        if stop := self.alarms.stop:
            self._save_last(keeps_older=True)
            run_folder.event(self.run_dir, run_folder.STOPPED_BY_ALARM, step=self.progress.step)
            raise RecipeError(
                f"an alarm stopped the run after step {self.progress.step}: {stop}. {self._what_is_saved()}. To go "
                "on, change what the alarm names, and set its level to warn: it stops the run as long as it is found"
            )

    def _what_is_saved(self) -> str:
        """Say what a run leaves that stops itself after a step."""
        if self.args.ckpt.disable_ds:
            return "No checkpoint was saved (ckpt.disable_ds)"
        return "The newest checkpoint is of this step, and no older one was removed for it"

    def _save_last(self, *, keeps_older: bool = False) -> None:
        """Save the checkpoint of the last step, where there is none yet."""
        if self.progress.saved != self.progress.step and not self.args.ckpt.disable_ds:
            self._save(self.progress.step, keeps_older=keeps_older)

    def _save(self, step: int, *, keeps_older: bool = False) -> None:
        """Save the checkpoint of the step, whole, before an older one goes. ``keeps_older``: none goes."""
        self.phases.at("saving", step=step)
        checkpoints.remove(self.checkpoints, step)  # of an attempt that broke off
        room.check_checkpoint(self.checkpoints, step)
        checkpoints.begin(self.checkpoints, step)
        best = {
            "best_eval_metric_key": self.best_eval_metric_key,
            "best_eval_metric_value": self.best_eval_metric_value,
            "latest_eval_metric_value": self._latest_eval_metric_value,
        }
        shared = {"tag": f"global_step{step}", "metric_value": self._latest_eval_metric_value,
                  "metric_key": self.best_eval_metric_key or None}  # fmt: skip
        states = self.progress.client_states | best
        refs = self.actor_model_group.async_run_method("save_checkpoint", client_states=states, **shared)
        if self.critic_model_group is not None:
            refs += self.critic_model_group.async_run_method("save_checkpoint", **shared)
        self._save_sources(self.checkpoints, step)
        ray.get(refs)
        checkpoints.seal(self.checkpoints, step, solved=self.progress.solved)
        self.progress.saved = step
        may_remove = self._finish_hashing() and not keeps_older
        if may_remove:
            limits = {"max_num": self.args.ckpt.max_num, "max_bytes": self.args.ckpt.max_mem * 1024**3}
            for older in checkpoints.removable(checkpoints.found(self.checkpoints), step, **limits):
                checkpoints.remove(self.checkpoints, older)
        self.hashing.start(self.checkpoints, step)

    def _finish_hashing(self) -> bool:
        """Wait for the hashes, a few seconds once the run is asked to end at once; say whether all are made: a
        checkpoint that is still read must not be removed."""
        while not self.hashing.finish(_HASHING_S):
            if run_folder.stop_asked(self.run_dir) == run_folder.AT_ONCE:
                return False
        return True

    def _hash_resumed(self, step: int) -> None:
        """Hash the checkpoint that was loaded, where the attempt that wrote it ended before: the next resume compares
        its bytes."""
        for one in checkpoints.found(self.checkpoints):
            if one.step == step and not one.hashes:
                self.hashing.start(self.checkpoints, step)

    def _save_sources(self, folder: Path, step: int) -> None:
        self.experience_maker.reward_sources.save(checkpoints.of_sources(folder, step))

    def save_best_checkpoint(self, eval_metrics, global_step: int, client_states=None) -> None:
        """Save upstream's checkpoint where this is a new best; the older one goes after that."""
        folder, best = self.checkpoints / checkpoints.BEST, self.best_eval_metric_value
        watched = self._detect_eval_metric_key(eval_metrics) if eval_metrics else None
        if watched is not None and eval_metrics[watched] > best:
            self.phases.at("saving", step=global_step)
            room.check_checkpoint(folder, global_step)
        super().save_best_checkpoint(eval_metrics, global_step, dict(self.progress.client_states))
        if self.best_eval_metric_value == best:
            return
        key = self.best_eval_metric_key
        self._save_sources(folder, global_step)
        checkpoints.seal(folder, global_step, metric=key, value=self.best_eval_metric_value)
        if self._finish_hashing():
            for older in checkpoints.found(folder):
                if older.step != global_step:
                    checkpoints.remove(folder, older.step)
        self.hashing.start(folder, global_step)

    def restore_best_checkpoint_state(self, checkpoint_states) -> None:
        """Restore upstream's state; the checkpoint may be older than the best one, which knows its own value."""
        super().restore_best_checkpoint_state(checkpoint_states)
        for best in checkpoints.found(self.checkpoints / checkpoints.BEST) if checkpoint_states["global_step"] else ():
            if best.facts.get("metric") == self.best_eval_metric_key:
                value = best.facts.get("value")
                if isinstance(value, int | float):
                    self.best_eval_metric_value = max(self.best_eval_metric_value, value)

    def _evaluate_as(self, when: str, step: int) -> dict[str, float]:
        if self.eval_dataloader is None:
            return {}
        return self.evaluate(step, when=when, **self.generate_kwargs)

    @torch.no_grad()
    def evaluate(self, global_step: int, *, when: str = "during", **generate_kwargs) -> dict[str, float]:
        """Evaluate in OpenRLHF's place: on 0/1 scores, with sampling settings of its own, every answer on disk.

        The seed of every sample follows from train.seed, its problem and its number: evaluations of one run, and of
        runs with one seed, differ by the policy alone.
        """
        run_folder.event(self.run_dir, "evaluating", when=when, step=global_step)
        samples = self.samples_generator.generate_eval_samples(**(generate_kwargs | self._eval_sampling()))
        self.phases.at("results", step=global_step)
        result = evaluate_samples(samples, self.eval_dataloader, self.tokenizer)
        run_folder.write_evaluation(self.run_dir, global_step, result.records, result.result)
        self.progress.evaluation = result.metrics | {"benchmarks": headlines(result.result)}
        run_folder.event(self.run_dir, "evaluated", when=when, step=global_step, **self.progress.evaluation)
        self.alarms.evaluated(global_step, result.result["average"])
        self.trackers.log_eval(global_step, result.logs)
        if when == "during":
            self._stop_on_alarm()
        return result.logs

    def _eval_sampling(self) -> dict[str, Any]:
        evaluation, rollout = self.args.eval, self.args.rollout
        own = EvalSettings.of(self.args.oger)
        return {
            "temperature": evaluation.temperature,
            "n_samples_per_prompt": evaluation.n_samples_per_prompt,
            "greedy": own.is_greedy(evaluation.temperature),
            "seed": self.args.train.seed,
            **own.sampling(rollout.top_p, rollout.max_new_tokens),
        }

    def _detect_eval_metric_key(self, eval_metrics):
        """Find the best checkpoint's metric: ckpt.best_metric_key, else the average of avg@n over the benchmarks."""
        if not self.best_eval_metric_key:
            self.best_eval_metric_key = next(key for key in eval_metrics if key.startswith("eval_average_avg_at_"))
        if self.best_eval_metric_key not in ("none", *eval_metrics):
            raise ValueError(
                f"ckpt.best_metric_key {self.best_eval_metric_key}: no such metric; known: "
                + ", ".join(sorted(eval_metrics))
            )
        return super()._detect_eval_metric_key(eval_metrics)
