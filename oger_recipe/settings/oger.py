"""The recipe's own settings, all of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self, get_type_hints

from oger_recipe.algorithm.credit import STEP_ESTIMATORS
from oger_recipe.algorithm.hybrid_group import REPLACE_MODES
from oger_recipe.models.keys import ModelKeys
from oger_recipe.rewards.kinds.entries import models_of
from oger_recipe.settings import upstream
from oger_recipe.settings.alarms import AlarmSettings
from oger_recipe.settings.credit import AdvantageSettings, BonusSettings
from oger_recipe.settings.critic import CriticSettings
from oger_recipe.settings.encoder import EmbeddingSettings
from oger_recipe.settings.fields import Rules, Section, Setting
from oger_recipe.settings.grades import GRADE_MODEL, GradeSettings
from oger_recipe.settings.grading import VerifierSettings
from oger_recipe.settings.loss import LossSettings
from oger_recipe.settings.rewards import RewardSettings
from oger_recipe.settings.rollouts import RolloutSettings
from oger_recipe.settings.run import EvalSettings, GuardSettings, RunSettings, SftSettings
from oger_recipe.settings.steps import StepSettings
from oger_recipe.settings.task import TaskSettings
from oger_recipe.settings.teachers import PrefixSettings, TeacherSettings


@dataclass(frozen=True)
class OgerSettings:
    """A section for each concern, in the order of ``oger train --help``."""

    run: RunSettings = RunSettings()
    eval: EvalSettings = EvalSettings()
    rollouts: RolloutSettings = RolloutSettings()
    steps: StepSettings = StepSettings()
    verifiers: VerifierSettings = VerifierSettings()
    reward: RewardSettings = RewardSettings()
    teachers: TeacherSettings = TeacherSettings()
    prefix: PrefixSettings = PrefixSettings()
    advantage: AdvantageSettings = AdvantageSettings()
    bonus: BonusSettings = BonusSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    grades: GradeSettings = GradeSettings()
    loss: LossSettings = LossSettings()
    critic: CriticSettings = CriticSettings()
    sft: SftSettings = SftSettings()
    guards: GuardSettings = GuardSettings()
    alarms: AlarmSettings = AlarmSettings()
    task: TaskSettings = TaskSettings()

    @classmethod
    def of(cls, settings: Mapping[str, Any] | SimpleNamespace) -> Self:
        """Read all settings of a run by flag, or OpenRLHF's nested namespace ``args.oger``."""
        return cls(**{name: section.of(settings) for name, section in get_type_hints(cls).items()})

    @property
    def teachers_enter(self) -> bool:
        """Whether tokens of teachers are trained on."""
        return self.teachers.max_replace_num > 0 or self.prefix.n_prefix != 0

    @property
    def teachers_enter_in_rollout(self) -> bool:
        """Whether rollouts begin with a teacher's tokens, or are a whole teacher trajectory, before grading."""
        replaces_unsampled = self.teachers.max_replace_num > 0 and not self.teachers.replace_after_rm
        return self.prefix.n_prefix != 0 or replaces_unsampled

    @property
    def shown_share(self) -> float:
        """The largest share of a teacher trajectory that the prompt of a rollout shows."""
        moves = self.teachers.hint_share > 0 and self.teachers.hint_schedule != "constant"
        return max(self.teachers.hint_share, self.teachers.hint_share_end if moves else 0.0)

    @property
    def shows_teachers(self) -> bool:
        """Whether some prompt shows a teacher trajectory, a rollout's or its grader's."""
        return self.shown_share > 0 or self.grades.shows_teachers

    @property
    def has_bonus(self) -> bool:
        """Whether the exploration bonus is a source of the reward and ever anything but 0."""
        return self.bonus.is_on and any(kind.is_bonus for kind in self.reward.kinds)

    @property
    def compares(self) -> bool:
        """Whether anything of the run depends on how close rollouts are to teachers."""
        replaces = self.teachers.max_replace_num > 0 and self.teachers.replace_after_rm
        ranks = replaces and REPLACE_MODES[self.teachers.replace_mode].similarity is not None
        return self.has_bonus or ranks

    @property
    def embeds(self) -> bool:
        """Whether the encoder is used."""
        return self.embeds_references or any(kind.embeds for kind in self.reward.kinds)

    @property
    def embeds_references(self) -> bool:
        """Whether rollouts are compared with teachers by embeddings."""
        return self.compares and not self.embedding.similarity_reranker

    def cuts_steps(self, estimator: str) -> bool:
        """Say whether responses are cut into steps of reasoning: a source, the estimator or the loss works by them."""
        return self.reward.reads_steps or self.loss.ratio_level == "step" or estimator in STEP_ESTIMATORS

    @property
    def models(self) -> Iterator[tuple[str, ModelKeys]]:
        """The models that the reward's sources ask, each with the name of its source, and the one that grades."""
        yield from models_of(self.reward.sources)
        yield from ((GRADE_MODEL, keys) for keys in self.grades.models)

    @property
    def uses_teachers(self) -> bool:
        """Whether teachers make any difference to the run."""
        return self.teachers_enter or self.shows_teachers or self.compares or self.sft.epochs > 0

    @property
    def needs_teachers(self) -> bool:
        """Whether a run without any teacher would train by another method than its settings ask for."""
        rewards_distance = self.has_bonus and not self.teachers.use_history_samples
        enter = self.teachers_enter and not self.teachers.history_enters
        return enter or self.shows_teachers or self.sft.epochs > 0 or rewards_distance


SECTIONS: tuple[type[Section], ...] = tuple(get_type_hints(OgerSettings).values())
SETTINGS: tuple[Setting, ...] = tuple(each for section in SECTIONS for each in section.settings())
RULES: dict[str, Rules] = upstream.RULES | {each.flag: each for each in SETTINGS}  # by flag
