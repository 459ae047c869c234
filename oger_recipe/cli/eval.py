"""``oger eval MODEL --benchmark NAME[=FILE] ...``: answers, verdicts and a table for a model on benchmarks."""

import argparse
import sys
from pathlib import Path

from oger_recipe.recipe import RecipeError


def build_parser() -> argparse.ArgumentParser:
    from oger_recipe.data.templates import TEMPLATES
    from oger_recipe.evaluation.benchmarks import BENCHMARKS

    parser = argparse.ArgumentParser("oger eval", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", help="model folder or Hub name")
    parser.add_argument("--revision", help="revision of a Hub model")
    parser.add_argument(
        "--benchmark", nargs="+", required=True, metavar="NAME[=FILE]",
        help=f"{', '.join(BENCHMARKS)}; or any name with a file of the recipe's rows",
    )  # fmt: skip
    parser.add_argument("--benchmark_dir", type=Path, help="folder of NAME.jsonl files, in place of the Hub")
    parser.add_argument("--out", type=Path, help="folder of answers and results (default: evals/<model>)")
    parser.add_argument("--n", type=int, default=4, help="answers per problem")
    parser.add_argument("--temperature", type=float, default=0.6, help="0: the likeliest answer, once")
    parser.add_argument("--top_p", type=float, default=1.0)
    parser.add_argument("--top_k", type=int, default=-1)
    parser.add_argument("--max_new_tokens", type=int, default=2048)
    parser.add_argument("--max_problems", type=int, help="of each benchmark, from its start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompt_template", choices=list(TEMPLATES), help="default: the tokenizer's chat template")
    parser.add_argument("--system_prompt")
    parser.add_argument("--dtype", default="auto", help="auto: the model's own, float32 on CPUs")
    parser.add_argument("--batch_size", type=int, default=256, help="answers in flight")
    parser.add_argument("--tensor_parallel_size", type=int, default=1)
    parser.add_argument("--gpu_memory_utilization", type=float, default=0.9)
    return parser


def main(argv: list[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    try:
        _evaluate(args)
    except RecipeError as error:
        sys.exit(f"oger eval: {error}")


def _evaluate(args: argparse.Namespace) -> None:
    from oger_recipe.evaluation.benchmarks import load_benchmark
    from oger_recipe.evaluation.harness import EngineSettings, EvalSettings, evaluate_model

    for name in ("n", "max_new_tokens", "batch_size", "tensor_parallel_size"):
        if getattr(args, name) < 1:
            raise RecipeError(f"--{name} is {getattr(args, name)}: it has to be 1 or more")
    if args.temperature == 0 and args.n > 1:
        print("note: at temperature 0 all answers are the same: one is asked for", flush=True)
        args.n = 1
    loaded = [load_benchmark(spec, args.benchmark_dir) for spec in args.benchmark]
    benchmarks = {name: rows[: args.max_problems] for name, rows in loaded}
    settings = EvalSettings(
        args.model, args.revision, args.n, args.temperature, args.top_p, args.top_k, args.max_new_tokens, args.seed,
        args.dtype, args.prompt_template, args.system_prompt,
    )  # fmt: skip
    engine = EngineSettings(args.batch_size, args.tensor_parallel_size, args.gpu_memory_utilization)
    out = args.out or Path("evals") / Path(args.model).name
    evaluate_model(settings, engine, benchmarks, out)
    print((out / "results.md").read_text())
    print(f"answers, verdicts and figures: {out}", flush=True)


if __name__ == "__main__":
    main()
