"""Settings of the built-in task."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.base.ranges import COUNT, SEED, SHARE, Range
from oger_recipe.settings.fields import FREE, OF_DATA, Section, setting

NUMBERS = Range("2 to 6", 2, 6)


@dataclass(frozen=True)
class TaskSettings(Section):
    title: ClassVar[str] = "oger.task"
    about: ClassVar[str] = "the built-in Countdown task"
    prefix: ClassVar[str] = "task."
    resume: ClassVar[str] = OF_DATA

    name: str | None = setting(None, "build data and policy of this task", choices=("countdown",))
    cache: str = setting(
        "~/.cache/oger/tasks", "cache folder for built data and policies, keyed by content", resume=FREE
    )
    num_numbers: int = setting(3, "how many numbers a Countdown problem has", range=NUMBERS)
    max_number: int = setting(20, "largest number of a Countdown problem", range=Range("2 or more", 2))
    max_target: int = setting(100, "largest target of a Countdown problem", range=COUNT)
    operators: str = setting("+-*/", "operators of a Countdown problem")
    min_solutions: int = setting(
        1, "least number of different right solutions of a problem; above 1 with up to five numbers", range=COUNT
    )
    train_problems: int = setting(1024, "problems to train on", range=COUNT)
    eval_problems: int = setting(128, "held-out problems for each of eval_numbers", range=COUNT)
    eval_numbers: tuple[int, ...] = setting(
        (), "how many numbers held-out problems have; each is a benchmark (default: task.num_numbers)", range=NUMBERS
    )
    wrong_teacher_share: float = setting(0.0, "share of teacher trajectories that are deliberately wrong", range=SHARE)
    teacher_solutions: str = setting(
        "same",
        "whether a problem's teachers explain one solution in their three ways, or each another one while there are "
        "enough",
        choices=("same", "different"),
    )
    data_seed: int = setting(0, "seed of problems and teachers", range=SEED)
    warm_start_steps: int = setting(300, "supervised steps that train the tiny policy", range=COUNT)
    warm_start_batch_size: int = setting(128, "solutions per supervised step, each on a fresh problem", range=COUNT)
    warm_start_lr: float = setting(2e-3, "peak learning rate of the supervised steps", range=SHARE)
    warm_start_problems: int | None = setting(
        None, "problems of the supervised steps (default: enough to see each solution once)", range=COUNT
    )
    warm_start_numbers: tuple[str, ...] = setting(
        (), "how many numbers these problems have, number=weight (default: task.num_numbers)"
    )
    warm_start_decay: float = setting(
        0.0, "share of the supervised steps, at their end, over which the learning rate decays", range=SHARE
    )
    hidden_size: int = setting(
        128,
        "width of the tiny policy",
        range=Range("a multiple of 32, the width of one attention head", 32, multiple=32),
    )
    num_layers: int = setting(4, "layers of the tiny policy", range=COUNT)
