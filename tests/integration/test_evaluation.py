"""Benchmarks, prompts, the table and what ``oger eval`` refuses: everything before and after the engine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from transformers import AutoTokenizer

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli import eval as oger_eval
from oger_recipe.cli.train_ppo_ray import build_parser
from oger_recipe.evaluation import folder
from oger_recipe.evaluation.benchmarks import BENCHMARKS, Problem, load_benchmark
from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.prompts import Prompting, prompt_texts, prompt_tokens
from oger_recipe.evaluation.sampling import Sampling
from oger_recipe.evaluation.tables import comparison, headlines, markdown_table, ungraded
from oger_recipe.grading.verifiers import verify
from oger_recipe.offline import eval as evaluation
from oger_recipe.settings.rollouts import RolloutSettings

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
STEPS = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
LETTER = "Please reason step by step, and put the letter of the correct option within \\boxed{}."

# One record of each benchmark's dataset, and what it has to become: question, answer and task.
RECORDS: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "math500": (
        {"problem": "1+1?", "solution": "It is 2.", "answer": "2", "unique_id": "test/1.json", "level": 1},
        ("1+1?", "2", "math"),
    ),
    "aime24": ({"id": 60, "problem": "x?", "solution": "..", "answer": "204"}, ("x?", "204", "math")),
    "aime25": ({"problem": "x?", "answer": "70", "id": "0"}, ("x?", "70", "math")),
    "amc23": ({"id": 0, "question": "x?", "answer": 27.0, "url": "u"}, ("x?", "27", "math")),
    "minerva": ({"question": "v?", "answer": "8.7e8"}, ("v?", "8.7e8", "math")),
    "olympiadbench": (
        {"id": 5, "question": "z?", "final_answer": ["$\\frac{1}{2}$", "3"], "is_multiple_answer": True},
        ("z?", "$\\frac{1}{2}$, 3", "math"),
    ),
    "gsm8k": ({"question": "eggs?", "answer": "16 - 3 = 13\n#### 13"}, ("eggs?", "13", "gsm8k")),
    "arc_c": (
        {"id": "M", "question": "q?", "choices": {"text": list("uvw"), "label": list("123")}, "answerKey": "2"},
        (f"q?\n\nA. u\nB. v\nC. w\n\n{LETTER}", "B", "choice"),
    ),
    "mmlu_pro": (
        {"question_id": 7, "question": "q?", "options": list("klmnopqrst"), "answer": "J", "answer_index": 9},
        ("q?\n\nA. k\nB. l\nC. m\nD. n\nE. o\nF. p\nG. q\nH. r\nI. s\nJ. t\n\n" + LETTER, "J", "choice"),
    ),
}  # fmt: skip


@pytest.fixture()
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """A JSONL file of records."""

    def write(records: Iterable[dict[str, Any]], name: str = "file.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


@pytest.fixture(scope="module")
def tokenizer(policy_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(policy_folder)


def _gpqa(number: int) -> dict[str, Any]:
    wrong = {f"Incorrect Answer {index}": f"wrong {index}\n" for index in (1, 2, 3)}
    return {"Record ID": f"rec{number}", "Question": " which? ", "Correct Answer": "right\n"} | wrong


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_each_dataset_becomes_a_problem(name: str, jsonl: Callable[..., Path]) -> None:
    record, (question, answer, task) = RECORDS[name]
    [problem] = load_benchmark(name, jsonl([record]))
    assert (problem.question, problem.answer, problem.task) == (question, answer, task)
    assert problem.instruction == ("" if task == "choice" else STEPS)
    assert verify(task, f"So it is \\boxed{{{answer.replace('$', '')}}}.", answer).score == 1
    assert verify(task, "So it is \\boxed{C}." if task == "choice" else "So it is \\boxed{-1}.", answer).score == 0


def test_gpqa_options_are_shuffled_by_the_problem_and_the_answer_follows(jsonl: Callable[..., Path]) -> None:
    problems = load_benchmark("gpqa", jsonl(_gpqa(number) for number in range(80)))
    letters = []
    for problem in problems:
        assert isinstance(problem.question, str)
        question, blank, *options, space, last = problem.question.split("\n")
        assert (question, blank, space, last) == ("which?", "", "", LETTER)
        assert sorted(option[3:] for option in options) == ["right", "wrong 1", "wrong 2", "wrong 3"]
        assert [option[:3] for option in options] == ["A. ", "B. ", "C. ", "D. "]
        assert options["ABCD".index(problem.answer)] == f"{problem.answer}. right"
        letters.append(problem.answer)
    assert all(8 < letters.count(letter) < 33 for letter in "ABCD")  # 20 each on average
    again = load_benchmark("gpqa", jsonl(_gpqa(number) for number in reversed(range(80))))
    assert again == problems


def test_a_parquet_file_of_a_benchmark_is_read_like_its_jsonl_file(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    record, _ = RECORDS["arc_c"]
    pyarrow.parquet.write_table(pa.Table.from_pylist([record]), tmp_path / "arc_c.parquet")
    assert load_benchmark("arc_c", tmp_path / "arc_c.parquet") == load_benchmark("arc_c", jsonl([record]))


def test_problems_without_an_id_are_known_by_their_content(jsonl: Callable[..., Path]) -> None:
    records = [{"question": f"{number}+1?", "answer": f"#### {number + 1}"} for number in range(20)]
    problems = load_benchmark("gsm8k", jsonl(records))
    assert len({problem.uid for problem in problems}) == 20
    random.Random(0).shuffle(records)
    assert load_benchmark("gsm8k", jsonl(records + records[:3])) == problems


def test_max_problems_takes_the_same_problems_in_any_order_and_not_the_first_ones(jsonl: Callable[..., Path]) -> None:
    records = [{"id": number, "question": f"{number}?", "answer": "1"} for number in range(40)]
    some = load_benchmark("amc23", jsonl(records), max_problems=10)
    assert len(some) == 10
    assert {problem.uid for problem in some} != {str(number) for number in range(10)}
    assert load_benchmark("amc23", jsonl(reversed(records)), max_problems=10) == some
    more = load_benchmark("amc23", jsonl(records), max_problems=20)
    assert {problem.uid for problem in some} < {problem.uid for problem in more}


def test_the_recipes_own_rows_are_a_benchmark_of_any_name(jsonl: Callable[..., Path]) -> None:
    row = {"uid": "u", "prompt": "Give 4.", "answer": "4", "task": "gsm8k"}
    expected = [Problem("u", "Give 4.", "4", "gsm8k")]
    assert load_benchmark("mine", jsonl([row])) == expected
    assert load_benchmark("math500", jsonl([row])) == expected


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("mine", {"prompt": "Give {}.", "answer": "4", "task": "gsm8k"}),
        ("amc23", {"question": "Give {}.", "answer": 4.0}),
    ],
)
def test_problems_that_a_file_repeats_are_asked_once_with_more_samples(
    name: str, record: dict[str, Any], jsonl: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three problems four times; a fifth copy of one alone is a duplicate."""
    text = next(iter(record))
    records = [record | {text: record[text].format(number)} for number in range(3)]
    problems = load_benchmark(name, jsonl(records * 4 + records[:1]))
    assert [problem.times_asked for problem in problems] == [4] * 3
    assert f"note: {name} repeats each of its 3 problems 4 times" in capsys.readouterr().out
    once = load_benchmark(name, jsonl(records + records[:1]))
    assert [problem.times_asked for problem in once] == [1] * 3 and not capsys.readouterr().out
    assert [replace(problem, columns={}) for problem in problems] == once


