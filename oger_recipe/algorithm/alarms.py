"""The alarms of a run: what each reads, at which limit it is raised, and what to do then.

Every alarm is a function of what the run has recorded so far, so that a resumed run raises the same ones without
keeping anything. An alarm that follows a level over time compares with the run's own first steps: a policy of 7B and a
tiny one have other entropies, lengths and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from oger_recipe.algorithm.reward_watch import drift, growth

SOLVED, LENGTH, ENTROPY = "rollout/solve_rate", "rollout/response_length", "rollout/entropy"
REWARD = "oger/on_reward"
WARN, STOP, OFF = LEVELS = ("warn", "stop", "off")

RECENT = 5  # steps whose mean is a level of now, fewer where the window is smaller

# Limits. Those of shares and correlations are absolute, "times" are factors of the run's own level.
ENTROPY_LEFT = 0.1  # times the first steps' entropy
ENTROPY_TIMES, ENTROPY_MARGIN = 2.0, 0.1  # times the first steps' entropy, and nats on top
LENGTH_LEFT = 1 / 3  # times the first steps' length
LENGTH_TIMES, STEPS_TIMES = 1.5, 1.2  # times what it was when most was solved
TRUNCATED = 0.25
EQUAL = 0.8
SPIKE, LEAST_NORMS, NORMS = 10.0, 5, 50  # times the median of the steps before; how many are needed, how many count
SOLVED_LEFT, SOLVED_ONCE = 0.25, 0.05  # times the best running mean; a best mean below that is chance
FORMAT = 0.1
FALL = 0.05  # of the share that is right
PARTED = 0.75  # times vllm_logprob_limit
READ = 0.995
LENGTH_PAID, FORM_PAID, DISAGREEMENT = 0.5, 0.9, 0.6


@dataclass(frozen=True)
class History:
    """What a run has recorded: the metrics of its steps, in their order, and held-out accuracy by step.

    window: steps that make up the beginning, and that slow alarms look back over; excused: metrics of sources that may
    follow length or form, which is what they are for.
    """

    steps: Sequence[Mapping[str, float | None]]
    accuracy: Mapping[int, float] = field(default_factory=dict)
    window: int = 10
    excused: Collection[str] = ()

    @property
    def recent(self) -> int:
        return min(RECENT, self.window)

    def last(self, metric: str, back: int = 1) -> float | None:
        """Average the last ``back`` steps; None where one of them is missing, or lacks the metric."""
        values = [known for step in self.steps[-back:] if (known := _known(step.get(metric))) is not None]
        return fmean(values) if len(values) == back else None

    def now(self, metric: str) -> float | None:
        return self.last(metric, self.recent)

    def beginning(self, metric: str) -> float | None:
        """Average the first steps; None until there are as many as that and recent ones behind them."""
        if len(self.steps) < self.window + self.recent:
            return None
        values = [known for step in self.steps[: self.window] if (known := _known(step.get(metric))) is not None]
        return fmean(values) if values else None

    @property
    def step(self) -> int:
        """Return the number of the last step: without one of its own (metric ``step``), how many there are."""
        return int(self.steps[-1].get("step") or len(self.steps))

    def by_step(self, metric: str) -> dict[int, float]:
        """Return the metric's known values by step; the steps follow one another."""
        first = self.step - len(self.steps) + 1 if self.steps else 1
        found = ((number, _known(step.get(metric))) for number, step in enumerate(self.steps, start=first))
        return {number: value for number, value in found if value is not None}


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Finding:
    """Why an alarm is raised: the metric's value beyond its limit, and a sentence without an end."""

    metric: str
    value: float
    limit: float
    text: str


@dataclass(frozen=True)
class Alarm:
    """reads: rows of the table of metrics; when: in words; why: where the limit is from; check: yields a finding for
    each metric that is beyond the limit after the history's last step."""

    reads: tuple[str, ...]
    when: str
    why: str
    advice: str
    check: Callable[[History], Iterable[Finding]]


