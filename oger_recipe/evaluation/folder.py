"""The folder of an evaluation: what it is of, which answers are there, which are missing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_write, read_jsonl, to_json, write_jsonl
from oger_recipe.evaluation.benchmarks import Problem
from oger_recipe.evaluation.prompts import Prompting
from oger_recipe.evaluation.sampling import Model, Sampling
from oger_recipe.grading.rules import GradingRules

SETTINGS = "settings.json"

# A line of answers/<benchmark>.jsonl, one for each sampled answer, the same from `oger eval` and from a training run:
# uid, benchmark, sample (0 to n-1), prompt (as sent), text (without special tokens), answer (the reference), score,
# reward, format, extracted, reason, components, solution (where the verifier says one), response_length (tokens),
# truncated, graded (false: it failed).
Record = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """A problem as it is sent."""

    problem: Problem
    text: str
    tokens: list[int]


def settings_of(
    model: Model,
    dtype: str,
    prompting: Prompting,
    sampling: Sampling,
    rules: GradingRules,
    prompts: dict[str, list[Prompt]],
) -> dict[str, Any]:
    """Collect what an answer and its verdict depend on, and nothing else: neither the number of samples (each has a
    seed of its own) nor batch size nor where files lie."""
    drawn = {name: value for name, value in asdict(sampling).items() if name != "n"}
    if sampling.steps is None:  # as in folders from before there were steps
        del drawn["steps"]
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
    """Identify the weights, which a later training run may replace: by a hub model's commit, None where that is not
    known, or by a hash of the sizes and times of a folder's files."""
    folder = Path(model.name)
    if folder.is_dir():
        files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
        return _digest([[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files])
    cached = try_to_load_from_cache(model.name, "tokenizer_config.json", revision=model.revision)
    return Path(cached).parent.name if isinstance(cached, str) else None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def opened(out: Path | None, model: Model, settings: dict[str, Any]) -> Path:
    """Open the evaluation's folder and write its settings.json. Raises RecipeError if it holds anything else."""
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
        raise RecipeError(f"{folder} exists and is not an evaluation; choose another folder with --out")
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    file.write_text(to_json(settings, indent=2) + "\n")
    return folder


def answers_path(folder: Path, benchmark: str) -> Path:
    return folder / "answers" / f"{benchmark}.jsonl"


def samples_of(prompt: Prompt, sampling: Sampling) -> int:
    """Return the number of samples of one problem: 1 for greedy decoding, whose answers are all the same."""
    return 1 if sampling.is_greedy else sampling.n * prompt.problem.times_asked


def missing_samples(folder: Path, name: str, prompts: list[Prompt], sampling: Sampling) -> list[tuple[Prompt, int]]:
    """Return the samples that are not on disk: (prompt, number)."""
    there = {(record["uid"], record["sample"]) for record in read_jsonl(answers_path(folder, name))}
    asked = [(prompt, sample) for prompt in prompts for sample in range(samples_of(prompt, sampling))]
    return [(prompt, sample) for prompt, sample in asked if (prompt.problem.uid, sample) not in there]


def sorted_records(folder: Path, name: str, prompts: list[Prompt], sampling: Sampling) -> list[Record]:
    """Return the answers that were asked for, and sort their file by problem and sample: no chance is left in it."""
    path = answers_path(folder, name)
    place = {prompt.problem.uid: number for number, prompt in enumerate(prompts)}
    kept = read_jsonl(path)
    records = sorted(kept, key=lambda record: (place[record["uid"]], record["sample"]))
    if records != kept:
        with atomic_write(path) as partial:
            write_jsonl(records, partial)
    return [record for record in records if record["sample"] < samples_of(prompts[place[record["uid"]]], sampling)]


def drop_cut_line(path: Path) -> None:
    """Drop a half-written last line that a kill may have left, which would spoil the next line appended."""
    if path.exists():
        records = read_jsonl(path)
        with atomic_write(path) as partial:
            write_jsonl(records, partial)
