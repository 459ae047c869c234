"""Trains the CPU twin of every method once on problems beyond the policy's reach: one seed, scores or step costs.

What all methods share comes from configs/study/beyond_reach.yaml, the method from its file. GRPO is the first run and
the last. ``--costs --steps 8`` measures steps alone, without evaluation, on a machine that does nothing else.
Call again to continue.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import yaml
from recipe_runs import ROOT, run

from oger_recipe.base.files import read_jsonl

METHODS = (
    "grpo", "luffy", "oger_paper", "sft_then_rl", "hpt", "chord", "srft", "ampo", "exgrpo", "rlep", "prefix_rft",
    "uft", "questa", "distillation", "self_distillation", "maxrl", "passk", "dapo", "uniqueness",
)  # fmt: skip
START, AGAIN = "start", "grpo again"
TEACHER = "sft_then_rl"  # whose model grades under distillation: the best of those before it
# Parts of the regime that the methods share; what it says of teachers, bonus and loss is not among them.
SHARED = ("actor", "data", "eval", "ckpt")
SHARED_OGER = ("task", "val_before_train", "eval")
SCORES = ("avg_at_64", "pass_at_8", "pass_at_64")


def command(method: str, out: Path, steps: int) -> list[str]:
    """Writes a recipe, the method's twin in the regime, and returns the command that trains it."""
    regime = yaml.safe_load((ROOT / "configs" / "study" / "beyond_reach.yaml").read_text())
    recipe = {name: regime[name] for name in SHARED if name in regime}
    recipe["oger"] = {name: regime["oger"][name] for name in SHARED_OGER}
    recipe["oger"]["total_training_steps"] = 0 if method == START else steps
    recipe["rollout"] = {"max_new_tokens": regime["rollout"]["max_new_tokens"]}
    twin = "grpo" if method in (START, AGAIN) else method
    path = out / f"{named(method)}.yaml"
    path.write_text(yaml.safe_dump({"extends": str(ROOT / "configs" / f"{twin}_cpu.yaml")} | recipe))
    run_dir = str(out / named(method))
    return ["-m", "oger_recipe.cli.train", "--recipe", str(path), "--oger.run_dir", run_dir, "--overwrite",
            *own_flags(method, out, steps)]  # fmt: skip


def own_flags(method: str, out: Path, steps: int) -> list[str]:
    """Returns what a method has to be told of the regime: schedules over its steps, longer prompts, its teacher."""
    teacher = json.dumps([{"model": str(out / TEACHER / "model"), "place": "in_process"}])
    of_methods = {
        "exgrpo": ["--data.max_samples", str(16 * steps)],  # read twice, so that successes enter
        "prefix_rft": ["--oger.prefix_steps", str(steps)],
        "uft": ["--oger.prefix_steps", str(steps * 3 // 5)],
        "questa": ["--data.max_len", "256"],
        "distillation": ["--oger.grade_model", teacher],
        "self_distillation": ["--ds.lora.rank", "0"],  # the regime's learning rate is that of all weights
        "uniqueness": ["--oger.task.max_target", "100"],
    }
    return of_methods.get(method, [])


def named(method: str) -> str:
    """Returns the name of a method's files."""
    return method.replace(" ", "_")


def line(method: str, folder: Path) -> dict[str, Any]:
    """Returns what a finished run says: scores by benchmark where it was evaluated, and the seconds and tokens of its
    steps; the first two steps warm up."""
    last = max((folder / "eval").glob("step_*.json"), default=None)
    steps = read_jsonl(folder / "metrics.jsonl")
    later = [step for step in steps[2:] if "timing/step_total" in step]
    return {
        "method": method,
        "scores": json.loads(last.read_text())["benchmarks"] if last else None,
        "step_seconds": statistics.median(step["timing/step_total"] for step in later) if later else None,
        "response_tokens": statistics.fmean(step["rollout/response_tokens"] for step in later) if later else None,
        "solve_rate": [step.get("rollout/solve_rate") for step in steps],
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Writes Markdown: a method a row, scores in points."""
    heads = [f"{kind}: {score.replace('_at_', '@')}" for kind in ("four", "three") for score in SCORES]
    rows = ["| method | " + " | ".join(heads) + " |", "|" + "---|" * (1 + len(heads))]
    for each in lines:
        scores = [each["scores"][kind][score] for kind in ("countdown_4", "countdown_3") for score in SCORES]
        rows.append(f"| {each['method']} | " + " | ".join(f"{100 * score:.1f}" for score in scores) + " |")
    return "\n".join(rows)


def costs(lines: list[dict[str, Any]]) -> str:
    """Writes Markdown: a method a row, a step beside the mean of GRPO's, and the tokens of its rollouts."""
    grpo = statistics.mean(each["step_seconds"] for each in lines if each["method"] in ("grpo", AGAIN))
    rows = ["| method | seconds of a step | beside GRPO's | tokens of rollouts |", "|" + "---|" * 4]
    for each in lines:
        seconds, tokens = each["step_seconds"], each["response_tokens"]
        rows.append(f"| {each['method']} | {seconds:.2f} | {seconds / grpo:.2f} | {tokens:,.0f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "methods", help="folder of runs and results.jsonl")
    parser.add_argument("--methods", nargs="+", default=[START, *METHODS, AGAIN], help="which, in this order")
    parser.add_argument("--steps", type=int, default=40, help="steps of each run")
    parser.add_argument("--costs", action="store_true", help="measure steps alone, without evaluation")
    given = parser.parse_args()
    if given.costs:
        given.methods = [method for method in given.methods if method != START]
    given.out.mkdir(parents=True, exist_ok=True)
    results = given.out / "results.jsonl"
    lines = read_jsonl(results) if results.exists() else []
    for number, method in enumerate(given.methods, start=1):
        if method in {each["method"] for each in lines}:
            continue
        print(f"{number}/{len(given.methods)} {method}", flush=True)
        folder = given.out / named(method)
        asked = command(method, given.out, given.steps)
        asked += ["--no-oger.val_after_train", "--eval.steps", "-1"] if given.costs else []
        run(asked, given.out / f"{folder.name}.log")
        lines.append(line(method, folder))
        with results.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    print(costs(lines) if given.costs else table(lines))


if __name__ == "__main__":
    main()
