"""Settings of prompts and of how rollouts are sampled."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE, TOP_K, WEIGHT
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.settings.fields import FREE, OF_LENGTHS, Section, need, setting


@dataclass(frozen=True)
class RolloutSettings(Section):
    title: ClassVar[str] = "oger.rollouts"
    about: ClassVar[str] = "prompt templates, stops, prepared data"

    data_cache: str = setting(
        "~/.cache/oger/data", ("cache folder for prepared prompts and teachers, keyed by content"), resume=FREE
    )
    data_cache_gb: float = setting(
        50.0,
        "size limit of data_cache in GB: the least recently used entries are removed; 0: no cache",
        range=WEIGHT,
        resume=FREE,
    )
    prompt_template: str | None = setting(
        None, "named prompt format; replaces data.apply_chat_template", choices=TEMPLATES
    )
    max_prompt_length: int | None = setting(
        None, "longest prompt in tokens (default: what data.max_len allows)", range=COUNT, resume=OF_LENGTHS
    )
    overlong_prompts: str = setting(
        "drop",
        "leave longer prompts out and count them (drop), or refuse to start (refuse)",
        choices=("drop", "refuse"),
    )
    deterministic: bool = setting(
        True,
        "seed each rollout by train.seed, the step and its prompt's place, so that two runs of one command are equal; "
        "on a CPU it takes 11% of the time of sampling",
    )
    top_k: int = setting(-1, "top-k of the rollouts; -1: all tokens", range=TOP_K)
    stop: tuple[str, ...] = setting((), "texts that end a response (default: the prompt template's)")
    stop_kept: tuple[str, ...] = setting(
        ("</answer>",), "the stop texts to keep in the response; the others are cut off before grading"
    )
    stop_token_ids: tuple[int, ...] = setting(
        (), "tokens that end a response (default: the prompt template's)", range=COUNT_OR_NONE
    )

    dynamic_filtering_max_batches: int = setting(
        10,
        "prompts sampled for one step, at most, in batches of rollout.batch_size, where groups without variance are "
        "left out and others sampled in their place. If groups are still missing, the first ones left out fill "
        "the step",
        range=COUNT,
        needs=need("algo.dynamic_filtering_enable"),
    )

    @property
    def ends_responses(self) -> bool:
        """Whether anything but the end-of-sequence token ends a response before its longest length."""
        return bool(self.stop_texts or self.stop_token_ids)

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end a response: the user's, else the prompt template's."""
        template = TEMPLATES.get(self.prompt_template or "")
        return self.stop or (template.stop if template else ())
