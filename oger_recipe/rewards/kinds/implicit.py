"""Scorer implicit of kind process (PRIME): how much likelier a model finds a step than its reference does. The model
may learn from the verified outcomes of each step's rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from oger_recipe.algorithm.implicit import implicit_step_rewards, outcome_accuracy, outcome_losses, pair_accuracy
from oger_recipe.algorithm.steps import AGGREGATES
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import COUNT, POSITIVE, SHARE
from oger_recipe.models.asking import Judged, ask_about
from oger_recipe.models.in_process import InProcess, batches, padded
from oger_recipe.models.keys import ModelKeys, Question, StepKeys, WriterKeys
from oger_recipe.models.likelihood import padded_log_probs, response_log_probs, step_index, written
from oger_recipe.models.places import likelihoods_of
from oger_recipe.models.tokens import load_tokenizer
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.kinds.process import ProcessSource
from oger_recipe.rewards.place import Likelihoods, Reply, StepPrompt
from oger_recipe.rewards.sources import Group, Scores, Source
from oger_recipe.rewards.spec import FLIPS, SourceSpec, Surroundings

UPDATES = ("before", "after")
_OPTIMIZER = "optimizer.pt"
_OF_LEARNING = ("update", "batch_size", "micro_batch_size", "max_grad_norm")


@dataclass(frozen=True, kw_only=True)
class ImplicitKeys(StepKeys):
    """An implicit PRM (PRIME): how much likelier the model finds a step than a reference does; it may learn from
    verified outcomes."""

    gives_rewards: ClassVar[bool] = True
    if_multiplied: ClassVar[str] = FLIPS

    reference: str | None = key(
        None,
        (
            "folder or hub name of the reference, a model with the same tokenizer (default: the model's "
            "initial weights)"
        ),
    )
    update: str = key(
        "before",
        "learn from a step's rollouts before rewarding them, which takes one more forward pass, or after",
        choices=UPDATES,
    )
    aggregate: str = key("sum", "how to aggregate the rewards of a row's steps", choices=AGGREGATES)
    beta: float = key(0.05, "beta: reward per nat of the log-likelihood ratio of model and reference", range=POSITIVE)
    learning_rate: float | None = key(
        None,
        "learning rate for training the model on the outcomes of each step's rollouts (default: no training)",
        range=SHARE,
    )
    batch_size: int | None = key(None, "rows per update (default: all rows of a step)", range=COUNT)
    micro_batch_size: int = key(8, "rows in memory at a time", range=COUNT)
    max_grad_norm: float = key(1.0, "gradient clipping norm", range=POSITIVE)

    @property
    def bounds(self) -> None:
        return None

    @property
    def learns(self) -> bool:
        return bool(self.learning_rate)

    @property
    def runs_on(self) -> str:
        return self.place or ("server" if self.url else "in_process" if self.learns else "engine")

    @property
    def models(self) -> tuple[ModelKeys, ...]:
        """The model's keys and the reference's. A model that learns is float32: steps of 1e-6 are lost in 16 bits."""
        shared = {each.name: getattr(self, each.name) for each in fields(ModelKeys)}
        shared |= {"place": self.runs_on, "cache": False}
        model = WriterKeys(**shared)
        reference = model
        if self.reference not in (None, self.model):
            reference = WriterKeys(**shared | {"model": self.reference, "revision": None, "tokenizer": None})
        return (replace(model, dtype="float32") if self.learns else model), reference

    def questions(self) -> list[Question]:
        room = int(self.runs_on == "engine")  # vLLM says no log-probabilities of a prompt without a reply
        return [Question(model, room=room) for model in self.models]

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        model, reference = self.models
        by_reference = likelihoods_of(reference, surroundings)
        if not self.learns:
            return ImplicitSource(self, ImplicitScorer(self, likelihoods_of(model, surroundings), by_reference))
        learning = InProcess(model, told=surroundings.told)
        return LearningSource(self, ImplicitScorer(self, learning, by_reference), Learner(self, learning))

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.runs_on == "server":
            yield (
                "scorer implicit runs in this process or in an engine of the run, since few servers say how likely "
                "they find given tokens: leave out url"
            )
        if self.learns and self.runs_on == "engine":
            yield "learning_rate with place engine: an engine cannot train its model; use place in_process"
        if self.learns and self.dtype not in ("auto", "float32"):
            yield f"dtype {self.dtype} with learning_rate: a model that learns is kept in float32; leave dtype out"
        if not self.learns and self.reference in (None, self.model):
            yield (
                "reference is the model itself, and without learning_rate every reward would be 0: name a reference, "
                "or a learning_rate (PRIME: 1e-6)"
            )
        for name in _OF_LEARNING:
            if not self.learns and getattr(self, name) != getattr(ImplicitKeys, name):
                yield f"{name} is for a model that learns (learning_rate)"
        if self.scale != StepKeys.scale:
            yield "scale is for probabilities, and scorer implicit gives rewards: leave it out"
        if self.aggregate == "product":
            yield "aggregate product: scorer implicit gives rewards, not probabilities: use sum, mean, min or last"
        if not self.cache:
            yield "cache is for replies, and scorer implicit keeps none; leave it out"


@dataclass(frozen=True)
class Learnt:
    """The result of learning from responses: the reward of each before it was learnt from, [B], the mean loss, and the
    mean norm of the gradients before they were clipped (nan without an update). updates: skipped ones included;
    skipped_in_a_row: the longest series that reaches into this call."""

    rewards: Tensor
    loss: float
    grad_norm: float
    updates: int
    skipped: int
    skipped_in_a_row: int


class Learner:
    """Trains the model of a place, with AdamW, without weight decay and dropout. Weights and optimizer are float32."""

    def __init__(self, keys: ImplicitKeys, place: InProcess) -> None:
        self._keys, self._place = keys, place
        self._optimizer: torch.optim.Optimizer | None = None
        self._in_a_row = 0  # updates skipped; in no checkpoint, as the policy's (pipeline/policy/updates.py)

    def learn(
        self, prompts: Sequence[StepPrompt], reference: Sequence[Sequence[float]], outcomes: Sequence[float]
    ) -> Learnt:
        """Learn from responses, the reference's log-probabilities of their tokens, and outcomes (1: right, or 0).

        Skips an update whose gradient is not finite.
        """
        rewards, norms, longest = torch.zeros(len(prompts)), [], 0
        size = self._keys.batch_size or len(prompts)
        for start in range(0, len(prompts), size):
            rows = range(start, min(start + size, len(prompts)))
            norms.append(self._update(prompts, reference, torch.tensor(outcomes), rows, rewards))
            self._in_a_row = 0 if math.isfinite(norms[-1]) else self._in_a_row + 1
            longest = max(longest, self._in_a_row)
        losses = outcome_losses(rewards, torch.tensor(outcomes))
        made = [norm for norm in norms if math.isfinite(norm)]
        mean = sum(made) / len(made) if made else math.nan
        return Learnt(rewards, losses.mean().item(), mean, len(norms), len(norms) - len(made), longest)

    @torch.enable_grad()  # the controller works without gradients
    def _update(
        self,
        prompts: Sequence[StepPrompt],
        reference: Sequence[Sequence[float]],
        outcomes: Tensor,
        rows: range,
        rewards: Tensor,
    ) -> float:
        """Take an optimizer step on these rows' mean loss, unless the gradient's norm is not finite; fill in their
        rewards [B], return the norm."""
        model, optimizer = self._model(), self._adamw()
        optimizer.zero_grad()
        for part in batches({row: prompts[row].tokens for row in rows}, self._keys.micro_batch_size):
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
        if math.isfinite(norm):
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
            raise RecipeError(f"the implicit PRM cannot resume from {folder}: {error}") from error

    def _model(self) -> Any:
        return self._place.writer()[1]

    def _adamw(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(
                self._model().parameters(), lr=self._keys.learning_rate or 0.0, weight_decay=0.0
            )
        return self._optimizer


class ImplicitScorer:
    """A model and its reference. Prompts are read as they are, with the template that is in them."""

    def __init__(self, keys: ImplicitKeys, model: Likelihoods, reference: Likelihoods) -> None:
        self._keys, self._model, self._reference = keys, model, reference
        self._known: dict[StepPrompt, Reply] = {}

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Judged]:
        texts = self.write(prompts, steps)
        of_model, of_reference = ask_about(self._model, texts, self._model.log_probs), self.by_reference(texts)
        failed = [one if one.error else other for one, other in zip(of_model, of_reference, strict=True)]
        there = [row for row, reply in enumerate(failed) if reply.error is None]
        rewards = implicit_step_rewards(
            padded_log_probs([of_model[row].log_probs for row in there]),
            padded_log_probs([of_reference[row].log_probs for row in there]),
            step_index([text for text in map(texts.__getitem__, there) if isinstance(text, StepPrompt)]),
            beta=self._keys.beta,
        )
        found = iter(rewards.tolist())
        return [
            Judged(steps=tuple(next(found)[: len(cut)])) if reply.error is None else Judged.failed(reply)
            for reply, cut in zip(failed, steps, strict=True)
        ]

    @cached_property
    def tokenizer(self) -> Any:
        return _common_tokenizer(self._keys)

    def write(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[StepPrompt | Reply]:
        return [written(self.tokenizer, prompt, cut) for prompt, cut in zip(prompts, steps, strict=True)]

    def turn(self, question: str) -> str:
        if not self.tokenizer.chat_template:
            return question
        turn = [{"role": "user", "content": question}]
        return str(self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))

    def by_reference(self, texts: Sequence[StepPrompt | Reply]) -> list[Reply]:
        """Ask the reference about each text, once until `forget`."""
        new = [text for text in dict.fromkeys(texts) if isinstance(text, StepPrompt) and text not in self._known]
        self._known |= dict(zip(new, ask_about(self._reference, new, self._reference.log_probs), strict=True))
        return [text if isinstance(text, Reply) else self._known[text] for text in texts]

    def forget(self) -> None:
        self._known.clear()


def _common_tokenizer(keys: ImplicitKeys) -> Any:
    """Load the tokenizer. Raises RecipeError if the reference has another."""
    model, reference = keys.models
    tokenizer = load_tokenizer(model)
    if reference.tokenizer_files != model.tokenizer_files:
        if load_tokenizer(reference).get_vocab() != tokenizer.get_vocab():
            raise RecipeError(
                f"the tokenizers of {keys.model} and of its reference {keys.reference} differ: scorer implicit "
                "compares the likelihoods of the same tokens under both"
            )
    return tokenizer


class ImplicitSource:
    """Rewards of the steps behind the policy's prompt. Where a group has none, its question is a user's turn in the
    chat template, where the tokenizer has one."""

    def __init__(self, keys: ImplicitKeys, scorer: ImplicitScorer) -> None:
        self.scorer = scorer
        self._source = ProcessSource(keys, scorer, metrics=lambda judged: {}, worst=None)

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        as_read = [
            replace(group, question=group.prompt or self.scorer.turn(group.question), row={}) for group in groups
        ]
        try:
            return self._source.score(as_read, wanted)
        finally:
            self.scorer.forget()


class LearningSource(ImplicitSource):
    """An implicit PRM that learns, whatever the gate, from all of the policy's own rollouts that have a verdict."""

    def __init__(self, keys: ImplicitKeys, scorer: ImplicitScorer, learner: Learner) -> None:
        super().__init__(keys, scorer)
        self._keys, self._learner = keys, learner

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        if self._keys.update == "before":
            learnt = self._learn(groups)
            scores = super().score(groups, wanted)
        else:
            scores = super().score(groups, wanted)
            learnt = self._learn(groups)
        self.scorer.forget()
        return replace(scores, metrics={**scores.metrics, **learnt})

    def save(self, folder: Path) -> None:
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        self._learner.load(folder)

    def _learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """Learn from the rows that can be read; return the metrics."""
        rows = [(group, row) for group in range(len(groups)) for row in _own_rows(groups[group])]
        texts = self.scorer.write(
            [groups[group].prompt for group, _ in rows], [groups[group].steps[row] for group, row in rows]
        )
        replies = self.scorer.by_reference(texts)
        known = [number for number, reply in enumerate(replies) if reply.error is None]
        if not known:
            return {"learnt_rows": 0.0}
        places = [rows[number] for number in known]
        outcomes = [float(groups[group].graded[row].verdict.score > 0) for group, row in places]
        learnt = self._learner.learn(
            [text for text in map(texts.__getitem__, known) if isinstance(text, StepPrompt)],
            [replies[number].log_probs for number in known],
            outcomes,
        )
        return {
            "learnt_rows": float(len(known)),
            "loss": learnt.loss,
            "grad_norm": learnt.grad_norm,
            "updates": float(learnt.updates),
            "skipped_updates": float(learnt.skipped),
            "skipped_in_a_row": float(learnt.skipped_in_a_row),
            "accuracy": outcome_accuracy(learnt.rewards, torch.tensor(outcomes)).item(),
            **_pair_accuracy(places, learnt.rewards, outcomes, groups),
        }


def _own_rows(group: Group) -> Iterator[int]:
    """Yield the policy's own rows with steps and a verified outcome: what teachers write is right nearly always."""
    for row, (graded, steps) in enumerate(zip(group.graded, group.steps, strict=True)):
        if steps and graded.error is None and not group.is_teacher[row]:
            yield row


def _pair_accuracy(
    places: Sequence[tuple[int, int]], rewards: Tensor, outcomes: Sequence[float], groups: Sequence[Group]
) -> dict[str, float]:
    """Return pair_accuracy; {} if no prompt has right and wrong rows."""
    shape = len(groups), len(groups[0].responses)
    of_rows, right, counted = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for place, reward, outcome in zip(places, rewards, outcomes, strict=True):
        of_rows[place], right[place], counted[place] = reward, outcome, True
    share = pair_accuracy(of_rows, right, counted)
    return {} if share.isnan() else {"pair_accuracy": share.item()}
