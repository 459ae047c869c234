"""``oger train --recipe FILE [flags]``: OpenRLHF's command line with a YAML file underneath; flags win over it."""

import argparse
import sys
from pathlib import Path

from oger_recipe.cli import train_ppo_ray


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("oger train", add_help=False, allow_abbrev=False)
    parser.add_argument("--recipe", type=Path, help="YAML recipe file; its paths are the flags below")
    parser.add_argument("--dry-run", action="store_true", help="check the recipe, print GPUs and step sizes, and stop")
    parser.add_argument(
        "--overwrite", action="store_true", help="remove the run that is in oger.run_dir, and begin anew"
    )
    known, flags = parser.parse_known_args(argv)
    if known.recipe is None and not {"-h", "--help"} & set(flags):
        sys.exit("oger train: --recipe FILE is missing, e.g. oger train --recipe configs/countdown_cpu.yaml")
    train_ppo_ray.main(flags, known.recipe, dry_run=known.dry_run, overwrite=known.overwrite)


if __name__ == "__main__":
    main()
