"""`oger prm train`: a model that scores steps of reasoning, made of labelled ones by transformers' Trainer."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_folder, atomic_write, to_json, write_jsonl
from oger_recipe.base.remote_code import Named, refusals
from oger_recipe.data.labelled_steps import Solution, is_apart, stepwise_record
from oger_recipe.evaluation.prm_metrics import solution_metrics
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.step_text import StepWriter
from oger_recipe.models.tokens import load_tokenizer
from oger_recipe.prm.hf_trainer import save, trained
from oger_recipe.prm.learning import Row, make_rows, probabilities, verdicts
from oger_recipe.prm.options import Training

THRESHOLD = 0.5  # of a step's probability, in the report; not tuned on the held-out rows
REPORT = "prm.json"


def prm_keys(entry: Mapping[str, Any]) -> ProcessKeys:
    """Read the keys of an entry of kind process that say how a PRM reads and scores. Raises RecipeError."""
    if problems := list(ProcessKeys.problems(entry)):
        raise RecipeError("\n  - ".join(["this PRM cannot be made:", *problems]))
    keys = ProcessKeys.of(entry)
    return keys


def train(
    entry: Mapping[str, Any], solutions: Sequence[Solution], data: Sequence[str], how: Training, out: Path
) -> dict[str, Any]:
    """Train the model of an entry of kind process, write it to ``out``, and return the report.

    The folder appears when all is done; until then ``OUT.training`` beside it has the checkpoints, from which the same
    command goes on. Raises RecipeError for what cannot work, before the model is loaded where possible.
    """
    keys = prm_keys(entry)
    work = Path(f"{out}.training")
    settings = {"entry": dict(entry), "data": [str(each) for each in data], "settings": asdict(how)}
    settings |= {"solutions": hashlib.sha256(repr(solutions).encode()).hexdigest()[:16]}
    if out.exists():
        raise RecipeError(f"--out {out} exists: remove it, or choose another one")
    _check_model(keys)
    tokenizer = load_tokenizer(keys)
    writer = StepWriter(keys, tokenizer)
    apart = [is_apart(each, how.held_out, how.seed, "held out") for each in solutions]
    (training, counts), (held_out, counts_held_out) = (
        make_rows(
            [each for each, is_out in zip(solutions, apart, strict=True) if is_out is part], writer, how.max_length
        )
        for part in (False, True)
    )
    _check(training, held_out, counts, how)
    of_verdicts = verdicts(keys, tokenizer)
    resumes = _opened(work, settings)
    print(f"training: {_counted(counts)}\nheld out: {_counted(counts_held_out)}", flush=True)
    started = time.monotonic()
    model = trained(keys, of_verdicts, training, how, work, resumes=resumes)
    report: dict[str, Any] = settings | {"counts": counts, "held_out_counts": counts_held_out}
    report |= {"seconds": round(time.monotonic() - started, 1)}
    report |= {"held_out": held_out_metrics(keys, tokenizer, model, held_out, how.micro_batch_size)}
    with atomic_folder(out) as folder:
        save(model, tokenizer, folder)
        (folder / REPORT).write_text(to_json(report, indent=2) + "\n")
        write_jsonl((stepwise_record(row.solution) for row in held_out), folder / "held_out.jsonl")
    shutil.rmtree(work)
    return report


def entry_of(entry: Mapping[str, Any], out: Path) -> str:
    """Write the entry for oger.reward.sources, as YAML."""
    own = {name: value for name, value in entry.items() if name not in ("model", "place", "revision")}
    shown = {"name": "prm", "kind": "process", "model": str(out)} | own
    return yaml.safe_dump(shown, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000).strip()


def held_out_metrics(
    keys: ProcessKeys, tokenizer: Any, model: Any, rows: Sequence[Row], batch_size: int
) -> dict[str, Any]:
    """Compute the metrics of `solution_metrics` at THRESHOLD; {} without rows."""
    if not rows:
        return {}
    scores = probabilities(keys, tokenizer, model, rows, batch_size)
    labels = [row.labels for row in rows]
    return solution_metrics(labels, scores, [row.solution.question for row in rows], THRESHOLD, seed="held out")


def _opened(work: Path, settings: Mapping[str, Any]) -> bool:
    """Write the settings to ``work``; say if it has checkpoints of this training. Raises RecipeError for another's."""
    file = work / "settings.json"
    wanted = json.loads(json.dumps(settings))
    if file.is_file():
        there = json.loads(file.read_text())
        is_begun = any(work.glob("checkpoint-*"))
        if there == wanted:
            return is_begun
        if is_begun:
            differing = [f"{part}.{name}" for part in ("entry", "settings") for name in wanted[part] | there[part]
                         if wanted[part].get(name) != there[part].get(name)]  # fmt: skip
            differing += [part for part in ("data", "solutions") if there.get(part) != wanted[part]]
            raise RecipeError(
                f"{work} holds an interrupted training with other settings ({', '.join(differing)} differ): give "
                "the same ones to resume it, remove that folder, or choose another --out"
            )
    elif work.exists():
        raise RecipeError(f"{work} exists and is not a training: remove it, or choose another --out")
    with atomic_write(file) as partial:
        partial.write_text(to_json(wanted, indent=2) + "\n")
    return False


def _check_model(keys: ProcessKeys) -> None:
    """Raise RecipeError for a model that is not there, or brings code of its own."""
    folder = Path(keys.model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise RecipeError(f"{folder} is not a model folder: it has no config.json")
    if not folder.is_dir() and (keys.model.startswith((".", "/", "~")) or keys.model.count("/") > 1):
        raise RecipeError(f"{folder}: no such model folder")
    for refusal in refusals(Named("--model", keys.model, keys.revision)):
        raise RecipeError(refusal)


def _check(rows: Sequence[Row], held_out: Sequence[Row], counts: Mapping[str, int], how: Training) -> None:
    if not rows:
        raise RecipeError(
            f"nothing to train on: none of {counts['too_long'] + counts['unwritable']} solutions has a labelled "
            f"step within --max_length {how.max_length}"
        )
    labels = {label > 0 for row in rows for label in row.labels if label is not None}
    if len(labels) == 1:
        raise RecipeError(
            f"all labelled steps to train on are {'good' if labels.pop() else 'bad'}: training needs good and bad ones"
        )
    if how.held_out and not held_out:
        raise RecipeError(f"--held_out {how.held_out} leaves no problem to evaluate on: give more data, or 0")


def _counted(counts: Mapping[str, int]) -> str:
    said = f"{counts['rows']} solutions, {counts['labelled']} labelled steps, {counts['bad']} of them bad"
    notes = {
        "cut": f"{counts['cut']} solutions were cut at --max_length and lost {counts['steps_cut']} steps",
        "too_long": f"{counts['too_long']} solutions were left out: no labelled step within --max_length",
        "unwritable": f"{counts['unwritable']} solutions were left out: their text contains the format's tag",
    }
    return "; ".join([said, *(note for name, note in notes.items() if counts[name])])
