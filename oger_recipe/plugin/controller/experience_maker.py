"""OpenRLHF's experience maker with hybrid groups and the exploration bonus."""

import json
import math
from pathlib import Path

import torch
from openrlhf.models.utils import compute_approx_kl, compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from oger_recipe.algorithm.advantage import (
    BASELINES,
    group_advantage,
    keep_teacher_nonnegative,
    teacher_fixed_advantage,
    weigh_token_advantages,
)
from oger_recipe.algorithm.batches import longest_first, off_policy_mask
from oger_recipe.algorithm.engine_check import HIGHEST_KL, Agreement
from oger_recipe.algorithm.exploration import exploration_bonus, scheduled_weight
from oger_recipe.algorithm.hybrid_group import solve_rates
from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES
from oger_recipe.cpu import CORES
from oger_recipe.embedding.similarity import make_similarity
from oger_recipe.plugin.controller.hybrid_batch import (
    UNKNOWN,
    Rollouts,
    make_hybrid,
    read_rollouts,
    texts_of,
    uid_of,
)
from oger_recipe.plugin.controller.step_metrics import info_value, step_metrics
from oger_recipe.rewards.repetition import is_repetitive
from oger_recipe.rewards.samples import worst_examples
from oger_recipe.run_folder import records as run_folder
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.history import History
from oger_recipe.teachers.store import TeacherStore

_TEXTS_READ = 32  # rollouts whose tokens are counted in a step
GROUP_ESTIMATORS = {"dr_grpo": False, "group_norm": True}  # estimator -> divides by the group's std


