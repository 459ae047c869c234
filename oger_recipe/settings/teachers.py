"""Settings of teachers, the hybrid group (OGER, arXiv 2604.18530) and prefix guidance (LUFFY, arXiv 2504.14945)."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.algorithm.exploration import SCHEDULES, scheduled_weight
from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS, DRAWS, REPLACE_MODES, TAUGHT_GROUPS
from oger_recipe.algorithm.prefix import PREFIX_STRATEGIES
from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE, SHARE, Range
from oger_recipe.data.templates import SHOWN
from oger_recipe.settings.fields import Need, Section, need, need_reader, setting

TAUGHT = Need("tokens of teachers (oger.max_replace_num or oger.n_prefix)", lambda oger, value: oger.teachers_enter)
COMPARED = Need(
    "a comparison of rollouts with teachers (oger.bonus_weight, or a similarity in oger.replace_mode)",
    lambda oger, value: oger.compares,
)
_TEACHERS = Need(
    "teachers (oger.max_replace_num, oger.n_prefix, oger.hint_share, oger.grader self, initial or average, a bonus, "
    "or oger.sft.epochs)",
    lambda oger, value: oger.uses_teachers,
)
_SHOWS = Need(
    "a prompt that shows a teacher (oger.hint_share, or oger.grader self, initial or average)",
    lambda oger, value: oger.shows_teachers,
)
_DRAWN = Need(
    "a teacher in a group or a prompt (oger.max_replace_num, oger.n_prefix, oger.hint_share, or oger.grader self or "
    "initial)",
    lambda oger, value: oger.teachers_enter or oger.shows_teachers,
)
_HINTS = need("oger.hint_share")
_HINTS_MOVE = (_HINTS, need("oger.hint_schedule", *(name for name in SCHEDULES if name != "constant")))
_KEPT = Need(
    f"{COMPARED.text}, or oger.history_enters",
    lambda oger, value: oger.compares or oger.teachers.history_enters,
)
_HISTORY = need("oger.use_history_samples")
_REPLACED = need("oger.max_replace_num")
_GUIDED = need("oger.n_prefix")


def _read(name: str) -> tuple[Need, ...]:
    return _GUIDED, need_reader("oger.prefix_strategy", name, PREFIX_STRATEGIES)


@dataclass(frozen=True)
class TeacherSettings(Section):
    title: ClassVar[str] = "oger.teachers"
    about: ClassVar[str] = "which teachers enter a group, and which rollouts they replace"

    max_replace_num: int = setting(
        1, "most rollouts of a group that teachers replace; 0: plain GRPO with a bonus", range=COUNT_OR_NONE
    )
    replace_mode: str = setting(
        "similarity_mean_des",
        "which rollouts teachers replace; its mean, max or min over the teachers is also the bonus's",
        choices=REPLACE_MODES,
        needs=_REPLACED,
    )
    replace_after_rm: bool = setting(
        True,
        "sample and grade all rollouts, then let teachers replace some; false: the replaced ones are never "
        "sampled, as in LUFFY",
        needs=_REPLACED,
    )
    teacher_gate: float = setting(
        1.0,
        "largest solve rate of a group's rollouts at which teachers enter it; 1: they always do, 0: only where no "
        "rollout is right",
        range=SHARE,
        needs=_REPLACED,
    )
    teacher_gate_low: float = setting(
        0.0,
        "smallest solve rate of a group's rollouts at which teachers enter it; 0: also where no rollout is right",
        range=SHARE,
        needs=_REPLACED,
    )
    taught_group: str = setting(
        "hybrid",
        "what is trained of a group that a teacher entered: hybrid (its teachers and its rollouts), or teachers "
        "(its rollouts stay out of the loss)",
        choices=TAUGHT_GROUPS,
        needs=TAUGHT,
    )
    all_correct_group: str = setting(
        "keep",
        "what to do with an all-correct group: keep (as in the paper), clip (zero the teacher's negative "
        "advantage), online (no teacher enters), skip (no teacher and no bonus)",
        choices=ALL_CORRECT_GROUPS,
        needs=TAUGHT,
    )
    teacher_key: str = setting(
        "teachers",
        "column with a prompt's teacher trajectories: a text, a list of texts, or a list of {source, text}",
        needs=_TEACHERS,
    )
    keep_wrong_teachers: bool = setting(False, "keep teacher trajectories that the verifier rejects", needs=_TEACHERS)
    teacher_draw: str = setting(
        "uniform", "which of a prompt's teachers enters its group, or is shown", choices=DRAWS, needs=_DRAWN
    )
    teacher_sources: tuple[str, ...] = setting((), "sources whose teachers are used (default: all)", needs=_TEACHERS)
    teacher_source_weights: tuple[str, ...] = setting(
        (), "weights for teacher_draw source_weights, source=weight (default: 1)"
    )
    max_prefix_len: int | None = setting(
        None, "longest teacher trajectory, in tokens (default: the longest response)", range=COUNT, needs=_TEACHERS
    )
    long_teachers: str = setting(
        "drop", "drop longer teacher trajectories, or truncate them", choices=("drop", "truncate"), needs=_TEACHERS
    )
    hint_share: float = setting(
        0.0, "share of a teacher trajectory, its beginning, that the prompt of rollouts shows (QuestA)", range=SHARE
    )
    hint_schedule: str = setting(
        "constant",
        "schedule of that share over the steps, from hint_share to hint_share_end",
        choices=SCHEDULES,
        needs=_HINTS,
    )
    hint_share_end: float = setting(
        0.0, "the share at the end of a linear or cosine schedule", range=SHARE, needs=_HINTS_MOVE
    )
    hint_schedule_steps: int | None = setting(
        None, "steps of the schedule (default: all steps of the run)", range=COUNT, needs=_HINTS_MOVE
    )
    shown_template: str = setting(
        SHOWN, "what takes the question's place in a prompt that shows {teacher}, with its {question}", needs=_SHOWS
    )
    use_history_samples: bool = setting(
        False, "also use the policy's own earlier correct rollouts as references", needs=_KEPT
    )
    history_enters: bool = setting(
        False,
        "let these rollouts enter groups beside the data's teachers, as source history, with the probabilities that "
        "the policy gave them; with oger.teacher_sources history, they alone",
        needs=(_HISTORY, TAUGHT),
    )
    history_size: int = setting(4, "most earlier correct rollouts to keep per prompt", range=COUNT, needs=_HISTORY)

    def hint_share_at(self, step: int, planned_steps: int) -> float:
        """Return the share of a teacher trajectory that prompts show at a step (from 1) of a run."""
        return scheduled_weight(
            step,
            start=self.hint_share,
            end=self.hint_share_end,
            steps=self.hint_schedule_steps or planned_steps,
            schedule=self.hint_schedule,
        )


@dataclass(frozen=True)
class PrefixSettings(Section):
    title: ClassVar[str] = "oger.prefix"
    about: ClassVar[str] = "rollouts that continue a teacher's prefix (LUFFY)"

    n_prefix: int = setting(
        0,
        "rollouts of a group that continue after a teacher's prefix; -1: all",
        range=Range("-1 (all) or 0 or more", 0, also=(-1,)),
    )
    prefix_strategy: str = setting(
        "random", "how to choose the share of the teacher's tokens", choices=PREFIX_STRATEGIES, needs=_GUIDED
    )
    min_prefix_ratio: float = setting(
        0.0, "smallest share of the teacher's tokens", range=SHARE, needs=_read("min_prefix_ratio")
    )
    max_prefix_ratio: float = setting(
        1.0, "largest share of the teacher's tokens; 1: all", range=SHARE, needs=_read("max_prefix_ratio")
    )
    prefix_steps: int = setting(
        1000,
        "steps over which the share of every strategy but random and fixed changes",
        range=COUNT,
        needs=_read("prefix_steps"),
    )
    prefix_linear_max_ratio: float = setting(
        0.8, "largest share under linear_max and reverse_linear", range=SHARE, needs=_read("prefix_linear_max_ratio")
    )
    prefix_share_across_samples: bool = setting(
        False, "draw one share for all guided rollouts of a prompt", needs=_GUIDED
    )
