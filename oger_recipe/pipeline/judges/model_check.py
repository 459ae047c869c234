"""What vLLM says of models before any is loaded: ``python -m oger_recipe.pipeline.judges.model_check``.

For checks/model_loading.py: reads a JSON list on standard input, of [name of a class of keys, its keys, whether the
model is to write], writes one of sentences, null for a model that nothing speaks against. A process of its own:
importing vLLM takes seconds, and prints pages.
"""

import json
import sys
from typing import Any

from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.models.keys import ModelKeys, ProcessKeys
from oger_recipe.pipeline.judges.judge_actor import model_arguments, plain_arguments

_CLASSES = {each.__name__: each for each in (ModelKeys, ProcessKeys)}
_SHOWN = 400  # characters of vLLM's reason


def _problem(keys: ModelKeys, writes: bool) -> str | None:
    try:
        config = _config(model_arguments(keys, cpu=is_without_cuda()))
        if keys.scores_steps:
            return _no_prm(keys.prm, config)
    except Exception as error:  # whatever can be wrong with a model's files
        return f"vLLM cannot load {keys.model}: {' '.join(str(error).split())}"[:_SHOWN]
    architecture = ", ".join(config.architectures)
    if writes and config.runner_type != "generate":
        return f"{keys.model} is a {architecture}: it does not write, as a judge must"
    if not writes and config.runner_type != "pooling":
        return f"{keys.model} is a {architecture}: it has no head that gives a number"
    return None


def _config(arguments: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(**arguments).create_model_config()


def _no_prm(keys: ProcessKeys, config: Any) -> str | None:
    """Say why this is no PRM of its form, None where it is. An adapter may bring the head."""
    form, of_files = keys.written, _config(plain_arguments(keys, cpu=is_without_cuda()))
    model = f"{keys.model} is a {', '.join(config.architectures)}"
    if form.scorer == "step_tag":
        writes = of_files.runner_type == "generate"
        return None if writes else f"{model}: it does not write, which scorer step_tag needs; is it a token_head?"
    if keys.adapter is not None:
        return None
    if of_files.runner_type != "pooling":
        return f"{model}: it has no head that gives tokens labels, which scorer token_head needs; is it a step_tag?"
    labels, good = config.hf_config.num_labels, int(form.good_label or 0)
    return None if good < labels else f"{model} with {labels} labels, from 0: good_label {good} is none of them"


def main() -> None:
    asked = json.load(sys.stdin)
    print(json.dumps([_problem(_CLASSES[name](**keys), writes) for name, keys, writes in asked]))


if __name__ == "__main__":
    main()
