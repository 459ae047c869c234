"""Asks vLLM, in a process of its own, whether it can load the reward's models."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from oger_recipe.base.cpu import CPU_ENVIRONMENT, ON_GPUS
from oger_recipe.base.imports import not_installed
from oger_recipe.models.keys import ModelKeys

_CHECK = "oger_recipe.pipeline.judges.model_check"
_LIMIT_S = 300.0
_SHOWN = 400  # characters of an error


def problems_of(models: Sequence[ModelKeys], *, cpu: bool) -> list[str | None]:
    """Say of each model why vLLM cannot load it for its use; None where it can, by its configuration.

    Raises RuntimeError where vLLM itself does not work.
    """
    if lacking := not_installed("vllm"):
        raise RuntimeError(lacking)
    engines = [keys.of_engine() for keys in models]
    asked = [
        (type(engine).__name__, asdict(engine), keys.writes) for keys, engine in zip(models, engines, strict=True)
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-m", _CHECK],
            input=json.dumps(asked),
            env=os.environ | (CPU_ENVIRONMENT if cpu else {ON_GPUS: "1"}),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        problems: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"vLLM does not answer within {_LIMIT_S:g} s") from None
    except (IndexError, ValueError):
        raise RuntimeError(f"vLLM does not work here: {done.stderr.strip()[-_SHOWN:]}") from None
    return problems
