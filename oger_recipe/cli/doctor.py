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
        description="Look whether this machine is ready for training, one line a check: ok, warning, or problem with "
        "what to do. The exit status is 1 where there is a problem.",
    )
    parser.add_argument(
        "--recipe", type=Path, help="look for what this recipe needs, too; flags of `oger train` may follow"
    )
    gpu = parser.add_argument_group("a first hour on a GPU")
    gpu.add_argument(
        "--gpu", action="store_true", help="compute, sample, sync and train on one GPU, and compare: about ten minutes"
    )
    gpu.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: what of --gpu needs no GPU, at a small size"
    )
    gpu.add_argument("--only", nargs="+", metavar="CHECK", help="of --gpu's checks, by their names")
    gpu.add_argument(
        "--smollm2", default="HuggingFaceTB/SmolLM2-135M-Instruct", metavar="MODEL", help="its folder, without the hub"
    )
    gpu.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="--gpu's report, to attach to an issue")
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
            "CUDA_VISIBLE_DEVICES). What needs none is looked at with --device cpu"
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
    print(f"{args.out}: the report, to attach to an issue; {log}: what was printed meanwhile, for yourself")
    if failed := [name for name, each in found.items() if each.verdict == FAILED]:
        sys.exit(f"oger doctor: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
