"""Settings of the critic, which OpenRLHF trains where algo.advantage.estimator goes by values."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.ranges import COUNT, POSITIVE
from oger_recipe.settings.fields import Section, setting


@dataclass(frozen=True)
class CriticSettings(Section):
    title: ClassVar[str] = "oger.critic"
    about: ClassVar[str] = "the loss and the head of the critic, where there is one"
    prefix: ClassVar[str] = "critic."

    huber_delta: float | None = setting(
        None, "Huber's loss of values: squares up to this error, lines from there (default: squares)", range=POSITIVE
    )
    hidden_sizes: tuple[int, ...] = setting(
        (),
        "the value head has hidden layers of these widths, with ReLU (default: those of a saved critic, else one "
        "linear layer)",
        range=COUNT,
    )
