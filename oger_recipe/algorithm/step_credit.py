"""Advantages from the rewards of steps of reasoning: with a critic's values, or by comparing the rows of a group.

A step's reward is paid when the step is complete, its tokens share the step's advantage (TPPO's alone differ), and the
last step's reward has the part that is for the whole response. What a tensor has outside of its mask is not read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from oger_recipe.algorithm.advantage import group_advantage
from oger_recipe.algorithm.normalize import group_normalized
from oger_recipe.algorithm.step_tensors import first_places, first_tokens, from_here_on, last_steps, over_tokens, real
from oger_recipe.algorithm.steps import step_gae, token_gae_by_steps


@dataclass(frozen=True)
class StepRewards:
    """What rows are paid for their steps of reasoning, and for their responses as a whole.

    rewards, mask (bool): [groups, n, S], 0 and not set where a row has no such step; of_response [groups, n]: the part
    of the last step's reward that is for the whole response.
    """

    rewards: Tensor
    mask: Tensor
    of_response: Tensor

    @property
    def total(self) -> Tensor:
        """The sums over rows' steps, [groups, n]."""
        return self.rewards.sum(dim=2)

    def with_responses(self, of_response: Tensor, where: Tensor) -> "StepRewards":
        """Replace a row's rewards by that of its whole response [groups, n] where set (bool [groups, n])."""
        alone = torch.where(last_steps(self.mask), of_response.unsqueeze(2), 0.0)
        rewards = torch.where(where.unsqueeze(2), alone, self.rewards)
        return StepRewards(rewards, self.mask, torch.where(where, of_response, self.of_response))


@dataclass(frozen=True)
class StepEstimator:
    """The way from steps to advantages, by one of the first two.

    with_values: (rewards [B, S], mask [B, S], values [B, A], step_index [B, A], gamma, lam) to advantages and returns
    [B, A], towards which a critic is trained; values are of the states that tokens are sampled in. in_group: (rewards,
    the tokens of each step [groups, n, S], the rows that all rows of a group are held against: bool [groups, n], None:
    all) to advantages [groups, n, S]. values_steps: the critic is trained at the steps' first tokens alone; whitened:
    the advantages of a batch are brought to mean 0 and std 1 afterwards, over "steps" or "tokens"; compares_groups:
    groups are measured by each other's rewards.
    """

    with_values: Callable[[Tensor, Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]] | None = None
    in_group: Callable[[StepRewards, Tensor, Tensor | None], Tensor] | None = None
    values_steps: bool = False
    whitened: str | None = None
    compares_groups: bool = False

    @property
    def needs_critic(self) -> bool:
        return self.with_values is not None


