"""How likely the policy finds texts that it did not sample: what a grader reads, and teachers' answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.base.cutting import token_bytes
from oger_recipe.base.errors import SourceFailed
from oger_recipe.grading.verifiers.boxed import answer_place
from oger_recipe.models.asking import ask_about
from oger_recipe.models.likelihood import likelihood_reply
from oger_recipe.rewards.place import Likelihoods, Reply, StepPrompt
from oger_recipe.teachers.store import Teacher

Cut = Callable[[list[Experience]], list[Experience]]  # rows into padded micro-batches, with their ``index``


class PolicyLikelihoods:
    """The policy as a place that says how likely it finds given texts (rewards/place.py, Likelihoods).

    They take the way of the rollouts' own log-probabilities: the same micro-batches, actors and temperature.
    """

    def __init__(self, group: Any, cut: Cut, args: Any, method: str = "forward") -> None:
        """``group``: OpenRLHF's group of the policy's actors; ``cut``: cuts rows as those of a step; ``method``: which
        of theirs is asked, ``forward`` (of the policy as it stands) or ``forward_grader``."""
        self._group, self._cut, self._frees, self._method = group, cut, args.train.colocate_all, method
        self._copies = args.ds.ring_attn_size * args.ds.tensor_parallel_size
        self._ranks = args.actor.num_nodes * args.actor.num_gpus_per_node // self._copies

    def open(self) -> None:
        pass

    def close(self) -> None:
        if self._frees:
            ray.get(self._group.async_run_method(method_name="empty_cache"))

    def log_probs(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        if not prompts:
            return []
        # Ranks wait for each other, so they get equally many rows: copies of the shortest make up for those that lack.
        shortest = min(prompts, key=lambda prompt: len(prompt.tokens))
        rows = [*prompts, *[shortest] * (-len(prompts) % self._ranks)]
        batches = self._cut([_sample(prompt) for prompt in rows])
        of_ranks = self._group.async_run_method_batch(
            method_name=self._method,
            sequences=[batch.sequences for batch in batches],
            action_mask=[batch.action_mask for batch in batches],
            attention_mask=[batch.attention_mask for batch in batches],
        )
        found: dict[int, Reply] = {}
        answers = chain.from_iterable(ray.get(of_ranks)[:: self._copies])
        for batch, (log_probs, *_) in zip(batches, answers, strict=True):
            for place, row in enumerate(batch.index):
                numbers = log_probs[place][batch.action_mask[place].bool()]
                found[row] = likelihood_reply(rows[row], numbers.tolist())
        return [found[row] for row in range(len(prompts))]


def _sample(prompt: StepPrompt) -> Experience:
    """Make a row of OpenRLHF's, [1, T], whose actions are the tokens behind the prompt's first end."""
    sequences = torch.tensor([prompt.tokens])
    action_mask = torch.zeros_like(sequences)[:, 1:]
    action_mask[:, prompt.ends[0] :] = 1
    total = torch.tensor([float(sequences.shape[1])])
    return Experience(
        sequences=sequences, attention_mask=torch.ones_like(sequences), action_mask=action_mask, total_length=total
    )


class AnswerLikelihoods:
    """How likely the policy finds teachers' answers after their reasoning (AMPO, arXiv 2510.02227): the mean
    probability of an answer's tokens, as the teacher has written them (grading/verifiers/boxed.py, answer_place)."""

    def __init__(self, place: Likelihoods, tokenizer: Any) -> None:
        self._place, self._tokenizer = place, tokenizer

    def of(
        self, groups: Sequence[tuple[Sequence[int], Sequence[Teacher]]]
    ) -> tuple[list[list[Teacher]], dict[str, float]]:
        """Return the teachers of each group with how likely their answers are, None where that is not known; metrics.

        ``groups``: a prompt's tokens, and its teachers.
        Raises:
            SourceFailed: the policy, asked about some, has answered for none.
        """
        started = time.monotonic()
        asked = [self._text(prompt, teacher) for prompt, teachers in groups for teacher in teachers]
        replies = ask_about(self._place, asked, self._place.log_probs)
        told = [reply for text, reply in zip(asked, replies, strict=True) if isinstance(text, StepPrompt)]
        if told and all(reply.error is not None for reply in told):
            raise SourceFailed(f"oger.teacher_draw likeliest_answer: {told[0].error}")
        found = [None if reply.error is not None else _mean_probability(reply) for reply in replies]
        given, known = iter(found), [likelihood for likelihood in found if likelihood is not None]
        metrics = {"timing/answer_likelihoods": time.monotonic() - started}
        if known:
            metrics["oger/answer_likelihood"] = statistics.fmean(known)
        return [[replace(each, likelihood=next(given)) for each in teachers] for _, teachers in groups], metrics

    def _text(self, prompt: Sequence[int], teacher: Teacher) -> StepPrompt | Reply:
        """Write a teacher's trajectory up to the last token of its answer, behind the prompt."""
        pieces = token_bytes(self._tokenizer, teacher.tokens)
        text = b"".join(pieces).decode(errors="surrogateescape")
        begin, end = (len(text[:place].encode(errors="surrogateescape")) for place in answer_place(text))
        answer, read = [], 0
        for token, piece in enumerate(pieces):
            if piece and read < end and read + len(piece) > begin:
                answer.append(token)
            read += len(piece)
        if not answer:
            return Reply(error="the teacher's trajectory has no answer")
        length = len(prompt)
        return StepPrompt((*prompt, *teacher.tokens[: answer[-1] + 1]), (length + answer[0] - 1, length + answer[-1]))


def _mean_probability(reply: Reply) -> float:
    return statistics.fmean(torch.tensor(reply.log_probs).exp().tolist())
