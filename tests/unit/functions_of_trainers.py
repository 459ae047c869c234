"""Reward functions as users of TRL and of verl have them in their files, and some that nobody could call."""

from __future__ import annotations

import asyncio
import re
from typing import Any


def in_form(completions, **kwargs):  # TRL, chat messages
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.fullmatch(r"<answer>.*</answer>", content) else 0.0 for content in contents]


def right(completions, ground_truth, **kwargs):  # TRL, texts, a column of the data
    return [1.0 if text == wanted else 0.0 for text, wanted in zip(completions, ground_truth, strict=True)]


def of_sums(prompts, completions, task):  # TRL, without **kwargs: None where the task is another one
    return [
        float(len(prompt) + len(text)) if name == "sums" and text else None
        for prompt, text, name in zip(prompts, completions, task, strict=True)
    ]


def told(completions, trainer_state=None, **kwargs):  # TRL: what it is handed
    assert trainer_state is None
    seen.append((completions, kwargs))
    return [float(len(text)) for text in completions]


seen: list[tuple[list[Any], dict[str, Any]]] = []


async def asked(prompts, completions, **kwargs):  # TRL
    heard.append(f"begins {prompts[0]}")
    await asyncio.sleep(0)
    heard.append(f"ends {prompts[0]}")
    if completions[0] == "raise":
        raise RuntimeError("no server")
    return [0.5] * len(completions)


heard: list[str] = []


def of_tokens(prompts, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def by_progress(completions, trainer_state):
    return [trainer_state.global_step / 100] * len(completions)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):  # verl
    if data_source != "sums":
        raise NotImplementedError(f"no score for {data_source}")
    score = float(solution_str == ground_truth) + extra_info.get("more", 0)
    return {"score": score, "acc": score >= 1, "pred": solution_str}


def number(solution_str, ground_truth, method="strict"):  # as verl's own, of one data set each
    return solution_str == ground_truth and method == "strict"


def to_a_router(solution_str, ground_truth, reward_router_address, **kwargs):
    return 0.0


async def awaited(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(0)
    return float(solution_str == ground_truth)


def batched(data_sources, solution_strs, ground_truths, extra_infos):  # verl's batch reward manager
    return [0.0] * len(solution_strs)


async def of_a_group(group):
    return [0.0] * len(group.responses)
