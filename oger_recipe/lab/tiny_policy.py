"""The policy that the default job trains: a very small Qwen3 with its own tokenizer, warm-started by supervision."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from oger_recipe.base.arithmetic import matmul_dtype

# The pieces are learnt (byte-level BPE) within these cuts: whole numbers, words with the spaces around them,
# punctuation with the space after it, and everything else character by character.
_CUTS = r"\d+| ?[A-Za-z]+ ?|[,.;:] ?|\s+|."
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MAX_POSITIONS = 1024


def build_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> Any:
    """Train a transformers tokenizer on ``texts``; any text survives encoding and decoding."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CUTS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(_TAGS),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    # Not "special": the answer is read from text that was decoded without special tokens.
    fast.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in _TAGS])
    fast.chat_template = _CHAT_TEMPLATE
    fast.model_max_length = MAX_POSITIONS
    return fast


def build_model(tokenizer: Any, hidden_size: int, num_layers: int) -> Any:
    """Make a randomly initialised Qwen3 with tied embeddings, as the small Qwen models have them."""
    # Not Qwen2: for that architecture transformers replaces any saved tokenizer's cuts by Qwen2's own.
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        head_dim=32,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=hidden_size // 32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.set_attn_implementation("eager")  # faster than sdpa on CPUs, above all in bfloat16
    return model


def renew(model: torch.nn.Module, seed: int) -> None:
    """Put new values into every parameter, the same on every device: norms around one, all else noise. The model is
    untrained, but sure of what it says."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(1 + 0.2 * noise if weight.ndim == 1 else 0.12 * noise)


def _examples(tokenizer: Any, rows: list[dict[str, Any]]) -> list[dict[str, list[int]]]:
    """Make one example of each teacher trajectory; only the response is learnt."""
    pairs = [(row["prompt"], teacher["text"]) for row in rows for teacher in row["teachers"]]
    chats = [[{"role": "user", "content": prompt}] for prompt, _ in pairs]
    prompts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    response_ids = tokenizer([text for _, text in pairs], add_special_tokens=False)["input_ids"]
    return [
        {"input_ids": [*p, *r, tokenizer.eos_token_id], "labels": [-100] * len(p) + [*r, tokenizer.eos_token_id]}
        for p, r in zip(prompt_ids, response_ids, strict=True)
    ]


def _collator(pad_token_id: int) -> Callable[[list[dict[str, list[int]]]], dict[str, torch.Tensor]]:
    def collate(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        length = max(len(example["input_ids"]) for example in examples)
        padding = {"input_ids": pad_token_id, "labels": -100}
        batch = {
            name: torch.tensor([e[name] + [value] * (length - len(e[name])) for e in examples])
            for name, value in padding.items()
        }
        return batch | {"attention_mask": (batch["input_ids"] != pad_token_id).long()}

    return collate


def warm_start(
    rows: list[dict[str, Any]],
    folder: Path,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    decay: float = 0.0,
    hidden_size: int,
    num_layers: int,
    seed: int,
) -> None:
    """Make the policy, train it on the trajectories of ``rows``, pass after pass, and save it with its tokenizer.

    The learning rate is constant but for the last ``decay`` of the steps, over which it falls to a twentieth.
    """
    from transformers import Trainer, set_seed

    set_seed(seed)
    # The turns' names belong to the text that is cut: "assistant" should be one piece.
    turns = ["<|im_start|>user\n", "<|im_start|>assistant\n"]
    texts = (text for row in rows for text in [*turns, row["prompt"], *(t["text"] for t in row["teachers"])])
    tokenizer = build_tokenizer(texts)
    examples = _examples(tokenizer, rows)
    model = build_model(tokenizer, hidden_size, num_layers)
    settings = _training_arguments(folder / "trainer", steps, batch_size, learning_rate, decay, seed)
    Trainer(model, settings, train_dataset=examples, data_collator=_collator(tokenizer.pad_token_id)).train()
    # The engine samples in bfloat16 and the policy starts from it: save what both will load.
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _require_same_tokenizer(tokenizer, folder, rows[0]["prompt"] + rows[0]["teachers"][0]["text"])


def _training_arguments(
    folder: Path, steps: int, batch_size: int, learning_rate: float, decay: float, seed: int
) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=not torch.cuda.is_available(),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=learning_rate,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": round(decay * steps), "decay_type": "linear", "min_lr_ratio": 0.05},
        warmup_steps=min(50, steps // 10),
        logging_steps=max(steps // 5, 1),
        optim="adamw_torch_fused",
        bf16=matmul_dtype() == torch.bfloat16,
        save_strategy="no",
        report_to=[],
        seed=seed,
    )


def _require_same_tokenizer(tokenizer: Any, folder: Path, text: str) -> None:
    """Read the tokenizer back as engine and policy do: AutoTokenizer may choose another class than the one saved."""
    from transformers import AutoTokenizer

    if AutoTokenizer.from_pretrained(folder)(text)["input_ids"] != tokenizer(text)["input_ids"]:
        raise RuntimeError(f"the tokenizer read back from {folder} cuts texts in another way than the one saved there")
