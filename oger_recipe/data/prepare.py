"""From dataset rows to what a run reads: prompts with labels for OpenRLHF, and the store of teacher trajectories."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from oger_recipe.data.rows import Row
from oger_recipe.data.teacher_store import Teacher, write_teacher_store
from oger_recipe.recipe import RecipeError
from oger_recipe.rewards.verifiers import verify


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    eos_token: str
    eos_token_id: int

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...
    def apply_chat_template(self, chat: Any, *, tokenize: bool, add_generation_prompt: bool) -> str: ...


@dataclass(frozen=True)
class Budget:
    """Lengths in tokens: of a whole sequence, and of a response (None: what the prompt leaves)."""

    max_len: int
    max_new_tokens: int | None

    def longest_prompt(self) -> int:
        return self.max_len - (self.max_new_tokens or 1)

    def longest_response(self, prompt_tokens: int) -> int:
        left = self.max_len - prompt_tokens
        return min(left, self.max_new_tokens) if self.max_new_tokens else left


@dataclass(frozen=True)
class PromptFormat:
    """How OpenRLHF will turn a row's prompt into text: its flags data.apply_chat_template and data.input_template."""

    apply_chat_template: bool
    input_template: str | None

    def text(self, prompt: Any, tokenizer: Tokenizer) -> str:
        if self.apply_chat_template:
            chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        if not isinstance(prompt, str):
            raise RecipeError("prompts are chat messages: set data.apply_chat_template (needs a chat template)")
        return self.input_template.format(prompt) if self.input_template else prompt


def prepare(
    rows: Iterable[Row],
    *,
    tokenizer: Tokenizer,
    prompt_format: PromptFormat,
    budget: Budget,
    prompts_path: Path,
    teachers_path: Path | None,
    keep_wrong_teachers: bool = False,
) -> Counter[str]:
    """Writes the prompts (JSONL: prompt, label, datasource) and, unless ``teachers_path`` is None, the teacher store.

    Counts ``prompts``, ``prompts_too_long``, ``prompts_without_teacher``, ``teachers``, ``teachers_wrong``,
    ``teachers_too_long``. Over-long prompts are left out: OpenRLHF would cut their beginning off.

    Raises:
        RecipeError: no prompt fits the budget, two rows (of two files) have the same uid, or an answer is unreadable.
    """
    counts: Counter[str] = Counter()
    uids: set[str] = set()
    teachers: dict[str, list[Teacher]] = {}
    with prompts_path.open("w", encoding="utf-8") as prompts:
        for row in rows:
            if row["uid"] in uids:  # else one problem would be given the teachers of another
                raise RecipeError(f"uid {row['uid']!r} is used by two rows; uids have to differ between dataset files")
            uids.add(row["uid"])
            length = len(_tokens(prompt_format.text(row["prompt"], tokenizer), tokenizer))
            if length > budget.longest_prompt():
                counts["prompts_too_long"] += 1
                continue
            counts["prompts"] += 1
            prompts.write(json.dumps(_prompt(row), ensure_ascii=False) + "\n")
            if teachers_path is not None:
                longest = budget.longest_response(length)
                teachers[row["uid"]] = _usable_teachers(row, tokenizer, longest, keep_wrong_teachers, counts)
                counts["prompts_without_teacher"] += not teachers[row["uid"]]
    if not counts["prompts"]:
        raise RecipeError(
            f"all {counts['prompts_too_long']} prompts are longer than {budget.longest_prompt()} tokens "
            f"(data.max_len {budget.max_len} - rollout.max_new_tokens {budget.max_new_tokens}); raise data.max_len"
        )
    if teachers_path is not None:
        write_teacher_store(teachers, teachers_path)
    return counts


def _prompt(row: Row) -> dict[str, Any]:
    label = json.dumps({"uid": row["uid"], "answer": row["answer"], "task": row["task"]}, ensure_ascii=False)
    return {"prompt": row["prompt"], "label": label, "datasource": row.get("datasource") or "default"}


def _usable_teachers(
    row: Row, tokenizer: Tokenizer, longest: int, keep_wrong: bool, counts: Counter[str]
) -> list[Teacher]:
    usable = []
    for teacher in row.get("teachers") or []:
        # End of sequence exactly once, whether or not the text already carries it; chat templates put a newline after.
        text = teacher["text"]
        if text.rstrip().endswith(tokenizer.eos_token):
            text = text.rstrip().removesuffix(tokenizer.eos_token)
        tokens = _tokens(text, tokenizer) + [tokenizer.eos_token_id]
        try:
            verdict = verify(row["task"], text, row["answer"])
        except ValueError as error:
            raise RecipeError(f"row {row['uid']!r}: {error}") from None
        if len(tokens) > longest:
            counts["teachers_too_long"] += 1
        elif not verdict.score and not keep_wrong:
            counts["teachers_wrong"] += 1
        else:
            counts["teachers"] += 1
            usable.append(Teacher(teacher["source"], text, tokens, verdict.reward, verdict.score))
    return usable


def _tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
