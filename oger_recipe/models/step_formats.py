"""How known process reward models want question and steps of reasoning written, and where they say their scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SCORERS = ("step_tag", "token_head")


@dataclass(frozen=True)
class Format:
    """A text with a tag behind each step: the model says its score there, as `scorer` reads it.

    whole: the text is tokenised in one piece, and a tag is one token; otherwise question, steps and tags are tokenised
    one by one. chat: the question is a user's turn and the steps are the assistant's, with `system` before them. Where
    it is none, before_steps stands between question and steps, and between_steps between a tag and the next step.
    """

    scorer: str
    tag: str | int
    good: str | int | None = None
    bad: str | int | None = None
    good_label: int | None = None
    whole: bool = True
    chat: bool = False
    system: str | None = None
    before_steps: str = ""
    before_tag: str = ""
    between_steps: str = ""

    def problems(self, name: str) -> Iterator[str]:
        """Yield a sentence for each field that this scorer lacks or cannot use."""
        of_tokens, is_head = (self.good, self.bad), self.scorer == "token_head"
        if is_head and self.good_label is None:
            yield f"good_label is missing: scorer token_head needs it, and format {name} is of scorer step_tag"
        if not is_head and None in of_tokens:
            yield f"good and bad are missing: scorer step_tag needs them, and format {name} is of scorer token_head"
        if self.whole and isinstance(self.tag, str) and not self.tag.strip(" "):
            yield f"tag {self.tag!r} has only spaces, which every text has"
        if not is_head and None not in of_tokens and self.good == self.bad:
            yield f"good and bad are both {self.good!r}"


FORMATS: dict[str, Format] = {
    # peiyi9979/math-shepherd-mistral-7b-prm, and OpenR's prm_type MS
    "math_shepherd": Format("step_tag", "ки", "+", "-", before_steps=" ", before_tag=" ", between_steps="\n"),
    # OpenR's PRM: Qwen2.5-Math-7B-Instruct with a LoRA adapter, prm_type Qwen
    "openr_qwen": Format("step_tag", " \n\n\n\n\n", " +", " -", before_steps="\n", between_steps=" "),
    # Qwen/Qwen2.5-Math-PRM-7B and -72B, Qwen/Qwen2.5-Math-7B-PRM800K
    "qwen_prm": Format(
        "token_head",
        "<extra_0>",
        good_label=1,
        chat=True,
        system="Please reason step by step, and put your final answer within \\boxed{}.",
    ),
    # models of TRL's PRMTrainer
    "trl": Format("token_head", "\n", good_label=1, whole=False),
}
