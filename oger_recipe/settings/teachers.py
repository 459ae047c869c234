"""Settings of teachers, the hybrid group (OGER, arXiv 2604.18530) and prefix guidance (LUFFY, arXiv 2504.14945)."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS, DRAWS, REPLACE_MODES
from oger_recipe.algorithm.prefix import PREFIX_STRATEGIES
from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE, SHARE, Range
from oger_recipe.settings.fields import Section, setting


@dataclass(frozen=True)
class TeacherSettings(Section):
    title: ClassVar[str] = "oger.teachers"
    about: ClassVar[str] = "who enters a group, and for whom"

    max_replace_num: int = setting(
        1, "rollouts of a group that make room for teachers; 0 is plain GRPO with a bonus", range=COUNT_OR_NONE
    )
    replace_mode: str = setting(
        "similarity_mean_des",
        "which rollouts make room; the mean, max or min over the teachers that it names is the bonus's, too",
        choices=REPLACE_MODES,
    )
    replace_after_rm: bool = setting(
        True,
        "teachers take the place of graded rollouts; false: of rollouts that are then never sampled, as in LUFFY",
    )
    all_correct_group: str = setting(
        "keep",
        "a group whose rollouts are all correct: keep (as the paper), clip (zero the teacher's negative advantage), "
        "online (no teacher enters), skip (no teacher and no bonus)",
        choices=ALL_CORRECT_GROUPS,
    )
    teacher_key: str = setting(
        "teachers", "column of a prompt's teacher trajectories: a text, a list of texts, or a list of {source, text}"
    )
    keep_wrong_teachers: bool = setting(False, "keep teacher trajectories that the verifier rejects")
    teacher_draw: str = setting("uniform", "which of a prompt's teachers enters its group", choices=DRAWS)
    teacher_sources: tuple[str, ...] = setting((), "sources whose teachers are used (default: all)")
    teacher_source_weights: tuple[str, ...] = setting(
        (), "for teacher_draw source_weights: source=weight (default: 1)"
    )
    max_prefix_len: int | None = setting(
        None, "tokens of a teacher trajectory (default: what the response may have)", range=COUNT
    )
    long_teachers: str = setting(
        "drop", "longer teacher trajectories: drop, or truncate", choices=("drop", "truncate")
    )
    use_history_samples: bool = setting(False, "the policy's own earlier correct rollouts are references too")
    history_size: int = setting(4, "earlier correct rollouts kept for each prompt, the newest", range=COUNT)


@dataclass(frozen=True)
class PrefixSettings(Section):
    title: ClassVar[str] = "oger.prefix"
    about: ClassVar[str] = "rollouts that begin with a part of a teacher (LUFFY)"

    n_prefix: int = setting(
        0,
        "rollouts of a group that continue after a teacher's prefix; -1: all",
        range=Range("-1 (all) or 0 or more", 0, also=(-1,)),
    )
    prefix_strategy: str = setting(
        "random", "how the share of the teacher's tokens is chosen", choices=PREFIX_STRATEGIES
    )
    min_prefix_ratio: float = setting(0.0, "smallest share of the teacher's tokens", range=SHARE)
    max_prefix_ratio: float = setting(
        1.0, "largest share of the teacher's tokens; 1: the whole trajectory", range=SHARE
    )
    prefix_steps: int = setting(1000, "steps over which linear, linear_max and reverse_linear move", range=COUNT)
    prefix_linear_max_ratio: float = setting(0.8, "largest share under linear_max and reverse_linear", range=SHARE)
    prefix_share_across_samples: bool = setting(False, "one share for all guided rollouts of a prompt")