def found(name: str, history: History) -> list[Finding]:
    """Return the findings of the alarm ``name`` after the last step of the history."""
    return list(ALARMS[name].check(history)) if history.steps else []


# ---- the policy


def _entropy_gone(history: History) -> Iterator[Finding]:
    now, then = history.now(ENTROPY), history.beginning(ENTROPY)
    if now is not None and then is not None and now < ENTROPY_LEFT * then:
        text = f"the policy's entropy has fallen from {then:.3f} to {now:.4f} nats a token, so it hardly explores"
        yield Finding(ENTROPY, now, ENTROPY_LEFT * then, text)


def _entropy_growing(history: History) -> Iterator[Finding]:
    now, then = history.now(ENTROPY), history.beginning(ENTROPY)
    if now is not None and then is not None and now > (limit := ENTROPY_TIMES * then + ENTROPY_MARGIN):
        text = f"the policy's entropy has grown from {then:.3f} to {now:.3f} nats a token: it becomes random"
        yield Finding(ENTROPY, now, limit, text)


def _length_collapsing(history: History) -> Iterator[Finding]:
    now, then = history.now(LENGTH), history.beginning(LENGTH)
    solved, solved_then = history.now(SOLVED), history.beginning(SOLVED)
    if now is None or then is None or solved is None or solved_then is None:
        return
    if now < LENGTH_LEFT * then and solved <= solved_then:
        text = f"responses have shrunk from {then:.0f} to {now:.0f} tokens, and no more of them are right"
        yield Finding(LENGTH, now, LENGTH_LEFT * then, text)


def _growing(metric: str, what: str, times: float) -> Callable[[History], Iterator[Finding]]:
    def check(history: History) -> Iterator[Finding]:
        grown = growth(history.by_step(metric), history.by_step(SOLVED), history.window)
        if grown is None or grown.fall <= FALL or grown.factor < times:
            return
        now = history.last(metric, history.window)
        assert now is not None
        text = (
            f"responses have {grown.factor:.1f} times the {what} that they had in the {history.window} "
            f"steps up to step {grown.since}, and the share that is right has fallen by {grown.fall:.3f}"
        )
        yield Finding(metric, now, times * now / grown.factor, text)

    return check


def _truncation(history: History) -> Iterator[Finding]:
    now = history.now("rollout/truncated")
    if now is not None and now > TRUNCATED:
        text = f"{now:.0%} of the rollouts are cut at the longest allowed length"
        yield Finding("rollout/truncated", now, TRUNCATED, text)


def _gradient_norm(history: History) -> Iterator[Finding]:
    now = history.last("actor_grad_norm")
    before = list(history.by_step("actor_grad_norm").values())[:-1][-NORMS:]
    if now is None or len(before) < LEAST_NORMS:
        return
    usual = median(before)
    if usual > 0 and now > SPIKE * usual:
        text = f"the gradient's norm is {now:.3g}, {now / usual:.0f} times its median of {usual:.3g}"
        yield Finding("actor_grad_norm", now, SPIKE * usual, text)


def _engine_parted(history: History) -> Iterator[Finding]:
    now, stops = history.now("vllm_logprob_difference"), history.last("vllm_logprob_limit")
    if now is not None and stops is not None and now > PARTED * stops:
        text = (
            f"engine and policy differ by {now:.4f} per token, and the run stops at {stops:.4f}: what is sampled is "
            "less and less the policy's own"
        )
        yield Finding("vllm_logprob_difference", now, PARTED * stops, text)


# ---- what it solves


def _lost(history: History, back: int) -> tuple[float, float] | None:
    """Return the solve rates of the last ``back`` steps and of the best steps before, where they are too far apart."""
    now, before = history.last(SOLVED, back), list(history.by_step(SOLVED).values())[:-back]
    if now is None or len(before) < history.recent:  # a mean of fewer is chance
        return None
    ends = range(history.recent, len(before) + 1)
    best = max(fmean(before[max(end - history.window, 0) : end]) for end in ends)
    return (now, best) if best >= SOLVED_ONCE and now < SOLVED_LEFT * best else None


