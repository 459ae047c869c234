"""Rewards, values and ratios of the steps of reasoning that a response is made of.

Tensors of steps are [B, S]: the steps of a row are its first ones, where the bool mask is set; those of tokens are
[B, A], and step_index (int) says which step, from 0, each token belongs to: -1 where there is no token. What a tensor
has outside of them is not read, nan and inf included, and gets no gradient; results are 0 there. All results are
float32 or better. A row without steps is allowed. Every function raises ValueError for shapes that do not fit.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from oger_recipe.algorithm.step_tensors import count_steps, last_steps, of_steps, over_tokens, read_index, real


def step_gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float, next_value: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Estimate the advantages of steps as actions (GAE, arXiv 1506.02438; APPO of OpenR, arXiv 2410.09671).

        delta_s = r_s + gamma V_(s+1) - V_s        A_s = delta_s + gamma lam A_(s+1)        return_s = A_s + V_s

    rewards, values and mask are [B, S]; V_s is the value of the state that step s is taken in. next_value [B] is that
    of the state behind a row's last step: 0, which None means, where the response has ended, and the critic's value
    where it was cut off. Advantages and returns are [B, S].
    Raises ValueError also for a mask with a hole.
    """
    _require_shapes(mask, rewards=rewards, values=values)
    _require_rows(mask, next_value)
    exists = mask.bool()
    if (exists[:, 1:] & ~exists[:, :-1]).any():
        raise ValueError("the mask has a hole: the steps of a row are its first ones")
    rewards, values = _inside(rewards, exists), _inside(values, exists)
    following = _behind_the_last(values, next_value)
    advantage = torch.zeros_like(following)
    advantages = []
    for step in reversed(range(mask.shape[1])):
        here = exists[:, step]
        delta = rewards[:, step] + gamma * following - values[:, step]
        advantage = torch.where(here, delta + gamma * lam * advantage, 0.0)
        following = torch.where(here, values[:, step], following)
        advantages.append(advantage)
    stacked = torch.stack(advantages[::-1], dim=1) if advantages else torch.zeros_like(values)
    return _with_returns(stacked, values, exists)


