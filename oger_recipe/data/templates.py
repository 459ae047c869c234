"""Named prompt formats: how a problem is put to a model, and what ends its response.

The special strings are those the models were trained with; sentences around them are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

PLACEHOLDER = "{question}"
TEACHER = "{teacher}"  # where a prompt shows a teacher trajectory
SHOWN = (
    f"{PLACEHOLDER}\n\nThis is a solution, or the beginning of one:\n\n{TEACHER}\n\nUnderstand it, then solve the "
    "problem yourself, from the beginning to the final answer."
)
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt format.

    ``text``: the prompt with ``{question}`` in it, None for the tokenizer's own chat template; ``stop``: texts that
    end a response besides the end-of-sequence token; ``place``: where it asks for the answer (one of
    rewards.rules.PLACES, None: it does not say); ``thinks``: whether ``</think>`` ends a thought in responses (None:
    not known).
    """

    text: str | None
    stop: tuple[str, ...] = ()
    place: str | None = None
    thinks: bool | None = None

    def apply(self, question: str) -> str:
        """Put a question into the template; braces are just text. Raise ValueError for the chat template."""
        if self.text is None:
            raise ValueError("the chat template is the tokenizer's: use its apply_chat_template")
        return self.text.replace(PLACEHOLDER, question)


TEMPLATES: dict[str, PromptTemplate] = {
    "none": PromptTemplate(PLACEHOLDER),
    "chat": PromptTemplate(None),
    # DeepSeek-R1-Zero's conversation for base models, with the thought already opened.
    "r1": PromptTemplate(
        "A conversation between User and Assistant. The User asks a question and the Assistant solves it. The "
        "Assistant first thinks about the reasoning process and then gives the User the answer. The reasoning is "
        "enclosed in <think> </think> and the answer in <answer> </answer>, i.e., <think> reasoning here </think> "
        "<answer> answer here </answer>.\nUser: {question}\nAssistant: <think>",
        stop=("</answer>",),
        place="answer_tag",
        thinks=True,
    ),
    "qwen_math": PromptTemplate(
        f"<|im_start|>system\n{BOXED}<|im_end|>\n<|im_start|>user\n{PLACEHOLDER}<|im_end|>\n<|im_start|>assistant\n",
        place="boxed",
        thinks=False,
    ),
    "qwen3": PromptTemplate(
        f"<|im_start|>user\n{PLACEHOLDER}\n{BOXED}<|im_end|>\n<|im_start|>assistant\n",
        place="boxed",
        thinks=True,
    ),
    "r1_distill": PromptTemplate(
        f"<｜begin▁of▁sentence｜><｜User｜>{PLACEHOLDER}\n{BOXED}<｜Assistant｜><think>\n",
        place="boxed",
        thinks=True,
    ),
    # TinyZero's Countdown format for base models, which do not stop by themselves.
    "tinyzero": PromptTemplate(
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The "
        "assistant first thinks about the reasoning process in the mind and then provides the user with the answer.\n"
        "User: {question} Show your work in <think> </think> tags. And return the final answer in <answer> </answer> "
        "tags, for example <answer> (1 + 2) / 3 </answer>.\nAssistant: Let me solve this step by step.\n<think>",
        stop=("</s>", "<|im_end|>", "<|endoftext|>", "\nUser:"),
        place="answer_tag",
        thinks=True,
    ),
    # One solved example for base models, in numbered steps, each a line: for process rewards, and for oger.steps with
    # the delimiter "\n" and last_step_text "answer".
    "steps": PromptTemplate(
        "Solve each problem in numbered steps, one a line. The last step gives the answer.\n\n"
        "Problem: A crate holds 4 rows of 6 jars. 5 of the jars are empty. How many are full?\n"
        "Step 1: The crate holds 4 * 6 = 24 jars.\n"
        "Step 2: Of these, 24 - 5 = 19 are full.\n"
        "Step 3: The answer is \\boxed{19}.\n\nProblem: {question}\n",
        stop=("\nProblem:",),
        place="boxed",
        thinks=False,
    ),
}
