"""The controller: OpenRLHF's PPO trainer with the recipe's experience maker, evaluation and records."""

from oger_recipe.patches import apply_training_patches

apply_training_patches()

from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from openrlhf.trainer import ppo_trainer  # noqa: E402
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # noqa: E402

from oger_recipe.plugin import run_folder  # noqa: E402
from oger_recipe.plugin.experience_maker import OgerExperienceMaker  # noqa: E402
from oger_recipe.plugin.ray_actor import undecorated  # noqa: E402


class OgerSamplesGenerator(SamplesGenerator):
    """Ends the data where the run ends, and leaves out a last batch that does not fill an optimizer step."""

    steps_left: int | None = None

    def generate_samples(self, **generate_kwargs):
        if self.steps_left == 0:
            return [], None, 0, True
        samples, pass_rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        if len(samples) % self.args.train.batch_size:
            samples = []
        if self.steps_left is not None and samples:
            self.steps_left -= 1
        return samples, pass_rate, consumed, exhausted


# PPOTrainer and BasePPOTrainer build these by name, which is looked up in this process.
ppo_trainer.SamplesGenerator = OgerSamplesGenerator
ppo_trainer.RemoteExperienceMaker = OgerExperienceMaker

# Means over all trained rows, teachers included; kept apart from figures of the policy's own rollouts.
HYBRID_KEYS = (
    "reward", "score", "return", "response_length", "total_length", "truncated", "response_clip_ratio", "kl",
    "logprobs_diff", "reward_format", "reward_error", "off_policy_tokens", "group_reward_std",
)  # fmt: skip


class OgerPPOTrainer(undecorated(ppo_trainer.PPOTrainer)):  # type: ignore[misc]
    """Evaluates on scores before and after, records every step, and can stop after a number of steps."""

    def __init__(self, pretrain, strategy, *args, **kwargs) -> None:
        torch.manual_seed(strategy.args.train.seed)  # the sampler of the prompts draws its order's seed from here
        super().__init__(pretrain, strategy, *args, **kwargs)
        self.run_dir = Path(self.args.oger.run_dir)

    def get_max_steps(self) -> int:
        """Optimizer steps of the run, for the learning-rate schedule."""
        limit = self.args.oger.total_training_steps
        rows = self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt
        per_step = rows // self.args.train.batch_size * self.args.train.max_epochs
        return self.max_steps if limit is None else min(self.max_steps, limit * per_step)

    def planned_steps(self) -> int:
        """Rollout steps of the run."""
        per_episode = len(self.prompts_dataloader) // self.args.rollout.batch_size
        planned = per_episode * self.args.train.num_episodes
        return min(planned, self.args.oger.total_training_steps or planned)

    def fit(self, global_step: int = 0) -> None:
        resumed_at = self.init_checkpoint_states()["global_step"]
        if self.args.oger.total_training_steps is not None:
            self.samples_generator.steps_left = max(self.args.oger.total_training_steps - resumed_at, 0)
        run_folder.event(self.run_dir, "ready", steps=self.planned_steps(), resumed_at=resumed_at)
        if self.args.oger.val_before_train and not resumed_at:
            self._evaluate_as("before", 0)
        self.last_step = resumed_at
        run_folder.event(self.run_dir, "training")
        super().fit(global_step)
        run_folder.event(self.run_dir, "trained", steps=self.last_step)
        if self.args.oger.val_after_train:
            self._evaluate_as("after", self.last_step)
        run_folder.event(self.run_dir, "finished")

    def train_step(self, rollout_samples, global_step: int):
        self.experience_maker.step = global_step + 1
        status, global_step = super().train_step(rollout_samples, global_step)
        status = {f"hybrid_batch/{key}" if key in HYBRID_KEYS else key: value for key, value in status.items()}
        return status | self.experience_maker.metrics, global_step

    def _compute_rollout_stats(self, experiences) -> dict[str, float]:
        """Upstream's would count injected teachers as rollouts; the experience maker has the rollouts' own."""
        return {}

    def save_logs_and_checkpoints(self, global_step: int, logs_dict=None, client_states=None) -> None:
        self.last_step = global_step
        figures = {key: value for key, value in (logs_dict or {}).items() if key != "generated_samples"}
        figures["tokens_per_second"] = figures["rollout/response_tokens"] / figures["timing/step_total"]
        run_folder.append_json(self.run_dir / "metrics.jsonl", {"step": global_step} | figures)
        run_folder.event(self.run_dir, "step", step=global_step, **figures)
        super().save_logs_and_checkpoints(global_step, (logs_dict or {}) | figures, client_states)

    def _evaluate_as(self, name: str, step: int) -> None:
        if self.eval_dataloader is None:
            return
        settings = {
            "temperature": self.args.eval.temperature,
            "n_samples_per_prompt": self.args.eval.n_samples_per_prompt,
        }
        run_folder.event(self.run_dir, "evaluating", when=name)
        self.evaluate(step, **(self.generate_kwargs | settings))
        run_folder.event(self.run_dir, "evaluated", when=name, **self.evaluation)

    @torch.no_grad()
    def evaluate(self, global_step: int, **generate_kwargs) -> dict[str, float]:
        """OpenRLHF's evaluation on 0/1 scores instead of rewards, with every answer on disk."""
        samples = self.samples_generator.generate_eval_samples(**generate_kwargs)
        n = generate_kwargs["n_samples_per_prompt"]
        for sample in samples:
            sample.rewards = sample.scores.float()
        logs = ppo_trainer.compute_eval_metrics(self.eval_dataloader, samples, n)
        responses = [sample.sequences[0, 1:][sample.action_mask[0].bool()] for sample in samples]
        run_folder.write_answers(self.run_dir, global_step, samples, self.tokenizer.batch_decode(responses))
        self.evaluation = evaluation_of(torch.cat([sample.scores for sample in samples]).view(-1, n))
        for tracker in (self.wandb_logger, self.tensorboard_logger):
            if tracker:
                tracker.log_eval(global_step, logs | self.evaluation)
        return logs


def evaluation_of(scores: torch.Tensor) -> dict[str, float]:
    """avg@n and pass@n of 0/1 scores [problems, n]."""
    problems, n = scores.shape
    solved = scores.float()
    return {
        f"avg_at_{n}": solved.mean().item(),
        f"pass_at_{n}": (solved.amax(dim=1) > 0).float().mean().item(),
        "n_problems": problems,
    }
