"""Rows become prompts with labels and a store of usable teachers; what does not fit is left out and counted.

Lengths are counted by hand: the tokenizer here has one token for each character and each tag.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.data import train_files
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice, write_train_files
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.rules import GradingRules
from oger_recipe.teachers.store import TeacherStore

PLAIN_RULES = GradingRules()
PLAIN = PromptFormat(apply_chat_template=False, input_template=None)
CHAT = PromptFormat(apply_chat_template=True, input_template=None)
ANSWER = '{"numbers":[3,5,12],"target":96}'
RIGHT = "<answer>(3+5)*12</answer>"  # 2 tags and 8 characters: 10 tokens, 11 with the end of sequence
WRONG = "<answer>3*5+12</answer>"
END = "<|im_end|>"


def _row(*texts: str, uid: str = "p-1", prompt: Any = "Make 96.", **fields: Any) -> dict[str, Any]:
    teachers = [{"source": f"s{number}", "text": text, "correct": None} for number, text in enumerate(texts)]
    return {"uid": uid, "prompt": prompt, "answer": ANSWER, "task": "countdown", "teachers": teachers} | fields


@pytest.fixture()
def prepared(tmp_path: Path, letters: Any) -> Callable[..., tuple[Counter[str], list[dict[str, Any]], TeacherStore]]:
    """Counts, prompts and store of the given rows."""

    def run(
        *rows: dict[str, Any],
        budget: tuple[int | None, ...] = (100, 50),
        prompt_format: PromptFormat = PLAIN,
        rules: GradingRules = PLAIN_RULES,
        overlong_prompts: str = "drop",
        **teachers: Any,
    ) -> tuple[Counter[str], list[dict[str, Any]], TeacherStore]:
        prompts, store = tmp_path / "train.jsonl", tmp_path / "teachers.arrow"
        counts = write_train_files(
            rows,
            tokenizer=letters,
            prompt_format=prompt_format,
            budget=Budget(*budget),
            prompts_path=prompts,
            teachers_path=store,
            rules=rules,
            pool=GradingPool(GradingSettings(allowed=("own_float:verify",))),
            choice=TeacherChoice(**teachers),
            overlong_prompts=overlong_prompts,
        )
        return counts, [json.loads(line) for line in prompts.read_text().splitlines()], TeacherStore(store)

    return run


def test_a_row_becomes_a_prompt_with_a_label_of_uid_answer_and_task(prepared: Callable[..., Any]) -> None:
    counts, prompts, _ = prepared(_row(RIGHT, prompt="é Make 96."), _row(RIGHT, uid="p-2", datasource="made up"))
    label = json.loads(prompts[0].pop("label"))
    assert label == {"uid": "p-1", "answer": ANSWER, "task": "countdown"}
    assert prompts[0] == {"prompt": "é Make 96.", "datasource": "default"}
    assert json.loads(prompts[1]["label"])["uid"] == "p-2"
    assert prompts[1]["datasource"] == "made up"
    assert counts == {"prompts": 2, "teachers": 2, "prompts_without_teacher": 0}


def test_a_teacher_keeps_its_text_its_source_and_its_verdict(prepared: Callable[..., Any], letters: Any) -> None:
    (teacher,) = prepared(_row(RIGHT))[2]["p-1"]
    assert (teacher.source, teacher.text, teacher.reward, teacher.score) == ("s0", RIGHT, 1.0, 1.0)
    assert len(teacher.tokens) == 11
    assert letters.decode(teacher.tokens) == RIGHT + END


@pytest.mark.parametrize("text", [RIGHT, RIGHT + END, RIGHT + END + "\n", RIGHT + END + " \n\n"])
def test_the_end_of_sequence_comes_exactly_once(prepared: Callable[..., Any], letters: Any, text: str) -> None:
    (teacher,) = prepared(_row(text))[2]["p-1"]
    assert teacher.tokens.count(letters.eos_token_id) == 1
    assert teacher.tokens[-1] == letters.eos_token_id
    assert len(teacher.tokens) == 11
    assert teacher.text == RIGHT, "rollouts are embedded without special tokens, so teachers are too"


def test_white_space_before_the_end_belongs_to_the_teacher(prepared: Callable[..., Any]) -> None:
    assert [len(teacher.tokens) for teacher in prepared(_row(RIGHT + "\n"))[2]["p-1"]] == [12]


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        ((100, 11), True),
        ((100, 10), False),
        ((19, None), True),  # 8 for the prompt, 11 left
        ((18, None), False),
        ((19, 11), True),
    ],
)
def test_a_teacher_longer_than_the_response_budget_is_dropped_and_counted(
    prepared: Callable[..., Any], budget: tuple[int, int | None], kept: bool
) -> None:
    counts, prompts, store = prepared(_row(RIGHT), budget=budget)
    assert len(store["p-1"]) == kept
    assert counts["teachers"] == kept
    assert counts["teachers_too_long"] == counts["prompts_without_teacher"] == (not kept)
    assert len(prompts) == counts["prompts"] == 1


@pytest.mark.parametrize("keep", [False, True])
def test_wrong_teachers_are_dropped_unless_they_are_asked_for(prepared: Callable[..., Any], keep: bool) -> None:
    counts, _, store = prepared(_row(WRONG, RIGHT, "no answer"), keep_wrong_teachers=keep)
    kept = [("s0", 0.1, 0.0), ("s1", 1.0, 1.0), ("s2", 0.0, 0.0)] if keep else [("s1", 1.0, 1.0)]
    assert [(t.source, t.reward, t.score) for t in store["p-1"]] == kept
    assert counts["teachers"] == len(kept)
    assert counts["teachers_wrong"] == 3 - len(kept)


def test_the_verifier_decides_whatever_the_row_claims(prepared: Callable[..., Any]) -> None:
    row = _row(RIGHT, WRONG)
    row["teachers"][0]["correct"], row["teachers"][1]["correct"] = False, True
    assert [teacher.text for teacher in prepared(row)[2]["p-1"]] == [RIGHT]


@pytest.mark.parametrize(
    ("prompt_format", "budget", "fits"),
    [
        (PLAIN, (58, 50), True),  # "Make 96." has 8 characters
        (PLAIN, (57, 50), False),
        (PLAIN, (9, None), True),  # at least one token of response
        (PLAIN, (8, None), False),
        (PromptFormat(False, "Q: {}\n"), (62, 50), True),
        (PromptFormat(False, "Q: {}\n"), (61, 50), False),
        # 2 turns opened and 1 closed by one token each, "user\n", "\n" and "assistant\n": 19 tokens more
        (CHAT, (77, 50), True),
        (CHAT, (76, 50), False),
    ],
)
def test_a_prompt_that_is_too_long_is_left_out_and_counted(
    prepared: Callable[..., Any], prompt_format: PromptFormat, budget: tuple[int, int | None], fits: bool
) -> None:
    short = _row(uid="short", prompt="")
    counts, prompts, store = prepared(_row(RIGHT), short, budget=budget, prompt_format=prompt_format)
    uids = [json.loads(prompt["label"])["uid"] for prompt in prompts]
    assert uids == (["p-1", "short"] if fits else ["short"])
    assert counts["prompts"] == len(uids)
    assert counts["prompts_too_long"] == (not fits)
    if not fits:
        assert store["p-1"] == []
        assert counts["teachers"] + counts["teachers_too_long"] == 0


def test_the_verifier_decides_and_how_often_the_data_says_otherwise_is_counted(prepared: Callable[..., Any]) -> None:
    def row(uid: str, *marks: bool | None) -> dict[str, Any]:
        made = _row(RIGHT, WRONG, uid=uid)
        for teacher, mark in zip(made["teachers"], marks, strict=True):
            teacher["correct"] = mark
        return made

    marked = {"right": (True, False), "right too": (True, False), "half": (True, True), "wrong": (False, True)}
    counts, _, store = prepared(*(row(uid, *marks) for uid, marks in marked.items()))
    assert counts["teachers_marked_otherwise"] == 3
    assert [teacher.text for uid in marked for teacher in store[uid]] == [RIGHT] * 4
    assert prepared(row("silent", None, None))[0]["teachers_marked_otherwise"] == 0
    cut = prepared(row("cut", True, False), long_teachers="truncate", max_prefix_len=5, keep_wrong_teachers=True)[0]
    assert (cut["teachers_truncated"], cut["teachers_marked_otherwise"]) == (2, 0)  # they were marked as a whole


def test_prompts_without_teachers_are_kept_and_counted(prepared: Callable[..., Any]) -> None:
    rows = [_row(RIGHT), _row(WRONG, uid="p-2"), _row(uid="p-3"), _row(uid="p-4", teachers=None)]
    counts, prompts, store = prepared(*rows)
    assert counts == {"prompts": 4, "prompts_without_teacher": 3, "teachers": 1, "teachers_wrong": 1}
    assert len(prompts) == 4
    assert len(store) == 1


def test_no_prompt_that_fits_is_an_error_with_its_numbers(prepared: Callable[..., Any]) -> None:
    with pytest.raises(RecipeError) as error:
        prepared(_row(RIGHT), _row(uid="p-2"), budget=(57, 50))
    assert str(error.value) == (
        "all 2 prompts are longer than 7 tokens (data.max_len 57 - rollout.max_new_tokens 50); raise data.max_len"
    )


def test_prompts_that_are_too_long_can_be_refused_by_their_names(prepared: Callable[..., Any], tmp_path: Path) -> None:
    rows = [_row(uid="short", prompt=""), *(_row(uid=f"p-{number}", prompt="x" * (7 + number)) for number in range(7))]
    assert prepared(*rows[:2], budget=(57, 50), overlong_prompts="refuse")[0]["prompts"] == 2  # 7 tokens fit
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(RecipeError) as error:
        prepared(*rows, budget=(57, 50), overlong_prompts="refuse")
    assert str(error.value) == (
        "6 of 8 prompts are longer than 7 tokens (data.max_len 57 - rollout.max_new_tokens 50): 'p-1' has 8, 'p-2' "
        "has 9, 'p-3' has 10, 'p-4' has 11, 'p-5' has 12 and 1 more; raise data.max_len, or leave them out with "
        "oger.overlong_prompts drop"
    )
    assert not (tmp_path / "train.jsonl").exists()


def test_chat_prompts_need_the_chat_template(prepared: Callable[..., Any]) -> None:
    chat = [{"role": "user", "content": "Make 96."}]
    assert prepared(_row(prompt=chat), prompt_format=CHAT)[1][0]["prompt"] == chat
    with pytest.raises(RecipeError, match="prompts are chat messages: set data.apply_chat_template"):
        prepared(_row(prompt=chat))


def test_a_uid_that_two_files_share_is_refused(prepared: Callable[..., Any]) -> None:
    with pytest.raises(RecipeError, match="uid 'p-1' is used by two rows; give every problem its own uid"):
        prepared(_row(RIGHT), _row(WRONG))


def test_an_answer_that_no_verifier_can_read_is_refused_with_its_uid(prepared: Callable[..., Any]) -> None:
    with pytest.raises(RecipeError, match="row 'p-1': Countdown answer is not"):
        prepared(_row(RIGHT, answer="ninety-six"))


def test_an_evaluation_set_has_no_store(tmp_path: Path, letters: Any) -> None:
    counts = write_train_files(
        [_row(RIGHT)],
        tokenizer=letters,
        prompt_format=PLAIN,
        budget=Budget(100, 50),
        prompts_path=tmp_path / "eval.jsonl",
        teachers_path=None,
        rules=PLAIN_RULES,
        pool=GradingPool(GradingSettings()),
    )
    assert counts == {"prompts": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["eval.jsonl"]


def test_prompts_longer_than_asked_are_left_out_even_where_there_is_room(prepared: Callable[..., Any]) -> None:
    rows = _row(prompt="a" * 20), _row(prompt="a" * 21, uid="p-2")
    assert prepared(*rows, budget=(100, 50, 20))[0] == {
        "prompts": 1, "prompts_too_long": 1, "prompts_without_teacher": 1,
    }  # fmt: skip


def test_a_named_template_makes_the_final_text_and_braces_are_just_text(prepared: Callable[..., Any]) -> None:
    question = "Make {x} of {question} and \\boxed{}."
    template = PromptFormat(False, None, TEMPLATES["r1"])
    (prompt,) = prepared(_row(prompt=question), budget=(2000, 50), prompt_format=template)[1]
    assert prompt["prompt"].endswith(f"User: {question}\nAssistant: <think>")
    chat = [{"role": "user", "content": question}]
    assert prepared(_row(prompt=chat), budget=(2000, 50), prompt_format=template)[1] == [prompt]
    with pytest.raises(RecipeError, match="system, user"):
        prepared(_row(prompt=[{"role": "system", "content": "x"}, *chat]), budget=(2000, 50), prompt_format=template)


def test_options_and_the_users_verifier_travel_in_the_label(prepared: Callable[..., Any]) -> None:
    rules = GradingRules({"countdown": {"strict_oat": True}}, {"mine": "own.module:verify"})
    _, prompts, store = prepared(_row(RIGHT, RIGHT + "\n"), _row(uid="p-2", task="mine"), rules=rules)
    first, second = (json.loads(prompt["label"]) for prompt in prompts)
    assert first["options"] == {"strict_oat": True} and first["task"] == "countdown"
    assert second["task"] == "own.module:verify" and second["options"] == {"prompt": "Make 96.", "row": {}}
    assert len(store["p-1"]) == 1  # OAT finds no answer before a line break


def test_a_teacher_that_cannot_be_graded_is_dropped_and_counted(prepared: Callable[..., Any]) -> None:
    counts, _, store = prepared(_row(RIGHT, task="mine"), rules=GradingRules(own={"mine": "operator:add"}))
    assert counts["teachers_ungraded"] == 1 and counts["teachers"] == 0 and store["p-1"] == []


def test_a_value_error_of_a_users_verifier_is_about_that_answer_and_ends_nothing(
    prepared: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_float.py").write_text(
        "def verify(response, answer):\n    return float(response) == float(answer)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = [_row("2.0", "two", task="mine", answer="2")]
    counts, _, store = prepared(*rows, rules=GradingRules(own={"mine": "own_float:verify"}))
    assert counts["teachers_ungraded"] == 1
    said = (
        "1 of 2 teachers could not be graded, the first of source 's1' in row 'p-1': ValueError: could "
        "not convert string"
    )
    assert f"warning: {said}" in capsys.readouterr().out
    assert [(teacher.text, teacher.reward, teacher.score) for teacher in store["p-1"]] == [("2.0", 1.0, 1.0)]
    with pytest.raises(RecipeError, match="row 'p-1': a GSM8K answer must have a number"):  # the recipe's own word
        prepared(_row("2", task="gsm8k", answer="none"))


# ---- which teachers, and how much of them


@pytest.mark.parametrize(
    ("budget", "longest", "kept"),
    [((100, 50), 11, True), ((100, 50), 10, False), ((100, 10), 11, False), ((100, 11), 1000, True)],
)
def test_teachers_longer_than_asked_are_dropped_even_where_there_is_room(
    prepared: Callable[..., Any], budget: tuple[int, int], longest: int, kept: bool
) -> None:
    counts, _, store = prepared(_row(RIGHT), budget=budget, max_prefix_len=longest)
    assert len(store["p-1"]) == counts["teachers"] == kept
    assert counts["teachers_too_long"] == (not kept)
    assert counts["teachers_truncated"] == 0


@pytest.mark.parametrize(
    ("longest", "text"),
    [(11, RIGHT + END), (10, RIGHT), (9, "<answer>(3+5)*12"), (5, "<answer>(3+5")],
)
def test_a_cut_teacher_ends_where_it_is_cut(
    prepared: Callable[..., Any], letters: Any, longest: int, text: str
) -> None:
    """The end of sequence is there only where the whole text and itself fit; the stored text is that of the tokens."""
    settings = {"max_prefix_len": longest, "long_teachers": "truncate", "keep_wrong_teachers": True}
    counts, _, store = prepared(_row(RIGHT), **settings)
    (teacher,) = store["p-1"]
    assert letters.decode(teacher.tokens) == text and len(teacher.tokens) == longest
    assert teacher.text == text.removesuffix(END)
    assert counts["teachers_truncated"] == (longest < 11) and counts["teachers_too_long"] == 0


def test_the_prompts_length_cuts_as_well(prepared: Callable[..., Any], letters: Any) -> None:
    """19 tokens, of which the prompt takes 8 and the teacher's 10 with its end 11: of a longer one 11 are left."""
    (teacher,) = prepared(_row(RIGHT + "!"), budget=(19, None), long_teachers="truncate")[2]["p-1"]
    assert letters.decode(teacher.tokens) == RIGHT + "!"


