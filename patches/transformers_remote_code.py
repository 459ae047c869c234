"""Code that a model's folder or repository brings is not run, unless the recipe says so.

Upstream: transformers.dynamic_module_utils.get_cached_module_file, which finds the file of every such class (of
configurations, tokenizers and models, and of sentence-transformers) and of a model's own generate().
Why: OpenRLHF loads configuration, tokenizer and model with ``trust_remote_code=True`` in controller, policy, critic,
reference and engine, whatever the user wants. A run refuses such models before it starts (remote_code.py); this stands
behind that refusal in every process. It is not for CPUs alone: it works where there is CUDA, too.
Checked: transformers 5.15.0. Needed for as long as ``trust_remote_code=True`` is in OpenRLHF.
"""

import functools
from typing import Any

from oger_recipe.base.remote_code import SETTING, may_run
from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "d9e00a4763f7715273c90d7e3adb8607da66c8c511e42d3006904eced33dd7d1"


@functools.cache
def apply() -> None:
    """Refuse, in this process, to hand over models' code for import, unless the environment says that it may run."""
    from transformers import dynamic_module_utils

    upstream = dynamic_module_utils.get_cached_module_file
    require_source(upstream, SOURCE_SHA256, package="transformers", checked="5.15.0", patch=__name__)

    def get_cached_module_file(model: Any, module_file: str, *args: Any, **kwargs: Any) -> str:
        found = upstream(model, module_file, *args, **kwargs)  # OSError where there is none, which some callers expect
        if not may_run():
            raise ValueError(f"{model} brings code of its own, {module_file}, which is not run: {SETTING} allows it")
        return found

    dynamic_module_utils.get_cached_module_file = get_cached_module_file  # type: ignore[assignment]
