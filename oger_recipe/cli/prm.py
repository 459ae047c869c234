"""``oger prm train|eval|label``: train a process reward model (PRM), hold it against labels, or label steps."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.shared import (
    CommandParser,
    add_entry,
    add_responses,
    data_flags,
    entry_of,
    require_entry,
    require_writable,
    settings_of_run,
    write_json,
)
from oger_recipe.models.step_formats import FORMATS
from oger_recipe.prm.options import ESTIMATES, Training

_PROCESSBENCH, _SPLITS = "Qwen/ProcessBench", ("gsm8k", "math", "olympiadbench", "omnimath")
_EXAMPLE = "{model: org/prm, format: qwen_prm}"
_FORMAT_KEYS = ("tag", "good", "bad")
_FILES = ".json, .jsonl or .parquet files or datasets of the Hub"
_SHAPES = "of PRM800K, Math-Shepherd, ProcessBench, PRMBench or stepwise supervision (docs/prm.md)"


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger prm",
        description="Process reward models (PRMs), which score the steps of a solution: train one, measure one "
        "on labels, or label steps.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="train|eval|label")
    _add_train(_command(commands, "train", "train a PRM on labelled steps", _TRAIN))
    _add_eval(_command(commands, "eval", "measure a PRM on labelled steps", _EVAL))
    _add_label(_command(commands, "label", "label the steps of responses by rollouts, or by arithmetic", _LABEL))
    return parser


_TRAIN = (
    "Trains a language model to score steps of reasoning, and writes a folder that a source of kind process reads. "
    "The same command resumes an interrupted training."
)
_EVAL = (
    "Scores labelled solutions by a source of kind process, as a run would, and prints ProcessBench's F1, the AUC of "
    "steps and the calibration. Any setting of a run can follow as its flag."
)
_LABEL = (
    "Writes responses with a label for each step. By rollouts: a policy continues from each step, and the "
    "verifier says which of these responses are right. By countdown: arithmetic decides. Any setting of a run "
    "can follow as its flag, e.g. --oger.steps.delimiters."
)


def _command(commands: Any, name: str, help: str, description: str) -> Any:
    return commands.add_parser(name, help=help, description=description, allow_abbrev=False)


def _add_train(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, help="folder or hub name of the language model, or PRM, to train")
    add("--revision", help="revision of a hub model")
    add("--data", nargs="+", required=True, metavar="DATA", help=f"{_FILES}, {_SHAPES}")
    add("--split", default="train", help="split of a Hub dataset (%(default)s)")
    add("--out", type=Path, required=True, help="folder to write; it must not exist")
    add(
        "--format",
        choices=FORMATS,
        default="trl",
        help="how question and steps are written, and what the PRM is. trl, qwen_prm: a head that labels "
        "tokens; math_shepherd, openr_qwen: a language model that writes one of two tokens at a tag "
        "(%(default)s)",
    )
    for name in _FORMAT_KEYS:
        add(f"--{name}", help="overrides the format's own, like the same key of kind process")
    hints = get_type_hints(Training)
    for each in fields(Training):
        default = "" if each.default is None or isinstance(each.default, bool) else f" ({each.default})"
        if hints[each.name] is bool:
            add(f"--{each.name}", action="store_true", help=each.metadata["help"])
        else:
            kind = next(kind for kind in (int, float, str) if kind in (hints[each.name], *_parts(hints[each.name])))
            choices = each.metadata["choices"]
            add(
                f"--{each.name}",
                type=kind,
                default=each.default,
                choices=choices,
                help=each.metadata["help"] + default,
            )


def _parts(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__args__", ())


def _add_eval(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_entry(parser, "--prm", "PRM", f"'{_EXAMPLE}'; its kind defaults to process")
    add(
        "--benchmark",
        choices=("processbench",),
        help=f"read only rows of its shape; without --data read all of {_PROCESSBENCH} from the Hub",
    )
    add("--data", nargs="+", metavar="DATA", help=f"{_FILES}, {_SHAPES}")
    add("--split", default="test", help="split of a Hub dataset (%(default)s)")
    add("--limit", type=int, help="read only the first LIMIT solutions")
    add("--threshold", type=float, help="steps that score below this are bad (default: 0.5, for rewards 0)")
    tune = "choose the threshold with the best F1 on this share of the problems; the figures are for the others"
    add("--tune", type=float, metavar="SHARE", help=tune)
    add("--picture", type=Path, help="plot the calibration to this file, .png or .svg")
    add("--out", type=Path, help="JSON file to write: the figures, and the scores of every solution")


def _add_label(parser: argparse.ArgumentParser) -> None:
    from oger_recipe.evaluation.sampling import Sampling

    add = parser.add_argument
    add_responses(parser, "sets prompts, grading and oger.steps.delimiters", ", as oger eval writes them")
    add("--out", type=Path, required=True, help="file to write, .jsonl: prompt, completions, labels")
    add(
        "--by",
        choices=ESTIMATES,
        default="any",
        help="any: a step is good if any rollout from there is right (hard estimation); share: the share of "
        "right rollouts (soft); countdown: exact, by arithmetic (%(default)s)",
    )
    add("--model", help="folder or hub name of the policy (default: the recipe's)")
    add("--n", type=int, default=8, help="rollouts from each step (%(default)s)")
    add("--temperature", type=float, default=0.7, help="temperature of the rollouts (%(default)s)")
    add("--max_new_tokens", type=int, default=Sampling.max_new_tokens, help="longest rollout, in tokens (%(default)s)")
    add("--seed", type=int, default=0, help="seed; every rollout derives its own from it (%(default)s)")
    add("--batch_size", type=int, default=256, help="requests in flight (%(default)s)")


def main(argv: list[str] | None = None) -> None:
    command = ""
    try:
        parser = build_parser()
        args, flags = parser.parse_known_args(argv)
        command = f" {args.command}"
        _COMMANDS[args.command](parser, args, flags)
    except RecipeError as error:
        sys.exit(f"oger prm{command}: {error}")
    except KeyboardInterrupt:
        kept = "" if command == " eval" else "; the same command resumes it"
        sys.exit(f"oger prm{command}: interrupted{kept}")


# ---- train


def _train(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    from oger_recipe.data.labelled_steps import read_labelled_steps

    if flags:
        raise RecipeError(f"unknown flag '{flags[0]}' (oger prm train --help shows all)")
    how = Training(**{each.name: vars(args)[each.name] for each in fields(Training)})
    if problems := list(how.problems()):
        raise RecipeError("\n  - ".join(["this training cannot start:", *problems]))
    if args.out.exists():
        raise RecipeError(f"--out {args.out} exists: remove it, or choose another one")
    entry = {"model": args.model, "format": args.format, "place": "in_process"}
    entry |= {name: vars(args)[name] for name in ("revision", *_FORMAT_KEYS) if vars(args)[name] is not None}
    solutions, shapes = read_labelled_steps(args.data, args.split)
    print(_read(shapes, len(solutions)), flush=True)
    from oger_recipe.prm.command_train import THRESHOLD, entry_of, train

    report = train(entry, solutions, args.data, how, args.out)
    print(f"\n{_of_held_out(report['held_out'], THRESHOLD)}")
    print(f"PRM: {args.out}\nits entry: - {entry_of(entry, args.out)}")


def _of_held_out(found: Mapping[str, Any], threshold: float) -> str:
    if not found:
        return "nothing was held out"
    return (
        f"held out: {found['steps']} steps, {found['bad_steps']} of them bad, of {found['solutions']} solutions; AUC "
        f"{_number(found['auc'])}; at threshold {threshold} accuracy {_number(found['step_accuracy'])}, F1 of first "
        f"errors {_number(found['f1'])}"
    )


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _read(shapes: Mapping[str, int], solutions: int) -> str:
    return f"read: {', '.join(f'{count} rows of {name}' for name, count in shapes.items())}; {solutions} solutions"


# ---- eval


def _eval(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    from oger_recipe.offline.prm_eval import (
        cases,
        dead,
        gives_rewards,
        picture,
        prm_of,
        report,
        result,
        scored,
        tuning_rows,
    )

    _check_eval(args)
    settings = settings_of_run(args.recipe, flags, parser)
    entry = entry_of(args, "--prm", _EXAMPLE, settings, name="prm", kind="process")
    spec = prm_of(entry, settings)
    if args.picture is not None and gives_rewards(spec):
        raise RecipeError("--picture needs probabilities, and scorer implicit gives rewards: leave it out")
    solutions, shapes = _labelled(args)
    tuned = tuning_rows(solutions, args.tune, settings["train.seed"])
    print(f"{_read(shapes, len(solutions))}\n{spec.name}: {len(solutions)} solutions ...", flush=True)
    found = scored(spec, solutions, settings)
    figures = result(found, args.threshold, tuned)
    print(f"\n{report(found, figures)}")
    if args.out is not None:
        said = {"prm": entry, "data": _sources(args), "tune": args.tune}
        write_json(args.out, said | figures | {"cases": cases(found, tuned)})
        print(f"figures and scores: {args.out}")
    if args.picture is not None and found.probabilities:
        picture(found.without(tuned), args.picture)
        print(f"picture: {args.picture}")
    elif args.picture is not None:
        print("picture: not drawn, some scores are below 0 or above 1")
    if problem := dead(found):
        raise RecipeError(problem)


def _check_eval(args: argparse.Namespace) -> None:
    require_entry(args, "PRM")
    if args.benchmark is None and args.data is None:
        raise RecipeError(
            "nothing to evaluate on: give --data FILE, or --benchmark processbench to read it from the Hub"
        )
    if args.tune is not None and args.threshold is not None:
        raise RecipeError("--tune chooses the threshold, and --threshold sets it: leave out one of them")
    if args.tune is not None and not 0 < args.tune < 1:
        raise RecipeError(f"--tune is {args.tune}: it must be above 0 and below 1")
    if args.picture is not None and args.picture.suffix not in (".png", ".svg"):
        raise RecipeError(f"--picture {args.picture}: the file must end in .png or .svg")
    for flag in ("out", "picture"):
        if vars(args)[flag] is not None:
            require_writable(f"--{flag}", vars(args)[flag])


def _sources(args: argparse.Namespace) -> list[str]:
    return args.data or [f"{_PROCESSBENCH} ({split})" for split in _SPLITS]


def _labelled(args: argparse.Namespace) -> tuple[list[Any], dict[str, int]]:
    from oger_recipe.data.labelled_steps import read_labelled_steps

    if args.data is not None:
        solutions, shapes = read_labelled_steps(args.data, args.split)
    else:
        parts = [read_labelled_steps([_PROCESSBENCH], split) for split in _SPLITS]
        solutions = [each for part, _ in parts for each in part]
        shapes = {name: sum(counts.get(name, 0) for _, counts in parts) for _, counts in parts for name in counts}
    if args.benchmark and (others := [name for name in shapes if name != "ProcessBench"]):
        raise RecipeError(
            f"--benchmark processbench: the data has rows of {' and '.join(others)}: leave the flag out to take them"
        )
    return solutions[: args.limit], shapes


# ---- label


def _label(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    from oger_recipe.evaluation.sampling import Model, Sampling
    from oger_recipe.offline.prm_labels import Labelling, label

    numbers = {name: vars(args)[name] for name in ("n", "max_new_tokens", "batch_size")}
    for name, number in numbers.items():
        if number < 1:
            raise RecipeError(f"--{name} is {number}: it must be 1 or more")
    if not 0 < args.temperature < float("inf"):
        raise RecipeError(f"--temperature is {args.temperature}: it must be above 0, or all rollouts are the same")
    flags += data_flags(args)
    flags += [f"--actor.model_name_or_path={args.model}"] if args.model else []
    settings = settings_of_run(args.recipe, flags, parser)
    require_writable("--out", args.out)
    if args.out.suffix != ".jsonl":
        raise RecipeError(f"--out {args.out}: the file must end in .jsonl")
    if args.out.exists():
        raise RecipeError(f"--out {args.out} exists: remove it, or choose another one")
    sampling = Sampling(args.n, args.temperature, max_new_tokens=args.max_new_tokens, seed=args.seed)
    model = Model("", batch_size=args.batch_size, trust_remote_code=settings["oger.trust_remote_code"])
    said = label(settings, args.responses, Labelling(args.by, model, sampling), args.out)
    print(f"{said}\nlabels: {args.out}")


_COMMANDS = {"train": _train, "eval": _eval, "label": _label}


if __name__ == "__main__":
    main()
