"""``oger eval MODEL --benchmark NAME[=FILE] ...``: avg@n, pass@k, maj@k and distinct@k of a model on benchmarks."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.shared import CommandParser, run_command, settings_of_run
from oger_recipe.settings.grading import grading_rules
from oger_recipe.settings.rollouts import RolloutSettings
from oger_recipe.settings.run import EvalSettings
from oger_recipe.settings.steps import StepSettings

if TYPE_CHECKING:
    from oger_recipe.evaluation.benchmarks import Problem
    from oger_recipe.evaluation.prompts import Prompting
    from oger_recipe.evaluation.sampling import Model, Sampling


# Settings of a run that have a flag of their own here, because other defaults are usual without a recipe.
_HERE = {
    "eval.n_samples_per_prompt": "n", "eval.temperature": "temperature", "oger.eval.top_p": "top_p",
    "oger.eval.top_k": "top_k", "oger.eval.max_new_tokens": "max_new_tokens", "train.seed": "seed",
    "data.apply_chat_template": "chat_template",
}  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger eval",
        description="Samples answers to benchmarks with vLLM, grades them, and writes the answers and a table of "
        "avg@n, pass@k, maj@k and distinct@k. A second call with the same settings continues where the first one "
        "stopped, and adds benchmarks and samples. Any setting of a run can follow as its flag, e.g. "
        "--oger.math_rule deepscaler.",
        allow_abbrev=False,
    )
    parser.add_argument("model", help="folder or hub name of the model")
    parser.add_argument(
        "--recipe",
        type=Path,
        help="evaluate as a run of this recipe does (e.g. RUN/recipe.yaml): its prompts, sampling, grading, and its "
        "eval.dataset unless --benchmark is given; options given here win",
    )
    parser.add_argument("--out", type=Path, help="folder to write (default: evals/<model>-<hash of the settings>)")
    _add_problems(parser.add_argument_group("problems").add_argument)
    _add_sampling(parser.add_argument_group("sampling").add_argument)
    _add_prompts(parser.add_argument_group("prompts").add_argument)
    _add_model(parser.add_argument_group("model").add_argument)
    return parser


def _add_problems(add: Callable[..., Any]) -> None:
    from oger_recipe.evaluation.benchmarks import BENCHMARKS

    add(
        "--benchmark",
        nargs="+",
        action="extend",
        metavar="NAME[=FILE]",
        help=f"{', '.join(BENCHMARKS)}, each from the Hub (gpqa needs a login there) or from a .jsonl or .parquet "
        "file with its columns; or any other name with a file of rows, whose columns are named as for a run "
        "(--data.input_key, --data.label_key, --oger.task_name)",
    )
    add("--benchmark_dir", type=Path, help="folder of <name>.jsonl or <name>.parquet files, instead of the Hub")
    add("--max_problems", type=int, help="at most this many problems per benchmark, chosen by hash")


def _add_sampling(add: Callable[..., Any]) -> None:
    from oger_recipe.evaluation.sampling import Sampling

    add("--n", type=int, help=f"samples per problem; papers use 32 on AIME and AMC ({Sampling.n})")
    add("--temperature", type=float, help=f"0 is greedy, with one sample per problem ({Sampling.temperature})")
    add("--top_p", type=float, help=f"top-p: nucleus of the sampled distribution ({Sampling.top_p})")
    add("--top_k", type=int, help="top-k: sample from this many of the likeliest tokens (all)")
    add("--max_new_tokens", type=int, help=f"longest answer in tokens, within the context ({Sampling.max_new_tokens})")
    add("--seed", type=int, help=f"seed; every sample derives its own from it ({Sampling.seed})")


def _add_prompts(add: Callable[..., Any]) -> None:
    from oger_recipe.data.templates import TEMPLATES

    template = "use this instead of instruction and chat template; none: the bare question"
    add("--prompt_template", choices=list(TEMPLATES), help=template)
    add("--system_prompt", help="text of the system turn; needs a chat template")
    chat = "use the tokenizer's chat template, if it has one (on, or as the recipe says)"
    add("--chat_template", action=argparse.BooleanOptionalAction, default=None, help=chat)


def _add_model(add: Callable[..., Any]) -> None:
    from oger_recipe.evaluation.sampling import Model

    dtypes = ("auto", "bfloat16", "float16", "float32")
    add("--dtype", choices=dtypes, help="type of the weights; auto is float32 on CPUs (auto; with a recipe bfloat16)")
    add("--revision", help="revision of a hub model")
    for name, kind, help in (
        ("batch_size", int, "requests in flight"),
        ("tensor_parallel_size", int, "GPUs that share the model"),
        ("gpu_memory_utilization", float, "share of GPU memory"),
    ):
        add(f"--{name}", type=kind, default=getattr(Model, name), help=f"{help} (%(default)s)")


def main(argv: list[str] | None = None) -> None:
    interrupted = "interrupted; the same command resumes it"
    run_command(build_parser, _evaluate, argv, interrupted)


def _evaluate(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    from oger_recipe.evaluation.tables import ungraded
    from oger_recipe.offline.eval import evaluate, report
    from oger_recipe.run.inputs import grading_settings

    for flag, here in _HERE.items():
        if any(given.partition("=")[0] == f"--{flag}" for given in flags):
            raise RecipeError(f"--{flag} is called --{here} here")
    flags += [f"--oger.prompt_template={args.prompt_template}"] if args.prompt_template else []
    settings = settings_of_run(args.recipe, flags, parser)
    model, sampling = _model(args, settings), _sampling(args, settings)
    _check(sampling, model, args)
    if sampling.is_greedy and sampling.n > 1:
        print("note: greedy decoding gives the same answer every time, so n is 1", flush=True)
        sampling = dataclasses.replace(sampling, n=1)
    benchmarks, rules = _benchmarks(args, settings), grading_rules(settings, evaluation=True)
    grading = grading_settings(settings, ())
    prompting = _prompting(args, settings)
    result, folder = evaluate(model, benchmarks, prompting, sampling, rules, grading, args.out)
    print(f"\n{report(result)}")
    print(f"results: {folder / 'results.md'}, {folder / 'results.json'}\nanswers: {folder / 'answers'}", flush=True)
    print(f"in the formats of other harnesses: {folder / 'lm_eval'}, {folder / 'lighteval'}", flush=True)
    if dead := ungraded(result):
        raise RecipeError(f"no answer of {', '.join(dead)} could be graded: ignore the figures")


def _model(args: argparse.Namespace, settings: Mapping[str, Any]) -> Model:
    from oger_recipe.evaluation.sampling import Model

    return Model(
        args.model,
        revision=args.revision,
        dtype=args.dtype or ("bfloat16" if args.recipe else "auto"),
        tensor_parallel_size=args.tensor_parallel_size,
        gpu_memory_utilization=args.gpu_memory_utilization,
        batch_size=args.batch_size,
        trust_remote_code=settings["oger.trust_remote_code"],
    )


def _sampling(args: argparse.Namespace, settings: Mapping[str, Any]) -> Sampling:
    """Take what was given, else what the run's evaluation has, else the defaults."""
    from oger_recipe.evaluation.sampling import Sampling

    of_run = {
        "n": settings["eval.n_samples_per_prompt"],
        "temperature": settings["eval.temperature"],
        "seed": settings["train.seed"],
        **EvalSettings.of(settings).sampling(settings["rollout.top_p"], settings["rollout.max_new_tokens"]),
    }
    chosen = {name: value for name, value in of_run.items() if value is not None} if args.recipe else {}
    chosen |= {name: vars(args)[name] for name in of_run if vars(args)[name] is not None}
    return Sampling(
        **chosen,
        stop=RolloutSettings.of(settings).stop_texts,
        stop_token_ids=tuple(settings["oger.stop_token_ids"]),
        steps=StepSettings.of(settings).sampling,
    )


