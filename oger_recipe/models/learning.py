"""A language model in this process that learns, as an implicit process reward model, from verified outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oger_recipe.algorithm.implicit import implicit_step_rewards, outcome_losses
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import COUNT, POSITIVE, SHARE
from oger_recipe.models.in_process import InProcess, padded
from oger_recipe.models.keys import StepKeys
from oger_recipe.models.likelihood import padded_log_probs, response_log_probs, step_index
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.place import StepPrompt

_OPTIMIZER = "optimizer.pt"


@dataclass(frozen=True, kw_only=True)
class LearningKeys(StepKeys):
    """A language model that may learn from verified outcomes."""

    beta: float = key(0.05, "reward of a nat that the model finds a step likelier by", range=POSITIVE)
    learning_rate: float | None = key(
        None, "of the model, which learns from the outcomes of each step's rollouts (default: it stays as it is)",
        range=SHARE,
    )  # fmt: skip
    batch_size: int | None = key(None, "rows of one update (default: all of a step)", range=COUNT)
    micro_batch_size: int = key(8, "rows that it learns from at a time", range=COUNT)
    max_grad_norm: float = key(1.0, "norm to which gradients are clipped", range=POSITIVE)


@dataclass(frozen=True)
class Learnt:
    """The result of learning from responses: the reward of each before it was learnt from, [B], the mean loss, and the
    mean norm of the gradients before they were clipped."""

    rewards: Tensor
    loss: float
    grad_norm: float


class Learner:
    """Trains the model of a place, with AdamW, without weight decay and dropout. Weights and optimizer are float32."""

    def __init__(self, keys: LearningKeys, place: InProcess) -> None:
        assert keys.learning_rate
        self._keys, self._place = keys, place
        self._optimizer: torch.optim.Optimizer | None = None

    def learn(
        self, prompts: Sequence[StepPrompt], reference: Sequence[Sequence[float]], outcomes: Sequence[float]
    ) -> Learnt:
        """Learn from responses, the reference's log-probabilities of their tokens, and outcomes (1: right, or 0).

        Raises RecipeError for a gradient that is not finite.
        """
        rewards, norms = torch.zeros(len(prompts)), []
        size = self._keys.batch_size or len(prompts)
        for start in range(0, len(prompts), size):
            rows = range(start, min(start + size, len(prompts)))
            norms.append(self._update(prompts, reference, torch.tensor(outcomes), rows, rewards))
        losses = outcome_losses(rewards, torch.tensor(outcomes))
        return Learnt(rewards, losses.mean().item(), sum(norms) / len(norms))

    @torch.enable_grad()  # the controller works without gradients
    def _update(
        self,
        prompts: Sequence[StepPrompt],
        reference: Sequence[Sequence[float]],
        outcomes: Tensor,
        rows: range,
        rewards: Tensor,
    ) -> float:
        """Take an optimizer step on these rows' mean loss; fill in their rewards [B], return the gradient norm."""
        model, optimizer = self._model(), self._adamw()
        optimizer.zero_grad()
        for part in _of_like_length(prompts, rows, self._keys.micro_batch_size):
            read = [prompts[row] for row in part]
            batch = padded([prompt.tokens for prompt in read], 0, left=False).to(model.device)
            found = implicit_step_rewards(
                response_log_probs(model, batch, read),
                padded_log_probs([reference[row] for row in part]),
                step_index(read),
                beta=self._keys.beta,
            ).sum(dim=1)
            (outcome_losses(found, outcomes[part]).sum() / len(rows)).backward()
            rewards[part] = found.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), self._keys.max_grad_norm).item()
        if not math.isfinite(norm):
            raise RecipeError(
                f"the implicit PRM {self._keys.model} has a gradient of {norm}: lower learning_rate "
                f"{self._keys.learning_rate:g} or beta {self._keys.beta:g}"
            )
        optimizer.step()
        return norm

    def save(self, folder: Path) -> None:
        """Save model, tokenizer and optimizer in a folder; the model can be loaded from its subfolder."""
        tokenizer, model = self._place.writer()
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        torch.save(self._adamw().state_dict(), folder / _OPTIMIZER)

    def load(self, folder: Path) -> None:
        """Resume from what `save` wrote. Raises RecipeError if it is another model's, or not there."""
        from transformers import AutoModelForCausalLM

        try:
            kept = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
            self._model().load_state_dict(kept.state_dict())
            self._adamw().load_state_dict(torch.load(folder / _OPTIMIZER, map_location="cpu", weights_only=True))
        except Exception as error:  # whatever can be wrong with its files
            raise RecipeError(f"the implicit PRM cannot go on from {folder}: {error}") from error

    def _model(self) -> Any:
        return self._place.writer()[1]

    def _adamw(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(
                self._model().parameters(), lr=self._keys.learning_rate or 0.0, weight_decay=0.0
            )
        return self._optimizer


def _of_like_length(prompts: Sequence[StepPrompt], rows: range, size: int) -> Iterator[list[int]]:
    """Cut rows into micro-batches, longest first."""
    by_length = sorted(rows, key=lambda row: -len(prompts[row].tokens))
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]