class OgerExperienceMaker(RemoteExperienceMaker):
    """Replaces rollouts by teachers, adds the bonus, and takes advantages over the hybrid group."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        oger = self.args.oger
        self.run_dir = Path(oger.run_dir)
        self.store = TeacherStore(self.run_dir / "data" / "teachers.arrow")
        # Ray gives an actor without CPUs of its own a single thread; this process only works while others wait.
        torch.set_num_threads(CORES)
        has_references = len(self.store) or oger.use_history_samples
        self.measure = make_similarity(oger) if has_references and OgerSettings.of(oger).compares else None
        self.history: History | None = None
        counts = json.loads((self.run_dir / "data" / "counts.json").read_text())
        self.dropped = {f"data/{name}": counts.get(name, 0) for name in ("teachers_too_long", "teachers_wrong")}
        self.step = 0  # set by the trainer before every batch
        self.planned_steps = 1  # of the run; set by the trainer
        self.metrics: dict[str, float] = {}
        self.said_share = False
        self.engine_limit = oger.max_logprob_difference  # None: known after the first step

    def resume(self, step: int, planned_steps: int) -> None:
        """Called once before the first batch: ``step`` steps have been trained already."""
        self.planned_steps = planned_steps
        if self.args.oger.use_history_samples:
            self.history = History(self.run_dir / "history.jsonl", self.args.oger.history_size, step)

    def rollout_arrived(self, sample: Experience) -> None:
        """Called for every rollout of the next batch while others are still sampled."""
        if self.measure is not None and uid_of(sample) in self.store:
            self.measure.foresee(texts_of([sample], self.tokenizer)[0])

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        self._stop_on_reward_errors(rollout_samples)
        rollouts = read_rollouts(rollout_samples, self.tokenizer, self.args.rollout.n_samples_per_prompt)
        seed = self.args.train.seed
        self.batch = make_hybrid(rollouts, self.store, self.measure, self.history, self.args.oger, seed, self.step)
        self.entropy = torch.zeros(len(rollout_samples))
        self.token_entropy = torch.zeros(len(rollout_samples))
        self.repetitive = self._repetitive(rollouts.texts)
        experiences = super().make_experience_batch(self.batch.samples)
        advantages = self._first_token_advantages(experiences)
        self.metrics |= (
            self.dropped
            | {"oger/bonus_weight": self.bonus_weight}
            | step_metrics(
                rollouts,
                self.batch,
                self.bonus,
                self.entropy,
                self.token_entropy,
                advantages,
                self.repetitive,
                self.args.oger,
            )
        )
        run_folder.write_samples(
            self.run_dir, self.step, rollouts, self.batch, self.bonus, self.entropy, advantages, self.args.oger
        )
        self.metrics["oger/embedding_share_read"] = self._share_read(rollouts)
        self._remember(rollouts)
        return experiences

    def _share_read(self, rollouts: Rollouts) -> float:
        """The share of the tokens of some rollouts and their references that the bonus speaks of; the first step says
        when that is not all of them."""
        if self.measure is None:
            return math.nan
        few = range(0, len(rollouts.texts), max(len(rollouts.texts) // _TEXTS_READ, 1))
        texts = [rollouts.texts[row] for row in few]
        texts += [teacher.text for row in few for teacher in self.store[rollouts.uids[row // rollouts.size]][:1]]
        share = self.measure.share_read(texts)
        if share < 0.995 and not self.said_share:
            self.said_share = True
            oger = self.args.oger
            text = (
                f"note: of rollouts and teachers the encoder reads {share:.0%} (oger.embedding_long_texts "
                f"{oger.embedding_long_texts}, {oger.embedding_max_tokens} tokens): similarity and bonus speak of that"
                " part alone; oger.embedding_long_texts chunks reads all"
            )
            run_folder.event(self.run_dir, "note", text=text)
        return share

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Micro-batches of rows of like length, longest first, so that little is padded; ``index`` says which rows.

        Every rank gets long and short ones. With dynamic batches, OpenRLHF balances tokens itself.
        """
        if self.args.train.dynamic_batch_enable:
            return super().split_rollout_samples(rollout_samples)
        rows = longest_first([sample.sequences.shape[1] for sample in rollout_samples])
        micro_batches = super().split_rollout_samples([rollout_samples[row] for row in rows])
        for micro_batch in micro_batches:
            micro_batch.index = [rows[position] for position in micro_batch.index]
        actor, ds = self.args.actor, self.args.ds
        ranks = actor.num_nodes * actor.num_gpus_per_node // ds.ring_attn_size // ds.tensor_parallel_size
        return [micro_batch for rank in range(ranks) for micro_batch in micro_batches[rank::ranks]]

    def _repetitive(self, texts: list[str]) -> torch.Tensor:
        """[N] bool: rollouts that earn no bonus because they go round in circles."""
        return torch.tensor([self.args.oger.repeating_check and is_repetitive(text) for text in texts])

    def _remember(self, rollouts: Rollouts) -> None:
        """The policy's own correct rollouts, also those that made room, become references of later steps."""
        if self.history is None:
            return
        rows = [row for row in range(len(rollouts.texts)) if rollouts.scores[row] > 0 and not rollouts.guided[row]]
        for row in rows:
            self.history.add(self.step, rollouts.uids[row // rollouts.size], rollouts.texts[row])
        if self.measure is not None:
            self.measure.remember([rollouts.texts[row] for row in rows])

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """OpenRLHF's forward passes; keeps the entropies and compares engine and policy on the rollouts."""
        action_masks = [samples.action_mask for samples in samples_list]
        if not self._needs_old_log_probs_of_teachers():
            for samples in samples_list:  # the policy leaves out rows without response tokens
                samples.action_mask = samples.action_mask * ~self._is_placed(samples)
        experiences = super().make_experience(samples_list)
        for experience, action_mask in zip(experiences, action_masks, strict=True):
            left_out = ~experience.action_mask.any(dim=1)
            experience.action_mask = action_mask
            for name in ("kl", "logprobs_diff"):  # means over no token there; any other nan is to be seen
                experience.info[name] = experience.info[name].masked_fill(left_out, 0.0)
        deltas = []
        for experience, (entropy, of_tokens) in zip(experiences, self._policy_entropies, strict=True):
            self.entropy[experience.index] = entropy.float()
            self.token_entropy[experience.index] = of_tokens.float()
            rows = ~self.batch.is_teacher[experience.index]
            mask = experience.action_mask.bool() & rows.unsqueeze(1)
            deltas.append((experience.rollout_log_probs - experience.action_log_probs)[mask])
            experience.rollout_log_probs = self._teacher_log_probs(experience)
        self._compare_with_engine(torch.cat(deltas))
        if self.args.oger.kl_penalty_coef:
            self._add_reward_kl(experiences)
        return experiences

    def _needs_old_log_probs_of_teachers(self) -> bool:
        """PPO's loss divides by them, a critic values their states, a KL is taken on them."""
        models = (self.critic_model_group, self.initial_model_group)
        return TEACHER_LOSSES[self.args.oger.off_policy_loss].as_rollouts or any(model is not None for model in models)

    def _is_placed(self, experience: Experience) -> torch.Tensor:
        """[B, 1] bool: a teacher's trajectory that took a rollout's place."""
        return torch.tensor([row in self.batch.teachers for row in experience.index]).unsqueeze(1)

    def _teacher_log_probs(self, experience: Experience) -> torch.Tensor | None:
        """[B, A] for the loss: of the teachers alone; it has no correction for the engine's rounding on rollouts."""
        if not self.args.oger.use_off_policy_probs:
            return None
        placed = self._is_placed(experience)
        return torch.where(placed, experience.rollout_log_probs, torch.tensor(UNKNOWN))

    def _add_reward_kl(self, experiences: list[Experience]) -> None:
        """The in-reward KL (k1) beside a loss-side one. compute_reward multiplies by the loss's coefficient."""
        scale = self.args.oger.kl_penalty_coef / self.kl_ctl.value
        for experience in experiences:
            log_probs, base = experience.action_log_probs, experience.base_action_log_probs
            experience.kl = scale * compute_approx_kl(log_probs, base, kl_estimator="k1") * experience.action_mask

    def _flatten_results(self, refs, duplicate_factor):
        """The policy answers with log-probabilities and two entropies; OpenRLHF expects the first of each answer."""
        results = super()._flatten_results(refs, duplicate_factor)
        if results and isinstance(results[0], tuple):
            self._policy_entropies = [entropies for _, *entropies in results]
            return [log_probs for log_probs, *_ in results]
        return results

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        oger, batch = self.args.oger, self.batch
        own = ~batch.is_teacher & ~batch.left_alone & ~self.repetitive
        if oger.non_stop_fixed_reward is not None:
            own &= ~batch.truncated  # their reward is fixed, without a bonus on top
        groups = (-1, self.args.rollout.n_samples_per_prompt)
        self.bonus_weight = scheduled_weight(
            self.step,
            start=oger.bonus_weight,
            end=oger.bonus_weight_end,
            steps=oger.bonus_schedule_steps or self.planned_steps,
            schedule=oger.bonus_schedule,
        )
        fails = own & (batch.scores <= 0) & oger.similarity_reverse_fail
        self.bonus = (
            self.bonus_weight
            * exploration_bonus(
                batch.similarity.view(groups),
                self.entropy.view(groups),
                (batch.rewards * (batch.scores > 0) * own).view(groups),  # only the policy's own correct rollouts
                weight=oger.last_token_enp_reward,
                reverse=oger.similarity_reverse,
                shaping=oger.similarity_shaping,
                fails=fails.view(groups),
            ).flatten()
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
        for experience in experiences:
            experience.advantages = self._teacher_tokens_weighed(experience)
            if oger.disable_truncation_advantage:
                experience.advantages[batch.truncated[experience.index]] = 0
        return experiences

    def _teacher_tokens_weighed(self, experience: Experience) -> torch.Tensor:
        """[B, A]: LUFFY's weights on the advantages of teacher tokens and of the policy's own."""
        oger, tokens = self.args.oger, torch.stack(list(experience.info["off_policy_tokens"]))
        is_teachers = off_policy_mask(experience.action_mask, tokens)
        advantages = weigh_token_advantages(
            experience.advantages,
            is_teachers,
            alpha=oger.prefix_reward_weight_alpha,
            beta=oger.prefix_reward_weight_beta,
        )
        if oger.use_sft_prefix_reward:
            value = oger.sft_prefix_reward_weight / self.args.rollout.n_samples_per_prompt
            advantages = teacher_fixed_advantage(advantages, is_teachers, value=value)
        return advantages

    def _group_advantages(self, experiences: list[Experience]) -> torch.Tensor:
        """[N], in the order of the flat list."""
        rewards = torch.empty_like(self.batch.rewards)
        for experience in experiences:
            rewards[experience.index] = experience.rewards
        size = self.args.rollout.n_samples_per_prompt
        use_std = GROUP_ESTIMATORS[self.args.algo.advantage.estimator]
        baseline = BASELINES[self.args.oger.advantage_baseline](self.batch.is_teacher.view(-1, size))
        advantages = group_advantage(rewards.view(-1, size), use_std=use_std, baseline_mask=baseline)
        if self.args.oger.all_correct_group == "clip":
            is_teacher, scores = self.batch.is_teacher.view(-1, size), self.batch.scores.view(-1, size)
            solved = solve_rates(scores, ~is_teacher) == 1
            advantages = keep_teacher_nonnegative(advantages, is_teacher & (scores > 0), solved)
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

    def _compare_with_engine(self, delta: torch.Tensor) -> None:
        """Stops the run when the engine's log-probabilities of its own tokens (``delta`` [tokens]: less the policy's)
        show that it samples with other weights; the first step of a run, with equal ones, shows what rounding does."""
        agreement = Agreement.of(delta, top_p=self.args.rollout.top_p, top_k=self.args.oger.top_k)
        stale = agreement.is_stale(self.engine_limit)
        if self.engine_limit is None:
            self.engine_limit = agreement.limit()
        self.metrics = {
            "vllm_logprob_difference": agreement.difference,
            "vllm_logprob_limit": self.engine_limit,
            "vllm_kl": delta.mean().item() if len(delta) else 0.0,
        }
        if stale:
            raise RuntimeError(
                f"step {self.step}: the engine's log-probabilities differ from the policy's by "
                f"{agreement.difference:.4f} per token on average (limit: {self.engine_limit:.4f}; "
                f"oger.max_logprob_difference sets another) and are {agreement.kl:.4f} higher (limit: {HIGHEST_KL}): "
                "the weights that vLLM samples from are not those that are trained"
            )


def penalise_truncated(
    rewards: torch.Tensor, truncated: torch.Tensor, penalty: float, fixed: float | None
) -> torch.Tensor:
    """Rewards [N] where the truncated rows [N] (bool) get ``fixed`` instead, or ``penalty`` on top (OAT's rules)."""
    if fixed is not None:
        return torch.where(truncated, torch.full_like(rewards, fixed), rewards)
    return rewards + penalty * truncated
