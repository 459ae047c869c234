"""Settings of grades: a grader that knows more than the policy scores its rollouts token by token."""

from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from oger_recipe.algorithm.exploration import SCHEDULES, scheduled_weight
from oger_recipe.algorithm.grades import DIVERGENCES
from oger_recipe.base.ranges import COUNT, POSITIVE, SHARE, WEIGHT
from oger_recipe.models.keys import OF_A_MODEL_HERE, OF_A_SERVER, WriterKeys
from oger_recipe.rewards.place import Likelihoods, Place, Reply, StepPrompt
from oger_recipe.settings.fields import Section, need, setting

OFF, SELF, INITIAL, AVERAGE, MODEL = "off", "self", "initial", "average", "model"
GRADERS = (OFF, SELF, INITIAL, AVERAGE, MODEL)
OWN_WEIGHTS = (INITIAL, AVERAGE)  # graders whose weights lie beside the policy's
GRADE_MODEL = "oger.grade_model"
_OF_OTHER_QUESTIONS = ("api", "head")  # keys that say how else a server is asked
_KEYS = (
    *("model", "revision", "tokenizer", "place", "url"),
    *(name for name in (*OF_A_SERVER, *OF_A_MODEL_HERE) if name not in _OF_OTHER_QUESTIONS),
)
_GRADED = need("oger.grader", *(name for name in GRADERS if name != OFF))
_SCHEDULED = (_GRADED, need("oger.grade_schedule", *(name for name in SCHEDULES if name != "constant")))


def _model(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping) or not isinstance(item.get("model"), str):
        raise ArgumentTypeError("a list of one mapping with a model, such as [{model: Qwen/Qwen2.5-Math-7B-Instruct}]")
    return dict(item)


@dataclass(frozen=True, kw_only=True)
class GraderKeys(WriterKeys):
    """A model that says how likely it finds the tokens of rollouts."""

    def try_out(self, place: Place) -> Reply:
        assert isinstance(place, Likelihoods)
        (reply,) = place.log_probs([StepPrompt((0, 1), (0, 1))])
        return reply


@dataclass(frozen=True)
class GradeSettings(Section):
    title: ClassVar[str] = "oger.grades"
    about: ClassVar[str] = "a grader that knows more than the policy scores rollouts token by token"

    grader: str = setting(
        OFF,
        "who grades every token of a rollout, beside the advantage: self (the policy, shown a teacher's trajectory in "
        "its prompt: on-policy self-distillation), initial (the policy as it was before the first step, shown the "
        "same), average (an exponential average of the policy, shown the same), or model (a teacher model: on-policy "
        "distillation)",
        choices=GRADERS,
    )
    grade_model: tuple[Mapping[str, Any], ...] = setting(
        (),
        "the teacher model, a list of one mapping with the keys of a judge's model: model, place, revision, dtype, "
        "..., or the url of a vLLM server and the tokenizer of its model; on the command line a JSON list",
        read=_model,
        needs=need("oger.grader", MODEL),
    )
    grade_average_rate: float = setting(
        0.05,
        "share of the policy in the average that grades, after each optimizer step: a = (1 - rate) a + rate policy",
        range=SHARE,
        needs=need("oger.grader", AVERAGE),
    )
    grade_divergence: str = setting(
        "reverse_kl",
        "what grades make smaller: KL(policy || grader) (grade d, the difference of log-probabilities), or "
        "forward_kl, KL(grader || policy) (grade exp(d) - 1)",
        choices=DIVERGENCES,
        needs=_GRADED,
    )
    grade_max: float = setting(
        10.0, "largest size of a token's grade, before its weight", range=POSITIVE, needs=_GRADED
    )
    grade_weight: float = setting(
        1.0,
        "weight of the grade beside the estimator's advantage (grades alone: oger.prefix_reward_weight_beta 0)",
        range=WEIGHT,
        needs=_GRADED,
    )
    grade_schedule: str = setting(
        "constant",
        "how the weight of grades moves from grade_weight to grade_weight_end",
        choices=SCHEDULES,
        needs=_GRADED,
    )
    grade_weight_end: float = setting(
        0.0, "weight of grades at the end of a linear or cosine schedule", range=WEIGHT, needs=_SCHEDULED
    )
    grade_schedule_steps: int | None = setting(
        None, "steps of the schedule (default: all steps of the run)", range=COUNT, needs=_SCHEDULED
    )

    @property
    def is_on(self) -> bool:
        """Whether grades are ever anything but 0."""
        moves = self.grade_schedule != "constant" and self.grade_weight_end != 0
        return self.grader != OFF and (self.grade_weight != 0 or moves)

    @property
    def shows_teachers(self) -> bool:
        """Whether the grader reads teachers' trajectories."""
        return self.grader in (SELF, *OWN_WEIGHTS)

    @property
    def models(self) -> tuple[GraderKeys, ...]:
        """The keys of the teacher model; none where there is none, or they are invalid."""
        if self.grader != MODEL or [*self.model_problems()]:
            return ()
        return tuple(GraderKeys.of(entry) for entry in self.grade_model)

    def model_problems(self) -> Iterator[str]:
        """Yield a sentence for each mistake in oger.grade_model."""
        if self.grader == MODEL and len(self.grade_model) != 1:
            yield f"oger.grader model needs one model in {GRADE_MODEL}, such as [{{model: FOLDER_OR_NAME}}]"
        for entry in self.grade_model if self.grader == MODEL else ():
            for name in entry:
                if name not in _KEYS:
                    yield f"{GRADE_MODEL}: key {name!r} is unknown; known: {', '.join(_KEYS)}"
            wrong = [*GraderKeys.problems({name: entry[name] for name in entry if name in _KEYS})]
            yield from (f"{GRADE_MODEL}: {problem}" for problem in wrong)
            if not wrong and "url" in entry and "tokenizer" not in entry:
                yield (
                    f"{GRADE_MODEL}: a server's name for a model says nothing of its tokens: add tokenizer, the "
                    "folder or hub name of that model"
                )

    def weight_at(self, step: int, planned_steps: int) -> float:
        """Return the weight of grades at a step (from 1) of a run."""
        return scheduled_weight(
            step,
            start=self.grade_weight,
            end=self.grade_weight_end,
            steps=self.grade_schedule_steps or planned_steps,
            schedule=self.grade_schedule,
        )
