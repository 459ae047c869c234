"""One rollout from its prompt to its reward: what is graded is what was sampled, and the verdict stays with it."""

from __future__ import annotations

import math
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

from oger_recipe.evaluation.records import verdict_fields
from oger_recipe.rewards.reward_func import reward_func as own_reward_func
from oger_recipe.rewards.samples import answer_of, failed, grade_samples

_VERDICT = "verdict"  # among the extra logs on its way through upstream's executor


class PromptAsWritten:
    """A tokenizer for one rollout, which decodes a sequence to the prompt as it was written and the decoded response.

    The reward function cuts the response off by the prompt's text, and not every tokenizer gives that text back: some
    drop its special tokens, others put one in front.
    """

    def __init__(self, tokenizer: Any, prompt: str) -> None:
        self._tokenizer, self._prompt, self._prompt_tokens = tokenizer, prompt, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        encoded = self._tokenizer(*args, **kwargs)
        self._prompt_tokens = encoded["input_ids"].shape[-1]
        return encoded

    def decode(self, tokens: list[int], **kwargs: Any) -> str:
        if not self._prompt_tokens:  # with images, upstream's processor makes the prompt's tokens
            return str(self._tokenizer.decode(tokens, **kwargs))
        return self._prompt + str(self._tokenizer.decode(tokens[self._prompt_tokens :], **kwargs))


class OgerExecutor(SingleTurnAgentExecutor):
    """OpenRLHF's executor of single turns; its responses have the whole ``verdict`` where this recipe graded them."""

    def __init__(self, remote_rm_url: Any) -> None:
        super().__init__(remote_rm_url)
        if self.reward_func is not None and _file(self.reward_func) == _file(own_reward_func):
            self.reward_func = _graded_here  # upstream has loaded the same module by its path

    async def execute(self, prompt: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        kwargs["hf_tokenizer"] = PromptAsWritten(kwargs["hf_tokenizer"], prompt)
        response: dict[str, Any] = await super().execute(prompt, *args, **kwargs)
        response["verdict"] = response["extra_logs"].pop(_VERDICT, None)
        return response if self.reward_func is _graded_here else _finite(response, prompt)


def _finite(response: dict[str, Any], prompt: str) -> dict[str, Any]:
    """The response, graded by somebody else's function or server; a reward that is not finite is a failed grade.

    It would end in advantages, and then in parameters, that are not finite. Every rollout has the same extra logs.
    """
    numbers = {name: response[name] for name in ("reward", "scores") if response[name] is not None}
    logs = {"reward_error": 0.0} | response["extra_logs"]
    for name, number in numbers.items():
        if not math.isfinite(number):
            failed(f"{name} is {float(number)}, not a finite number", (prompt, prompt, response["label"]))
            return response | {"reward": 0.0, "scores": 0.0, "extra_logs": logs | {"reward_error": 1.0}}
    return response | {"extra_logs": logs}


def _file(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _graded_here(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """reward_func for one query, with the verdict's fields among the extra logs."""
    (sample,) = grade_samples(list(zip(queries, prompts, labels, strict=True)))
    answer = answer_of([sample.values])
    verdict = verdict_fields(sample.graded) if sample.graded else None
    return answer | {"extra_logs": answer["extra_logs"] | {_VERDICT: verdict}}
