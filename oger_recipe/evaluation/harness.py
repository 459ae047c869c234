"""``oger eval``: a model's answers to benchmarks through vLLM, graded, on disk, and as a table.

Every sample has a seed of its own, made of the run's seed, its problem and its number: neither the order of the
problems nor the size of a batch decides what is sampled. Papers report avg@32 for AIME and AMC and avg@1 for the large
sets, at temperature 0.6; two tables can be compared when these settings, the prompts and the lengths are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from oger_recipe.data.rows import Row
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.tables import markdown_table
from oger_recipe.recipe import RecipeError
from oger_recipe.rewards.grading_pool import GradingPool, GradingSettings
from oger_recipe.rewards.verifiers import BOUNDED
from oger_recipe.seeds import stable_seed


@dataclass(frozen=True)
class EvalSettings:
    """What decides the numbers of an evaluation, besides its problems."""

    model: str
    revision: str | None = None
    n: int = 4
    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 2048
    seed: int = 0
    dtype: str = "auto"
    prompt_template: str | None = None
    system_prompt: str | None = None


@dataclass(frozen=True)
class EngineSettings:
    """What only decides how fast they come."""

    batch_size: int = 256
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9


def evaluate_model(
    settings: EvalSettings, engine: EngineSettings, benchmarks: dict[str, list[Row]], out: Path
) -> dict[str, Any]:
    """Answers what `out` does not have yet, grades, and writes results.json and results.md.

    Raises RecipeError when `out` holds an evaluation with other settings.
    """
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, asdict(settings) | {"problems": {name: len(rows) for name, rows in benchmarks.items()}})
    missing = {name: rows for name, rows in benchmarks.items() if not (out / f"{name}.jsonl").exists()}
    if missing:
        _answer_all(settings, engine, missing, out)
    records = [json.loads(line) for name in benchmarks for line in (out / f"{name}.jsonl").open(encoding="utf-8")]
    result = evaluate_answers(records)
    (out / "results.json").write_text(json.dumps(result, indent=2))
    table = markdown_table(result)
    too_long = sum(record["prompt_too_long"] for record in records) // settings.n
    if too_long:
        table += f"\n{too_long} problems do not fit the model's context and count as unsolved.\n"
    (out / "results.md").write_text(table)
    return result


def _claim(out: Path, facts: dict[str, Any]) -> None:
    path = out / "settings.json"
    if path.exists() and json.loads(path.read_text()) != facts:
        raise RecipeError(f"{out} holds an evaluation with other settings; choose another --out or remove it")
    path.write_text(json.dumps(facts, indent=2))


def _answer_all(settings: EvalSettings, engine: EngineSettings, benchmarks: dict[str, list[Row]], out: Path) -> None:
    import torch

    cpu = not torch.cuda.is_available()
    if cpu:
        from oger_recipe.cpu import CPU_ENVIRONMENT

        os.environ.update(CPU_ENVIRONMENT)
    from vllm import LLM

    try:
        llm = LLM(
            settings.model,
            revision=settings.revision,
            # On CPUs in float32: bfloat16 sums depend on who shares the batch far more often.
            dtype="float32" if cpu and settings.dtype == "auto" else settings.dtype,
            trust_remote_code=False,
            tensor_parallel_size=engine.tensor_parallel_size,
            seed=settings.seed,
            # Without CUDA a seeded request cannot be split over batches.
            **({"enforce_eager": True, "enable_chunked_prefill": False} if cpu else {}),
            **({} if cpu else {"gpu_memory_utilization": engine.gpu_memory_utilization}),
        )
    except (OSError, ValueError) as error:
        raise RecipeError(f"{settings.model} cannot be loaded: {error}") from None
    tasks = {row["task"] for rows in benchmarks.values() for row in rows} - BOUNDED
    with GradingPool(GradingSettings(preload=tuple(sorted(tasks)))) as pool:
        for name, rows in benchmarks.items():
            records = list(_answers(llm, settings, engine.batch_size, name, rows))
            _grade(records, pool)
            partial = out / f".{name}.jsonl"
            partial.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
            os.replace(partial, out / f"{name}.jsonl")  # whole, or not there: an interrupted one is done again


def prompt_text(row: Row, settings: EvalSettings, tokenizer: Any) -> str:
    """The prompt as the model gets it: by a named template, else the tokenizer's chat template, else as it is."""
    prompt = row["prompt"]
    template = TEMPLATES.get(settings.prompt_template or "chat")
    if template is not None and template.text is not None:
        if not isinstance(prompt, str):
            raise RecipeError(f"{row['uid']}: the prompt is a chat: use the chat template")
        return template.apply(prompt)
    if not tokenizer.chat_template:
        if settings.prompt_template == "chat" or not isinstance(prompt, str):
            raise RecipeError(f"{settings.model} has no chat template: choose a --prompt_template")
        return str(prompt)
    chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if settings.system_prompt:
        chat = [{"role": "system", "content": settings.system_prompt}, *chat]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