@pytest.mark.parametrize("keep", [False, True])
def test_the_verdict_is_of_what_is_left(prepared: Callable[..., Any], keep: bool) -> None:
    """Nine tokens lack the closing tag, and the answer with it; a wrong start before the right answer is harmless."""
    settings = {"max_prefix_len": 9, "long_teachers": "truncate", "keep_wrong_teachers": keep}
    counts, _, store = prepared(_row(RIGHT), **settings)
    assert [(teacher.reward, teacher.score) for teacher in store["p-1"]] == ([(0.0, 0.0)] if keep else [])
    assert counts["teachers_truncated"] == 1
    assert (counts["teachers"], counts["teachers_wrong"]) == ((1, 0) if keep else (0, 1))


def test_half_a_character_at_the_cut_is_not_text(prepared: Callable[..., Any]) -> None:
    """The tokenizer has a token for each byte: the cut goes through the three bytes of the last character."""
    settings = {"max_prefix_len": 12, "long_teachers": "truncate"}
    (teacher,) = prepared(_row(RIGHT + "漢"), **settings)[2]["p-1"]
    assert teacher.text == RIGHT and len(teacher.tokens) == 12


def test_teachers_of_other_sources_are_left_out_and_counted(prepared: Callable[..., Any]) -> None:
    row = _row(RIGHT, RIGHT + "\n", WRONG, RIGHT + "\n\n")
    counts, _, store = prepared(row, teacher_sources=("s1", "s2"))
    assert [teacher.source for teacher in store["p-1"]] == ["s1"]
    assert counts == {
        "prompts": 1, "teachers": 1, "teachers_wrong": 1, "teachers_other_source": 2, "prompts_without_teacher": 0,
    }  # fmt: skip
    assert len(prepared(row, teacher_sources=())[2]["p-1"]) == 3


