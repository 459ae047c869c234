"""Functions of the user's own where a setting takes a name from a registry: ``module:name`` is the value.

They are looked for where verifiers are, and tried on made-up numbers before anything is loaded.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from oger_recipe.algorithm.credit import ESTIMATORS, Estimator
from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS, SHAPINGS
from oger_recipe.base.imports import at_path
from oger_recipe.base.secrets import said_by
from oger_recipe.grading.verifiers import look_in
from oger_recipe.rewards.kinds.entries import declare_key_of
from oger_recipe.settings.oger import OgerSettings

_REWARDS = torch.tensor([[1.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0]])  # a group of wrong answers is common
_ALL, _SOME = torch.ones(2, 4, dtype=torch.bool), torch.tensor([[True, True, False, True]] * 2)
# Setting -> its registry, the arguments of a function, and values of these to try it on.
_KNOWN: dict[str, tuple[dict[str, Any], str, list[tuple[Tensor | None, ...]]]] = {
    "algo.advantage.estimator": (ESTIMATORS, "rewards, baseline", [(_REWARDS, None), (_REWARDS, _SOME)]),
    "oger.last_token_enp_reward": (ENTROPY_WEIGHTS, "entropy", [(torch.tensor([0.0, 0.5, 2.0, 12.0]),)]),
    "oger.similarity_shaping": (SHAPINGS, "measure, counted", [(_REWARDS, _ALL)]),
}


def register(estimator: str, settings: OgerSettings) -> Iterator[str]:
    """Put the functions that a run names by import path into their registries, in this process.

    Yield a sentence for each that cannot be used.
    """
    look_in(settings.verifiers.verifier_path)
    for entry in settings.reward.sources:
        declare_key_of(entry)  # before code of the user's is loaded
    paths = (estimator, settings.bonus.last_token_enp_reward, settings.bonus.similarity_shaping)
    for path, (key, (registry, arguments, trials)) in zip(paths, _KNOWN.items(), strict=True):
        if ":" not in path or path in registry:
            continue
        try:
            found = at_path(path)
            for given in trials:
                _try(found, arguments, given)
        except ValueError as error:
            yield f"{key}: {path!r} {error}"
        else:
            is_plain = registry is ESTIMATORS and not isinstance(found, Estimator)
            registry[path] = Estimator(found) if is_plain else found


def _try(function: Callable[..., Any], arguments: str, given: tuple[Tensor | None, ...]) -> None:
    """Call a function. Raises ValueError unless it returns finite numbers in the shape of its first argument."""
    (first, *others), called = given, f"when it is called with ({arguments})"
    assert first is not None
    mine = first.clone()
    try:
        found = function(mine, *others)
    except Exception as error:  # whatever the user's function raises
        raise ValueError(f"fails {called}: {said_by(error)}") from error
    if not isinstance(found, Tensor) or found.shape != first.shape or not found.is_floating_point():
        what = f"a tensor {list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"returns {what} {called}, not a tensor {list(first.shape)} of floating-point numbers")
    if not torch.equal(mine, first):
        raise ValueError(f"writes into its first argument {called}: return a new tensor")
    if not found.isfinite().all():
        raise ValueError(
            f"returns {found.tolist()} {called} where the first is {first.tolist()}, which are not finite numbers"
        )
