"""Prints the flags of `oger train` that spread a recipe over nodes of equal GPUs, one word per line.

    python scripts/machine_flags.py NODES GPUS_PER_NODE TENSOR_PARALLEL RECIPE [flags of oger train]

TENSOR_PARALLEL: GPUs of one vLLM engine, "" for the recipe's. A recipe without train.colocate_all gives each role its
own GPUs: nothing is printed for it.
"""

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.train import options
from oger_recipe.cli.train_ppo_ray import build_parser, settings_of
from oger_recipe.settings.shipped import find_recipe


def settings(recipe: str, *words: str) -> Mapping[str, Any]:
    """Return the settings of a recipe and the flags of `oger train`."""
    flags = options().parse_known_args(words)[1]
    with contextlib.redirect_stdout(sys.stderr):
        return settings_of(build_parser(cpu=False), flags, find_recipe(Path(recipe)), train_judges=False)


def machine_flags(nodes: int, gpus_per_node: int, tensor_parallel: str, recipe: str, *words: str) -> list[str]:
    """Return the flags. Raises RecipeError for engines that do not fit the GPUs."""
    value = settings(recipe, *words)
    if not value["train.colocate_all"]:
        if tensor_parallel:
            raise RecipeError(
                "TENSOR_PARALLEL is for recipes with train.colocate_all; give this one its GPUs by flags"
            )
        return []
    engine, gpus = tensor_parallel or str(value["vllm.tensor_parallel_size"]), nodes * gpus_per_node
    if not (engine.isdecimal() and int(engine)):
        raise RecipeError(f"TENSOR_PARALLEL is {engine}, not a number of GPUs")
    if gpus % int(engine):
        raise RecipeError(
            f"engines of {engine} GPUs do not fit the job's {gpus}: set TENSOR_PARALLEL to a divisor of {gpus}"
        )
    shape = {"vllm.tensor_parallel_size": int(engine), "vllm.num_engines": gpus // int(engine)}
    for role in ("actor", "ref", "critic"):
        shape |= {f"{role}.num_nodes": nodes, f"{role}.num_gpus_per_node": gpus_per_node}
    return [word for name, number in shape.items() for word in (f"--{name}", str(number))]


if __name__ == "__main__":
    try:
        print(*machine_flags(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]), sep="\n")
    except RecipeError as error:
        sys.exit(f"train_oger: {error}")