def _solve_rate_lost(history: History) -> Iterator[Finding]:
    if lost := _lost(history, history.recent):
        now, best = lost
        text = (
            f"the policy has collapsed: it solved {best:.3f} of its rollouts at its best, and {now:.3f} in the last "
            f"{history.recent} steps"
        )
        yield Finding(SOLVED, now, SOLVED_LEFT * best, text)


def still_solves(history: History) -> bool:
    """Say whether the policy has solved something in the last step, and not lost what it could: neither by the recent
    steps, which is a collapse, nor by this step alone, which may be the first of one."""
    return bool(history.last(SOLVED)) and not any(_lost(history, back) for back in (1, history.recent))


def _never_solved(history: History) -> Iterator[Finding]:
    rates = list(history.by_step(SOLVED).values())
    last_right = max((count for count, rate in enumerate(rates, start=1) if rate), default=0)
    if (since := len(rates) - last_right) >= history.window:
        text = f"no rollout has been right in {'the last ' if last_right else ''}{since} steps"
        yield Finding(SOLVED, 0.0, 0.0, text)


def _never_verified(history: History) -> Iterator[Finding]:
    now = history.now("rollout/format")
    if now is not None and now < FORMAT:
        text = f"the verifier finds an answer in {now:.1%} of the rollouts"
        yield Finding("rollout/format", now, FORMAT, text)


def _equal_groups(history: History) -> Iterator[Finding]:
    now = history.last("oger/equal_groups", history.window)
    if now is not None and now > EQUAL:
        text = (
            f"in {now:.0%} of the groups of the last {history.window} steps all rows earn the same: nothing to learn"
        )
        yield Finding("oger/equal_groups", now, EQUAL, text)


def _teachers_never_right(history: History) -> Iterator[Finding]:
    rows, right = (history.last(metric, history.window) for metric in ("oger/off_on_ratio", "oger/off_score"))
    if rows and right == 0:
        text = f"no row with a teacher's tokens was right in the last {history.window} steps"
        yield Finding("oger/off_score", 0.0, 0.0, text)


# ---- what it is paid for


def _reward_without_accuracy(history: History) -> Iterator[Finding]:
    parted = drift(history.by_step(REWARD), history.accuracy, history.window)
    if parted is not None and parted.fall > FALL and parted.rise > 0:
        text = (
            f"since step {parted.since} the trained reward has risen by {parted.rise:.3f} and held-out accuracy has "
            f"fallen by {parted.fall:.3f}: the policy learns what the sources pay for and not what is right"
        )
        yield Finding("oger/held_out_fall", parted.fall, FALL, text)


def _of_sources(end: str, limit: float, means: Callable[[float], str]) -> Callable[[History], Iterator[Finding]]:
    def check(history: History) -> Iterator[Finding]:
        for metric, value in history.steps[-1].items():
            if not metric.endswith(f"/{end}") or metric in history.excused:
                continue
            if (known := _known(value)) is not None and abs(known) > limit:
                source = metric.removeprefix("reward/").removesuffix(f"/{end}")
                yield Finding(metric, known, limit, f"reward source {source} {means(known)}")

    return check


def _embedding_truncated(history: History) -> Iterator[Finding]:
    now = history.last("oger/embedding_share_read")
    if now is not None and now < READ:
        text = f"the encoder reads {now:.0%} of rollouts and teachers: similarity and bonus are of that part alone"
        yield Finding("oger/embedding_share_read", now, READ, text)


_HEALTHY = "Healthy runs of the shipped recipes stay {}"

