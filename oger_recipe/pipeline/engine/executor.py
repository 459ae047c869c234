"""One rollout from its prompt to its reward: what is graded is what was sampled, and the verdict stays with it."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

from oger_recipe.base.ranges import reward_fault
from oger_recipe.grading.samples import answer_of, failed, grade_samples
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.rewards.reward_func import reward_func as own_reward_func

_GRADED = "graded"  # among the extra logs on its way through upstream's executor


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
    """OpenRLHF's executor of single turns; each of its responses has ``graded``, whoever graded it."""

    reward_func: Any  # upstream's; None without a reward file

    def __init__(self, remote_rm_url: Any) -> None:
        super().__init__(_with_variables(remote_rm_url))
        if self.reward_func is not None and _file(self.reward_func) == _file(own_reward_func):
            self.reward_func = _graded_here  # upstream has loaded the same module by its path

    async def execute(self, prompt: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        kwargs["hf_tokenizer"] = PromptAsWritten(kwargs["hf_tokenizer"], prompt)
        response: dict[str, Any] = await super().execute(prompt, *args, **kwargs)
        graded = response["extra_logs"].pop(_GRADED, None)
        return _checked(response, prompt, graded)

    async def _fetch_rewards_via_http(self, *samples: Any) -> list[dict[str, Any]]:
        """Ask the servers; from `oger serve-reward` the verdicts come whole."""
        answers: list[dict[str, Any]] = await super()._fetch_rewards_via_http(*samples)
        for answer in answers:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # another server: it has numbers alone
                (document,) = answer["graded"]
                answer["extra_logs"][_GRADED] = Graded.from_json(document)
        return answers


def _with_variables(urls: Any) -> Any:
    """Put what the environment has for ``$NAMES`` into addresses of servers: no token is in a run's settings."""
    if isinstance(urls, str):
        return os.path.expandvars(urls) if "://" in urls else urls
    return [_with_variables(url) for url in urls] if isinstance(urls, list) else urls


def _checked(response: dict[str, Any], prompt: str, graded: Graded | None) -> dict[str, Any]:
    """Add the verdict to a response; where another server or function graded it, one made of its numbers.

    What cannot be a reward is a failed grade: it would end in advantages, and then in losses, that are not finite.
    Every rollout has the same extra logs.
    """
    logs = {"reward_error": 0.0} | response["extra_logs"]
    try:
        reward, score = _number(response["reward"]), _number(response["scores"])
    except (TypeError, ValueError) as error:
        graded = failed(f"no reward: {error}", (prompt, prompt, response["label"]))
        return response | {"reward": 0.0, "scores": 0.0, "extra_logs": logs | {"reward_error": 1.0}, "graded": graded}
    return response | {
        "reward": reward,
        "scores": score,
        "extra_logs": logs,
        "graded": graded or _of_numbers(reward, score, response["extra_logs"]),
    }


def _of_numbers(reward: float, score: float, logs: dict[str, Any]) -> Graded:
    components = {}
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError):
            components[name] = _number(value)
    error = "the reward function says that it failed (reward_error)" if components.get("reward_error") else None
    right = float(score > 0)  # as solve rates count it
    return Graded(Verdict(reward, right, "", components), error)


def _number(value: Any) -> float:
    """Read a reward, or a list, an array or a tensor of one. Raises ValueError and TypeError for others."""
    if isinstance(value, list | tuple):
        (value,) = value
    number = float(value)
    if fault := reward_fault(number):
        raise ValueError(f"{number:g} is {fault}")
    return number


def _file(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _graded_here(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """Do what reward_func does for one query, and put the whole verdict among the extra logs."""
    graded = grade_samples(list(zip(queries, prompts, labels, strict=True)))
    answer = answer_of(graded)
    return answer | {"extra_logs": answer["extra_logs"] | {_GRADED: graded[0]}}
