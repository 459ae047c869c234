"""What a run watches in the controller: rewards that could not be had, the engine's weights, the encoder's reach."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.engine_agreement import Agreement
from oger_recipe.base.errors import SourceFailed, cut
from oger_recipe.base.files import append_json
from oger_recipe.embedding.similarity import Similarity
from oger_recipe.grading.samples import worst_examples
from oger_recipe.pipeline.controller.metrics import info_value
from oger_recipe.pipeline.controller.training_step import HybridBatch, Rollouts
from oger_recipe.rewards.compose import ON_ERROR, Rewards, cost_of_failures
from oger_recipe.rewards.sources import Group
from oger_recipe.rewards.spec import SourceSpec
from oger_recipe.run_folder.records import event
from oger_recipe.settings.rewards import RewardSettings


def stop_on_reward_errors(samples: list[Experience], limit: float, step: int, run_dir: Path) -> None:
    """Raise RuntimeError where a larger share of rollouts than ``limit`` was not graded, or any has no reward."""
    missing = sum(sample.rewards is None for sample in samples)
    failed = missing + sum(int(info_value(sample, "reward_error")) for sample in samples)
    if missing or failed / len(samples) > limit:
        worst = "".join(f"\n  - {example}" for example in worst_examples(run_dir))
        raise RuntimeError(
            f"{failed} of {len(samples)} rollouts of step {step} could not be graded (limit: {limit:.0%}, "
            f"oger.max_reward_error_rate); their texts and errors are in {run_dir / 'reward_errors.jsonl'}; "
            f"the worst:{worst}"
        )


SOURCE_ERRORS = "source_errors.jsonl"
LEAST_ASKED = 8  # rows; of fewer a share says nothing
_REASON = 200  # characters of a reason in a note
_TEXTS_READ = 32  # rollouts whose tokens are counted in a step


class SourceGuard:
    """Keeps an example of every source that fails in a step, says it, and stops the run before the step is trained
    where too many rows failed, or at the first one where the user asks for that."""

    def __init__(self, run_dir: Path, settings: RewardSettings, specs: Sequence[SourceSpec]) -> None:
        self._run_dir, self._settings = run_dir, settings
        self._limited = {spec.name for spec in specs if not spec.keys.is_rule}  # a rule has a limit of its own
        self._said: set[str] = set()
        self._counts: dict[str, tuple[int, int]] = {}  # rows failed and asked about in steps too small for a share

    def state(self) -> dict[str, tuple[int, int]]:
        """Return the counts of steps too small for a share, for a checkpoint."""
        return dict(self._counts)

    def resume(self, state: Mapping[str, tuple[int, int]]) -> None:
        """Continue with the counts of a checkpoint."""
        self._counts.update(state)

    def look_at(self, rewards: Rewards, groups: Sequence[Group], step: int) -> None:
        """Record the errors of a step. Raises SourceFailed for a source that failed on too many rows."""
        size, on_error = len(groups[0].responses), self._settings.on_error
        for source, rows in rewards.errors.items():
            too_long = rewards.too_long[source]  # the answer's own fault: on_overflow says what it costs
            failed, read = len(rows) - too_long, rewards.asked[source] - too_long
            if read and not failed:
                self._counts.pop(source, None)
            if not rows:
                continue
            first = min(rows)
            group = groups[first // size]
            example = {"uid": group.uid, "row": first % size, "prompt": group.prompt, "responses": group.responses}
            append_json(
                self._run_dir / SOURCE_ERRORS,
                {"step": step, "source": source, "failed": len(rows), "error": rows[first]} | example,
            )
            text = (
                f"reward source {source} failed on {len(rows)} of {rewards.asked[source]} rows of step {step}: "
                f"{cut(' '.join(rows[first].split()), _REASON)}; an example is in {self._run_dir / SOURCE_ERRORS}"
            )
            if ON_ERROR[on_error].stops:
                raise SourceFailed(f"{text} (oger.reward.on_error stop)")
            cost = "" if source in self._said else f"; {cost_of_failures(on_error)}"
            event(self._run_dir, "note", step=step, text=f"note: {text}{cost}")
            self._said.add(source)
            if failed and source in self._limited and (share := self._share(source, failed, read)):
                raise SourceFailed(f"{text}. {share}, and the policy was not trained on this step")

    def _share(self, source: str, failed: int, asked: int) -> str | None:
        """Say that too large a share failed, of these rows and of earlier steps' that were too few; else None."""
        before_failed, before_asked = self._counts.pop(source, (0, 0))
        failed, asked, limit = failed + before_failed, asked + before_asked, self._settings.max_error_rate
        if asked < LEAST_ASKED:
            self._counts[source] = failed, asked
        elif failed / asked > limit:
            return f"It failed on {failed} of the last {asked} rows (limit: {limit:.0%}, oger.reward.max_error_rate)"
        return None