def test_an_evaluation_asks_each_benchmark_as_often_as_its_file_does(tmp_path: Path, tokenizer: Any) -> None:
    often, seldom = (
        Problem(uid, uid, "4", "gsm8k", columns=columns) for uid, columns in (("a", {"times_asked": 3}), ("b", {}))
    )
    prompts = [folder.Prompt(problem, problem.uid, [1]) for problem in (often, seldom)]
    asked = folder.missing_samples(tmp_path, "mine", prompts, Sampling(n=2))
    assert [(prompt.problem.uid, sample) for prompt, sample in asked] == (
        [("a", sample) for sample in range(6)] + [("b", sample) for sample in range(2)]
    )
    greedy = folder.missing_samples(tmp_path, "mine", prompts, Sampling(n=1, temperature=0.0))
    assert [(prompt.problem.uid, sample) for prompt, sample in greedy] == [("a", 0), ("b", 0)]
    assert folder.missing_samples(tmp_path, "mine", prompts, Sampling(n=2, top_k=1)) == greedy


@pytest.mark.parametrize(
    ("name", "path", "count", "task"),
    [
        ("math500", "bench/math500.jsonl", 500, "math"),
        ("aime24", "bench/aime24.jsonl", 30, "math"),
        ("amc23", "bench/amc23.jsonl", 40, "math"),
        ("gsm8k", "gsm8k/test.jsonl", 1319, "gsm8k"),
    ],
)
def test_the_real_files_are_read_whole_and_their_answers_are_right(
    name: str, path: str, count: int, task: str
) -> None:
    file = SHARED / path
    if not file.is_file():
        pytest.skip(f"the data file {path} is not on this machine")
    problems = load_benchmark(name, file)
    assert len(problems) == count
    assert {problem.task for problem in problems} == {task}
    for problem in problems[:: count // 20]:
        assert verify(task, f"\\boxed{{{problem.answer}}}", problem.answer).score == 1


@pytest.mark.parametrize(
    ("name", "records", "message"),
    [
        ("math500", [{"question": "q", "answer": "1"}], r"file.jsonl:1: .* no text in problem \(.*: question, "),
        ("gsm8k", [{"question": "q"}], r"file.jsonl:1: not a problem of openai/gsm8k: no column 'answer'"),
        ("gsm8k", ["text"], r"file.jsonl:1: not a problem"),
        ("amc23", [{"question": "q", "answer": None}], r"file.jsonl:1: .*: the answer is None"),
        ("arc_c", [RECORDS["arc_c"][0] | {"answerKey": "9"}], r"file.jsonl:1: not a problem of allenai/ai2_arc"),
        ("mmlu_pro", [RECORDS["mmlu_pro"][0] | {"options": ["a"]}], "option 10 of 1 is marked right"),
        (
            "aime24",
            [{"id": 1, "problem": "a", "answer": "1"}, {"id": 1, "problem": "b", "answer": "1"}],
            r"file.jsonl:2: id '1' is used by two problems",
        ),
        ("amc23", [], r"file.jsonl: no problems"),
        (
            "mine",
            [{"question": "q", "answer": "1"}],
            r"has the columns question, answer, not uid, prompt, answer, task: name its columns and the task "
            r"as for a run, e\.g\. --data\.input_key question --data\.label_key answer --oger\.task_name gsm8k; ",
        ),
        ("mine", [{"uid": "u", "prompt": "p", "answer": "1", "task": "chess"}], r"file.jsonl:1: unknown task 'chess'"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused_with_its_line(
    name: str, records: list[Any], message: str, jsonl: Callable[..., Path]
) -> None:
    with pytest.raises(RecipeError, match=message):
        load_benchmark(name, jsonl(records))


@pytest.mark.parametrize("name", ["gpqa", "math500"])
def test_without_the_hub_both_ways_to_give_a_file_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(RecipeError) as refused:
        load_benchmark(name)
    message = str(refused.value)
    assert message.startswith(f"benchmark {name}: ") and "Couldn't reach the Hub" in message
    assert f"--benchmark {name}=FILE" in message and "--benchmark_dir DIR" in message
    assert ("is gated" in message) == (name == "gpqa")


def test_the_hub_is_asked_for_the_datasets_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load(path: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((path, config, split))
        return [_gpqa(0)]

    monkeypatch.setattr(datasets, "load_dataset", load)
    [problem] = load_benchmark("gpqa")
    assert (asked, problem.uid) == ([("Idavidrein/gpqa", "gpqa_diamond", "train")], "rec0")


PROBLEM = Problem("p", "1+1?", "2", "math", STEPS)
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompting", "text"),
    [
        (Prompting(), CHAT.format(f"1+1?{STEPS}")),
        (Prompting(chat_template=False), f"1+1?{STEPS}"),
        (Prompting("none"), "1+1?"),
        (Prompting("chat"), CHAT.format("1+1?")),
        (Prompting("chat", system_prompt="Brief!"), "<|im_start|>system\nBrief!<|im_end|>\n" + CHAT.format("1+1?")),
    ],
)  # fmt: skip
def test_what_is_sent(prompting: Prompting, text: str, tokenizer: Any) -> None:
    assert prompt_texts([PROBLEM], tokenizer, prompting) == [text]
    [tokens] = prompt_tokens([text], tokenizer)
    assert tokenizer.decode(tokens) == text


def test_a_named_template_brings_its_stop_texts(tokenizer: Any) -> None:
    [text] = prompt_texts([PROBLEM], tokenizer, Prompting("r1"))
    assert text.endswith("\nUser: 1+1?\nAssistant: <think>")
    defaults = vars(build_parser(cpu=True).parse_args([]))
    assert RolloutSettings.of(defaults | {"oger.prompt_template": "r1"}).stop_texts == ("</answer>",)
    assert RolloutSettings.of(defaults).stop_texts == ()


def test_chats_of_several_turns_need_the_chat_template(tokenizer: Any) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    chat, question = Problem("c", turns, "2", "math"), Problem("q", turns[1:], "2", "math")
    [text] = prompt_texts([chat], tokenizer, Prompting())
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n" + CHAT.format("1+1?")
    assert prompt_texts([question], tokenizer, Prompting("none")) == ["1+1?"]
    with pytest.raises(RecipeError, match="problem 'c' is a chat of several turns"):
        prompt_texts([chat], tokenizer, Prompting("none"))


def test_a_system_prompt_and_the_chat_template_need_a_tokenizer_that_has_one(policy_folder: Path) -> None:
    base = AutoTokenizer.from_pretrained(policy_folder)
    base.chat_template = None
    assert prompt_texts([PROBLEM], base, Prompting()) == [f"1+1?{STEPS}"]
    with pytest.raises(RecipeError, match="--prompt_template chat: the model's tokenizer has no chat template"):
        prompt_texts([PROBLEM], base, Prompting("chat"))
    with pytest.raises(RecipeError, match="--system_prompt needs a chat template"):
        prompt_texts([PROBLEM], base, Prompting(system_prompt="Be brief."))


def _answers(benchmark: str, rights: list[int], n: int, **changes: Any) -> list[dict[str, Any]]:
    return [
        {"uid": str(uid), "benchmark": benchmark, "sample": sample, "score": float(sample < right), "format": 1.0}
        | {"extracted": str(sample < right), "response_length": 12, "truncated": False, "graded": True}
        | changes
        for uid, right in enumerate(rights)
        for sample in range(n)
    ]


def test_the_table_has_a_row_for_each_benchmark_and_the_average_last() -> None:
    table = markdown_table(evaluate_answers(_answers("easy", [4, 4], 4) + _answers("half", [4, 0], 4)))
    head, rule, easy, half, average = [line.strip("| ").split(" | ") for line in table.splitlines()[:5]]
    assert head == [
        "benchmark", "problems", "n", "avg@n", "pass@2", "pass@4", "maj@n", "length", "truncated", "format",
    ]  # fmt: skip
    assert len(rule) == len(head)
    assert easy == ["easy", "2", "4", "100.0 [100.0, 100.0]", "100.0", "100.0", "100.0", "12", "0.0", "100.0"]
    assert half == ["half", "2", "4", "50.0 [0.0, 100.0]", "50.0", "50.0", "50.0", "12", "0.0", "100.0"]
    assert average == ["average", "4", "4", "75.0 [50.0, 100.0]", "75.0", "75.0", "75.0", "12", "0.0", "100.0"]


def test_the_table_shows_three_k_of_a_long_curve_and_no_column_without_figures() -> None:
    long = markdown_table(evaluate_answers(_answers("b", [3], 32))).splitlines()[0]
    assert [cell for cell in long.split(" | ") if cell.startswith("pass@")] == ["pass@2", "pass@8", "pass@32"]
    single = markdown_table(evaluate_answers(_answers("b", [1], 1))).splitlines()[0]
    assert single == "| benchmark | problems | n | avg@n | length | truncated | format |"


def test_two_evaluations_are_compared_by_benchmark_each_with_its_own_n() -> None:
    """Of "many" one of two problems is solved before; "once" has one answer a problem. Intervals of whole problems."""
    before = headlines(evaluate_answers(_answers("many", [4, 0], 4) + _answers("once", [1], 1)))
    after = headlines(evaluate_answers(_answers("many", [4, 4], 4) + _answers("once", [0], 1)))
    assert comparison({"before": before, "after": after}).splitlines() == [
        "                   before                 after                  difference",
        "many      avg@4    0.500 [0.000, 1.000]   1.000 [1.000, 1.000]   +0.500",
        "          pass@4   0.500 [0.000, 1.000]   1.000 [1.000, 1.000]   +0.500",
        "          maj@4    0.500 [0.000, 1.000]   1.000 [1.000, 1.000]   +0.500",
        "once      avg@1    1.000 [1.000, 1.000]   0.000 [0.000, 0.000]   -1.000",
        "average   avg@n    0.750 [0.500, 1.000]   0.500 [0.500, 0.500]   -0.250",
    ]


def test_a_comparison_has_what_there_is() -> None:
    of_four, of_two = (headlines(evaluate_answers(_answers("b", [n], n))) for n in (4, 2))
    assert "difference" not in comparison({"before": of_four})
    lines = comparison({"before": of_four, "after": of_two}).splitlines()  # eval.n_samples_per_prompt was changed
    assert [line[4:10] for line in lines[1:]] == ["avg@4 ", "pass@4", "maj@4 ", "avg@2 ", "pass@2", "maj@2 "]
    assert not any("+" in line for line in lines)
    no_votes = [record | {"extracted": None} for record in _answers("b", [2], 2)]
    assert "maj" not in comparison({"before": headlines(evaluate_answers(no_votes))})


def test_the_table_says_what_counts_as_unsolved() -> None:
    records = _answers("b", [2, 1], 2) + [
        record | {"uid": "long", "response_length": 0, "truncated": True} for record in _answers("b", [0], 2)
    ]
    records[0]["graded"] = False
    table = markdown_table(evaluate_answers(records))
    assert "b: 1 of 3 problems do not fit into the model's context and count as unsolved." in table
    assert "b: 1 answers could not be graded and count as wrong." in table
    assert "unsolved" not in markdown_table(evaluate_answers(_answers("b", [2], 2)))


def test_a_benchmark_of_which_nothing_was_graded_is_named() -> None:
    records = _answers("b", [0, 0], 2)
    records[0]["graded"] = records[1]["graded"] = records[2]["graded"] = False
    assert ungraded(evaluate_answers(records)) == []
    records[3]["graded"] = False
    assert ungraded(evaluate_answers(records + _answers("c", [1], 2))) == ["b"]


@pytest.fixture()
def refused(
    policy_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jsonl: Callable[..., Path]
) -> Callable[..., str]:
    """The message with which ``oger eval <policy> <arguments>`` ends before an engine is loaded."""

    def no_engine(*_: Any) -> None:
        raise AssertionError("the engine was asked for")

    monkeypatch.setattr(evaluation, "_generate_all", no_engine)
    monkeypatch.chdir(tmp_path)
    jsonl([RECORDS["gsm8k"][0]], "gsm8k.jsonl")
    jsonl([{"prompt": "Q", "label": "{}", "datasource": "default"}], "prepared.jsonl")

    def message(*arguments: str, model: str = str(policy_folder)) -> str:
        with pytest.raises(SystemExit) as stop:
            oger_eval.main([model, *arguments])
        text = str(stop.value.code)
        assert text.startswith("oger eval: ")
        return text.removeprefix("oger eval: ")

    return message


FILE = ("--benchmark", "gsm8k=gsm8k.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to evaluate on: name benchmarks with --benchmark, or a --recipe with eval.dataset"),
        (
            [*FILE, "--prompt_template", "r1", "--oger.math_rule", "deepscaler"],
            "answers cannot be graded by these settings:\n  - oger.math_rule deepscaler reads only boxes",
        ),
        (["--recipe", "none.yaml"], "none.yaml: no such recipe file"),
        (["--benchmark", "mine=prepared.jsonl"], "benchmark mine: prepared.jsonl was prepared by a run"),
        (["--benchmark", "gsm9k"], "unknown benchmark 'gsm9k'; known: math500, aime24,"),
        (["--benchmark", "gsm8k="], "--benchmark gsm8k=: write NAME or NAME=FILE"),
        (["--benchmark", "gsm8k=no.jsonl"], "benchmark gsm8k: no.jsonl: no such file"),
        ([*FILE, *FILE], "--benchmark gsm8k is given twice"),
        (["--benchmark", "aime24", "--benchmark_dir", "."], ". has no aime24.jsonl or aime24.parquet; it has gsm8k"),
        ([*FILE, "--n", "0"], "--n is 0: it must be 1 or more"),
        ([*FILE, "--temperature", "-1"], "--temperature is -1.0: it must be 0 (greedy) or more"),
        ([*FILE, "--temperature", "nan"], "--temperature is nan: it must be 0 (greedy) or more"),
        ([*FILE, "--top_p", "0"], "--top_p is 0.0: it must be above 0 and at most 1"),
        ([*FILE, "--top_k", "0"], "--top_k is 0: it must be 1 or more, or -1 for all tokens"),
        ([*FILE, "--max_new_tokens", "many"], "argument --max_new_tokens: invalid int value: 'many'"),
        ([*FILE, "--prompt_template", "r2"], "argument --prompt_template: invalid choice: 'r2'"),
        ([*FILE, "--temprature", "1"], "unknown flag '--temprature'; did you mean '--temperature'? (oger eval --help"),
        ([*FILE, "--oger.math_rle", "x"], "unknown flag '--oger.math_rle'; did you mean '--oger.math_rule'?"),
        ([*FILE, "--eval.temperature=1"], "--eval.temperature is called --temperature here"),
        (
            [*FILE, "--oger.verifiers", "gsm8k=nowhere:grade"],
            "answers cannot be graded by these settings:\n  - oger.verifiers: task 'nowhere:grade' is not a verifier",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    refused: Callable[..., str], arguments: list[str], message: str
) -> None:
    assert refused(*arguments).startswith(message)


def test_a_model_that_is_not_there_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert refused(*FILE, model="./none") == "none: no such model folder"
    (tmp_path / "weights").mkdir()
    assert refused(*FILE, model="weights") == "weights is not a model folder: it has no config.json"


def test_a_reference_answer_that_cannot_be_read_is_refused_before_anything_is_generated(
    refused: Callable[..., str], jsonl: Callable[..., Path]
) -> None:
    jsonl([RECORDS["gsm8k"][0], {"question": "why?", "answer": "#### because", "id": "q7"}], "bad.jsonl")
    message = refused("--benchmark", "gsm8k=bad.jsonl")
    assert message.startswith("benchmark gsm8k: 1 answers cannot be read, the first of problem 'q7': ")


def test_a_failure_of_the_engine_is_one_sentence_and_its_traceback_a_file(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    message = refused(*FILE, "--out", "one")
    assert message == ("the evaluation stopped: AssertionError: the engine was asked for (traceback: one/error.log)")
    assert "Traceback" in (tmp_path / "one" / "error.log").read_text()


def test_another_evaluation_is_not_overwritten(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("notes")
    assert (
        refused(*FILE, "--out", "notes") == "notes exists and is not an evaluation; choose another folder with --out"
    )
    refused(*FILE, "--out", "one")  # for its engine alone: the evaluation had begun
    settings = (tmp_path / "one" / "settings.json").read_text()
    message = refused(*FILE, "--out", "one", "--seed", "1", "--system_prompt", "Be brief.")
    assert message.startswith("one holds another evaluation (its prompting, sampling, gsm8k differ")
    message = refused(*FILE, "--out", "one", "--oger.gsm8k_strict_oat")
    assert message.startswith("one holds another evaluation (its grading differ")
    assert (tmp_path / "one" / "settings.json").read_text() == settings


def test_greedy_decoding_has_one_sample(
    refused: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(*FILE, "--temperature", "0", "--n", "8", "--out", "greedy")
    assert "note: greedy decoding gives the same answer every time, so n is 1" in capsys.readouterr().out
    settings = json.loads((tmp_path / "greedy" / "settings.json").read_text())
    assert settings["sampling"]["temperature"] == 0.0


def test_the_benchmarks_tested_here_are_of_the_registry() -> None:
    assert {*RECORDS, "gpqa"} <= BENCHMARKS.keys()
