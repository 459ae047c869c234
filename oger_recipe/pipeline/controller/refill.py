"""Which groups dynamic filtering leaves out: those whose rows, it is certain before any forward pass, earn the same,
where such groups teach nothing.

Others are sampled in their place (samples_generator.py), as DAPO does. OpenRLHF looks at the rollouts' scores alone:
there a group of wrong rollouts goes although a right teacher enters it, and one of right rollouts although a bonus
tells them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.credit import equal_rewards_teach
from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS
from oger_recipe.pipeline.controller.hybrid_batch import may_replace
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.draw import may_enter
from oger_recipe.teachers.store import Teacher


@dataclass(frozen=True)
class GroupFilter:
    """settings: the run's; args: OpenRLHF's."""

    settings: OgerSettings
    args: SimpleNamespace

    def keeps(self, rollouts: Sequence[Experience], teachers: list[Teacher]) -> bool:
        """Say whether a group of a prompt with these teachers is trained: its rows may earn different rewards, or
        teach without that, and its solve rate is within algo.dynamic_filtering_range, of which 0 and 1 themselves
        leave nothing out."""
        if any(rollout.rewards is None for rollout in rollouts):  # not graded: the run stops for it
            return True
        low, high = self.args.algo.dynamic_filtering_range
        rate = sum(rollout.scores[0].item() for rollout in rollouts) / len(rollouts)
        in_range = (low < rate or low == rate == 0) and (rate < high or high == rate == 1)
        return in_range and self._may_differ(rollouts, teachers)

    def _may_differ(self, rollouts: Sequence[Experience], teachers: list[Teacher]) -> bool:
        settings, reward = self.settings, self.args.reward
        others = any(not (kind.is_rule or kind.is_bonus) for kind in settings.reward.kinds)
        teach = equal_rewards_teach(self.args.algo.advantage.estimator, settings.advantage.rollout_advantage)
        if teach or others or reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None:
            return True
        charged = settings.advantage.non_stop_penalty != 0 or settings.advantage.non_stop_fixed_reward is not None
        earned = {(each.rewards[0].item(), charged and bool(each.truncated[0])) for each in rollouts}
        right = [each.scores[0].item() > 0 for each in rollouts]
        if may_replace(settings.teachers, sum(right) / len(right)):
            earned |= {(teacher.reward, False) for teacher in may_enter(teachers, settings.teachers)}
        return len(earned) > 1 or self._may_earn_bonus(right, bool(teachers))

    def _may_earn_bonus(self, right: list[bool], has_teachers: bool) -> bool:
        pays_all_correct = ALL_CORRECT_GROUPS[self.settings.teachers.all_correct_group].bonus
        if not self.settings.has_bonus or not (has_teachers or self.settings.teachers.use_history_samples):
            return False
        return self.settings.bonus.similarity_reverse_fail or (any(right) and (pays_all_correct or not all(right)))