def say_no_advantage(experiences: Sequence[Experience], dropped: torch.Tensor, step: int, run_dir: Path) -> None:
    """Record a note where no token of a step has an advantage; ``dropped`` (bool [groups]): left out of it."""
    if any(each.advantages[each.action_mask.bool()].any() for each in experiences):
        return
    why = f" ({int(dropped.sum())} of {len(dropped)} were dropped for a failed source)" if dropped.any() else ""
    text = f"note: step {step}: no group of this step has an advantage{why}: its rewards teach the policy nothing"
    event(run_dir, "note", step=step, text=text)


class EngineGuard:
    """Compares engine and policy on the rollouts of every step."""

    def __init__(self, limit: float | None, highest_kl: float, *, top_p: float, top_k: int) -> None:
        self.limit = limit  # of the difference; None: known after the first step
        self._highest_kl, self._top_p, self._top_k = highest_kl, top_p, top_k

    def resume(self, limit: float | None) -> None:
        """Continue with the limit that a checkpoint's run had learnt, where the user has set none.

        One that is not finite, as earlier versions could learn, would let every engine pass: it is learnt anew.
        """
        if self.limit is None and limit is not None and math.isfinite(limit):
            self.limit = limit

    def compare(self, delta: torch.Tensor, step: int, *, left_out: int = 0) -> dict[str, float]:
        """Return the step's metrics, none for a step without tokens: teachers began all rollouts and ended them.

        ``delta`` [tokens]: the engine's log-probabilities of its own tokens, less the policy's. ``left_out``: rows
        whose tokens are not in it because the engine's are not finite.

        Raises RuntimeError when they show that the engine samples with other weights, and where such rows leave none
        to compare. A limit of None is set by the first step with tokens to compare: in a run's first one weights are
        equal and differences are rounding.
        """
        if not len(delta):
            if left_out:
                raise RuntimeError(
                    f"step {step}: no log-probability of the engine can be compared with the policy's: those of "
                    f"{left_out} rows are not finite. The weights that vLLM samples from are broken, or its kernels "
                    "overflow: check the model with oger eval, and the engine's log"
                )
            return {}
        agreement = Agreement.of(delta, top_p=self._top_p, top_k=self._top_k)
        stale = agreement.is_stale(self.limit, self._highest_kl)
        if self.limit is None:
            self.limit = agreement.limit()
        if stale:
            raise RuntimeError(
                f"step {step}: the engine's log-probabilities differ from the policy's by "
                f"{agreement.difference:.4f} per token on average (limit: {self.limit:.4f}; "
                f"oger.max_logprob_difference sets another) and are {agreement.kl:.4f} higher "
                f"(limit: {self._highest_kl}; oger.max_engine_kl sets another): "
                "the weights that vLLM samples from are not those that are trained"
            )
        return {
            "vllm_logprob_difference": agreement.difference,
            "vllm_logprob_limit": self.limit,
            "vllm_kl": delta.mean().item(),
        }


def share_read(measure: Similarity | None, rollouts: Rollouts, batch: HybridBatch) -> float:
    """Return the share of some rollouts' and references' tokens that the encoder reads, nan without a measure."""
    if measure is None:
        return math.nan
    few = range(0, len(rollouts.texts), max(len(rollouts.texts) // _TEXTS_READ, 1))
    texts = [rollouts.texts[row] for row in few]
    texts += [teacher.text for row in few for teacher in batch.teachers[row // rollouts.size][:1]]
    return measure.share_read(texts)
