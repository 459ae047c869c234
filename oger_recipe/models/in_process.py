"""A reward model in this process: transformers, for small models.

It stays loaded once it was opened. What it says to a prompt does not depend on the prompts beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.remote_code import may_run
from oger_recipe.models.keys import ModelKeys
from oger_recipe.models.likelihood import likelihood_reply, response_length, response_log_probs
from oger_recipe.models.step_models import load_step_model, step_logits, step_reply
from oger_recipe.models.tokens import load_tokenizer, tokens_of
from oger_recipe.rewards.place import Reply, Sampling, StepPrompt, Told
from oger_recipe.rewards.sources import ANSWER, OVERFLOW

_UNBOUNDED = 2**31  # tokens, of a model that says no limit


class InProcess:
    """A small model in this process; on CPUs it computes in float32 unless `dtype` says otherwise."""

    def __init__(self, keys: ModelKeys, *, told: Told | None = None) -> None:
        self._keys, self._told = keys, told
        self._loaded: tuple[Any, Any] | None = None  # tokenizer and model

    def open(self) -> None:
        self._model(_writer if self._keys.writes else load_step_model if self._keys.scores_steps else _head)

    def close(self) -> None:
        pass

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        tokenizer, model = self._model(_writer)
        tokens, replies = self._tokens(model, [tokens_of(tokenizer, prompt) for prompt in prompts], 1)
        longest = self._longest(model)
        # Prompts that leave equal room for a reply are written to together.
        rooms = {row: min(sampling.max_new_tokens, longest - len(ids)) for row, ids in tokens.items()}
        for room in set(rooms.values()):
            for rows in batches({row: ids for row, ids in tokens.items() if rooms[row] == room}):
                batch = padded([tokens[row] for row in rows], 0, left=True).to(model.device)
                noise = Noise([prompts[row] for row in rows], sampling) if sampling.temperature else None
                replies |= dict(zip(rows, _written(tokenizer, model, batch, room, noise), strict=True))
                self._tell(len(replies), len(prompts))
        return [replies[row] for row in range(len(prompts))]

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        tokenizer, model = self._model(_head)
        tokens, replies = self._tokens(model, [tokens_of(tokenizer, prompt) for prompt in prompts], 0)
        for rows in batches(tokens):
            values = _values(tokenizer, model, [tokens[row] for row in rows])
            replies |= {row: _number(value) for row, value in zip(rows, values, strict=True)}
            self._tell(len(replies), len(prompts))
        return [replies[row] for row in range(len(prompts))]

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        tokenizer, model = self._model(load_step_model)
        tokens, replies = self._tokens(model, [list(prompt.tokens) for prompt in prompts], 0)
        for rows in batches(tokens):
            batch = padded([tokens[row] for row in rows], 0, left=False).to(model.device)
            logits = step_logits(self._keys.prm, tokenizer, model, batch, [prompts[row] for row in rows])
            replies |= {row: step_reply(self._keys.prm, each) for row, each in zip(rows, logits, strict=True)}
            self._tell(len(replies), len(prompts))
        return [replies[row] for row in range(len(prompts))]

    def log_probs(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        _, model = self.writer()
        tokens, replies = self._tokens(model, [list(prompt.tokens) for prompt in prompts], 0)
        for rows in batches(tokens):
            read = [prompts[row] for row in rows]
            batch = padded([tokens[row] for row in rows], 0, left=False).to(model.device)
            with torch.inference_mode():
                found = response_log_probs(model, batch, read)
            for row, prompt, numbers in zip(rows, read, found, strict=True):
                replies[row] = likelihood_reply(prompt, numbers[: response_length(prompt)].tolist())
            self._tell(len(replies), len(prompts))
        return [replies[row] for row in range(len(prompts))]

    def writer(self) -> tuple[Any, Any]:
        """Return tokenizer and model of a model that writes."""
        return self._model(_writer)

    def _tell(self, came: int, total: int) -> None:
        if self._told is not None:
            self._told(self._keys.model, came, total)

    def _model(self, make: Any) -> tuple[Any, Any]:
        if self._loaded is None:
            self._loaded = _load(self._keys, make)
        return self._loaded

    def _longest(self, model: Any) -> int:
        return int(self._keys.max_model_len or getattr(model.config, "max_position_embeddings", None) or _UNBOUNDED)

    def _tokens(
        self, model: Any, prompts: Sequence[list[int]], room: int
    ) -> tuple[dict[int, list[int]], dict[int, Reply]]:
        """Return tokens by prompt number, and error replies to prompts that leave less than `room` tokens."""
        longest = self._longest(model)
        tokens = dict(enumerate(prompts))
        refused = {
            row: Reply(
                error=f"the prompt has {len(ids)} tokens, and {self._keys.model} reads {longest} in all",
                cause=OVERFLOW,
            )
            for row, ids in tokens.items()
            if len(ids) + room > longest
        }
        return {row: ids for row, ids in tokens.items() if row not in refused}, refused


def _load(keys: ModelKeys, make: Any) -> tuple[Any, Any]:
    tokenizer = load_tokenizer(keys)
    try:
        model = make(keys, {"revision": keys.revision, "trust_remote_code": may_run(), "dtype": _dtype(keys)})
    except RecipeError:
        raise
    except Exception as error:  # whatever can be wrong with a model's files
        raise RecipeError(f"{keys.model} cannot be loaded: {type(error).__name__}: {error}") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return tokenizer, model.eval().to(device)


def _dtype(keys: ModelKeys) -> Any:
    return "float32" if keys.dtype == "auto" and not torch.cuda.is_available() else keys.dtype


def _writer(keys: ModelKeys, settings: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(keys.model, **settings)


def _head(keys: ModelKeys, settings: dict[str, Any]) -> Any:
    """Load a model with one number as its output. Raises RecipeError where its files hold no such head: transformers
    would make one up."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

    dtype = settings.pop("dtype")
    config = AutoConfig.from_pretrained(keys.model, **settings)
    config.num_labels = 1
    of_tokens = any("ForTokenClassification" in name for name in config.architectures or ())
    auto = AutoModelForTokenClassification if of_tokens else AutoModelForSequenceClassification
    model, found = auto.from_pretrained(
        keys.model, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **settings
    )
    problems = {
        "they lack": found["missing_keys"],
        "of another size are": [each[0] for each in found["mismatched_keys"]],
        "unread stay": [each for each in found["unexpected_keys"] if "score" in each or "classif" in each],
    }
    if any(problems.values()):
        said = "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in problems.items() if names)
        raise RecipeError(f"{keys.model} has no head that gives one number: of the weights in its files {said}")
    return model