def _prompting(args: argparse.Namespace, settings: Mapping[str, Any]) -> Prompting:
    from oger_recipe.evaluation.prompts import Prompting

    template, chat = settings["oger.prompt_template"], args.chat_template
    if chat is None:
        of_task = settings["oger.task.name"] is not None and not template  # a run uses it for the built-in task
        of_run = settings["data.apply_chat_template"]
        chat = (of_task if of_run is None else of_run) if args.recipe else True
    return Prompting(template, chat, args.system_prompt, settings["data.input_template"])


def _benchmarks(args: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, list[Problem]]:
    from oger_recipe.evaluation.benchmarks import find_file, load_benchmark, problem_of
    from oger_recipe.run.rows import evaluation_columns, evaluation_rows

    benchmarks: dict[str, list[Problem]] = {}
    for name, file in _benchmark_files(args.benchmark or []).items():
        if file is None and args.benchmark_dir:
            file = find_file(name, args.benchmark_dir)
        benchmarks[name] = load_benchmark(
            name, file, max_problems=args.max_problems, columns=evaluation_columns(settings)
        )
    if benchmarks:
        return benchmarks
    if not settings["eval.dataset"]:
        raise RecipeError("nothing to evaluate on: name benchmarks with --benchmark, or a --recipe with eval.dataset")
    for row in evaluation_rows(settings)[: args.max_problems]:
        benchmarks.setdefault(row.get("datasource") or "default", []).append(problem_of(row))
    return benchmarks


def _benchmark_files(settings: list[str]) -> dict[str, Path | None]:
    files: dict[str, Path | None] = {}
    for setting in settings:
        name, separator, file = setting.partition("=")
        if not name or "/" in name or (separator and not file):
            raise RecipeError(f"--benchmark {setting}: write NAME or NAME=FILE")
        if name in files:
            raise RecipeError(f"--benchmark {name} is given twice")
        files[name] = Path(file).expanduser() if file else None
    return files


def _check(sampling: Sampling, model: Model, args: argparse.Namespace) -> None:
    numbers = {"n": sampling.n, "max_new_tokens": sampling.max_new_tokens, "max_problems": args.max_problems}
    numbers |= {"batch_size": model.batch_size, "tensor_parallel_size": model.tensor_parallel_size}
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise RecipeError(f"--{name} is {number}: it must be 1 or more")
    if not 0 <= sampling.temperature < float("inf"):
        raise RecipeError(f"--temperature is {sampling.temperature}: it must be 0 (greedy) or more")
    if sampling.top_k < 1 and sampling.top_k != -1:
        raise RecipeError(f"--top_k is {sampling.top_k}: it must be 1 or more, or -1 for all tokens")
    for name, share in (("top_p", sampling.top_p), ("gpu_memory_utilization", model.gpu_memory_utilization)):
        if not 0 < share <= 1:
            raise RecipeError(f"--{name} is {share}: it must be above 0 and at most 1")


if __name__ == "__main__":
    main()
