"""How likely a causal language model finds a response, token by token, and which step of reasoning a token is of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from oger_recipe.models.tokens import plain_tokens, tokens_of
from oger_recipe.rewards.place import Reply, StepPrompt
from oger_recipe.rewards.sources import ANSWER


def written(tokenizer: Any, prompt: str, steps: Sequence[str]) -> StepPrompt | Reply:
    """Write a prompt and the steps behind it, each tokenised on its own: where a step ends, a token ends.

    The ends are the last token of the prompt, and then that of each step.
    """
    tokens = tokens_of(tokenizer, prompt)
    if not tokens:
        return Reply(error="the prompt has no token that the response could follow")
    ends = [len(tokens) - 1]
    for number, step in enumerate(steps, start=1):
        tokens += plain_tokens(tokenizer, step)
        ends.append(len(tokens) - 1)
        if ends[-1] == ends[-2]:
            return Reply(error=f"step {number} of {len(steps)} has no token", cause=ANSWER)
    return StepPrompt(tuple(tokens), tuple(ends))


def response_length(prompt: StepPrompt) -> int:
    return prompt.ends[-1] - prompt.ends[0]


def step_index(prompts: Sequence[StepPrompt]) -> Tensor:
    """Return which step, from 0, each token behind a prompt belongs to, [B, A]; -1 behind a row's last one."""
    index = torch.full((len(prompts), max(map(response_length, prompts), default=0)), -1)
    for row, prompt in enumerate(prompts):
        for step, (before, end) in enumerate(zip(prompt.ends, prompt.ends[1:], strict=False)):
            index[row, before - prompt.ends[0] : end - prompt.ends[0]] = step
    return index


def likelihood_reply(prompt: StepPrompt, log_probs: Sequence[float]) -> Reply:
    """Make a reply of a response's log-probabilities, or an error."""
    if len(log_probs) != response_length(prompt):
        return Reply(error=f"{len(log_probs)} log-probabilities came for {response_length(prompt)} tokens")
    if not all(map(math.isfinite, log_probs)):
        return Reply(error="a log-probability is not finite", cause=ANSWER)
    return Reply(log_probs=tuple(log_probs))


def padded_log_probs(rows: Sequence[Sequence[float]]) -> Tensor:
    """Make a tensor [B, A] of rows' log-probabilities, 0 behind them."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True) if rows else torch.zeros(0, 0)


def response_log_probs(model: Any, batch: Any, prompts: Sequence[StepPrompt]) -> Tensor:
    """Return log p of each token behind a prompt, [B, A] in float32, 0 behind a row's last one; with a gradient where
    the model has one. ``batch``: the prompts' tokens, padded on the right."""
    exists = step_index(prompts) >= 0
    rows, tokens = exists.nonzero(as_tuple=True)
    # The logits before a token are those that it was chosen by.
    places = torch.tensor([prompt.ends[0] for prompt in prompts])[rows] + tokens
    rows, places = rows.to(model.device), places.to(model.device)
    logits = model(**batch, use_cache=False).logits[rows, places].float()
    labels = batch["input_ids"][rows, places + 1]
    chosen = logits.log_softmax(dim=1).gather(1, labels.unsqueeze(1)).squeeze(1).cpu()
    return torch.zeros(exists.shape).masked_scatter(exists, chosen)
