"""``oger judge-eval --judge ENTRY --pairs FILE``: a judge or a head against labels: is it right, at what cost?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_write, to_json
from oger_recipe.cli.run_settings import CommandParser, require_writable, settings_of_run
from oger_recipe.evaluation.judge_metrics import Prices


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger judge-eval",
        description="Asks a judge or a head about labelled pairs of answers, or about labelled answers. "
        "Says how often it is right, how often its verdict changes with the order, how many replies have no verdict "
        "in them, how fast it is and what it costs. Any setting of a run can follow as its flag; "
        "--oger.reward.cache= asks anew what was asked before.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    judge = parser.add_mutually_exclusive_group(required=True)
    judge.add_argument(
        "--judge",
        metavar="ENTRY",
        help="an entry of oger.reward.sources in YAML, e.g. '{model: org/judge, plugin: pairwise}'; without a kind it "
        "is pairwise for --pairs and judge for --labels; '{kind: classifier, model: org/reward-model}' is a head",
    )
    judge.add_argument("--recipe", type=Path, help="a recipe that has the judge among its sources, named by --source")
    add("--source", metavar="NAME", help="name of the judge in --recipe")
    data = parser.add_mutually_exclusive_group(required=True)
    files = ".json, .jsonl or .parquet file, or dataset of the Hub"
    data.add_argument("--pairs", metavar="FILE", help=f"{files}, with the columns of LLMBar or JudgeBench")
    data.add_argument(
        "--labels",
        metavar="FILE",
        help=f"{files}, with question, text and label (0, 1 or any number); for kind rubric with a rubric, whose "
        "criteria may have labels",
    )
    add("--split", default="test", help="of a Hub dataset (%(default)s)")
    add("--limit", type=int, help="take so many of them, from the beginning")
    add("--threshold", type=float, help="least value that says label 1 (default: 0.5 for judges, 0 for heads)")
    price = parser.add_mutually_exclusive_group()
    price.add_argument("--price_per_million_tokens", metavar="IN,OUT", help="of what the judge reads and writes")
    price.add_argument("--price_per_hour", type=float, help="of the machine that it runs on")
    add("--out", type=Path, help="JSON file to write: the figures, and every verdict with its reply")
    return parser


def main(argv: list[str] | None = None) -> None:
    try:
        parser = build_parser()
        _evaluate(parser, *parser.parse_known_args(argv))
    except RecipeError as error:
        sys.exit(f"oger judge-eval: {error}")
    except KeyboardInterrupt:
        sys.exit("oger judge-eval: interrupted")


def _evaluate(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    from oger_recipe.evaluation.labelled import read_answers, read_pairs, read_rated_answers
    from oger_recipe.offline.judge_eval import dead, figures, judge_of, keys_of, on_answers, on_pairs, report

    if (args.recipe is None) != (args.source is None):
        raise RecipeError("--recipe and --source go together: the recipe, and the name of the judge in it")
    if args.limit is not None and args.limit < 1:
        raise RecipeError(f"--limit is {args.limit}: it has to be 1 or more")
    if args.out is not None:
        require_writable("--out", args.out)
    prices = _prices(args)
    settings = settings_of_run(args.recipe, flags, parser)
    spec = judge_of(_entry(args, settings), settings)
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
        result = {"judge": _entry(args, settings), "data": args.pairs or args.labels, **figures(found, prices)}
        with atomic_write(args.out) as partial:
            partial.write_text(to_json(result | {"cases": found.cases}, indent=2) + "\n")
        print(f"figures and verdicts: {args.out}", flush=True)
    if problem := dead(found):
        raise RecipeError(problem)


def _entry(args: argparse.Namespace, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the judge as an entry of oger.reward.sources."""
    if args.judge is None:
        entries = {entry["name"]: entry for entry in settings["oger.reward.sources"]}
        if args.source not in entries:
            raise RecipeError(f"{args.recipe} has no source {args.source!r}; it has {', '.join(entries) or 'none'}")
        return entries[args.source]
    try:
        entry = yaml.safe_load(args.judge)
    except yaml.YAMLError as error:
        raise RecipeError(f"--judge is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(entry, dict):
        raise RecipeError(
            f"--judge {args.judge!r}: an entry such as '{{model: org/judge, plugin: pairwise}}' is needed"
        )
    from oger_recipe.rewards.kinds.entries import as_today

    return as_today({"name": "judge", "kind": "pairwise" if args.pairs else "judge", **entry})


def _prices(args: argparse.Namespace) -> Prices:
    if args.price_per_hour is not None and not args.price_per_hour >= 0:
        raise RecipeError(f"--price_per_hour is {args.price_per_hour}: it has to be 0 or more")
    if args.price_per_million_tokens is None:
        return Prices(per_hour=args.price_per_hour)
    try:
        read, written = map(float, args.price_per_million_tokens.split(","))
    except ValueError:
        raise RecipeError(
            f"--price_per_million_tokens {args.price_per_million_tokens}: two numbers are needed, e.g. 0.25,1"
        ) from None
    if not (read >= 0 and written >= 0):
        raise RecipeError(f"--price_per_million_tokens {args.price_per_million_tokens}: a price is 0 or more")
    return Prices(per_million_tokens=(read, written))


if __name__ == "__main__":
    main()
