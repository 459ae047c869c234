"""When a step's metrics say that training is lost."""

import math

import pytest

from oger_recipe.algorithm.health import bad_numbers, collapsed

FINE = {"policy_loss": -0.1, "actor_grad_norm": 1.0, "updates": 6.0, "skipped_updates": 5.0, "nonfinite_parameters": 0}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({}, None),
        ({"skipped_updates": 6.0}, "DeepSpeed skipped all 6 updates of the policy"),
        ({"policy_loss": math.nan}, "the policy's loss is nan"),
        ({"actor_grad_norm": math.inf}, "the norm of the policy's gradient is inf"),
        ({"nonfinite_parameters": 2.0}, "the policy has parameters that are not finite"),
        ({"critic_loss": 0.3, "critic_grad_norm": 1.0, "critic_updates": 2.0, "critic_skipped_updates": 0.0}, None),
        ({"critic_loss": math.inf}, "the critic's loss is inf"),
        ({"critic_updates": 2.0, "critic_skipped_updates": 2.0}, "DeepSpeed skipped all 2 updates of the critic"),
    ],
)
def test_what_is_not_finite_and_what_was_not_learnt_is_bad(metrics, said) -> None:
    found = bad_numbers(FINE | metrics)
    assert found is None if said is None else found.startswith(said)


def test_a_step_in_which_the_policy_rests_is_fine() -> None:
    """critic.freezing_steps: the metrics of the policy are not there."""
    assert bad_numbers({"critic_loss": 0.3}) is None


@pytest.mark.parametrize(
    ("rates", "lost"),
    [
        ([0.2, 0.0, 0.0, 0.0], True),
        ([0.2, 0.0, 0.0], False),
        ([0.0, 0.0, 0.0, 0.0], False),  # it never solved anything
        ([0.2, 0.3, 0.0, 0.0, 0.01], False),
        ([0.01, 0.0, 0.01, 0.0, 0.01, 0.0, 0.0, 0.0], False),  # hardly anything: chance
        ([0.3] * 9 + [0.0] * 3, True),
        ([], False),
    ],
)
def test_a_policy_that_solved_and_solves_nothing_any_more_has_collapsed(rates, lost) -> None:
    assert bool(collapsed(rates)) is lost
