"""What vLLM says of models before any is loaded: ``python -m oger_recipe.plugin.judges.model_check``.

Reads a JSON list on standard input, of [keys of a ModelKeys, whether it is to write], and writes one of sentences,
null for a model that nothing speaks against. A process of its own: importing vLLM takes seconds, and prints pages.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from oger_recipe.cpu import CPU_ENVIRONMENT, is_without_cuda
from oger_recipe.plugin.judges.judge_actor import model_arguments
from oger_recipe.rewards.models.keys import ModelKeys, WriterKeys

_LIMIT_S = 300.0
_SHOWN = 400  # characters of vLLM's reason


def problems_of(models: Sequence[ModelKeys], *, cpu: bool) -> list[str | None]:
    """Why vLLM cannot load a model for what it is to do; None where it can, by its configuration.

    Raises RuntimeError where vLLM itself does not work.
    """
    asked = [
        ({name: getattr(keys, name) for name in ModelKeys.names()}, isinstance(keys, WriterKeys)) for keys in models
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(asked),
            env=os.environ | (CPU_ENVIRONMENT if cpu else {}),
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


def _problem(keys: ModelKeys, writes: bool) -> str | None:
    from vllm.engine.arg_utils import EngineArgs

    try:
        config = EngineArgs(**model_arguments(keys, cpu=is_without_cuda())).create_model_config()
    except Exception as error:  # whatever can be wrong with a model's files
        return f"vLLM cannot load {keys.model}: {' '.join(str(error).split())}"[:_SHOWN]
    architecture = ", ".join(config.architectures)
    if writes and config.runner_type != "generate":
        return f"{keys.model} is a {architecture}, which does not write: it is none for a judge"
    if not writes and config.runner_type != "pooling":
        return f"{keys.model} is a {architecture}, which has no head that gives a number"
    return None


def main() -> None:
    asked = json.load(sys.stdin)
    print(json.dumps([_problem(ModelKeys(**keys), writes) for keys, writes in asked]))


if __name__ == "__main__":
    main()
