"""``oger doctor [--recipe FILE] [flags of oger train]``: whether this machine is ready, one line a check.

``oger doctor --gpu``: whether its GPU computes and trains what a CPU does, in about ten minutes.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from oger_recipe.base import remote_code
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.machine import machine
from oger_recipe.checks.job import PROBLEM, Finding, Job
from oger_recipe.checks.preflight import findings
from oger_recipe.cli.shared import require_writable
from oger_recipe.settings.derived import in_prompts
from oger_recipe.settings.shipped import find_recipe


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "oger doctor",
        allow_abbrev=False,
        description="Checks whether this machine is ready for training, one line per check: ok, warning, or "
        "problem with its remedy. Exits with 1 if there is a problem.",
    )
    parser.add_argument(
        "--recipe", type=Path, help="also check what this recipe needs; flags of `oger train` may follow"
    )
    gpu = parser.add_argument_group("checks on a GPU")
    gpu.add_argument(
        "--gpu",
        action="store_true",
        help="test numerics, sampling, weight sync and training on one GPU against references: about ten minutes",
    )
    gpu.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: run the checks of --gpu that need no GPU, at a small size",
    )
    gpu.add_argument("--only", nargs="+", metavar="CHECK", help="run only these checks of --gpu")
    gpu.add_argument(
        "--smollm2",
        default="HuggingFaceTB/SmolLM2-135M-Instruct",
        metavar="MODEL",
        help="SmolLM2: its name on the hub, or its folder (%(default)s)",
    )
    gpu.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="report of --gpu, to attach to an issue")
    args, flags = parser.parse_known_args(argv)
    if args.gpu:
        try:
            return _gpu(args, flags)
        except RecipeError as error:
            sys.exit(f"oger doctor: {error}")
    problems = 0
    try:
        for found in _findings(find_recipe(args.recipe) if args.recipe else None, flags):
            print(found, flush=True)
            problems += found.state == PROBLEM
    except RecipeError as error:
        sys.exit(f"oger doctor: {error}")
    if problems:
        sys.exit(f"oger doctor: {problems} problem{'s' if problems > 1 else ''}")


def _findings(recipe: Path | None, flags: list[str]) -> Iterator[Finding]:
    from oger_recipe.checks.machine import gpus_found, machine_problems
    from oger_recipe.checks.settings import recipe_problems
    from oger_recipe.cli.train_ppo_ray import build_parser, settings_of

    cpu = machine().cpu
    value = in_prompts(settings_of(build_parser(cpu=cpu), flags, recipe, train_judges=False))
    remote_code.allow(value)
    if recipe:
        yield from (Finding(PROBLEM, text, "recipe") for text in recipe_problems(value))
        here = machine_problems(value, cpu=cpu, gpus_here=gpus_found(value))
        yield from (Finding(PROBLEM, text, "this machine") for text in here)
    job = Job(value, Path(value["oger.run_dir"] or "runs").absolute(), cpu, recipe)
    yield from findings(job, has_recipe=recipe is not None, slow=True)


def _gpu(args: argparse.Namespace, flags: list[str]) -> None:
    import torch

    if flags:
        raise RecipeError(f"--gpu takes no settings of a run: leave out {' '.join(flags)}")
    has_cuda = torch.cuda.is_available()
    if args.device == "cuda" and not has_cuda:
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs: install the build for GPUs"
        raise RecipeError(
            f"torch {torch.__version__} sees no GPU here; it is a build for {build} (docs/clusters.md, `nvidia-smi`, "
            "CUDA_VISIBLE_DEVICES). --device cpu runs the checks that need none"
        )
    if args.device == "cpu" and has_cuda:
        raise RecipeError("--device cpu is for machines without GPUs, and torch sees one here: leave it out")
    from oger_recipe.base.files import ray_folder
    from oger_recipe.base.imports import TRAINING, not_installed
    from oger_recipe.checks.gpu_checks import CHECKS
    from oger_recipe.checks.gpu_here import Here
    from oger_recipe.checks.gpu_report import FAILED, run_checks, write_report
    from oger_recipe.cli.train_ppo_ray import build_parser, parse

    if lacking := not_installed(*TRAINING):
        raise RecipeError(lacking)
    if unknown := set(args.only or ()) - CHECKS.keys():
        raise RecipeError(f"--only: no check {', '.join(sorted(unknown))}; known: {', '.join(CHECKS)}")
    log = args.out.with_suffix(".log")  # written on where it is there: it may be another program's
    if log == args.out:
        raise RecipeError(f"--out {args.out}: the log beside the report has this name; name it {log.stem}.json")
    require_writable("--out", args.out)
    settings = parse(build_parser(cpu=args.device == "cpu"), [])
    chosen = {name: check for name, check in CHECKS.items() if name in (args.only or CHECKS)}
    with tempfile.TemporaryDirectory(prefix="oger-", dir=ray_folder()) as folder:
        here = Here(args.device, Path(folder), settings, args.smollm2)
        found = run_checks(chosen, here, log)
        write_report(found, here, args.out)
    print(f"{args.out}: the report, to attach to an issue; {log}: the full output, for you")
    if failed := [name for name, each in found.items() if each.verdict == FAILED]:
        sys.exit(f"oger doctor: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
