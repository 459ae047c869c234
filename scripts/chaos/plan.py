"""What is done to a run, and when: the victims, the phases, and the trials that a seed draws from them."""

import random
import signal
from dataclasses import dataclass
from typing import Any, NamedTuple

PHASES = ("start", "generation", "experience", "training", "broadcast", "checkpoint", "evaluation")
JUDGED = ("generation", "experience", "training")  # phases of trials in the run with judges, whose steps take longer

KILL, TERM, INT, STOP = (signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGINT,), (signal.SIGSTOP,)


@dataclass(frozen=True)
class Victim:
    """Who is struck, with which signals, and what the terminal has to say of it.

    process: the beginning of its title, or a part of its command line. ends: the run has to end; if not, it may, where
    there is something to say. said: a regular expression that the sentence matches, None where nobody is left to say
    anything.
    """

    name: str
    process: str
    said: str | None
    signals: tuple[signal.Signals, ...] = KILL
    phases: tuple[str, ...] = PHASES
    ends: bool = True
    recipe: str = "smoke"


DRIVER, TREE = "the command", "every process of the run"  # in place of titles


VICTIMS = (
    Victim("policy", "ray::OgerPolicyModelActor", "the policy died"),
    Victim("controller", "ray::OgerPPOTrainer", "the controller died"),
    Victim("engine core", "VLLM::EngineCore", "the engine died"),
    Victim("rollout actor", "ray::OgerRolloutActor", "the rollout actor died"),
    Victim("raylet", "/raylet/raylet", r"Ray itself (died \(raylet|did not start)"),
    Victim("GCS", "/gcs_server", r"Ray itself died \(gcs_server"),
    Victim("driver", DRIVER, None),
    Victim("whole tree", TREE, None),
    Victim("SIGTERM", DRIVER, "stopped by SIGTERM", TERM),
    Victim("SIGINT", DRIVER, "stopped by SIGINT", INT),
    Victim("SIGINT twice", DRIVER, None, INT * 2),
    *(
        Victim(f"{name}, stopped", process, r"nothing happened for .* is stopped \(SIGSTOP\)", STOP, phases)
        for name, process, phases in (
            ("policy", "ray::OgerPolicyModelActor", ("experience", "training")),
            ("controller", "ray::OgerPPOTrainer", ("experience", "evaluation")),
            ("engine core", "VLLM::EngineCore", ("generation", "broadcast")),
            ("rollout actor", "ray::OgerRolloutActor", ("generation", "evaluation")),
        )
    ),
    Victim("grading worker", "oger_recipe.grading.fork_server", None, phases=("generation", "evaluation"), ends=False),
    Victim("encoder", "ray::EncoderActor", "similar", phases=JUDGED, ends=False, recipe="judges"),
    Victim("plugin", "oger_recipe.models.plugin_process", "rider", phases=JUDGED, ends=False, recipe="judges"),
    Victim("judge engine", "ray::JudgeActor", "rider", phases=("experience",), ends=False, recipe="judges"),
)


@dataclass(frozen=True)
class Trial:
    """``moment``: how far into the phase the victim is struck, from 0 to 1."""

    number: int
    victim: Victim
    phase: str
    moment: float


class Cell(NamedTuple):
    victim: Victim
    phase: str


CELLS = [Cell(victim, phase) for victim in VICTIMS for phase in victim.phases]


def trial(seed: int, number: int) -> Trial:
    """Draw a trial. Every so many trials have each cell once, in an order and at moments of their own."""
    turn, place = divmod(number - 1, len(CELLS))
    cells = random.Random(f"{seed} {turn}").sample(CELLS, len(CELLS))
    return Trial(number, *cells[place], moment=random.Random(f"{seed} {turn} {place}").random())


def phase_of(event: dict[str, Any]) -> str | None:
    """Return the phase that an event of events.jsonl begins; None where it begins none."""
    name = event["phase"] if event["event"] == "phase" else event["event"]
    return {
        "began": "start",
        "rollouts": "generation",
        "loading": "experience",
        "judges": "experience",
        "weights": "broadcast",
        "saving": "checkpoint",
        "evaluating": "evaluation",
        "answers": "evaluation",
        "results": "evaluation",
    }.get(name, name if name in PHASES and event["event"] == "phase" else None)
