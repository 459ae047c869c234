"""``oger judge-eval --judge ENTRY --pairs FILE``: a judge or a head against labels: is it right, at what cost?"""

from __future__ import annotations

import argparse
from pathlib import Path

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.shared import (
    CommandParser,
    add_entry,
    entry_of,
    require_entry,
    require_writable,
    run_command,
    settings_of_run,
    write_json,
)
from oger_recipe.evaluation.judge_metrics import Prices

_EXAMPLE = "{model: org/judge, plugin: pairwise}"


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger judge-eval",
        description="Measures a judge or a head on labelled pairs of answers, or on labelled answers: how often "
        "it is right, how often its verdict changes with the order, how many replies contain no verdict, its "
        "speed and its cost. Any setting of a run can follow as its flag; --oger.reward.cache= turns the cache "
        "of replies off.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    kinds = "without a kind it is pairwise for --pairs and judge for --labels"
    head = "'{kind: classifier, model: org/reward-model}' is a head"
    add_entry(parser, "--judge", "judge", f"'{_EXAMPLE}'; {kinds}; {head}")
    data = parser.add_mutually_exclusive_group(required=True)
    files = ".json, .jsonl or .parquet file, or dataset of the Hub"
    data.add_argument("--pairs", metavar="FILE", help=f"{files}, with the columns of LLMBar or JudgeBench")
    data.add_argument(
        "--labels",
        metavar="FILE",
        help=f"{files}, with question, text and label (0, 1 or any number); for kind rubric also with a rubric, whose "
        "criteria may have labels",
    )
    add("--split", default="test", help="split of a Hub dataset (%(default)s)")
    add("--limit", type=int, help="read only the first LIMIT pairs or answers")
    add("--threshold", type=float, help="values from this on mean label 1 (default: 0.5 for judges, 0 for heads)")
    price = parser.add_mutually_exclusive_group()
    price.add_argument(
        "--price_per_million_tokens", metavar="IN,OUT", help="price of tokens that the judge reads, and writes"
    )
    price.add_argument("--price_per_hour", type=float, help="price of the machine that the judge runs on")
    add("--out", type=Path, help="JSON file to write: the figures, and every verdict with its reply")
    return parser


def main(argv: list[str] | None = None) -> None:
    run_command(build_parser, _evaluate, argv)


def _evaluate(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    from oger_recipe.evaluation.labelled import read_answers, read_pairs, read_rated_answers
    from oger_recipe.offline.judge_eval import dead, figures, judge_of, keys_of, on_answers, on_pairs, report

    require_entry(args, "judge")
    if args.out is not None:
        require_writable("--out", args.out)
    prices = _prices(args)
    settings = settings_of_run(args.recipe, flags, parser)
    kind = "pairwise" if args.pairs else "judge"
    entry = entry_of(args, "--judge", _EXAMPLE, settings, name="judge", kind=kind)
    spec = judge_of(entry, settings)
    if args.pairs:
        pairs = read_pairs(args.pairs, args.split, args.limit)
        print(f"{spec.name}: {len(pairs)} pairs ...", flush=True)
        found = on_pairs(spec, pairs, settings)
    else:
        rubric = keys_of(spec).reads_rubric
        answers = (
            read_answers(args.labels, args.split, args.limit)
            if rubric is None
            else read_rated_answers(args.labels, args.split, args.limit, rubric)
        )
        print(f"{spec.name}: {len(answers)} answers ...", flush=True)
        found = on_answers(spec, answers, settings, args.threshold)
    print(f"\n{report(found, prices)}")
    if args.out is not None:
        figures_of = {"judge": entry, "data": args.pairs or args.labels, **figures(found, prices)}
        write_json(args.out, figures_of | {"cases": found.cases})
        print(f"figures and verdicts: {args.out}", flush=True)
    if problem := dead(found):
        raise RecipeError(problem)


def _prices(args: argparse.Namespace) -> Prices:
    if args.price_per_hour is not None and not args.price_per_hour >= 0:
        raise RecipeError(f"--price_per_hour is {args.price_per_hour}: it must be 0 or more")
    if args.price_per_million_tokens is None:
        return Prices(per_hour=args.price_per_hour)
    try:
        read, written = map(float, args.price_per_million_tokens.split(","))
    except ValueError:
        raise RecipeError(
            f"--price_per_million_tokens {args.price_per_million_tokens}: give two numbers, e.g. 0.25,1"
        ) from None
    if not (read >= 0 and written >= 0):
        raise RecipeError(f"--price_per_million_tokens {args.price_per_million_tokens}: a price must be 0 or more")
    return Prices(per_million_tokens=(read, written))


if __name__ == "__main__":
    main()
