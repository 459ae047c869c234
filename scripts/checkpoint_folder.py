"""Prints where a run of `oger train` keeps its checkpoints: ckpt.path of the recipe and the flags.

python scripts/checkpoint_folder.py RECIPE [flags of oger train]
"""

import sys

from machine_flags import settings

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.job import Job

if __name__ == "__main__":
    try:
        print(Job.of(settings(*sys.argv[1:]), None, cpu=False, overwrite=True).checkpoints)
    except RecipeError as error:
        sys.exit(f"train_oger: {error}")