ALARMS: dict[str, Alarm] = {
    "entropy_gone": Alarm(
        (ENTROPY,),
        "the mean of the recent steps is below a tenth of the first steps' mean",
        "Entropy falls wherever training works: in arXiv 2505.22617 the first 200 steps took 73 % of it and made "
        "76 % of the gain. Below a tenth hardly any gain is left.",
        "A lower actor.adam.lr or a KL term (algo.kl.init_coef) keeps variety; so may a higher "
        "actor.eps_clip_low_high, or actor.entropy_coef in small steps",
        _entropy_gone,
    ),
    "entropy_growing": Alarm(
        (ENTROPY,),
        "the mean of the recent steps is above twice the first steps' mean and 0.1 nats",
        _HEALTHY.format("within a tenth of their first steps. The margin lets a sharp policy explore."),
        "Read samples/: is it still text? A lower actor.adam.lr or actor.entropy_coef, or fewer teachers' tokens that "
        "the policy finds unlikely, are the usual remedies",
        _entropy_growing,
    ),
    "length_collapsing": Alarm(
        (LENGTH, SOLVED),
        "responses are shorter than a third of the first steps', and no more of them are right",
        "A base model that learns to stop gets shorter too, but more of its answers are right.",
        "Read samples/: the policy stops before it reasons. Look for a source that pays for short answers",
        _length_collapsing,
    ),
    "length_growing": Alarm(
        (LENGTH, SOLVED),
        "responses have 1.5 times the tokens of the best window of steps, and the share that is right is 0.05 below "
        "it",
        "Longer reasoning that solves more is what training is for; growth that solves less is not.",
        "Look at reward/{source}/length_correlation for a source that pays for length; charge for it (kind length), "
        "or lower rollout.max_new_tokens",
        _growing(LENGTH, "tokens", LENGTH_TIMES),
    ),
    "steps_growing": Alarm(
        ("rollout/steps", SOLVED),
        "responses have 1.2 times the steps of reasoning of the best window of steps, and the share that is right is "
        "0.05 below it",
        "A policy that is paid by the step learns to write more of them.",
        "Read steps_of_reasoning in samples/. credit min_ahead, a lower weight, a verifier beside it or "
        "oger.steps.max_steps are the usual remedies",
        _growing("rollout/steps", "steps of reasoning", STEPS_TIMES),
    ),
    "truncation": Alarm(
        ("rollout/truncated",),
        "more than a quarter of the recent steps' rollouts are cut",
        _HEALTHY.format("below 0.02; 0.1 is the rule of thumb. A cut answer is wrong whatever it says."),
        "Raise rollout.max_new_tokens (with data.max_len), or charge for length (kind length)",
        _truncation,
    ),
    "equal_groups": Alarm(
        ("oger/equal_groups",),
        "in more than 0.8 of the groups of a window of steps all rows earn the same; not where such groups "
        "teach, as with a critic",
        "Such groups have no advantage, which is why DAPO (arXiv 2503.14476) samples others in their place.",
        "Problems of another difficulty, more rollouts a prompt, teachers, or algo.dynamic_filtering_enable",
        _equal_groups,
    ),
    "gradient_norm": Alarm(
        ("actor_grad_norm",),
        "the step's norm is above 10 times the median of up to 50 steps before, of which there are at least 5",
        _HEALTHY.format("within 3 times their median. Spikes are measured by their own past, as by ZClip (arXiv "
                        "2504.02507)."),
        "Read samples/ of the step for what is unusual. Many spikes: a lower actor.adam.lr, or actor.max_norm",
        _gradient_norm,
    ),
    "solve_rate_lost": Alarm(
        (SOLVED,),
        "the mean of the recent steps is below a quarter of the best running mean, which was at least 0.05",
        _HEALTHY.format("above half of their best. A mean is not silenced by one lucky hit."),
        "A new run with a lower actor.adam.lr is the usual remedy; the newest checkpoint from before the "
        "collapse is kept",
        _solve_rate_lost,
    ),
    "never_solved": Alarm(
        (SOLVED,),
        "no rollout was right in the last window of steps, or in more",
        "Without a right rollout there is nothing to learn but teachers. One lucky hit silences it for a window at "
        "most.",
        "Read samples/: is the answer column what the verifier expects (oger data validate)? Else easier problems, a "
        "warm start (oger.sft.epochs) or teachers",
        _never_solved,
    ),
    "never_verified": Alarm(
        ("rollout/format",),
        "the verifier finds an answer in fewer than 0.1 of the recent steps' rollouts",
        _HEALTHY.format("above 0.98. Below 0.1 hardly any answer can earn anything."),
        "Read samples/: a wrong prompt template (oger.prompt_template) or verifier is the usual cause",
        _never_verified,
    ),
    "reward_without_accuracy": Alarm(
        ("oger/held_out_fall", "oger/reward_rise"),
        "held-out accuracy is 0.05 below the best evaluation, and the trained reward has risen since",
        "0.05 is about twice the standard error of 128 problems with 8 answers each.",
        "Compare reward/* of both steps: the source that rose is the one to weigh less or to gate",
        _reward_without_accuracy,
    ),
    "length_correlation": Alarm(
        ("reward/{source}/length_correlation",),
        "a source's values follow the response's length within groups, r above 0.5 or below -0.5; rules and kind "
        "length may",
        "Over 100 rows at least, whose chance correlation is 0.1.",
        "Read in samples/ what it pays for. A lower weight, gate rule_equals_1 behind a verifier, or telling a judge "
        "that length does not count may help",
        _of_sources("length_correlation", LENGTH_PAID,
                    lambda r: f"pays for {'longer' if r > 0 else 'shorter'} answers"),
    ),
    "format_correlation": Alarm(
        ("reward/{source}/format_correlation",),
        "a source's values follow whether an answer was found, r above 0.9 or below -0.9; rules may",
        "Over 100 rows at least. Right answers are in form, so some correlation is healthy.",
        "Gate rule_equals_1 leaves the form to the rule",
        _of_sources("format_correlation", FORM_PAID,
                    lambda r: f"pays for answers {'in' if r > 0 else 'out of'} form, whatever they say"),
    ),
    "rule_disagreement": Alarm(
        ("reward/{source}/rule_disagreement",),
        "a source orders more than 0.6 of the pairs within groups against the rule",
        "Over 100 pairs at least; 0.5 is no relation to the rule.",
        "With gate rule_equals_1 it decides between right answers alone",
        _of_sources("rule_disagreement", DISAGREEMENT,
                    lambda share: f"orders {share:.0%} of the pairs within groups against the rule"),
    ),
    "engine_parted": Alarm(
        ("vllm_logprob_difference", "vllm_logprob_limit"),
        "the mean of the recent steps is above three quarters of the limit at which the run stops "
        "(oger.max_logprob_difference)",
        "The limit is three times the first step's difference; healthy runs showed up to 1.9 times it, one step in "
        "forty.",
        "The engine samples with other weights than those that are trained, or computes them otherwise: see "
        "docs/known_faults.md",
        _engine_parted,
    ),
    "teachers_never_right": Alarm(
        ("oger/off_on_ratio", "oger/off_score"),
        "no row with a teacher's tokens was right in a window of steps",
        "Whole trajectories are right in 0.9 and more, prefixes as often as the policy completes them.",
        "Check the teachers' answers and oger.task_name (oger data validate); leave wrong teachers out",
        _teachers_never_right,
    ),
    "embedding_truncated": Alarm(
        ("oger/embedding_share_read",),
        "the encoder reads less than 0.995 of the tokens of rollouts and teachers",
        "What it does not read cannot count.",
        "oger.embedding_long_texts chunks reads all; so may a larger oger.embedding_max_tokens",
        _embedding_truncated,
    ),
}  # fmt: skip