def test_teachers_that_are_verified_in_pieces_are_those_of_all_at_once(
    prepared: Callable[..., Any], monkeypatch
) -> None:
    """A training set's tokens do not fit into memory as Python's integers."""
    rows = [_row(*[RIGHT, WRONG, RIGHT][number % 3 :], uid=f"p-{number}") for number in range(600)]
    rows += [_row(uid="p-none"), _row(RIGHT, uid="p-long", prompt="x" * 200)]
    counts, prompts, store = prepared(*rows)
    monkeypatch.setattr(train_files, "_TOKENS", 0)
    in_pieces = prepared(*rows)
    assert in_pieces[:2] == (counts, prompts) and counts["prompts_without_teacher"] == 1
    assert [in_pieces[2][row["uid"]] for row in rows] == [store[row["uid"]] for row in rows]


# ---- prompts that show a teacher

SHORT = "{question} Or: {teacher} {question}"


def _shown(template: str = SHORT, share: float = 1.0, chat: bool = False, named: str | None = None) -> PromptFormat:
    return PromptFormat(chat, None, TEMPLATES[named] if named else None, template, share)


def test_a_prompt_that_shows_a_teacher_is_the_rendered_prompt_with_the_template_in_the_questions_place(
    prepared: Callable[..., Any], letters: Any
) -> None:
    """Texts with braces stay as they are, and the prompt that is written shows nobody."""
    row = _row(RIGHT, prompt="Make {teacher} {0}.")
    said = "Make {teacher} {0}. Or: X Make {teacher} {0}."
    named = TEMPLATES["r1"].apply(said)
    chat = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    for prompt_format, text in (
        (_shown(), said),
        (_shown(named="r1"), named),
        (_shown(chat=True), chat),
        (dataclasses.replace(_shown(), input_template="Q: {}\nA:"), f"Q: {said}\nA:"),
    ):
        counts, prompts, store = prepared(row, budget=(1000, 50), prompt_format=prompt_format)
        assert store.shown_prompt("p-1", "X") == text
        assert "Or:" not in prompts[0]["prompt"] and counts["teachers_too_long_to_show"] == 0
        assert [teacher.text for teacher in store["p-1"]] == [RIGHT]


