"""``oger eval MODEL --benchmark NAME[=FILE] ...``: avg@n, pass@k and maj@k of a model on benchmarks."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import NoReturn

from oger_recipe.recipe import RecipeError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message} (oger eval --help shows all options)")


def build_parser() -> argparse.ArgumentParser:
    from oger_recipe.data.templates import TEMPLATES
    from oger_recipe.evaluation.benchmarks import BENCHMARKS
    from oger_recipe.evaluation.sampler import Model, Sampling

    parser = _Parser(
        "oger eval",
        description="Samples answers to benchmarks with vLLM, grades them, and writes the answers and a table of "
        "avg@n, pass@k and maj@k. A second call with the same settings continues where the first one stopped.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", help="folder or hub name")
    add(
        "--benchmark",
        nargs="+",
        action="extend",
        required=True,
        metavar="NAME[=FILE]",
        help=f"{', '.join(BENCHMARKS)}, each from the Hub (gpqa needs a login there) or from a .jsonl or .parquet "
        "file with its columns; or any other name with a file of the recipe's rows",
    )
    add("--benchmark_dir", type=Path, help="folder of <name>.jsonl or <name>.parquet files, instead of the Hub")
    add("--n", type=int, default=Sampling.n, help="samples a problem; papers use 32 on AIME and AMC (%(default)s)")
    add(
        "--temperature",
        type=float,
        default=Sampling.temperature,
        help="0 is greedy, with one sample a problem (%(default)s)",
    )
    add("--top_p", type=float, default=Sampling.top_p, help="nucleus of the sampled distribution (%(default)s)")
    add("--top_k", type=int, default=Sampling.top_k, help="likeliest tokens to sample from (all)")
    add(
        "--max_new_tokens",
        type=int,
        default=Sampling.max_new_tokens,
        help="longest answer, within the context (%(default)s)",
    )
    add("--max_problems", type=int, help="evaluate on so many problems of each benchmark, chosen by hash")
    add(
        "--seed",
        type=int,
        default=Sampling.seed,
        help="every sample's seed follows from it, problem and number (%(default)s)",
    )
    add(
        "--prompt_template",
        choices=list(TEMPLATES),
        help="instead of instruction and chat template; none: the bare question",
    )
    add("--system_prompt", help="system turn, where the chat template is used")
    add(
        "--chat_template",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use it where the tokenizer has one (on)",
    )
    add("--batch_size", type=int, default=Model.batch_size, help="requests in flight (%(default)s)")
    add("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="auto is float32 on CPUs")
    add(
        "--tensor_parallel_size",
        type=int,
        default=Model.tensor_parallel_size,
        help="GPUs that share the model (%(default)s)",
    )
    add(
        "--gpu_memory_utilization",
        type=float,
        default=Model.gpu_memory_utilization,
        help="share of GPU memory (%(default)s)",
    )
    add("--revision", help="of a hub model")
    add("--out", type=Path, help="folder to write (default: evals/<model>-<hash of the settings>)")
    return parser


def main(argv: list[str] | None = None) -> None:
    try:
        _evaluate(build_parser().parse_args(argv))
    except RecipeError as error:
        sys.exit(f"oger eval: {error}")
    except KeyboardInterrupt:
        sys.exit("oger eval: interrupted; the same command continues with the benchmarks that are not complete")


def _evaluate(args: argparse.Namespace) -> None:
    from oger_recipe.evaluation.benchmarks import find_file, load_benchmark
    from oger_recipe.evaluation.harness import evaluate, report
    from oger_recipe.evaluation.prompts import Prompting
    from oger_recipe.evaluation.sampler import Model, Sampling

    _check(args)
    values = vars(args)
    model = Model(args.model, **{field: values[field] for field in _fields(Model) if field != "name"})
    sampling = Sampling(**{field: values[field] for field in _fields(Sampling)})
    if not sampling.temperature and sampling.n > 1:
        print("note: greedy decoding gives the same answer every time, so n is 1", flush=True)
        sampling = dataclasses.replace(sampling, n=1)
    benchmarks = {}
    for name, file in _benchmark_files(args.benchmark).items():
        if file is None and args.benchmark_dir:
            file = find_file(name, args.benchmark_dir)
        benchmarks[name] = load_benchmark(name, file, max_problems=args.max_problems)
    prompting = Prompting(args.prompt_template, args.chat_template, args.system_prompt)
    result, folder = evaluate(model, benchmarks, prompting, sampling, args.out)
    print(f"\n{report(result)}")
    print(f"results: {folder / 'results.md'}, {folder / 'results.json'}\nanswers: {folder / 'answers'}")


def _fields(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _benchmark_files(settings: list[str]) -> dict[str, Path | None]:
    files: dict[str, Path | None] = {}
    for setting in settings:
        name, separator, file = setting.partition("=")
        if not name or "/" in name or (separator and not file):
            raise RecipeError(f"--benchmark {setting}: is NAME or NAME=FILE")
        if name in files:
            raise RecipeError(f"--benchmark {name} is given twice")
        files[name] = Path(file).expanduser() if file else None
    return files


def _check(args: argparse.Namespace) -> None:
    for name in ("n", "max_new_tokens", "max_problems", "batch_size", "tensor_parallel_size"):
        if vars(args)[name] is not None and vars(args)[name] < 1:
            raise RecipeError(f"--{name} is {vars(args)[name]}: it has to be 1 or more")
    if not 0 <= args.temperature < float("inf"):
        raise RecipeError(f"--temperature is {args.temperature}: it has to be 0 (greedy) or more")
    if args.top_k < 1 and args.top_k != -1:
        raise RecipeError(f"--top_k is {args.top_k}: it has to be 1 or more, or -1 for all tokens")
    for name in ("top_p", "gpu_memory_utilization"):
        if not 0 < vars(args)[name] <= 1:
            raise RecipeError(f"--{name} is {vars(args)[name]}: it has to be above 0 and at most 1")


if __name__ == "__main__":
    main()