def appo(
    rewards: Tensor, mask: Tensor, values: Tensor, step_index: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Take each step as an action, with the critic's value before its first token (step_gae).

    Advantages and returns are [B, A]. The returns stand on the first tokens alone, where the critic is trained, and
    are 0 elsewhere.
    """
    before = pad(values, (0, 1)).gather(1, first_places(step_index, mask.shape[1]))
    advantages, returns = step_gae(rewards, before, mask, gamma=gamma, lam=lam)
    of_tokens = torch.where(first_tokens(step_index), over_tokens(returns, step_index), 0.0)
    return over_tokens(advantages, step_index), of_tokens


def tppo(
    rewards: Tensor, mask: Tensor, values: Tensor, step_index: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Take each token as an action, and let time pass with the steps (token_gae_by_steps); both results are [B, A]."""
    return token_gae_by_steps(rewards, values, step_index, gamma=gamma, lam=lam)


def process_grpo(paid: StepRewards, tokens: Tensor, baseline: Tensor | None = None) -> Tensor:
    """Compare all step rewards of a group with each other, and add up those from each step on: [groups, n, S].

        z_s = (r_s - mean(r)) / (std(r) + 1e-6)        A_s = sum of z_k over k >= s

    GRPO with process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3); the std is over n - 1. With a
    baseline both are of its rows' steps, by the rules of group_advantage.
    """
    groups, n, steps = paid.mask.shape
    rewards = paid.rewards.reshape(groups, n * steps)
    if baseline is None:
        z = group_normalized(rewards, paid.mask.reshape(groups, n * steps))
    else:
        counted = (paid.mask & baseline.unsqueeze(2)).reshape(groups, n * steps)
        z = group_advantage(rewards, use_std=True, baseline_mask=counted)
    return from_here_on(z.view(groups, n, steps), paid.mask)


def process_grpo_batch(paid: StepRewards, tokens: Tensor, baseline: Tensor | None = None) -> Tensor:
    """Compare all step rewards of a batch with each other, whatever problem and place they have: [groups, n, S].

        A_s = (r_s - mean(r)) / (std(r) + 1e-8)

    GRPO as OpenR has it (arXiv 2410.09671; train/mat/utils/language_buffer.py): no groups, no later steps; the std is
    over n.
    """
    count = paid.mask.sum().clamp(min=1)
    exact = torch.where(paid.mask, paid.rewards.double(), 0.0)
    centred = torch.where(paid.mask, exact - exact.sum() / count, 0.0)
    std = (centred.square().sum() / count).sqrt()
    return (centred / (std + 1e-8)).to(real(paid.rewards))


def process_rloo(paid: StepRewards, tokens: Tensor, baseline: Tensor | None = None) -> Tensor:
    """Compare what each step still earns with what a token of the group's other rows still earns (PURE, arXiv
    2504.15275), and the reward of the whole response with theirs (RLOO, arXiv 2402.14740): [groups, n, S].

    With p_s the step's reward without the part o that is for the whole response, and n_s its tokens:

        G_s = sum of p_k over k >= s
        A_s = G_s - b + o - mean of the others' o        b = sum of n_s G_s / sum of n_s over the others' steps

    Taken from PURE: the two baselines apart, both without the row itself, and that of the steps by token: by step,
    answers in fewer or in more steps would be favoured. Not taken: its code for verl divides by the length that the
    batch is padded to; its code for OpenRLHF takes a share of the others' rewards off for each token of a step, so
    that longer answers are worth more where these are negative, and leaves out the tokens that end a step. With a
    baseline the others are its rows. A row with no others is held against 0.
    """
    exact = torch.where(paid.mask, paid.rewards.double(), 0.0)
    outcome = torch.where(paid.mask.any(dim=2), paid.of_response.double(), 0.0)
    earned = from_here_on(exact - outcome.unsqueeze(2) * last_steps(paid.mask), paid.mask)
    counts = torch.where(paid.mask, tokens.double(), 0.0)
    compared = torch.ones_like(outcome) if baseline is None else baseline.double()
    of_steps = _of_others(compared * (counts * earned).sum(dim=2), compared * counts.sum(dim=2))
    against = _of_others(compared * outcome, compared)
    advantages = earned - of_steps.unsqueeze(2) + (outcome - against).unsqueeze(2)
    return torch.where(paid.mask, advantages, 0.0).to(real(paid.rewards))


def whitening(values: Tensor, *, divide: bool) -> tuple[float, float]:
    """Return the mean of values [m], and 1 / std over m: whitening subtracts the one and multiplies by the other.

    The variance is 1e-8 at the least, as in OpenRLHF; 1 takes the place of 1 / std without `divide`. No values: 0, 1.
    """
    if not len(values):
        return 0.0, 1.0
    exact = values.double()
    mean = exact.mean()
    variance = (exact - mean).square().mean().clamp(min=1e-8)
    return mean.item(), variance.rsqrt().item() if divide else 1.0


def _of_others(sums: Tensor, counts: Tensor) -> Tensor:
    """Take the mean over the other rows of each group, of sums and counts [groups, n]; 0 where they count nothing."""
    sums, counts = (each.sum(dim=1, keepdim=True) - each for each in (sums, counts))
    return torch.where(counts > 0, sums / counts.clamp(min=1), 0.0)
