"""Settings of the critic, which OpenRLHF trains where algo.advantage.estimator goes by values."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import COUNT, POSITIVE
from oger_recipe.settings.fields import OF_OPTIMIZER, OF_WEIGHTS, Section, need, setting

SAVED_SIZES = "value_head_hidden_sizes"  # in config.json of a critic whose value head has hidden layers


_CRITIC = need("algo.advantage.estimator", *CRITIC_ESTIMATORS)


@dataclass(frozen=True)
class CriticSettings(Section):
    title: ClassVar[str] = "oger.critic"
    about: ClassVar[str] = "loss and value head of the critic, if there is one"
    prefix: ClassVar[str] = "critic."

    huber_delta: float | None = setting(
        None,
        "use the Huber loss for values: squared up to this error, linear beyond (default: squared)",
        range=POSITIVE,
        needs=_CRITIC,
    )
    hidden_sizes: tuple[int, ...] = setting(
        (),
        "widths of the value head's hidden layers, with ReLU (default: those of a saved critic, else one linear "
        "layer)",
        range=COUNT,
        needs=_CRITIC,
        resume=OF_WEIGHTS,
    )
    head_only: bool = setting(
        False, "train only the value head and freeze the network", needs=_CRITIC, resume=OF_OPTIMIZER
    )

    def of_network(self, saved: list[int] | None) -> list[int]:
        """Return the head's sizes; ``saved``: those that the network names. RecipeError where both are set and
        differ."""
        if saved is not None and self.hidden_sizes and saved != list(self.hidden_sizes):
            raise RecipeError(
                f"oger.critic.hidden_sizes is {' '.join(map(str, self.hidden_sizes))}, but the value head of "
                f"critic.model_name_or_path has {' '.join(map(str, saved))}: leave it out, or give the same"
            )
        return list(self.hidden_sizes) if saved is None else saved
