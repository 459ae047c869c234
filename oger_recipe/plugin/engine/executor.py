"""One rollout from its prompt to its reward: what is graded is what was sampled, and the verdict stays with it."""

from __future__ import annotations

import math
import os
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
        super().__init__(_with_variables(remote_rm_url))
        if self.reward_func is not None and _file(self.reward_func) == _file(own_reward_func):
            self.reward_func = _graded_here  # upstream has loaded the same module by its path

    async def execute(self, prompt: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        kwargs["hf_tokenizer"] = PromptAsWritten(kwargs["hf_tokenizer"], prompt)
        response: dict[str, Any] = await super().execute(prompt, *args, **kwargs)
        response["verdict"] = response["extra_logs"].pop(_VERDICT, None)
        return response if self.reward_func is _graded_here else _checked(response, prompt)


def _with_variables(urls: Any) -> Any:
    """Addresses of servers with what the environment has for their ``$NAMES``: no token is in a run's settings."""
    if isinstance(urls, str):
        return os.path.expandvars(urls) if "://" in urls else urls
    return [_with_variables(url) for url in urls] if isinstance(urls, list) else urls


def _checked(response: dict[str, Any], prompt: str) -> dict[str, Any]:
    """The response, graded by somebody else's function or server; what is no finite number is a failed grade.

    It would end in advantages, and then in parameters, that are not finite. Every rollout has the same extra logs.
    """
    logs = {"reward_error": 0.0} | response["extra_logs"]
    try:
        numbers = {name: _number(response[name]) for name in ("reward", "scores")}
    except (TypeError, ValueError) as error:
        failed(f"no reward: {error}", (prompt, prompt, response["label"]))
        return response | {"reward": 0.0, "scores": 0.0, "extra_logs": logs | {"reward_error": 1.0}}
    return response | numbers | {"extra_logs": logs}


def _number(value: Any) -> float:
    """Of a number, or a list, an array or a tensor of one."""
    if isinstance(value, list | tuple):
        (value,) = value
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def _file(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _graded_here(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """reward_func for one query, with the verdict's fields among the extra logs."""
    (sample,) = grade_samples(list(zip(queries, prompts, labels, strict=True)))
    answer = answer_of([sample.values])
    verdict = verdict_fields(sample.graded) if sample.graded else None
    return answer | {"extra_logs": answer["extra_logs"] | {_VERDICT: verdict}}
