"""transformers' Trainer on labelled steps. Importing this loads transformers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainingArguments

from oger_recipe.base.errors import RecipeError
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.prm.learning import Row, collator_of, loss_of
from oger_recipe.prm.options import Training
from oger_recipe.report.summary import clock

_WARM_UP = 0.05  # share of the steps in which the learning rate rises
_HEADS = ("score", "classifier")
_EVERY_S = 10.0  # between two lines


def trained(
    keys: ProcessKeys, of_verdicts: tuple[int, int], rows: Sequence[Row], how: Training, work: Path, *, resumes: bool
) -> Any:
    """Train a model, or go on from the last checkpoint in ``work``. of_verdicts: which logits are bad and good."""
    transformers.logging.disable_progress_bar()
    transformers.set_seed(how.seed)
    model = _loaded(keys, how)
    collator = collator_of(keys, model)
    if how.lora_rank is not None:
        model = _with_adapter(model, keys, how, how.lora_rank)
    if how.gradient_checkpointing:
        model.enable_input_require_grads()
    trainer = Trainer(
        model=model,
        args=_arguments(how, work),
        train_dataset=list(rows),
        data_collator=collator,
        compute_loss_func=loss_of(*of_verdicts),
        callbacks=[Lines()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resumes)
    return model


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the whole model, a LoRA adapter merged into it; write the adapter by itself to ``adapter``."""
    if hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder / "adapter")
        model = model.merge_and_unload()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _loaded(keys: ProcessKeys, how: Training) -> Any:
    """Load the model, with a head of random weights where it has none for tokens."""
    dtype = how.dtype
    if dtype == "auto":
        dtype = "bfloat16" if how.lora_rank is not None and torch.cuda.is_available() else "float32"
    settings: dict[str, Any] = {"revision": keys.revision, "dtype": dtype, "trust_remote_code": False}
    auto: Any = transformers.AutoModelForCausalLM
    if keys.written.scorer == "token_head":
        auto = transformers.AutoModelForTokenClassification
        settings |= {"num_labels": 2, "ignore_mismatched_sizes": True}
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it lists the head's weights as missing
    try:
        return auto.from_pretrained(keys.model, **settings)
    except (OSError, ValueError, RuntimeError) as error:
        raise RecipeError(f"{keys.model} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)


def _with_adapter(model: Any, keys: ProcessKeys, how: Training, rank: int) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    is_head = keys.written.scorer == "token_head"
    config = LoraConfig(
        task_type=TaskType.TOKEN_CLS if is_head else TaskType.CAUSAL_LM,
        r=rank,
        lora_alpha=how.lora_alpha or 2 * rank,
        target_modules="all-linear",
        exclude_modules=list(_HEADS) if is_head else None,  # it is trained whole
    )
    return get_peft_model(model, config)


def _arguments(how: Training, work: Path) -> TrainingArguments:
    is_cuda = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(work),
        num_train_epochs=how.epochs,
        learning_rate=how.learning_rate,
        per_device_train_batch_size=how.micro_batch_size,
        gradient_accumulation_steps=how.batch_size // how.micro_batch_size,
        warmup_steps=_WARM_UP,
        bf16=is_cuda,
        use_cpu=not is_cuda,
        gradient_checkpointing=how.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if how.gradient_checkpointing else None,
        seed=how.seed,
        save_strategy="steps" if how.save_steps else "epoch",
        save_steps=how.save_steps or 500,
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=is_cuda,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # each GPU would get a part of a batch, but the places of all of it
    return arguments


class Lines(TrainerCallback):
    """A line printed now and then: how far the training is, and its mean loss since the line before."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._first: int | None = None
        self._losses: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first = time.monotonic(), state.global_step
        if state.global_step:
            print(f"resuming after step {state.global_step} of {state.max_steps}", flush=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" not in (logs or {}):
            return
        self._losses.append(logs["loss"])
        now, step, steps = time.monotonic(), state.global_step, state.max_steps
        if step == steps or now - self._said >= _EVERY_S or len(self._losses) == step == 1:
            elapsed = now - self._began
            left = elapsed / (step - (self._first or 0)) * (steps - step)
            loss = sum(self._losses) / len(self._losses)
            width = len(str(steps))
            print(
                f"step {step:{width}}/{steps} | loss {loss:.4f} | {clock(elapsed)} elapsed, {clock(left)} left",
                flush=True,
            )
            self._said, self._losses = now, []
