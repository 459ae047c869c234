"""What vLLM says of models before any is loaded: ``python -m oger_recipe.plugin.judges.model_check``.

For run/judges.py: reads a JSON list on standard input, of [name of a class of keys, its keys, whether the model is to
write], writes one of sentences, null for a model that nothing speaks against. A process of its own: importing vLLM
takes seconds, and prints pages.
"""

import json
import sys

from oger_recipe.cpu import is_without_cuda
from oger_recipe.plugin.judges.judge_actor import model_arguments
from oger_recipe.rewards.models.keys import ModelKeys, ProcessKeys

_CLASSES = {each.__name__: each for each in (ModelKeys, ProcessKeys)}
_SHOWN = 400  # characters of vLLM's reason


def _problem(keys: ModelKeys, writes: bool) -> str | None:
    from vllm.engine.arg_utils import EngineArgs

    try:
        config = EngineArgs(**model_arguments(keys, cpu=is_without_cuda())).create_model_config()
    except Exception as error:  # whatever can be wrong with a model's files
        return f"vLLM cannot load {keys.model}: {' '.join(str(error).split())}"[:_SHOWN]
    architecture = ", ".join(config.architectures)
    if writes and config.runner_type != "generate":
        return f"{keys.model} is a {architecture}: it does not write, as a judge has to"
    if not writes and config.runner_type != "pooling":
        return f"{keys.model} is a {architecture}: it has no head that gives a number"
    return None


def main() -> None:
    asked = json.load(sys.stdin)
    print(json.dumps([_problem(_CLASSES[name](**keys), writes) for name, keys, writes in asked]))


if __name__ == "__main__":
    main()
