"""What the controller knows of one training step: its rollouts, the rows that are trained, and what they are given."""

from dataclasses import dataclass, field
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience
from torch import Tensor

from oger_recipe.base.cutting import StepCutter
from oger_recipe.grading.verdict import Graded
from oger_recipe.rewards.compose import Rewards
from oger_recipe.teachers.store import Teacher


@dataclass
class Rollouts:
    """What the engine returned, in the order of OpenRLHF's flat list; groups are contiguous."""

    samples: list[Experience]
    texts: list[str]
    labels: list[dict[str, Any]]  # one per group: uid, task, answer, and what else travels with a prompt
    graded: list[Graded]
    rewards: Tensor  # [N], verified
    scores: Tensor  # [N], 0 or 1
    guided: Tensor  # [N], bool: begins with a teacher's tokens, or is a teacher's trajectory
    repetitive: Tensor  # [N], bool: goes round in circles, where that is looked at
    taught: list[int]  # [N], leading characters of each text that are a teacher's
    steps: list[list[str]] = field(default_factory=list)  # texts, of reasoning; empty where the recipe has none
    cutter: StepCutter | None = None  # what cuts teachers into them

    @property
    def size(self) -> int:
        """How many rollouts a group has."""
        return len(self.texts) // len(self.labels)

    @property
    def uids(self) -> list[str]:
        """The groups' uids, in their order."""
        return [label["uid"] for label in self.labels]


@dataclass
class HybridBatch:
    """The rows that are trained on: rollouts, some replaced by teachers. Tensors are [N], like ``samples``."""

    samples: list[Experience]
    similarity: Tensor  # of the row's rollout to the group's teachers; nan without teachers
    is_teacher: Tensor  # bool: at least one of the row's tokens is a teacher's
    left_out: Tensor  # bool: not trained, by oger.taught_group
    skipped: Tensor  # bool: its group is all correct, and earns no bonus by oger.all_correct_group
    rewards: Tensor  # verified reward of the row
    scores: Tensor  # 0 or 1
    truncated: Tensor  # bool; a teacher's trajectory never counts as truncated
    injected: dict[int, Teacher]  # row -> the teacher that took its place
    teachers: list[list[Teacher]]  # of each group's prompt
    prompts_without_teacher: int
    steps: list[list[str]] = field(default_factory=list)  # as those of Rollouts, of the rows that are trained
    of_answers: dict[str, float] = field(default_factory=dict)  # metrics: how likely teachers' answers are


@dataclass
class TrainingStep:
    """One training step: made with the first five fields, and filled by the callbacks of OgerExperienceMaker in the
    order of the others, which can be read from then on. Tensors are [N], in the order of the flat list."""

    number: int  # from 1
    rollouts: Rollouts
    batch: HybridBatch
    bonus_weight: float
    nonfinite: dict[str, Tensor]  # bool [N]: rows with a number that is not finite, by kind (nonfinite.py)

    # make_experience, of what the policy's forward passes answer
    read: Tensor = field(init=False)  # bool: rows whose numbers are known before the update; the others' are nan
    answered: list[tuple[Tensor, Tensor]] = field(init=False)  # the next two, by micro-batch
    entropy: Tensor = field(init=False)  # nats, at oger.entropy_position
    token_entropy: Tensor = field(init=False)  # nats, the mean over the response
    log_prob: Tensor = field(init=False)  # of the whole response; nan on teachers' rows and where it is not finite
    entropy_weight: Tensor = field(init=False)  # that entropy's in the bonus
    of_engine: dict[str, float] = field(init=False)  # metrics: the engine beside the policy
    differences: list[Tensor] = field(init=False)  # a grader's log-probabilities less the policy's, by micro-batch
    of_grader: dict[str, float] = field(default_factory=dict)  # its metrics; empty without one
    # compute_advantages_and_returns
    rewards: Rewards = field(init=False)
    bonus: Tensor = field(init=False)  # with its weight
    # make_experience_batch
    advantages: Tensor = field(init=False)  # of the first token, without its grade
    step_advantages: Tensor | None = field(init=False)  # [N, S], the means over the tokens of steps of reasoning
    grade: Tensor | None = None  # the mean difference over a row's tokens; nan without a grade, None without a grader
    metrics: dict[str, float] = field(init=False)

    @property
    def said(self) -> dict[str, Tensor]:
        """What each source said of the rows, by ``source`` and ``source/component``; nan where it said nothing."""
        return {name: values.flatten() for name, values in self.rewards.said.items()}
