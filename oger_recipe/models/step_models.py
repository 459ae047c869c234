"""Process reward models: how they are loaded, what they say at the ends of steps, and what vLLM is told of them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.remote_code import may_run
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.step_text import verdict_tokens
from oger_recipe.models.tokens import load_tokenizer
from oger_recipe.rewards.place import Reply, StepPrompt
from oger_recipe.rewards.sources import ANSWER

GOOD_OF_TOKENS = 1  # the verdict tokens' logits are bad, good
_QWEN_PRM = "Qwen2ForProcessRewardModel"  # of Qwen2.5-Math-PRM, whose own code transformers need not run


def load_step_model(keys: ProcessKeys, settings: dict[str, Any]) -> Any:
    """Load the model that the keys' scorer reads, its adapter merged into it.

    Raises RecipeError where its files, and the adapter's, do not hold all of it.
    """
    from transformers import AutoModelForCausalLM

    check_adapter(keys)
    if keys.written.scorer == "step_tag":
        auto: Any = AutoModelForCausalLM
        model, found = auto.from_pretrained(keys.model, output_loading_info=True, **settings)
        if lacking := sorted(found["missing_keys"]):
            raise RecipeError(f"{keys.model} does not write, as scorer step_tag needs: it lacks {', '.join(lacking)}")
        return model if keys.adapter is None else merged(model, keys)
    model, lacking = _token_head(keys, settings)
    if keys.adapter is not None:
        model = merged(model, keys)
        lacking = [name for name in lacking if not name.startswith(tuple(_saved_whole(keys)))]
    if lacking:
        raise RecipeError(f"{keys.model} has no head that gives tokens labels: its files lack {', '.join(lacking)}")
    labels, good = model.config.num_labels, keys.written.good_label
    if good is None or good >= labels:
        raise RecipeError(f"good_label {good}: the head of {keys.model} has {labels} labels, from 0")
    return model


def _token_head(keys: ProcessKeys, settings: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return the model, and the names of weights that its files lack: transformers makes them up."""
    from transformers import AutoConfig, AutoModelForTokenClassification, Qwen2Config

    plain = settings | {"trust_remote_code": False}
    auto: Any = AutoModelForTokenClassification
    files = {name: value for name, value in settings.items() if name != "dtype"}
    try:
        is_qwens = _QWEN_PRM in (Qwen2Config.get_config_dict(keys.model, **files)[0].get("architectures") or ())
    except OSError:
        is_qwens = False
    if is_qwens:
        auto, settings = _qwen_prm(), plain
        config = Qwen2Config.from_pretrained(keys.model, revision=settings["revision"])
        config.num_labels = 2
    else:
        config = AutoConfig.from_pretrained(keys.model, **files)
        if keys.adapter is not None and (labels := _labels_of(keys)) is not None:
            config.num_labels = labels
    model, found = auto.from_pretrained(
        keys.model, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **settings
    )
    return model, sorted([*found["missing_keys"], *(each[0] for each in found["mismatched_keys"])])


def _qwen_prm() -> Any:
    from torch import nn
    from transformers import Qwen2ForTokenClassification

    class QwenProcessRewardModel(Qwen2ForTokenClassification):  # type: ignore[misc]
        """A head of two layers."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            width = config.hidden_size
            self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, config.num_labels))
            self.post_init()

    return QwenProcessRewardModel


def merged(model: Any, keys: ProcessKeys) -> Any:
    """Merge the adapter into the model. Raises RecipeError for one that was made for another model."""
    from peft import PeftModel

    assert keys.adapter is not None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            adapted = PeftModel.from_pretrained(model, keys.adapter)
        except Exception as error:  # whatever can be wrong with its files
            raise RecipeError(f"adapter {keys.adapter} does not fit {keys.model}: {error}") from error
    if lacking := [str(each.message) for each in said if "missing adapter keys" in str(each.message)]:
        raise RecipeError(f"adapter {keys.adapter} does not fit {keys.model}: {lacking[0]}")
    return adapted.merge_and_unload()


def check_adapter(keys: ProcessKeys) -> None:
    """Raise RecipeError for an adapter that is not LoRA or cannot be read."""
    from peft import PeftConfig

    if keys.adapter is None:
        return
    try:
        kind = PeftConfig.from_pretrained(keys.adapter).peft_type
    except Exception as error:  # whatever can be wrong with its files
        raise RecipeError(f"adapter {keys.adapter} cannot be read: {error}") from error
    if kind != "LORA":
        raise RecipeError(f"adapter {keys.adapter} is of type {kind.value}, and must be LoRA")


def _saved_whole(keys: ProcessKeys) -> list[str]:
    """Return the modules that an adapter brings whole, as the head."""
    from peft import PeftConfig

    return list(getattr(PeftConfig.from_pretrained(str(keys.adapter)), "modules_to_save", None) or ())


def _labels_of(keys: ProcessKeys) -> int | None:
    """Count the labels of an adapter's head; None without a head."""
    from peft import load_peft_weights

    weights = load_peft_weights(str(keys.adapter), device="cpu")
    return next((len(each) for name, each in weights.items() if name.endswith("score.weight")), None)


