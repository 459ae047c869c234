"""Options of `oger prm train` and `oger prm label`: how a PRM is trained, and what steps are labelled by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from oger_recipe.base.ranges import COUNT, MOMENTUM, POSITIVE, SEED, Range

_DTYPES = ("auto", "float32", "bfloat16")  # float16 would need its losses scaled
ESTIMATES = ("any", "share", "countdown")  # of labels, in `oger prm label`


def _setting(default: Any, help: str, range: Range | None = None, *, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help, "range": range, "choices": choices})


@dataclass(frozen=True)
class Training:
    """Each field is a flag of `oger prm train`."""

    epochs: int = _setting(1, "passes over all solutions", COUNT)
    learning_rate: float = _setting(
        1e-5, "peak learning rate; it rises for a twentieth of the steps, then falls", POSITIVE
    )
    batch_size: int = _setting(16, "solutions per optimizer step", COUNT)
    micro_batch_size: int = _setting(4, "solutions in memory at a time", COUNT)
    max_length: int = _setting(1024, "longest text, in tokens; a longer one is cut after a step", COUNT)
    held_out: float = _setting(0.1, "share of the problems to report on and not to train on", MOMENTUM)
    seed: int = _setting(0, "seed of the new head's weights, the order and the held-out problems", SEED)
    lora_rank: int | None = _setting(None, "train only LoRA adapters of this rank, on all linear layers", COUNT)
    lora_alpha: int | None = _setting(
        None, "scale of the LoRA adapters, times the rank (default: twice the rank)", COUNT
    )
    dtype: str = _setting(
        "auto", "type of the weights; auto: float32, or bfloat16 with LoRA on a GPU", choices=_DTYPES
    )
    gradient_checkpointing: bool = _setting(
        False, "recompute activations instead of keeping them: less memory, more time"
    )
    save_steps: int | None = _setting(None, "optimizer steps between two checkpoints (default: an epoch)", COUNT)

    def problems(self) -> Iterator[str]:
        for each in fields(self):
            value, allowed = getattr(self, each.name), each.metadata["range"]
            if value is not None and allowed is not None and value not in allowed:
                yield f"--{each.name} is {value}: it must be {allowed.text}"
        if self.batch_size % self.micro_batch_size:
            yield f"--batch_size {self.batch_size} is not a multiple of --micro_batch_size {self.micro_batch_size}"
        if self.lora_alpha is not None and self.lora_rank is None:
            yield "--lora_alpha needs --lora_rank: give both, or leave it out"
