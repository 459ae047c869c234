"""Makes the folders that `oger push` uploads: a trained model with its card, and its samples with theirs."""

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tqdm import tqdm

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl
from oger_recipe.report.cards import Run, model_card, samples_card, without_folders
from oger_recipe.report.run_state import RunLog, by_flag, is_run, state_of
from oger_recipe.run_folder.own_files import COMMAND, CURVES

Record = dict[str, Any]
Copy = Callable[[str, str], object]
_TEXT, _NUMBER, _FLAG = pa.string(), pa.float64(), pa.bool_()
_GRADED: dict[str, pa.DataType] = {
    "uid": _TEXT, "prompt": _TEXT, "answer": _TEXT, "text": _TEXT, "truncated": _FLAG, "reward": _NUMBER,
    "score": _NUMBER, "extracted": _TEXT, "reason": _TEXT, "components": _TEXT, "solution": _TEXT,
    "step": pa.int64(),
}  # fmt: skip
# The columns of each configuration of the dataset. What a run's lines hold beyond them is a detail of some recipes.
COLUMNS = {
    "rollouts": _GRADED | {
        "task": _TEXT, "off_policy": _FLAG, "off_policy_tokens": pa.int64(), "source": _TEXT, "replaced": _FLAG,
        "similarity": _NUMBER, "entropy": _NUMBER, "entropy_weight": _NUMBER, "bonus": _NUMBER, "sources": _TEXT,
        "total_reward": _NUMBER, "advantage": _NUMBER, "steps_of_reasoning": _TEXT, "errors": _TEXT,
        "criteria": _TEXT, "log_prob": _NUMBER,
    },
    "evaluations": _GRADED | {
        "benchmark": _TEXT, "sample": pa.int64(), "response_length": pa.int64(), "graded": _FLAG,
    },
}  # fmt: skip
_FOLDERS = {"rollouts": "samples", "evaluations": "eval"}


def read_run(folder: Path) -> Run:
    """Read what the cards say of a run.

    Raises:
        RecipeError: there is no run, or it is running, or it has not trained.
    """
    if not is_run(folder):
        raise RecipeError(f"{folder} is not a run's folder")
    log = RunLog(folder)
    log.update()
    state = state_of(log)
    if state.state == "running":
        raise RecipeError(f"the run in {folder} is still running; push it when it has ended")
    try:
        summary = json.loads((folder / "summary.json").read_text())
        environment = json.loads((folder / "environment.json").read_text())
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RecipeError(f"the run in {folder} has not trained, so there is nothing to push ({error})") from None
    return Run(folder, state, _Settings(by_flag(recipe)), log.sources, _command(folder), summary, environment)


def _command(folder: Path) -> str:
    """Return the command that was typed, from its program on, without this machine's folders."""
    words = shlex.split((folder / COMMAND).read_text(), comments=True)
    program = next((at for at, word in enumerate(words) if word == "train" or word.startswith("oger_recipe.cli.")), 0)
    flags = shlex.join(map(without_folders, words[program + 1 :]))
    return f"oger train {flags}" if words[program].endswith("train") else f"python -m {words[program]} {flags}"


class _Settings(dict[str, Any]):
    """A recipe's settings by their flags; None for one that an earlier version of the recipe did not have."""

    def __missing__(self, flag: str) -> None:
        return None


def write_model(run: Run, repo: str, folder: Path, *, samples_repo: str | None, copy: Copy) -> None:
    """Write the model's repository: weights, tokenizer, card, curves, recipe.

    Raises:
        RecipeError: the run has no final model.
    """
    model = Path(run.value["ckpt.output_dir"] or run.folder / "model")
    model = model if model.is_dir() else run.folder / "model"  # the run's folder may have been moved
    if not any(model.glob("*.safetensors")):
        resume = (
            ""
            if run.state.resume_from is None
            else ": resume the run with --ckpt.load_enable; it saves one at its end"
        )
        raise RecipeError(f"the run in {run.folder} has no final model in {model}{resume}")
    shutil.copytree(model, folder, copy_function=copy)
    for name in CURVES:
        if (picture := run.folder / "curves" / f"{name}.png").exists():
            (folder / "curves").mkdir(exist_ok=True)
            shutil.copy2(picture, folder / "curves")
    shutil.copy2(run.folder / "recipe.yaml", folder)
    (folder / "README.md").write_text(model_card(run, repo, samples_repo=samples_repo), encoding="utf-8")


def linked(source: str, target: str) -> None:
    """Link weights, which are large, where that is possible; copy all else, which may be written over."""
    if source.endswith(".safetensors"):
        with contextlib.suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copy2(source, target)


def write_samples(run: Run, repo: str, model_repo: str, folder: Path) -> None:
    """Write the samples' repository: Parquet files, one for each file of the run, and a card.

    Raises:
        RecipeError: the run has written no samples.
    """
    rows = dict.fromkeys(COLUMNS, 0)
    files = {name: sorted((run.folder / source).glob("step_*.jsonl")) for name, source in _FOLDERS.items()}
    pairs = [(name, path) for name, paths in files.items() for path in paths]
    for name, path in tqdm(pairs, desc="samples", unit="file", disable=None):
        step = int(path.stem.removeprefix("step_"))
        table = _table((line | {"step": step} for line in read_jsonl(path)), COLUMNS[name])
        rows[name] += len(table)
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name / f"{path.stem}.parquet")
    written = {name: count for name, count in rows.items() if count}
    if not written:
        raise RecipeError(f"the run in {run.folder} has written no samples (oger.samples_steps)")
    (folder / "README.md").write_text(samples_card(run, repo, model_repo, written), encoding="utf-8")


def _table(lines: Iterable[Record], columns: dict[str, pa.DataType]) -> pa.Table:
    rows = [{name: _cell(line.get(name)) for name in columns} for line in lines]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(columns.items())))


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value
