"""The figures of an evaluation in the files of lm-evaluation-harness and lighteval, for scripts that read those.

Each of the two has its own name for the same thing. A metric is ``avg@8`` in both, with the filter ``none`` in
lm-evaluation-harness. The standard error is that of the 95 % interval, (high - low) / (2 * 1.96).
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from oger_recipe.base.files import atomic_write, read_record, to_json
from oger_recipe.evaluation.tables import metric_name

Result = dict[str, Any]
_VERSION = 1  # of a benchmark: both formats want one


def write_result_files(folder: Path, result: Result) -> list[Path]:
    """Write ``lm_eval/<model>/results_<date>.json`` and ``lighteval/results/<model>/results_<date>.json`` below the
    folder of an evaluation, in place of those of its earlier results. result: of `oger eval`."""
    date = datetime.now().isoformat().replace(":", "-")
    name = _model_name(result)
    written = []
    for directory, document in (
        (folder / "lm_eval" / re.sub(r'["<>:/\\|?*\[\]]+', "__", name), of_lm_eval(result)),
        (folder / "lighteval" / "results" / name, of_lighteval(result)),
    ):
        earlier = [path for path in directory.glob("results_*.json") if _is_ours(read_record(path))]
        written.append(directory / f"results_{date}.json")
        with atomic_write(written[-1]) as partial:
            partial.write_text(to_json(document, indent=2) + "\n", encoding="utf-8")
        for path in earlier:
            path.unlink()
    return written


def _is_ours(document: Result) -> bool:
    """Say whether this module wrote the document, and no harness."""
    return "oger_versions" in document or "oger_versions" in (document.get("config_general") or {})


def of_lm_eval(result: Result) -> Result:
    """Return what lm-evaluation-harness 0.4 writes into results_<date>.json."""
    tasks = result["benchmarks"]
    settings, drawn = result["settings"], _drawn(result)
    return {
        "results": {
            name: {"alias": name} | dict(_scores(metrics, "{},none", "{}_stderr,none"))
            for name, metrics in tasks.items()
        },
        "group_subtasks": {name: [] for name in tasks},
        "configs": {name: _config(name, metrics["n"], drawn) for name, metrics in tasks.items()},
        "versions": dict.fromkeys(tasks, _VERSION),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {name: {metric: True for metric, *_ in _figures(each)} for name, each in tasks.items()},
        "n-samples": {
            name: {"original": metrics["problems"], "effective": metrics["problems"]}
            for name, metrics in tasks.items()
        },
        "config": {
            "model": "vllm",
            "model_args": f"pretrained={settings['model']['name']},dtype={settings['model']['dtype']}",
            "model_revision": settings["model"]["revision"],
            "gen_kwargs": drawn,
            "random_seed": settings["sampling"]["seed"],
        },
        "model_source": "vllm",
        "model_name": settings["model"]["name"],
        "system_instruction": settings["prompting"]["system_prompt"],
        "task_hashes": {name: each["content"] for name, each in settings["benchmarks"].items()},
        "oger_versions": result["versions"],
    }


def of_lighteval(result: Result) -> Result:
    """Return what lighteval 0.13 writes into results_<date>.json: a task's name ends in its number of examples."""
    settings = result["settings"]
    tasks = {f"{name}|0": metrics for name, metrics in result["benchmarks"].items()}
    scores = {name: dict(_scores(metrics, "{}", "{}_stderr")) for name, metrics in tasks.items()}
    average = {"all": dict(_scores(result["average"], "{}", "{}_stderr"))}
    return {
        "config_general": {
            "model_name": _model_name(result),
            "model_config": settings["model"] | {"generation_parameters": _drawn(result)},
            "oger_versions": result["versions"],
        },
        "results": scores | average,
        "versions": dict.fromkeys(tasks, _VERSION),
        "config_tasks": {
            name: {"name": name.rpartition("|")[0], "num_fewshots": 0, "num_samples": [metrics["n"]]}
            for name, metrics in tasks.items()
        },
        "summary_tasks": {name: {"truncated": metrics["truncated"]} for name, metrics in tasks.items()},
        "summary_general": {},
    }


def _scores(metrics: Result, value: str, error: str) -> Iterator[tuple[str, float]]:
    """Yield each figure and its standard error under their names in a format."""
    for name, figure, (low, high) in _figures(metrics):
        yield value.format(name), figure
        yield error.format(name), (high - low) / (2 * 1.96)


def _figures(metrics: Result) -> Iterator[tuple[str, float, tuple[float, float]]]:
    """Yield name, value and 95 % interval of avg@n, pass@k and maj@k."""
    for key, value in metrics.items():
        if f"{key}_interval" in metrics:
            yield metric_name(key), value, metrics[f"{key}_interval"]


def _config(task: str, n: int, drawn: Result) -> Result:
    return {
        "task": task, "output_type": "generate_until", "num_fewshot": 0, "repeats": n, "generation_kwargs": drawn,
    }  # fmt: skip


def _drawn(result: Result) -> Result:
    """Return how the answers were drawn, as generation arguments."""
    sampling = result["settings"]["sampling"]
    chosen = {key: sampling[key] for key in ("temperature", "top_p", "top_k", "seed")}
    return json.loads(json.dumps(chosen | {"max_new_tokens": sampling["max_new_tokens"], "stop": sampling["stop"]}))


def _model_name(result: Result) -> str:
    """Return the model's hub name, or the last two parts of its folder."""
    return "/".join(
        part for part in Path(result["settings"]["model"]["name"]).parts[-2:] if part not in ("/", "..", ".")
    )
