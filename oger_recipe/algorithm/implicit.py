"""What the likelihoods of two language models say of a response's steps (implicit process reward model, PRIME).

pi is the reward model, pi_ref the reference that it is held against (arXiv 2412.01981 and 2502.01456):

    r_s = beta * sum over the tokens t of step s of (log pi(y_t | y_<t) - log pi_ref(y_t | y_<t))

The response's reward is the sum of its steps', and is learnt from the verified outcome o, 0 or 1, as a classifier:

    loss = -o log sigmoid(r) - (1 - o) log(1 - sigmoid(r))          d loss / d r = sigmoid(r) - o
"""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from oger_recipe.algorithm.step_tensors import count_steps, of_steps, read_index, real


def implicit_step_rewards(log_probs: Tensor, reference: Tensor, step_index: Tensor, *, beta: float) -> Tensor:
    """Compute step rewards [B, S], for the S steps of the row that has most; 0 where a row has no such step.

    log_probs (pi), reference (pi_ref) and step_index are [B, A], log-probabilities in nats; step_index (int) says
    which step, from 0, a token belongs to, -1 where there is no token: nothing there is read, nan and inf included,
    and it gets no gradient. The result is float32 or better.
    Raises ValueError for a beta that is not above 0, shapes that differ, and a step_index not of integers from -1 on.
    """
    if not beta > 0:
        raise ValueError(f"beta must be above 0, not {beta}")
    if step_index.ndim != 2 or not log_probs.shape == reference.shape == step_index.shape:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (log_probs, reference, step_index))
        raise ValueError(f"all must be [B, A], not {shapes}")
    index, _ = read_index(step_index)
    change = log_probs.to(real(log_probs)) - reference.to(real(reference))
    return beta * of_steps(change, index, count_steps(index))


def outcome_losses(rewards: Tensor, outcomes: Tensor) -> Tensor:
    """Compute the cross-entropy of sigmoid(reward) with the outcome, 0 or 1, of each response; all are [B]."""
    return binary_cross_entropy_with_logits(rewards, outcomes.to(rewards.dtype), reduction="none")


def outcome_accuracy(rewards: Tensor, outcomes: Tensor) -> Tensor:
    """Return the share (0-d) of responses with sigmoid(reward) on their outcome's side of 1/2; both are [B].

    A reward of exactly 0, as all are before the model has learnt anything, is half right. nan without responses.
    """
    return (((2 * outcomes - 1) * rewards).sign().double() + 1).div(2).mean()


def pair_accuracy(rewards: Tensor, outcomes: Tensor, counted: Tensor) -> Tensor:
    """Return the share (0-d) of pairs, a right and a wrong response to one prompt, whose right one has the higher
    reward.

    All are [groups, n]; counted (bool) says which responses make pairs. Equal rewards are half right; nan without
    pairs.
    """
    right, wrong = counted & (outcomes > 0.5), counted & (outcomes <= 0.5)
    pairs = right.unsqueeze(2) & wrong.unsqueeze(1)
    above = (rewards.unsqueeze(2) - rewards.unsqueeze(1)).sign().double()
    return ((above + 1) / 2)[pairs].mean()