def token_gae_by_steps(
    step_rewards: Tensor,
    token_values: Tensor,
    step_index: Tensor,
    *,
    gamma: float,
    lam: float,
    next_value: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Estimate the advantages of tokens where time passes with steps alone (TPPO of OpenR, arXiv 2410.09671).

    Token t of step s, before token t+1:

        within the step         delta_t = V_(t+1) - V_t                    A_t = delta_t + lam A_(t+1)
        the last of the step    delta_t = r_s + gamma V_(t+1) - V_t        A_t = delta_t + gamma lam A_(t+1)

    and return_t = A_t + V_t. step_rewards is [B, S]; token_values, step_index, advantages and returns are [B, A].
    next_value [B] stands for V behind a row's last token: 0, which None means, where the response has ended. Places
    without a token may lie between tokens, and count as not there. A reward whose step has no token is not paid.
    Raises ValueError also for a step_index outside -1..S-1, and where a step comes before an earlier one.
    """
    _require_shapes(step_index, token_values=token_values)
    _require_rows(step_index, next_value)
    if step_rewards.ndim != 2 or len(step_rewards) != len(step_index):
        raise ValueError(f"step_rewards must be [{len(step_index)}, S], not {list(step_rewards.shape)}")
    index, exists = read_index(step_index)
    if (index >= step_rewards.shape[1]).any():
        raise ValueError(f"step_index goes to {index.max().item()}, step_rewards has {step_rewards.shape[1]} steps")
    if (exists & (index < index.cummax(dim=1).values)).any():
        raise ValueError("step_index goes back to an earlier step")
    values = _inside(token_values, exists)
    paid = over_tokens(step_rewards.to(real(step_rewards)), index)
    after = _next_places(exists)
    following = torch.cat([values, _behind_the_last(values, next_value).unsqueeze(1)], dim=1).gather(1, after)
    ends = exists & (index != pad(index, (0, 1), value=-1).gather(1, after))
    discount = torch.where(ends, values.new_tensor(gamma), values.new_tensor(1.0))
    delta = torch.where(exists, torch.where(ends, paid, 0.0) + discount * following - values, 0.0)
    carried = torch.where(exists, lam * discount, 1.0)  # a place without a token hands on what comes behind it
    advantage = delta.new_zeros(len(delta))
    advantages = []
    for of_place, share in zip(reversed(delta.unbind(1)), reversed(carried.unbind(1)), strict=True):
        advantage = of_place + share * advantage
        advantages.append(advantage)
    stacked = torch.stack(advantages[::-1], dim=1) if advantages else delta
    return _with_returns(torch.where(exists, stacked, 0.0), values, exists)


def step_ratio(log_probs: Tensor, old_log_probs: Tensor, step_index: Tensor) -> Tensor:
    """Compute how much likelier each step has become: exp of the sum over its tokens of log pi - log pi_old.

    All three are [B, A]; the result is [B, S] for the S steps of the row that has most, and 1 where a row has no such
    step. The ratio of an action that is a whole step (APPO of OpenR, arXiv 2410.09671).
    """
    _require_shapes(step_index, log_probs=log_probs, old_log_probs=old_log_probs)
    index, exists = read_index(step_index)
    change = _inside(log_probs, exists) - _inside(old_log_probs, exists)
    return of_steps(change, index, count_steps(index)).exp()


def aggregate_steps(scores: Tensor, mask: Tensor, how: str) -> Tensor:
    """Reduce each row's step scores to one number by a name of AGGREGATES: [B, S] and bool [B, S] to [B].

    A row without steps has 0, by any name: its product is not 1.
    Raises ValueError also for an unknown name.
    """
    if how not in AGGREGATES:
        raise ValueError(f"how={how!r} is unknown; valid values: {', '.join(AGGREGATES)}")
    _require_shapes(mask, scores=scores)
    exists = mask.bool()
    inside = torch.where(exists.any(dim=1, keepdim=True) & ~exists, _NEUTRAL.get(how, 0.0), _inside(scores, exists))
    return AGGREGATES[how](inside, exists)


def min_form_rewards(scores: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Pay each row about its lowest score, and nearly all of it at the step that has it (PURE, arXiv 2504.15275).

        r*_s = r_s exp(-r_s / T) / sum_k exp(-r_k / T)

    scores and mask are [B, S], and so is the result. Its sum over a row goes to the row's lowest score as T goes to 0,
    and to the mean as T grows: more steps do not pay, which they do where scores are summed.
    Raises ValueError also for a temperature that is not above 0.
    """
    exists, inside = _scores(scores, mask, temperature)
    return (inside * _shares(inside, exists, temperature)).to(real(scores))


def min_ahead_rewards(scores: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Pay each step the change that it makes to the worst score still ahead.

        m_s = sum over k >= s of r_k exp(-r_k / T) / sum over k >= s of exp(-r_k / T)        r*_s = m_s - m_(s+1)

    with m = 0 behind the last step. From any step on a row earns m_s, about the lowest score from there on, whatever
    was before it. With min_form_rewards a step's share hangs on the steps before it: of n equally bad ones the last
    earns r / n, and going on after it earns less than stopping there, though the row earns r in any case. Shapes,
    limits and errors are those of min_form_rewards.
    """
    exists, inside = _scores(scores, mask, temperature)
    steps = mask.shape[1]
    ahead = exists.unsqueeze(1) & torch.ones(steps, steps, dtype=torch.bool, device=mask.device).triu()
    shares = _shares(inside.unsqueeze(1).expand(ahead.shape), ahead, temperature)
    worst = (inside.unsqueeze(1) * shares).sum(dim=2)
    return (worst - pad(worst, (0, 1))[:, 1:]).to(real(scores))


def _scores(scores: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    _require_shapes(mask, scores=scores)
    exists = mask.bool()
    return exists, _inside(scores, exists).double()


def _shares(scores: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """Compute the softmax of -score / temperature over what counts of the last dimension; 0 elsewhere."""
    if not counts.shape[-1]:
        return scores
    # Distances from the lowest: score / temperature alone would overflow where that is small.
    lowest = torch.where(counts, scores.detach(), torch.inf).amin(dim=-1, keepdim=True)
    distance = torch.where(counts, scores - lowest, 0.0)
    weights = torch.where(counts, (-distance / temperature).exp(), 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def _min(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.amin(dim=1) if scores.shape[1] else scores.sum(dim=1)


def _product(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.prod(dim=1) if scores.shape[1] else scores.sum(dim=1)


# Scores, mask (both [B, S]) and temperature to the reward of each step.
CREDITS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "sum": lambda scores, mask, temperature: scores,
    "min": min_form_rewards,
    "min_ahead": min_ahead_rewards,
}
# Scores with _NEUTRAL outside of the mask, 0 in a row without steps, and the mask (both [B, S]) to [B].
AGGREGATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "min": _min,
    "product": _product,
    "last": lambda scores, mask: torch.where(last_steps(mask), scores, 0.0).sum(dim=1),
    "mean": lambda scores, mask: scores.sum(dim=1) / mask.sum(dim=1).clamp(min=1),
    "sum": lambda scores, mask: scores.sum(dim=1),
}
_NEUTRAL = {"min": torch.inf, "product": 1.0}


def _inside(tensor: Tensor, exists: Tensor) -> Tensor:
    return torch.where(exists, tensor.to(real(tensor)), 0.0)


def _behind_the_last(values: Tensor, next_value: Tensor | None) -> Tensor:
    return values.new_zeros(len(values)) if next_value is None else next_value.to(values.dtype)


def _next_places(exists: Tensor) -> Tensor:
    """Find the next place with a token behind each place of a row [B, A]; A where there is none."""
    places = torch.arange(exists.shape[1], device=exists.device)
    here_or_behind = pad(torch.where(exists, places, exists.shape[1]), (0, 1), value=exists.shape[1])
    return here_or_behind.flip(1).cummin(dim=1).values.flip(1)[:, 1:]


def _with_returns(advantages: Tensor, values: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
    return advantages, torch.where(exists, advantages + values, 0.0)


def _require_shapes(like: Tensor, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape != like.shape:
            shapes = f"{list(like.shape)}, not {list(tensor.shape)}"
            raise ValueError(f"{name} must have two dimensions and the shape of its mask or step_index, {shapes}")


def _require_rows(like: Tensor, next_value: Tensor | None) -> None:
    if next_value is not None and next_value.shape != like.shape[:1]:
        raise ValueError(f"next_value must be [{len(like)}], not {list(next_value.shape)}")