def _answers(
    llm: Any, settings: EvalSettings, batch_size: int, name: str, rows: list[Row]
) -> Iterator[dict[str, Any]]:
    """A record for every sample; problems whose prompt leaves no room for an answer get empty ones."""
    from vllm import TokensPrompt

    tokenizer = llm.get_tokenizer()
    context = llm.llm_engine.model_config.max_model_len
    requests: list[tuple[dict[str, Any], Any, Any]] = []
    for row in rows:
        prompt = prompt_text(row, settings, tokenizer)
        tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        room = context - len(tokens)
        for sample in range(settings.n):
            record = {"uid": row["uid"], "benchmark": name, "sample": sample, "prompt": prompt}
            record |= {"answer": row["answer"], "task": row["task"], "prompt_too_long": room < 1}
            if room < 1:
                yield record | {"text": "", "response_length": 0, "truncated": True}
                continue
            seed = stable_seed(settings.seed, name, row["uid"], sample)
            requests.append((record, TokensPrompt(prompt_token_ids=tokens), _sampling(settings, room, seed)))
    with tqdm(total=len(requests), desc=name, unit="answer") as bar:
        for start in range(0, len(requests), batch_size):
            batch = requests[start : start + batch_size]
            prompts, params = [prompt for _, prompt, _ in batch], [sampling for _, _, sampling in batch]
            outputs = llm.generate(prompts, params, use_tqdm=False)
            for (record, _, _), output in zip(batch, outputs, strict=True):
                tokens = output.outputs[0].token_ids
                text = tokenizer.decode(tokens, skip_special_tokens=True)
                truncated = output.outputs[0].finish_reason == "length"
                yield record | {"text": text, "response_length": len(tokens), "truncated": truncated}
            bar.update(len(batch))


def _sampling(settings: EvalSettings, room: int, seed: int) -> Any:
    from vllm import SamplingParams

    template = TEMPLATES.get(settings.prompt_template or "chat")
    return SamplingParams(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_tokens=min(settings.max_new_tokens, room),
        seed=seed,
        stop=list(template.stop) if template else None,
        include_stop_str_in_output=True,
    )


def _grade(records: list[dict[str, Any]], pool: GradingPool) -> None:
    """Adds the verdict to every record."""
    answers = [(record["task"], record["text"], record["answer"], None) for record in records]
    for record, graded in zip(records, pool.grade_many(answers, progress=True), strict=True):
        record |= verdict_fields(graded)


def verdict_fields(graded: Any) -> dict[str, Any]:
    """The part of an answer record that a `Graded` decides."""
    verdict = graded.verdict
    return {
        "score": verdict.score,
        "reward": verdict.reward,
        "format": verdict.components.get("format", 0.0),
        "extracted": verdict.extracted,
        "reason": verdict.reason,
        "graded": graded.error is None,
    }
