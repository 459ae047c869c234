"""OpenRLHF's experience maker with hybrid groups and the exploration bonus."""

from oger_recipe.patches import apply_training_patches

apply_training_patches()

import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from openrlhf.models.utils import compute_approx_kl, compute_reward  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties  # noqa: E402

from oger_recipe.algorithm.advantage import group_advantage, keep_teacher_nonnegative  # noqa: E402
from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS, exploration_bonus  # noqa: E402
from oger_recipe.data.teacher_store import TeacherStore  # noqa: E402
from oger_recipe.embedding.cache import EmbeddingCache  # noqa: E402
from oger_recipe.embedding.encoder import EncoderSettings, TrajectoryEncoder  # noqa: E402
from oger_recipe.plugin import run_folder  # noqa: E402
from oger_recipe.plugin.hybrid_batch import HybridBatch, Rollouts, make_hybrid, read_rollouts  # noqa: E402
from oger_recipe.rewards.reward_func import worst_examples  # noqa: E402

GROUP_ESTIMATORS = {"dr_grpo": False, "group_norm": True}  # estimator -> divides by the group's std


class OgerExperienceMaker(RemoteExperienceMaker):
    """Replaces rollouts by teachers, adds the bonus, and takes advantages over the hybrid group."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        oger = self.args.oger
        self.run_dir = Path(oger.run_dir)
        self.store = TeacherStore(self.run_dir / "data" / "teachers.arrow")
        # Ray gives an actor without CPUs of its own a single thread; this process only works while others wait.
        torch.set_num_threads(os.cpu_count() or 1)
        self.encoder, self.cache = None, None
        if len(self.store) and uses_teachers(oger):
            settings = EncoderSettings(oger.embedding_model, oger.embedding_revision, oger.embedding_max_tokens)
            self.encoder = TrajectoryEncoder(settings, oger.embedding_batch_size)
            self.cache = EmbeddingCache(self.encoder, Path(oger.embedding_cache))
        counts = json.loads((self.run_dir / "data" / "counts.json").read_text())
        self.dropped = {f"data/{name}": counts.get(name, 0) for name in ("teachers_too_long", "teachers_wrong")}
        self.step = 0  # set by the trainer before every batch
        self.metrics: dict[str, float] = {}

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        self._stop_on_reward_errors(rollout_samples)
        rollouts = read_rollouts(rollout_samples, self.tokenizer, self.args.rollout.n_samples_per_prompt)
        seed = self.args.train.seed * 1_000_003 + self.step
        self.batch = make_hybrid(rollouts, self.store, self.encoder, self.cache, self.args.oger, seed)
        self.entropy = torch.zeros(len(rollout_samples))
        experiences = super().make_experience_batch(self.batch.samples)
        advantages = self._first_token_advantages(experiences)
        self.metrics |= self.dropped | step_metrics(
            rollouts, self.batch, self.bonus, self.entropy, advantages, self.args.oger
        )
        run_folder.write_samples(
            self.run_dir, self.step, rollouts, self.batch, self.bonus, self.entropy, advantages, self.args.oger
        )
        return experiences

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """OpenRLHF's forward passes; keeps the entropies and compares engine and policy on the rollouts."""
        experiences = super().make_experience(samples_list)
        difference, kl, tokens = 0.0, 0.0, 0
        for experience, entropy in zip(experiences, self._policy_entropies, strict=True):
            self.entropy[experience.index] = entropy.float()
            rows = ~self.batch.is_teacher[experience.index]
            mask = experience.action_mask.bool() & rows.unsqueeze(1)
            delta = (experience.rollout_log_probs - experience.action_log_probs)[mask]
            difference += unexplained_difference(delta, self.args.rollout.top_p, self.args.oger.top_k).sum().item()
            kl, tokens = kl + delta.sum().item(), tokens + len(delta)
            experience.rollout_log_probs = None  # the hybrid loss has no correction for the engine's rounding
        self.metrics = {"vllm_logprob_difference": difference / max(tokens, 1), "vllm_kl": kl / max(tokens, 1)}
        self._stop_on_stale_engine()
        if self.args.oger.kl_penalty_coef:
            self._add_reward_kl(experiences)
        return experiences

    def _add_reward_kl(self, experiences: list[Experience]) -> None:
        """The in-reward KL (k1) beside a loss-side one. compute_reward multiplies by the loss's coefficient."""
        scale = self.args.oger.kl_penalty_coef / self.kl_ctl.value
        for experience in experiences:
            log_probs, base = experience.action_log_probs, experience.base_action_log_probs
            experience.kl = scale * compute_approx_kl(log_probs, base, kl_estimator="k1") * experience.action_mask

    def _flatten_results(self, refs, duplicate_factor):
        """The policy answers with pairs (log-probabilities, entropy); OpenRLHF expects the first of each."""
        results = super()._flatten_results(refs, duplicate_factor)
        if results and isinstance(results[0], tuple):
            self._policy_entropies = [entropy for _, entropy in results]
            return [log_probs for log_probs, _ in results]
        return results

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        oger, batch = self.args.oger, self.batch
        reward = batch.rewards * (batch.scores > 0) * ~batch.is_teacher  # only the policy's own correct rollouts
        self.bonus = oger.bonus_weight * exploration_bonus(
            batch.similarity, self.entropy, reward, weight=oger.last_token_enp_reward, reverse=oger.similarity_reverse
        )
        rewards = penalise_truncated(batch.rewards, batch.truncated, oger.non_stop_penalty, oger.non_stop_fixed_reward)
        for experience in experiences:
            experience.rewards = (rewards + self.bonus)[experience.index]
        if self.args.algo.advantage.estimator in GROUP_ESTIMATORS:
            apply_length_penalties(experiences, self.args)
            advantages = self._group_advantages(experiences)
            for experience in experiences:
                self._spread_over_tokens(experience, advantages[experience.index])
        else:
            experiences = super().compute_advantages_and_returns(experiences)
        if oger.disable_truncation_advantage:
            for experience in experiences:
                experience.advantages[batch.truncated[experience.index]] = 0
        return experiences

    def _group_advantages(self, experiences: list[Experience]) -> torch.Tensor:
        """[N], in the order of the flat list."""
        rewards = torch.empty_like(self.batch.rewards)
        for experience in experiences:
            rewards[experience.index] = experience.rewards
        size = self.args.rollout.n_samples_per_prompt
        use_std = GROUP_ESTIMATORS[self.args.algo.advantage.estimator]
        advantages = group_advantage(rewards.view(-1, size), use_std=use_std)
        if self.args.oger.all_correct_group == "clip":
            is_teacher = self.batch.is_teacher.view(-1, size)
            all_correct = ((self.batch.scores.view(-1, size) > 0) | is_teacher).all(dim=1)
            advantages = keep_teacher_nonnegative(advantages, is_teacher, all_correct)
        return advantages.flatten()

    def _spread_over_tokens(self, experience: Experience, advantages: torch.Tensor) -> None:
        """The advantage of a row on each of its response tokens, less the KL penalty of the tokens that follow."""
        clip_range = self.args.reward.clip_range
        reward = compute_reward(advantages, self.kl_ctl.value, experience.kl, experience.action_mask, clip_range)
        experience.returns = self.get_cumulative_returns(reward, experience.action_mask, 1.0)
        experience.advantages = experience.returns.clone()
        experience.info["return"] = reward.sum(dim=-1)
        experience.kl = None

    def _first_token_advantages(self, experiences: list[Experience]) -> torch.Tensor:
        """[N]: the advantage on each row's first response token."""
        advantages = torch.empty_like(self.batch.rewards)
        for experience in experiences:
            first = experience.action_mask.long().argmax(dim=1, keepdim=True)
            advantages[experience.index] = experience.advantages.gather(1, first).squeeze(1)
        return advantages

    def _stop_on_reward_errors(self, samples: list[Experience]) -> None:
        missing = sum(sample.rewards is None for sample in samples)
        failed = missing + sum(int(info_value(sample, "reward_error")) for sample in samples)
        limit = self.args.oger.max_reward_error_rate
        if missing or failed > limit * len(samples):
            worst = "".join(f"\n  - {example}" for example in worst_examples(self.run_dir))
            raise RuntimeError(
                f"{failed} of {len(samples)} rollouts of step {self.step} could not be graded (limit: {limit:.0%}, "
                f"oger.max_reward_error_rate); their texts and errors are in {self.run_dir / 'reward_errors.jsonl'}; "
                f"the worst:{worst}"
            )

    def _stop_on_stale_engine(self) -> None:
        difference, limit = self.metrics["vllm_logprob_difference"], self.args.oger.max_logprob_difference
        if difference > limit:
            raise RuntimeError(
                f"step {self.step}: the engine's log-probabilities differ from the policy's by {difference:.4f} per "
                f"token on average (limit: {limit}, oger.max_logprob_difference): the weights that vLLM samples from "
                "are not those that are trained, or the two compute too differently"
            )