def batches(tokens: Mapping[int, Sequence[int]], size: int = 8) -> Iterator[list[int]]:
    """Yield batches of prompts' numbers, longest first."""
    by_length = sorted(tokens, key=lambda row: -len(tokens[row]))
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]


def padded(tokens: Sequence[Sequence[int]], pad: int, *, left: bool) -> Any:
    """Pad prompts' tokens to a batch [B, T], with the mask of what is attended."""
    from transformers import BatchEncoding

    longest = max(map(len, tokens))
    ids, mask = torch.full((len(tokens), longest), pad), torch.zeros(len(tokens), longest, dtype=torch.long)
    for row, each in enumerate(tokens):
        there = slice(longest - len(each), longest) if left else slice(0, len(each))
        ids[row, there], mask[row, there] = torch.tensor(each), 1
    return BatchEncoding({"input_ids": ids, "attention_mask": mask})


# ---- judges


class Noise:
    """A logits processor with which the most likely token is a sample: Gumbel noise, of each row's own generator."""

    def __init__(self, prompts: Sequence[str], sampling: Sampling) -> None:
        from transformers import TopPLogitsWarper

        self._sampling, self._nucleus = sampling, TopPLogitsWarper(sampling.top_p)
        self._generators = [torch.Generator() for _ in prompts]
        for generator, prompt in zip(self._generators, prompts, strict=True):
            seed = sampling.seed_of(prompt)
            generator.seed() if seed is None else generator.manual_seed(seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        kept = self._nucleus(input_ids, scores.float() / self._sampling.temperature)
        drawn = [torch.rand(kept.shape[1], generator=each) for each in self._generators]
        return kept - (-torch.stack(drawn).to(kept.device).clamp_min(1e-20).log()).log()


def _written(tokenizer: Any, model: Any, batch: Any, room: int, noise: Noise | None) -> Iterator[Reply]:
    from transformers import LogitsProcessorList

    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    ends = ends if isinstance(ends, list) else [ends]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
    with torch.inference_mode():
        sequences = model.generate(
            **batch,
            max_new_tokens=room,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=ends,
            pad_token_id=pad,
            logits_processor=LogitsProcessorList([noise] if noise else []),
        )
    for reply in sequences[:, batch["input_ids"].shape[1] :].tolist():
        end = next((place for place, token in enumerate(reply) if token in ends), None)
        yield Reply(tokenizer.decode(reply[:end], skip_special_tokens=True), cut=end is None)


# ---- heads


def _values(tokenizer: Any, model: Any, tokens: Sequence[list[int]]) -> list[float]:
    """Return the head's number for each prompt: at the last token of a decoder, else as the model pools."""
    is_decoder = hasattr(model, "score")
    # Decoders look for the last token that is not the padding: it must be one that no prompt ends with.
    pad = _unlike({each[-1] for each in tokens}) if is_decoder else tokenizer.pad_token_id
    model.config.pad_token_id = pad
    batch = padded(tokens, pad, left=False).to(model.device)
    with torch.inference_mode():
        logits = model(**batch).logits.float()
    if logits.dim() == 3:  # a number for every token
        logits = logits[torch.arange(len(tokens)), batch["attention_mask"].sum(dim=1) - 1]
    values = logits.flatten()
    if getattr(model.config, "normalize_reward", False) and hasattr(model.config, "mean"):  # OpenRLHF's own heads
        values = (values - model.config.mean) / model.config.std
    return values.tolist()  # type: ignore[no-any-return]


def _unlike(tokens: set[int]) -> int:
    return next(token for token in range(len(tokens) + 1) if token not in tokens)


def _number(value: float) -> Reply:
    if torch.tensor(value).isfinite():
        return Reply(value=value)
    return Reply(error=f"the head's number is {value}", cause=ANSWER)
