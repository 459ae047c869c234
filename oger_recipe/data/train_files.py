"""Files that `oger train` reads, from dataset rows: prompts with labels for OpenRLHF, and the teacher store."""

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from oger_recipe.base.errors import RecipeError, shown
from oger_recipe.base.files import atomic_write, to_json
from oger_recipe.base.progress import Progress
from oger_recipe.data.rows import Row, refuse_rows
from oger_recipe.data.templates import PLACEHOLDER, SHOWN, TEACHER, PromptTemplate
from oger_recipe.grading.pool import Graded, GradingPool
from oger_recipe.grading.rules import GradingRules
from oger_recipe.teachers.store import Teacher, beginning, teacher_store

_BATCH = 256  # prompts that the tokenizer is given at once: it has threads of its own
_TOKENS = 2**22  # of teachers verified at once: as Python's integers they take some 36 bytes each
_NAMED = 5  # refused prompts that are named
_MARK = "<<the teacher trajectory 5f3c9a>>"  # stands for it while a prompt that shows one is rendered


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    eos_token: str
    eos_token_id: int

    def __call__(self, text: list[str], *, add_special_tokens: bool) -> Any: ...
    def decode(self, tokens: list[int]) -> str: ...
    def apply_chat_template(self, chat: Any, *, tokenize: bool, add_generation_prompt: bool) -> str: ...


@dataclass(frozen=True)
class Budget:
    """Lengths in tokens: of a whole sequence, of a response (None: what the prompt leaves), and of a prompt."""

    max_len: int
    max_new_tokens: int | None
    max_prompt_length: int | None = None

    def longest_prompt(self) -> int:
        longest = self.max_len - (self.max_new_tokens or 1)
        return longest if self.max_prompt_length is None else min(longest, self.max_prompt_length)

    def longest_response(self, prompt_tokens: int) -> int:
        left = self.max_len - prompt_tokens
        return min(left, self.max_new_tokens) if self.max_new_tokens else left


@dataclass(frozen=True)
class PromptFormat:
    """The way from a row's prompt to text: by a named template here, or by OpenRLHF's own two flags later.

    shown_template: a text with {question} and {teacher} that takes the question's place in a prompt that shows the
    beginning of a teacher trajectory; shown_share: the most of it that a rollout's prompt shows, 0 where none does;
    shows_graders: a grader's prompt shows all of it, and its length is looked at in the run.
    """

    apply_chat_template: bool
    input_template: str | None
    template: PromptTemplate | None = None
    shown_template: str = SHOWN
    shown_share: float = 0.0
    shows_graders: bool = False

    @property
    def shows(self) -> bool:
        """Whether some prompt shows a teacher trajectory."""
        return self.shown_share > 0 or self.shows_graders

    def written(self, prompt: Any) -> Any:
        """Return the prompt for the prompt file: the final text under a named template, else as it is."""
        return self.template.apply(_question(prompt)) if self.template else prompt

    def text(self, prompt: Any, tokenizer: Tokenizer) -> str:
        if self.template:
            return self.template.apply(_question(prompt))
        if self.apply_chat_template:
            chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        if not isinstance(prompt, str):
            raise RecipeError("prompts are chat messages: set data.apply_chat_template (needs a chat template)")
        return self.input_template.format(prompt) if self.input_template else prompt

    def shown(self, prompt: Any, tokenizer: Tokenizer) -> tuple[str, str]:
        """Return the text before and the text after a teacher trajectory in the prompt that shows it, in a chat in the
        last message of the user.

        Raises:
            RecipeError: a chat has no message of the user, or the chat template changes or repeats what it says.
        """
        text = self.text(_showing(prompt, self.shown_template), tokenizer)
        before, mark, after = text.partition(_MARK)
        if not mark or _MARK in after:
            raise RecipeError(
                "oger.shown_template: the chat template does not write the last message of the user once and as it "
                "is, so that no teacher can be shown in it: use another oger.prompt_template"
            )
        return before, after


def _showing(prompt: Any, template: str) -> Any:
    """Fill oger.shown_template with a prompt's question, and put a mark where a teacher trajectory will go.

    Other braces in it are just text. Of a chat, the last message of the user is the question.
    """
    if isinstance(prompt, str):
        before, _, after = template.partition(TEACHER)
        return before.replace(PLACEHOLDER, prompt) + _MARK + after.replace(PLACEHOLDER, prompt)
    of_user = [place for place, turn in enumerate(prompt) if turn["role"] == "user"]
    if not of_user:
        raise RecipeError("oger.shown_template: a prompt is a chat without a message of the user to show a teacher in")
    last = of_user[-1]
    turn = prompt[last] | {"content": _showing(prompt[last]["content"], template)}
    return [*prompt[:last], turn, *prompt[last + 1 :]]