def info_value(sample: Experience, key: str) -> float:
    """A number that the reward function reported of a single rollout; 0 from a function that does not know it."""
    return float(sample.info[key].item()) if key in sample.info else 0.0


def uses_teachers(oger) -> bool:
    """Whether anything of the run depends on teacher trajectories."""
    return oger.max_replace_num > 0 or oger.bonus_weight != 0


def penalise_truncated(
    rewards: torch.Tensor, truncated: torch.Tensor, penalty: float, fixed: float | None
) -> torch.Tensor:
    """Rewards [N] where the truncated rows [N] (bool) get ``fixed`` instead, or ``penalty`` on top (OAT's rules)."""
    if fixed is not None:
        return torch.where(truncated, torch.full_like(rewards, fixed), rewards)
    return rewards + penalty * truncated


def unexplained_difference(delta: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """How far log p(engine) - log p(policy) of sampled tokens lies outside what the sampling itself explains.

    The engine's log-probabilities are of the tokens it could choose from: with a nucleus of mass Z >= top_p they are
    higher than the policy's by -log Z, at most -log top_p; with top_k there is no bound from above.
    """
    highest = math.inf if top_k > 0 else -math.log(top_p)
    return (-delta).clamp(min=0) + (delta - highest).clamp(min=0)


def step_metrics(
    rollouts: Rollouts,
    batch: HybridBatch,
    bonus: torch.Tensor,
    entropy: torch.Tensor,
    advantages: torch.Tensor,
    oger,
) -> dict[str, float]:
    """Figures of one step. ``rollout/*`` are of the rollouts as sampled, before any bonus or replacement."""
    solved = rollouts.scores.view(len(rollouts.uids), -1)
    lengths = torch.cat([sample.response_length for sample in rollouts.samples]).float()
    kept = ~batch.is_teacher
    taught = kept & ~batch.similarity.isnan()
    divergence = 1 - batch.similarity[taught]
    earned = bonus[kept & (batch.scores > 0)]
    weight = ENTROPY_WEIGHTS[oger.last_token_enp_reward](entropy[kept])
    teacher_rows = torch.tensor(sorted(batch.teachers), dtype=torch.long)
    return {
        "rollout/solve_rate": solved.mean().item(),
        "rollout/solve_all": (solved.mean(dim=1) == 1).float().mean().item(),
        "rollout/solve_none": (solved.mean(dim=1) == 0).float().mean().item(),
        "rollout/reward": rollouts.rewards.mean().item(),
        "rollout/reward_error": sum(info_value(sample, "reward_error") for sample in rollouts.samples),
        "rollout/reward_timeout": sum(info_value(sample, "reward_timeout") for sample in rollouts.samples),
        "rollout/response_length": lengths.mean().item(),
        "rollout/response_tokens": lengths.sum().item(),
        "rollout/truncated": torch.cat([sample.truncated for sample in rollouts.samples]).float().mean().item(),
        "oger/similarity": _mean(batch.similarity[taught]),
        "oger/divergence": _mean(divergence),
        "oger/divergence_std": _std(divergence),
        "oger/entropy": _mean(entropy[kept]),
        "oger/entropy_weight": _mean(weight),
        "oger/entropy_weight_std": _std(weight),
        "oger/bonus": _mean(bonus[kept]),
        "oger/bonus_of_correct": _mean(earned),
        "oger/bonus_of_correct_std": _std(earned),
        "oger/replaced": float(len(batch.teachers)),
        "oger/replaced_correct": rollouts.scores[teacher_rows].sum().item(),
        "oger/prompts_without_teacher": float(batch.prompts_without_teacher),
        "oger/teacher_reward": _mean(batch.rewards[teacher_rows]),
        "oger/teacher_advantage": _mean(advantages[teacher_rows]),
        "oger/rollout_advantage_abs": _mean(advantages[kept].abs()),
    }


def _mean(values: torch.Tensor) -> float:
    return values.mean().item() if len(values) else 0.0


def _std(values: torch.Tensor) -> float:
    return values.std().item() if len(values) > 1 else 0.0