def step_logits(
    keys: ProcessKeys, tokenizer: Any, model: Any, batch: Any, prompts: Sequence[StepPrompt]
) -> list[Tensor]:
    """Return the logits at each prompt's ends, [ends, numbers]; the batch is padded on the right."""
    ends = [torch.tensor(prompt.ends, dtype=torch.long) for prompt in prompts]
    if keys.written.scorer == "token_head":
        with torch.inference_mode():
            logits = model(**batch).logits.float().cpu()
        return [logits[row, places] for row, places in enumerate(ends)]
    read = torch.cat(ends).unique()
    only: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:  # a vocabulary for every token is large
        only = {"logits_to_keep": read.to(model.device)}
    with torch.inference_mode():
        logits = model(**batch, **only, use_cache=False).logits[..., list(verdict_tokens(keys, tokenizer))]
    logits = logits.float().cpu()
    if not only:
        return [logits[row, places] for row, places in enumerate(ends)]
    return [logits[row, torch.searchsorted(read, places)] for row, places in enumerate(ends)]


def step_reply(keys: ProcessKeys, logits: Tensor) -> Reply:
    """Return the probabilities of a good step, from logits [ends, numbers] at the ends."""
    good = keys.written.good_label if keys.written.scorer == "token_head" else GOOD_OF_TOKENS
    if logits.dim() != 2 or good is None or good >= logits.shape[1]:
        return Reply(error=f"the model gives numbers of shape {list(logits.shape)}, and label {good} is needed")
    if not logits.isfinite().all():
        return Reply(error="the model gives a number that is not finite", cause=ANSWER)
    return Reply(steps=tuple(logits.double().softmax(dim=1)[:, good].tolist()))


def step_arguments(keys: ProcessKeys) -> dict[str, Any]:
    """Return vLLM's arguments with which the model gives numbers for every token: those of a head with labels, or the
    logits of the bad and the good token, whose rows of the output layer vLLM takes as a head.

    Raises RecipeError for tokens that the tokenizer has not.
    """
    of_tokens = {"runner": "pooling", "pooler_config": {"task": "token_classify", "tok_pooling_type": "ALL"}}
    if keys.written.scorer == "token_head":
        return of_tokens
    tokenizer = load_tokenizer(keys)
    tokens = tokenizer.convert_ids_to_tokens(list(verdict_tokens(keys, tokenizer)))
    overrides = {"classifier_from_token": tokens, "method": "no_post_processing"}
    return of_tokens | {"convert": "classify", "hf_overrides": overrides}


def without_adapter(keys: ProcessKeys, folder: Path) -> ProcessKeys:
    """Save the model with its adapter merged, and return keys that name it. Raises RecipeError as loading does."""
    model = load_step_model(keys, {"revision": keys.revision, "trust_remote_code": may_run(), "dtype": "auto"})
    model.save_pretrained(folder)
    load_tokenizer(keys).save_pretrained(folder)
    return replace(keys, model=str(folder), revision=None, tokenizer=None, adapter=None)