def _question(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    if [turn["role"] for turn in prompt] != ["user"]:
        raise RecipeError(
            "oger.prompt_template takes a question; these prompts are chats with "
            f"{', '.join(turn['role'] for turn in prompt)} turns: use the chat template"
        )
    content: str = prompt[0]["content"]
    return content


@dataclass(frozen=True)
class TeacherChoice:
    """The choice of a run's teachers, by the names of its flags.

    A teacher of more than ``max_prefix_len`` tokens, end of sequence included, or of more than the prompt leaves, is
    dropped, or with ``long_teachers`` "truncate" cut to the tokens that fit. A cut trajectory has no end of sequence,
    its text is that of its tokens, and its verdict is the verdict of that text. Those that are ``only_shown`` may be
    longer than what the prompt leaves to a response. Teachers of other sources than ``teacher_sources`` are left out,
    unless it is empty.
    """

    keep_wrong_teachers: bool = False
    max_prefix_len: int | None = None
    long_teachers: str = "drop"
    teacher_sources: Collection[str] = ()
    only_shown: bool = False

    def longest(self, room: int) -> int:
        """Return the most tokens of a teacher whose prompt leaves ``room`` to a response."""
        if self.only_shown:
            return self.max_prefix_len or sys.maxsize
        return min(room, self.max_prefix_len or room)


@dataclass(frozen=True)
class _Prompt:
    """A prompt that fits: its row, its text, and the tokens left for a response."""

    row: Row
    text: str
    room: int


@dataclass(frozen=True)
class _Candidate:
    """A teacher trajectory before verification. ``probs``: as many as tokens; ``marked``: the data's ``correct``."""

    row: Row
    source: str
    text: str
    tokens: list[int]
    probs: list[float] | None = None
    marked: bool | None = None


def write_train_files(
    rows: Sequence[Row],
    *,
    tokenizer: Tokenizer,
    prompt_format: PromptFormat,
    budget: Budget,
    prompts_path: Path,
    teachers_path: Path | None,
    rules: GradingRules,
    pool: GradingPool,
    choice: TeacherChoice = TeacherChoice(),
    overlong_prompts: str = "drop",
) -> Counter[str]:
    """Write the prompts (JSONL: prompt, label, datasource) and, unless ``teachers_path`` is None, the teacher store.

    Leave over-long prompts out, or refuse them: OpenRLHF would cut their beginning. Count ``prompts``,
    ``prompts_too_long``, ``prompts_without_teacher``, and each teacher as one of ``teachers``, ``teachers_wrong``,
    ``teachers_too_long``, ``teachers_too_long_to_show``, ``teachers_ungraded`` and ``teachers_other_source``; beside
    these, ``teachers_truncated`` and ``teachers_marked_otherwise``, where the data's ``correct`` differs from the
    verifier, which decides. A teacher is too long to show where the prompt with it is longer than a prompt may be.

    Raises:
        RecipeError: no prompt fits the budget, or one does not and is refused, two rows (of two files) have the same
            uid, an answer is unreadable, or a teacher has not as many probabilities as tokens.
    """
    counts: Counter[str] = Counter(prompts=0)
    _refuse_shared_uids(rows)
    too_long: dict[str, int] = {}
    shows = prompt_format.shows
    teachers = _Teachers(rules, pool, choice, prompt_format, budget, tokenizer, counts)
    with ExitStack() as files:
        file = files.enter_context(files.enter_context(atomic_write(prompts_path)).open("w", encoding="utf-8"))
        add = files.enter_context(teacher_store(teachers_path, shows=shows)) if teachers_path is not None else None
        for prompts in _fitting(rows, prompt_format, budget, tokenizer, too_long):
            counts["prompts"] += len(prompts)
            file.writelines(_line(prompt.row, prompt_format, rules) for prompt in prompts)
            if add is not None and not (too_long and overlong_prompts == "refuse"):
                teachers.read(prompts)
                if teachers.tokens > _TOKENS:
                    add(*teachers.verified())
        if too_long:
            counts["prompts_too_long"] = len(too_long)
        if not counts["prompts"]:
            raise RecipeError(_none_fits(len(rows), budget))
        if too_long and overlong_prompts == "refuse":
            raise RecipeError(_some_do_not_fit(too_long, len(rows), budget))
        if add is not None:
            add(*teachers.verified())
            teachers.refuse_unreadable()
    return counts


def _refuse_shared_uids(rows: Sequence[Row]) -> None:
    uids = Counter(row["uid"] for row in rows)
    refuse_rows(
        [
            f"uid {uid!r} is used by {'two' if count == 2 else count} rows; give every problem its own uid, "
            "across dataset files"
            for uid, count in uids.items()
            if count > 1  # else one problem would be given the teachers of another
        ]
    )


def _none_fits(prompts: int, budget: Budget) -> str:
    limit, advice = _limit(budget)
    return f"all {prompts} prompts are longer than {budget.longest_prompt()} tokens ({limit}); {advice}"


def _some_do_not_fit(too_long: dict[str, int], prompts: int, budget: Budget) -> str:
    named = ", ".join(f"{uid!r} has {length}" for uid, length in list(too_long.items())[:_NAMED])
    more = f" and {len(too_long) - _NAMED} more" if len(too_long) > _NAMED else ""
    limit, advice = _limit(budget)
    return (
        f"{len(too_long)} of {prompts} prompts are longer than {budget.longest_prompt()} tokens ({limit}): {named}"
        f"{more}; {advice}, or leave them out with oger.overlong_prompts drop"
    )


def _limit(budget: Budget) -> tuple[str, str]:
    """Return the limit of a prompt, and what would raise it."""
    if budget.longest_prompt() == budget.max_prompt_length:
        return "oger.max_prompt_length", "raise it"
    return f"data.max_len {budget.max_len} - rollout.max_new_tokens {budget.max_new_tokens}", "raise data.max_len"


def _fitting(
    rows: Sequence[Row], prompt_format: PromptFormat, budget: Budget, tokenizer: Tokenizer, too_long: dict[str, int]
) -> Iterator[list[_Prompt]]:
    """Yield the prompts that fit the budget, batch by batch, and note the lengths of the others by uid."""
    with Progress("tokens", "prompts", len(rows)) as progress:
        for start in range(0, len(rows), _BATCH):
            batch = list(rows[start : start + _BATCH])
            texts = [prompt_format.text(row["prompt"], tokenizer) for row in batch]
            lengths = [len(tokens) for tokens in _tokens(texts, tokenizer)]
            fitting = [
                _Prompt(row, text, budget.longest_response(length))
                for row, text, length in zip(batch, texts, lengths, strict=True)
                if length <= budget.longest_prompt()
            ]
            longest = budget.longest_prompt()
            too_long.update({row["uid"]: n for row, n in zip(batch, lengths, strict=True) if n > longest})
            yield fitting
            progress.add(len(batch))


def _line(row: Row, prompt_format: PromptFormat, rules: GradingRules) -> str:
    """Return a row as a line of the prompt file."""
    record = {
        "prompt": prompt_format.written(row["prompt"]),
        "label": to_json(rules.label(row)),
        "datasource": row.get("datasource") or "default",
    }
    return to_json(record) + "\n"


def _text(teacher: dict[str, Any], prompt: str, tokenizer: Tokenizer) -> str:
    """Remove the end of sequence from a teacher's text; chat templates put a newline after it."""
    text = _continuation(teacher["text"], prompt)
    if text.rstrip().endswith(tokenizer.eos_token):
        text = text.rstrip().removesuffix(tokenizer.eos_token)
    return text


def _candidate(row: Row, teacher: dict[str, Any], text: str, tokens: list[int]) -> _Candidate:
    probs = teacher.get("probs")
    if probs is not None and len(probs) != len(tokens):
        raise RecipeError(
            f"row {row['uid']!r}: teacher {shown(teacher['source'])} has {len(probs)} token probabilities and, with "
            f"the end of sequence, {len(tokens)} tokens: they belong to another tokenizer or template; leave "
            "'probs' out"
        )
    return _Candidate(row, teacher["source"], text, tokens, probs, teacher.get("correct"))


def _fitted(
    candidate: _Candidate, longest: int, long_teachers: str, tokenizer: Tokenizer, counts: Counter[str]
) -> list[_Candidate]:
    """Cut a teacher of more than ``longest`` tokens, or leave it out."""
    if len(candidate.tokens) <= longest:
        return [candidate]
    if long_teachers == "drop":
        counts["teachers_too_long"] += 1
        return []
    counts["teachers_truncated"] += 1
    tokens = candidate.tokens[:longest]
    text = tokenizer.decode(tokens).rstrip("\ufffd")  # the cut may go through a character
    probs = candidate.probs and candidate.probs[:longest]
    return [replace(candidate, text=text, tokens=tokens, probs=probs, marked=None)]  # it was marked as a whole


def _continuation(text: str, prompt: str) -> str:
    """Let a teacher go on from the prompt: a thought that the prompt has opened is not opened once more."""
    before, tag, after = prompt.rpartition("<think>")
    opened = tag and not after.strip() and text.startswith("<think>")
    return text.removeprefix("<think>").removeprefix(after) if opened else text


class _Teachers:
    """The teachers of the prompts read so far that wait to be verified, and the mistakes found in the others."""

    def __init__(
        self,
        rules: GradingRules,
        pool: GradingPool,
        choice: TeacherChoice,
        prompt_format: PromptFormat,
        budget: Budget,
        tokenizer: Tokenizer,
        counts: Counter[str],
    ) -> None:
        self._rules, self._pool, self._choice, self._tokenizer, self._counts = rules, pool, choice, tokenizer, counts
        self._format, self._budget = prompt_format, budget
        self._waiting: list[_Candidate] = []
        self._shown: dict[str, tuple[str, str]] = {}
        self._prompts = 0
        self._unreadable: dict[str, str] = {}
        self._failed: list[str] = []
        self._of_all = 0
        self.tokens = 0  # of those that wait

    def read(self, prompts: list[_Prompt]) -> None:
        """Add the teachers of the chosen sources to those that wait; cut or leave out those that are too long."""
        self._prompts += len(prompts)
        found = []
        for prompt in prompts:
            for teacher in prompt.row.get("teachers") or []:
                if self._choice.teacher_sources and teacher["source"] not in self._choice.teacher_sources:
                    self._counts["teachers_other_source"] += 1
                else:
                    found.append((prompt, teacher, _text(teacher, prompt.text, self._tokenizer)))
        tokenized = _tokens([text for *_, text in found], self._tokenizer)
        fitted: list[tuple[_Prompt, _Candidate]] = []
        for (prompt, teacher, text), tokens in zip(found, tokenized, strict=True):
            candidate = _candidate(prompt.row, teacher, text, [*tokens, self._tokenizer.eos_token_id])
            longest = self._choice.longest(prompt.room)
            kept = _fitted(candidate, longest, self._choice.long_teachers, self._tokenizer, self._counts)
            fitted += [(prompt, each) for each in kept]
        waiting = self._that_can_be_shown(fitted)
        self._waiting += waiting
        self.tokens += sum(len(each.tokens) for each in waiting)

    def _that_can_be_shown(self, fitted: list[tuple[_Prompt, _Candidate]]) -> list[_Candidate]:
        """Leave out those with which a rollout's prompt that shows them would be too long; none where none does."""
        share, candidates = self._format.shown_share, [candidate for _, candidate in fitted]
        if not self._format.shows:
            return candidates
        rows = {prompt.row["uid"]: prompt.row for prompt, _ in fitted}
        shown = {uid: self._format.shown(row["prompt"], self._tokenizer) for uid, row in rows.items()}
        self._shown |= shown
        if not share:
            return candidates
        texts = [beginning(candidate.text, share).join(shown[prompt.row["uid"]]) for prompt, candidate in fitted]
        lengths = [len(tokens) for tokens in _tokens(texts, self._tokenizer)]
        longest = self._budget.longest_prompt()
        self._counts["teachers_too_long_to_show"] += sum(length > longest for length in lengths)
        return [candidate for (_, candidate), length in zip(fitted, lengths, strict=True) if length <= longest]

    def verified(self) -> tuple[dict[str, list[Teacher]], dict[str, tuple[str, str]]]:
        """Verify those that wait. Return the usable ones by uid, and count the others; beside them, by uid, the texts
        before and after a teacher in a prompt that shows one."""
        answers = [self._rules.answer(candidate.row, candidate.text) for candidate in self._waiting]
        graded = self._pool.grade_many(answers, progress=len(answers) > 2000)
        usable: dict[str, list[Teacher]] = {}
        for candidate, each in zip(self._waiting, graded, strict=True):
            if (teacher := self._usable(candidate, each)) is not None:
                usable.setdefault(candidate.row["uid"], []).append(teacher)
        self._counts["prompts_without_teacher"] += self._prompts - len(usable)
        self._of_all += len(self._waiting)
        shown, self._shown = self._shown, {}
        self._waiting, self._prompts, self.tokens = [], 0, 0
        return usable, shown

    def _usable(self, candidate: _Candidate, graded: Graded) -> Teacher | None:
        verdict, uid = graded.verdict, candidate.row["uid"]
        if graded.unreadable:
            self._unreadable[uid] = f"row {uid!r}: {graded.error}"
        if graded.error is not None:
            self._failed.append(f"of source {candidate.source!r} in row {uid!r}: {graded.error}")
            return None
        if candidate.marked not in (None, bool(verdict.score)):
            self._counts["teachers_marked_otherwise"] += 1
        if not verdict.score and not self._choice.keep_wrong_teachers:
            self._counts["teachers_wrong"] += 1
            return None
        self._counts["teachers"] += 1
        kept = (candidate.source, candidate.text, candidate.tokens, verdict.reward, verdict.score, candidate.probs)
        return Teacher(*kept)

    def refuse_unreadable(self) -> None:
        """Raise RecipeError for reference answers that cannot be read, and say why other teachers were not graded."""
        refuse_rows(list(self._unreadable.values()))
        if self._failed:
            self._counts["teachers_ungraded"] = len(self._failed)
            first = f"{len(self._failed)} of {self._of_all} teachers could not be graded, the first {self._failed[0]}"
            print(f"warning: {first}", flush=True)


def _tokens(texts: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