def test_a_chat_shows_the_teacher_in_the_last_message_of_the_user(prepared: Callable[..., Any]) -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    chat += [{"role": "user", "content": "c"}]
    _, prompts, store = prepared(_row(RIGHT, prompt=chat), budget=(400, 50), prompt_format=_shown(chat=True))
    end = "<|im_end|>\n<|im_start|>"
    before = f"<|im_start|>system\ns{end}user\na{end}assistant\nb{end}user\n"
    assert store.shown_prompt("p-1", "X") == f"{before}c Or: X c{end}assistant\n"
    assert prompts[0]["prompt"] == chat
    with pytest.raises(RecipeError, match="a chat without a message of the user"):
        prepared(_row(RIGHT, prompt=chat[:1]), budget=(400, 50), prompt_format=_shown(chat=True))


@pytest.mark.parametrize("template", ["{{ messages[-1]['content'] * 2 }}", "{{ messages[-1]['content'] | upper }}"])
def test_a_chat_template_that_repeats_or_changes_what_it_is_given_is_refused(
    prepared: Callable[..., Any], letters: Any, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(letters, "chat_template", template)
    with pytest.raises(RecipeError, match="does not write the last message of the user once and as it is"):
        prepared(_row(RIGHT), budget=(400, 50), prompt_format=_shown(chat=True))


@pytest.mark.parametrize(
    ("budget", "share", "kept"),
    [
        # 8 + 5 + 10 + 1 + 8 tokens show the whole teacher; of its 25 characters half are "<answer>(3+5", one word.
        ((82, 50), 1.0, 1), ((81, 50), 1.0, 0), ((77, 50), 0.5, 1), ((76, 50), 0.5, 0),
        ((100, 50, 32), 1.0, 1), ((100, 50, 31), 1.0, 0), ((81, 50), 0.0, 1),
    ],
)  # fmt: skip
def test_a_teacher_with_which_the_prompt_would_be_too_long_is_left_out_and_counted(
    prepared: Callable[..., Any], budget: tuple[int, ...], share: float, kept: int
) -> None:
    counts, prompts, store = prepared(_row(RIGHT), budget=budget, prompt_format=_shown(share=share))
    assert (len(store["p-1"]), counts["teachers"], counts["teachers_too_long_to_show"]) == (kept, kept, 1 - kept)
    assert counts["prompts_without_teacher"] == 1 - kept and len(prompts) == 1


def test_a_graders_prompt_may_be_longer_than_a_rollouts(prepared: Callable[..., Any]) -> None:
    shows = dataclasses.replace(_shown(share=0.0), shows_graders=True)
    counts, _, store = prepared(_row(RIGHT), budget=(81, 50), prompt_format=shows)
    assert (len(store["p-1"]), counts["teachers_too_long_to_show"]) == (1, 0)
    assert store.shown_prompt("p-1", RIGHT) == f"Make 96. Or: {RIGHT} Make 96."


@pytest.mark.parametrize(("longest", "kept"), [(None, 1), (11, 1), (10, 0)])
def test_a_teacher_that_is_only_shown_may_be_longer_than_a_response(
    prepared: Callable[..., Any], longest: int | None, kept: int
) -> None:
    """It has 11 tokens, and its prompt leaves 10 to a response."""
    how = {"budget": (60, 10), "prompt_format": dataclasses.replace(_shown(share=0.0), shows_graders=True)}
    counts, _, store = prepared(_row(RIGHT), max_prefix_len=longest, only_shown=True, **how)
    assert (len(store["p-1"]), counts["teachers_too_long"]) == (kept, 1 - kept)
    assert prepared(_row(RIGHT), **how)[0]["teachers_too_long"] == 1


def test_shown_prompts_come_with_their_teachers_however_these_are_verified_in_parts(
    prepared: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_files, "_BATCH", 2)
    monkeypatch.setattr(train_files, "_TOKENS", 30)
    rows = [_row(RIGHT, uid=f"p-{number}", prompt=f"Make {number}.") for number in range(5)]
    _, _, store = prepared(*rows, prompt_format=_shown("{question}{teacher}"))
    assert [store.shown_prompt(f"p-{number}", "!") for number in range(5)] == [f"Make {n}.!" for n in range(5)]
