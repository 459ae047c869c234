"""OpenRLHF's experience maker with hybrid groups, the rewards of all sources, and advantages by name."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from ray.util.placement_group import PlacementGroup

from oger_recipe.algorithm.advantage import BASELINES
from oger_recipe.algorithm.batches import cut_for_ranks, of_first_token
from oger_recipe.algorithm.credit import (
    BATCH_ESTIMATORS,
    ESTIMATORS,
    RIGHT_ESTIMATORS,
    STEP_ESTIMATORS,
    equal_rewards_teach,
    hybrid_advantages,
    token_advantages,
)
from oger_recipe.algorithm.engine_ratio import EngineCorrection, correction_metrics
from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS
from oger_recipe.algorithm.hybrid_group import own_or_all
from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES
from oger_recipe.base.cpu import CORES, THREADS, is_without_cuda
from oger_recipe.embedding.similarity import make_similarity
from oger_recipe.models.keys import WriterKeys
from oger_recipe.models.places import likelihoods_of
from oger_recipe.models.tokens import window_of
from oger_recipe.pipeline.controller import nonfinite
from oger_recipe.pipeline.controller.credit_by_steps import advantages_of_steps, credit_by_steps
from oger_recipe.pipeline.controller.grades import Grader, add_grades
from oger_recipe.pipeline.controller.guards import EngineGuard, say_no_advantage, share_read, stop_on_reward_errors
from oger_recipe.pipeline.controller.hybrid_batch import (
    make_hybrid,
    read_rollouts,
    teacher_log_probs,
    texts_of,
    uid_of,
)
from oger_recipe.pipeline.controller.likelihoods import AnswerLikelihoods, PolicyLikelihoods
from oger_recipe.pipeline.controller.metrics import equal_groups, metrics_of
from oger_recipe.pipeline.controller.reward_sources import RewardSources
from oger_recipe.pipeline.controller.samples import sample_lines
from oger_recipe.pipeline.controller.training_step import TrainingStep
from oger_recipe.pipeline.encoder.actor_encoder import encoders_on
from oger_recipe.pipeline.experiences import compute_approx_kl, response_tokens, teachers_tokens
from oger_recipe.pipeline.judges.engines import RunEngines
from oger_recipe.rewards.place import Likelihoods
from oger_recipe.rewards.spec import Surroundings
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder import records as run_folder
from oger_recipe.settings.grades import OFF, SELF
from oger_recipe.settings.loss import OF_UPDATE
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.draw import HISTORY, History
from oger_recipe.teachers.store import Teacher, TeacherStore

experience_maker.compute_approx_kl = compute_approx_kl  # make_experience finds it by this name


class OgerExperienceMaker(RemoteExperienceMaker):
    """Lets teachers take the place of rollouts, asks the sources of reward, and compares the rows of a group."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings = OgerSettings.of(self.args.oger)
        guards, rollout = settings.guards, self.args.rollout
        # Ray gives an actor without CPUs of its own a single thread, unless a run on CPUs says how many it has; this
        # process only works while others wait.
        torch.set_num_threads(THREADS if is_without_cuda() else CORES)
        self.run_dir = Path(self.args.oger.run_dir)
        self.step = 0  # set by the trainer before every batch
        self.size = rollout.n_samples_per_prompt
        self.store = TeacherStore(self.run_dir / "data" / "teachers.arrow")
        has_references = len(self.store) or settings.teachers.use_history_samples
        shared_gpus = self._policys_gpus if self.args.train.colocate_all else None
        encoder = encoders_on(settings.embedding.embedding_num_gpus, shared_gpus)
        self.measure = make_similarity(settings.embedding, encoder) if has_references and settings.compares else None
        self.history: History | None = None
        self.engines = RunEngines(
            cpu=is_without_cuda(), memory_gb=settings.reward.engine_memory_gb, shared_gpus=shared_gpus
        )
        self.engines.says = self._note
        surroundings = Surroundings.of(settings, self.engines.place, self.args.train.seed, encoder)
        surroundings = replace(surroundings, told=self._replies_came)
        self.reward_sources = RewardSources(surroundings, self.run_dir, self.args.algo.advantage.estimator)
        self.grader = self._grader(surroundings)
        self.likelihoods: AnswerLikelihoods | None = None
        if settings.teachers.teacher_draw == "likeliest_answer":
            self.likelihoods = AnswerLikelihoods(self._policy_likelihoods(), self.tokenizer)
        self.engines.start()
        self.engine_guard = EngineGuard(
            guards.max_logprob_difference, guards.max_engine_kl, top_p=rollout.top_p, top_k=settings.rollouts.top_k
        )
        given = self.args.algo.advantage
        self.correction = EngineCorrection.named(
            given.is_correction_level,
            given.is_correction_mode,
            given.is_correction_gating,
            given.is_correction_threshold,
        )
        counts = json.loads((self.run_dir / "data" / "counts.json").read_text())
        self.dropped = {f"data/{name}": counts.get(name, 0) for name in ("teachers_too_long", "teachers_wrong")}
        self.planned_steps = 1  # of the run; set by the trainer
        self.current: TrainingStep  # made and filled by make_experience_batch and what it calls

    def _grader(self, surroundings: Surroundings) -> Grader | None:
        settings, window = self.settings.grades, None
        if settings.grader == OFF:
            return None
        if settings.shows_teachers:
            place: Likelihoods = self._policy_likelihoods("forward" if settings.grader == SELF else "forward_grader")
            window = window_of(WriterKeys(model=self.args.actor.model_name_or_path))
        else:
            place = likelihoods_of(settings.models[0], surroundings)
        seed = self.args.train.seed
        return Grader(settings, self.settings.teachers, place, self.store, self.tokenizer, window=window, seed=seed)

    def _policy_likelihoods(self, method: str = "forward") -> PolicyLikelihoods:
        return PolicyLikelihoods(self.actor_model_group, self.split_rollout_samples, self.args, method)

    def _note(self, text: str) -> None:
        run_folder.event(self.run_dir, "note", step=self.step, text=f"note: {text}")

    def _replies_came(self, model: str, done: int, of: int) -> None:
        """Tell how many replies came, of servers or of models in this process; who is told is set later."""
        if self.engines.told is not None:
            self.engines.told(model, done, of)

    def _policys_gpus(self) -> PlacementGroup:
        group: PlacementGroup = ray.get(self.actor_model_group._actor_handlers[0].placement_group.remote())
        return group

    def state(self) -> dict[str, Any]:
        """Return what is known of earlier steps and is in no file, for a checkpoint."""
        return {"engine_limit": self.engine_guard.limit, "sources": self.reward_sources.state()}

    def resume(self, step: int, planned_steps: int, state: Mapping[str, Any]) -> None:
        """Resume after ``step`` steps with the checkpoint's ``state``, if any; called once, before the first batch."""
        self.planned_steps = planned_steps
        self.engine_guard.resume(state.get("engine_limit"))
        learnt = checkpoints.of_sources(Path(self.args.ckpt.path), step)
        self.reward_sources.resume(step, learnt, state.get("sources", {}))
        if self.settings.teachers.use_history_samples:
            self.history = History(self.run_dir / "history.jsonl", self.settings.teachers.history_size, step)

    def prompts_sent(self, uids: list[str]) -> None:
        """Encode the teachers of the next batch while its rollouts are sampled."""
        if self.measure is not None:
            self.measure.prefetch_references([teacher.text for uid in uids for teacher in self.store[uid]])

    def rollout_arrived(self, sample: Experience) -> None:
        """Encode a rollout of the next batch while others are still sampled."""
        if self.measure is not None and uid_of(sample) in self.store:
            self.measure.prefetch(texts_of([sample], self.tokenizer)[0])

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        self.current = step = self._begun(rollout_samples)
        experiences = super().make_experience_batch(step.batch.samples)
        step.advantages = self._by_row(experiences, lambda each: of_first_token(each.advantages, each.action_mask))
        paid, hints = step.rewards.steps, self.settings.teachers
        step.step_advantages = None if paid is None else advantages_of_steps(experiences, paid.mask.shape[2])
        if self.grader is not None:
            weight = self.settings.grades.weight_at(step.number, self.planned_steps)
            step.of_grader |= add_grades(experiences, step, self._without_advantage(), self.settings.grades, weight)
        say_no_advantage(experiences, step.rewards.dropped, step.number, self.run_dir)
        step.metrics = (
            step.of_engine
            | step.of_grader
            | step.batch.of_answers
            | self.dropped
            | nonfinite.counts(step)
            | {"oger/bonus_weight": step.bonus_weight}
            | ({"oger/hint_share": hints.hint_share_at(self.step, self.planned_steps)} if hints.hint_share else {})
            | metrics_of(step)
            | {"oger/equal_groups": self._equal_groups(experiences)}
            | self.reward_sources.watch.look_at(step)
            | {"oger/embedding_share_read": share_read(self.measure, step.rollouts, step.batch)}
        )
        if run_folder.writes_samples(step.number, self.settings.run.samples_steps):
            run_folder.write_samples(self.run_dir, step.number, sample_lines(step))
        self._remember(step, experiences)
        nonfinite.make_untrainable(experiences, step)
        self._leave_out(experiences)
        if self.settings.loss.sft_loss_moves:
            weight = self.settings.loss.sft_loss_coef_at(self.step, self.planned_steps)
            for experience in experiences:
                experience.info["sft_loss_coef"] = torch.full((len(experience.sequences),), weight)
        return experiences

    def _begun(self, samples: list[Experience]) -> TrainingStep:
        """Read the rollouts of a step and let teachers in. Raises RuntimeError where too many were not graded."""
        settings = self.settings
        stop_on_reward_errors(samples, settings.guards.max_reward_error_rate, self.step, self.run_dir)
        cuts = settings.cuts_steps(self.args.algo.advantage.estimator)
        rollouts = read_rollouts(
            samples,
            self.tokenizer,
            self.size,
            find_repetition=settings.bonus.repeating_check,
            step_rule=settings.steps.rule if cuts else None,
        )
        seed = self.args.train.seed
        batch = make_hybrid(
            rollouts, self.store, self.measure, self.history, settings.teachers, seed, self.step, self.likelihoods
        )
        bonus_weight = self.reward_sources.bonus_weight(self.step, self.planned_steps)
        bad = {kind: torch.zeros(len(samples), dtype=torch.bool) for kind in nonfinite.KINDS}
        if self.measure is not None:
            bad[nonfinite.SIMILARITIES] = batch.similarity.isnan() & torch.tensor(
                [bool(teachers) for teachers in batch.teachers]
            ).repeat_interleave(self.size)
        return TrainingStep(self.step, rollouts, batch, bonus_weight, bad)

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Cut rows of like length into micro-batches, longest first: little is padded. ``index`` says which rows.

        All ranks get equally many rows, also where a last batch of the data has fewer. With dynamic batches, OpenRLHF
        balances tokens itself.
        """
        if self.args.train.dynamic_batch_enable:
            return super().split_rollout_samples(rollout_samples)
        for row, sample in enumerate(rollout_samples):
            sample.index = [row]
        actor, ds = self.args.actor, self.args.ds
        ranks = actor.num_nodes * actor.num_gpus_per_node // ds.ring_attn_size // ds.tensor_parallel_size
        lengths = [sample.sequences.shape[1] for sample in rollout_samples]
        return [
            Experience.concat_experiences([rollout_samples[row] for row in rows], self.tokenizer.pad_token_id)
            for rows in cut_for_ranks(lengths, self.args.rollout.micro_batch_size, ranks)
        ]

    # ---- the models' part

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """Make OpenRLHF's forward passes, keep the entropies, and compare engine and policy on the rollouts."""
        step, started = self.current, time.monotonic()
        action_masks = [samples.action_mask for samples in samples_list]
        sample = self._fair_sample()
        step.read = self._read_before_update(sample)
        for samples in samples_list:  # the policy leaves out rows without response tokens
            samples.action_mask = samples.action_mask * step.read[samples.index].unsqueeze(1)
        experiences = super().make_experience(samples_list)
        seconds = time.monotonic() - started
        for experience, action_mask in zip(experiences, action_masks, strict=True):
            left_out = ~experience.action_mask.any(dim=1)
            experience.action_mask = action_mask
            for name in ("kl", "logprobs_diff"):  # means over no token there
                experience.info[name] = experience.info[name].masked_fill(left_out, 0.0)
            for kind, rows in nonfinite.take_out(experience).items():
                step.nonfinite[kind][experience.index] = rows
            step.nonfinite[nonfinite.ENTROPIES][experience.index] = ~left_out
        step.entropy, step.token_entropy, step.log_prob = torch.zeros(3, len(step.batch.samples))
        for experience, (entropy, of_tokens) in zip(experiences, step.answered, strict=True):
            step.entropy[experience.index] = entropy.float()
            step.token_entropy[experience.index] = of_tokens.float()
            rows = (step.read & ~step.batch.is_teacher & ~step.nonfinite[nonfinite.LOG_PROBS])[experience.index]
            log_prob = (experience.action_log_probs * experience.action_mask).sum(dim=1).float()
            step.log_prob[experience.index] = log_prob.where(rows, torch.nan)
            if self.settings.loss.use_off_policy_probs:
                experience.teacher_log_probs = teacher_log_probs(experience, step.batch.injected)
        step.token_entropy[~sample] = torch.nan
        step.nonfinite[nonfinite.ENTROPIES] &= ~step.entropy.isfinite()
        step.entropy_weight = ENTROPY_WEIGHTS[self.settings.bonus.last_token_enp_reward](step.entropy)
        step.of_engine = self._beside_the_engine(experiences)
        if self.grader is not None:
            step.of_grader = {"timing/forward": seconds} | self.grader.differences(step, experiences)
        if self.settings.advantage.kl_penalty_coef:
            self._add_reward_kl(experiences)
        return experiences

    def _beside_the_engine(self, experiences: list[Experience]) -> dict[str, float]:
        """Compare engine and policy on the rollouts, weigh these where that is asked for, and return the metrics.

        The engine's log-probabilities go no further: the loss needs the weights alone.
        """
        step, deltas, weighed = self.current, [], []
        for experience in experiences:
            engine, experience.rollout_log_probs = experience.rollout_log_probs, None
            own = experience.action_mask.bool() & ~teachers_tokens(experience)
            own &= step.read[experience.index].unsqueeze(1)
            broken = (own & ~engine.isfinite()).any(dim=1)
            step.nonfinite[nonfinite.ENGINE_LOG_PROBS][experience.index] = broken
            own &= ~(broken | step.nonfinite[nonfinite.LOG_PROBS][experience.index]).unsqueeze(1)
            deltas.append((engine - experience.action_log_probs)[own])
            if self.correction is not None:
                weighed.append(self.correction.of(experience.action_log_probs, engine, own))
                experience.engine_weights = weighed[-1].weight
        broken_rows = int(step.nonfinite[nonfinite.ENGINE_LOG_PROBS].sum())
        compared = self.engine_guard.compare(torch.cat(deltas), step.number, left_out=broken_rows)
        return compared | (correction_metrics(weighed) if weighed else {})

    def _needs_old_log_probs_of_teachers(self) -> bool:
        """Say whether teachers' rows need the policy's forward pass: for PPO's ratio, a critic or a KL."""
        how = TEACHER_LOSSES[self.settings.loss.off_policy_loss]
        return how.as_rollouts or self.critic_model_group is not None or self.initial_model_group is not None

    def _fair_sample(self) -> torch.Tensor:
        """Mark the rows whose mean entropies stand for all rollouts', bool [N]: all, or one of each group.

        A group's rollouts lie in the order of their seeds, so its first is like any other.
        """
        batch, size = self.current.batch, self.size
        if self.settings.loss.old_log_probs != OF_UPDATE:
            return torch.ones(len(batch.samples), dtype=torch.bool)
        own = own_or_all(~batch.is_teacher.view(-1, size)) & ~self._is_injected().view(-1, size)
        return (own & (own.cumsum(dim=1) == 1)).flatten()

    def _read_before_update(self, sample: torch.Tensor) -> torch.Tensor:
        """Mark the rows, bool [N], whose log-probabilities or entropies are needed before the update."""
        settings, batch = self.settings, self.current.batch
        if settings.loss.old_log_probs != OF_UPDATE:
            return sample if self._needs_old_log_probs_of_teachers() else ~self._is_injected()
        if not settings.has_bonus or settings.bonus.last_token_enp_reward == "none":
            return sample
        earns = (batch.scores > 0) | settings.bonus.similarity_reverse_fail
        return sample | (earns & ~batch.is_teacher & ~batch.similarity.isnan())

    def _is_injected(self) -> torch.Tensor:
        """Mark the rows, bool [N], in which a teacher's trajectory took a rollout's place."""
        return torch.tensor([row in self.current.batch.injected for row in range(len(self.current.batch.samples))])

    def _add_reward_kl(self, experiences: list[Experience]) -> None:
        """Set the reward's KL (k1) beside a loss-side one. compute_reward multiplies by the loss's coefficient."""
        scale = self.settings.advantage.kl_penalty_coef / self.kl_ctl.value
        for experience in experiences:
            log_probs, base = experience.action_log_probs, experience.base_action_log_probs
            experience.kl = scale * compute_approx_kl(log_probs, base, kl_estimator="k1") * experience.action_mask

    def _flatten_results(self, refs, duplicate_factor):
        """Keep the two entropies that the policy answers with; OpenRLHF expects the log-probabilities alone."""
        results = super()._flatten_results(refs, duplicate_factor)
        if results and isinstance(results[0], tuple):
            self.current.answered = [entropies for _, *entropies in results]
            return [log_probs for log_probs, *_ in results]
        return results

    # ---- rewards and advantages

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        settings, estimator = self.settings.advantage, self.args.algo.advantage.estimator
        step, batch = self.current, self.current.batch
        step.rewards = self.reward_sources.of(step)
        step.nonfinite[nonfinite.REWARDS] = step.rewards.unfit.flatten()
        step.bonus = self.reward_sources.bonus(step.rewards)
        for experience in experiences:
            experience.rewards = step.rewards.total.flatten()[experience.index]
        left_out = self._without_advantage()
        if estimator in STEP_ESTIMATORS:
            apply_length_penalties(experiences, self.args)
            baseline = BASELINES[settings.advantage_baseline](batch.is_teacher.view(-1, self.size))
            coefficient = max(self.kl_ctl.value, 0.0)
            paid = step.rewards.steps
            assert paid is not None
            credit_by_steps(experiences, paid, left_out, self.args, kl_coefficient=coefficient, baseline=baseline)
        elif estimator in (*ESTIMATORS, *RIGHT_ESTIMATORS, *BATCH_ESTIMATORS):
            apply_length_penalties(experiences, self.args)
            advantages = hybrid_advantages(
                self._by_row(experiences, lambda experience: experience.rewards).view(-1, self.size),
                batch.scores.view(-1, self.size),
                batch.is_teacher.view(-1, self.size),
                estimator=estimator,
                baseline=settings.advantage_baseline,
                all_correct_group=self.settings.teachers.all_correct_group,
                k=settings.pass_at_k,
                rollout_advantage=settings.rollout_advantage,
                entropy=step.token_entropy.view(-1, self.size),
            ).flatten()
            for experience in experiences:
                self._spread_over_tokens(experience, advantages[experience.index])
        else:
            experiences = super().compute_advantages_and_returns(experiences)
        for experience in experiences:
            experience.advantages = token_advantages(
                experience.advantages,
                teachers_tokens(experience),
                left_out[experience.index],
                alpha=settings.prefix_reward_weight_alpha,
                beta=settings.prefix_reward_weight_beta,
                fixed=settings.sft_prefix_reward_weight / self.size if settings.use_sft_prefix_reward else None,
            )
        return experiences

    def _without_advantage(self) -> torch.Tensor:
        """Mark the rows that have no advantage, whatever they earn, bool [N]."""
        step, batch = self.current, self.current.batch
        truncated = batch.truncated & self.settings.advantage.disable_truncation_advantage
        return step.rewards.dropped.repeat_interleave(self.size) | batch.left_out | truncated

    def _equal_groups(self, experiences: list[Experience]) -> float:
        """Return the share of groups that have nothing to compare, after OpenRLHF's charges for length; nan where
        groups of equal rewards teach, too."""
        if equal_rewards_teach(self.args.algo.advantage.estimator, self.settings.advantage.rollout_advantage):
            return math.nan
        return equal_groups(self._by_row(experiences, lambda each: each.rewards).view(-1, self.size))

    def _spread_over_tokens(self, experience: Experience, advantages: torch.Tensor) -> None:
        """Put each row's advantage, [B], on its response tokens, less the KL penalty of the tokens from there on."""
        clip_range = self.args.reward.clip_range
        reward = compute_reward(advantages, self.kl_ctl.value, experience.kl, experience.action_mask, clip_range)
        experience.returns = self.get_cumulative_returns(reward, experience.action_mask, 1.0)
        experience.advantages = experience.returns.clone()
        experience.info["return"] = reward.sum(dim=-1)
        experience.kl = None

    def _leave_out(self, experiences: list[Experience]) -> None:
        """Take the rows that oger.taught_group does not train out of every loss, and of the tokens they divide by."""
        for experience in experiences:
            rows = self.current.batch.left_out[experience.index]
            experience.action_mask = experience.action_mask.masked_fill(rows.unsqueeze(1), 0)

    def _by_row(self, experiences: list[Experience], values) -> torch.Tensor:
        """Bring ``values`` [B] of the experiences into the order of the flat list, [N]."""
        by_row = torch.empty(len(self.current.batch.samples))
        for experience in experiences:
            by_row[experience.index] = values(experience)
        return by_row

    def _remember(self, step: TrainingStep, experiences: list[Experience]) -> None:
        """Keep the policy's own correct rollouts, also those that made room, as references of later steps; where they
        enter groups, those that may."""
        if self.history is None:
            return
        rollouts = step.rollouts
        own = (rollouts.scores > 0) & ~rollouts.guided
        entering = self._entering(step, experiences) if self.settings.teachers.history_enters else None
        rows = [row for row in own.nonzero().flatten().tolist() if entering is None or row in entering]
        for row in rows:
            uid, text = rollouts.uids[row // self.size], rollouts.texts[row]
            self.history.add(step.number, uid, text, entering[row] if entering else None)
        if self.measure is not None:
            self.measure.remember([rollouts.texts[row] for row in rows])

    def _entering(self, step: TrainingStep, experiences: list[Experience]) -> dict[int, Teacher]:
        """Return the rollouts that can be later steps' teachers, by row, with the policy's probabilities of now.

        These need the forward pass, which rollouts that made room do not have. Truncated ones are no whole solution,
        neither is for the engine, which would continue it, one that ends without the end-of-sequence token.
        """
        rollouts, settings = step.rollouts, self.settings.teachers
        longest = settings.max_prefix_len or math.inf
        last = self.tokenizer.eos_token_id if self.settings.teachers_enter_in_rollout else None
        found = {}
        for experience in experiences:
            for place, row in enumerate(experience.index):
                tokens = response_tokens(rollouts.samples[row]).tolist()
                whole = not step.batch.truncated[row] and last in (None, tokens[-1]) and len(tokens) <= longest
                if step.batch.is_teacher[row] or step.nonfinite[nonfinite.LOG_PROBS][row] or not whole:
                    continue
                log_probs = experience.action_log_probs[place][experience.action_mask[place].bool()]
                numbers = rollouts.rewards[row].item(), rollouts.scores[row].item(), log_probs.float().exp().tolist()
                found[row] = Teacher(HISTORY, rollouts.texts[row], tokens, *numbers, step.token_entropy[row].item())
        return found
