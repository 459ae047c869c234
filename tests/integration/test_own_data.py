"""A user's own data and model beside the built-in task, columns with names of their own, and what is refused or warned
of before anything starts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.cli import data, eval, train
from oger_recipe.cli.shared import settings_of_run
from oger_recipe.data.sources import Columns
from oger_recipe.evaluation.benchmarks import load_benchmark
from oger_recipe.grading.verifiers import verify
from oger_recipe.settings.grading import grading_rules

Run = Callable[..., tuple[dict[str, Any], dict[str, str], list[dict[str, Any]], list[dict[str, Any]]]]
TASK = {
    "name": "countdown", "train_problems": 8, "eval_problems": 4, "warm_start_steps": 1, "warm_start_batch_size": 8,
    "hidden_size": 32, "num_layers": 1,
}  # fmt: skip
SOLUTION = "Two and two are four, which everybody can count on one hand and which nobody disputes at all. So it is 4."


@pytest.fixture(scope="session")
def task_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("tasks"))


@pytest.fixture()
def beside_task(run: Run, tmp_path: Path, task_cache: str) -> Run:
    """`oger train` on a recipe of the built-in task; ``mine.jsonl`` and ``held_out.jsonl`` are the user's own."""
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    for section, key in (("data", "prompt_dataset"), ("actor", "model_name_or_path"), ("eval", "dataset")):
        del recipe[section][key]
    del recipe["data"]["input_key"]
    recipe["oger"] |= {"task": TASK | {"cache": task_cache}, "max_replace_num": 1}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    rows = [{"q": f"{number} + 2?", "a": number + 2, "solved": [f"It is {number + 2}."]} for number in range(4)]
    write_jsonl(rows, tmp_path / "mine.jsonl")
    write_jsonl([{"q": "9 + 9?", "a": 18}], tmp_path / "held_out.jsonl")
    return run


KEYS = ["--data.input_key", "q", "--data.label_key", "a", "--oger.teacher_key", "solved"]


@pytest.mark.parametrize(("dataset", "model", "evaluated", "keys"), itertools.product([False, True], repeat=4))
def test_the_task_gives_what_the_user_has_not_and_column_names_are_for_files_of_the_users(
    beside_task: Run,
    policy_folder: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    dataset: bool,
    model: bool,
    evaluated: bool,
    keys: bool,
) -> None:
    if not keys:  # the recipe's own columns in the user's files
        for name in ("mine.jsonl", "held_out.jsonl"):
            rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
            named = [{"prompt": row["q"], "answer": row["a"], "teachers": row.get("solved")} for row in rows]
            write_jsonl(named, tmp_path / name)
    flags = ["--data.prompt_dataset", "mine.jsonl"] * dataset + ["--eval.dataset", "held_out.jsonl"] * evaluated
    flags += ["--actor.model_name_or_path", str(policy_folder)] * model + KEYS * keys
    settings, _, prompts, problems = beside_task(*flags)
    printed = capsys.readouterr().out
    assert ([prompt["prompt"] for prompt in prompts][:2] == ["0 + 2?", "1 + 2?"]) == dataset
    assert len(prompts) == (4 if dataset else 8)
    if evaluated:
        assert [problem["prompt"] for problem in problems] == ["9 + 9?"]
    else:  # of the task, unless nothing of the task is used
        assert len(problems) == (0 if dataset and model else 4)
    assert ("countdown-policy" in printed) == (not model)
    assert ("countdown-data" in printed) == (not (dataset and (model or evaluated)))
    note = "note: the task countdown is not built: data.prompt_dataset and actor.model_name_or_path are given"
    note += "" if evaluated else "; nothing is evaluated: eval.dataset is not set"
    assert (note in printed.splitlines()) == (dataset and model)
    # The task's policy speaks in its chat template; what a model of the user's own speaks, the user says.
    assert settings["data.apply_chat_template"] == (not (dataset and model))
    assert (settings["actor.model_name_or_path"] == str(policy_folder)) == model
    resolved = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert resolved["oger"]["task"].get("name") == (None if dataset and model else "countdown")


@pytest.mark.parametrize("template", [None, "r1", "none"])
def test_a_template_goes_over_the_users_prompts_with_and_without_the_task(
    beside_task: Run, policy_folder: Path, template: str | None
) -> None:
    flags = ["--data.prompt_dataset", "mine.jsonl", *KEYS] + (["--oger.prompt_template", template] if template else [])
    ends = "Assistant: <think>" if template == "r1" else "0 + 2?"
    own = ["--actor.model_name_or_path", str(policy_folder), "--oger.run_dir", "other"]
    for more in ([], own):
        settings, _, prompts, _ = beside_task(*flags, *more)
        assert prompts[0]["prompt"].endswith(ends)
        assert settings["data.apply_chat_template"] == (template is None and not more)


def test_no_chat_template_goes_over_prompts_where_it_is_switched_off(beside_task: Run) -> None:
    settings, _, prompts, _ = beside_task("--no-data.apply_chat_template")
    assert settings["data.apply_chat_template"] is False and prompts


def test_teachers_come_from_the_column_that_is_named(beside_task: Run, policy_folder: Path, tmp_path: Path) -> None:
    from oger_recipe.teachers.store import TeacherStore

    own = ["--data.prompt_dataset", "mine.jsonl", *KEYS, "--actor.model_name_or_path", str(policy_folder)]
    prompts = beside_task(*own)[2]
    store = TeacherStore(tmp_path / "run" / "data" / "teachers.arrow")
    found = [store[json.loads(prompt["label"])["uid"]] for prompt in prompts]
    assert [[(teacher.source, teacher.text) for teacher in each] for each in found] == [
        [("solved_0", f"It is {number + 2}.")] for number in range(4)
    ]


# ---- no teachers, and most of the data lost


@pytest.fixture()
def refused(run: Run, tmp_path: Path) -> Callable[..., str]:
    """What `oger train` says of rows with the columns question, answer and others."""

    def message(rows: list[dict[str, Any]], *flags: str) -> str:
        write_jsonl(rows, tmp_path / "train.jsonl")
        with pytest.raises(SystemExit) as stop:
            train.main(["--recipe", "recipe.yaml", "--oger.max_replace_num", "1", *flags])
        return str(stop.value.code)

    return message


ROWS = [{"question": f"{number} + 2?", "answer": 4, "how": [SOLUTION], "text": SOLUTION, "id": 1} for number in (1, 2)]


def test_settings_that_ask_for_teachers_without_any_are_refused_with_the_columns_that_may_hold_them(
    refused: Callable[..., str],
) -> None:
    assert refused(ROWS) == (
        "oger train: the settings ask for teachers (oger.max_replace_num 1), and none of the 2 rows of train.jsonl "
        "has one in its column 'teachers': name the column of your teachers with oger.teacher_key ('how' has lists, "
        "'text' has long texts), or train without them: oger.max_replace_num 0"
    )


def test_a_dry_run_says_so_as_well(refused: Callable[..., str]) -> None:
    assert "none of the 2 rows of train.jsonl has one in its column 'teachers'" in refused(ROWS, "--dry-run")


@pytest.mark.parametrize(
    ("flags", "asking"),
    [
        (["--oger.max_replace_num", "0", "--oger.n_prefix", "2"], "oger.n_prefix 2"),
        (["--oger.max_replace_num", "0", "--oger.sft.epochs", "2"], "oger.sft.epochs 2"),
        (["--oger.max_replace_num", "0", "--oger.bonus_weight", "0.5"], "oger.bonus_weight 0.5"),
        (["--oger.bonus_weight", "0.5"], "oger.max_replace_num 1, oger.bonus_weight 0.5"),
    ],
)
def test_each_setting_that_asks_for_teachers_is_named(
    refused: Callable[..., str], flags: list[str], asking: str
) -> None:
    assert f"the settings ask for teachers ({asking}), and" in refused(ROWS, *flags)


@pytest.mark.parametrize("flags", [[], ["--oger.bonus_weight", "1", "--oger.use_history_samples"]])
def test_without_a_need_for_teachers_there_is_nothing_to_refuse(run: Run, flags: list[str]) -> None:
    assert len(run(*flags)[2]) == 2  # max_replace_num is 0 here


def test_teachers_that_are_all_lost_are_as_good_as_none(refused: Callable[..., str]) -> None:
    wrong = [row | {"how": ["It is 5."]} for row in ROWS]
    message = refused(wrong, "--oger.teacher_key", "how")
    assert "and none can be used (2 wrong): the verifier rejects them: check oger.task_name" in message
    message = refused(ROWS, "--oger.teacher_key", "how", "--rollout.max_new_tokens", "8", "--oger.run_dir", "b")
    assert "and none can be used (2 too long): raise rollout.max_new_tokens with data.max_len" in message


def test_the_loss_of_more_than_half_is_said_with_what_would_change_it(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts of 300 and more characters do not fit beside 64 of 128 tokens; of 7 teachers 4 are too long or wrong."""
    short = [{"question": f"{number} + 2?", "answer": 4, "how": ["It is 4."]} for number in range(3)]
    short[0]["how"] += ["It is 5.", "It is 6."]
    short[1]["how"] += ["xyz " * 40 + "4", "zyx " * 40 + "4"]
    long = [{"question": f"{number:04d}" * 75, "answer": 4, "how": []} for number in range(4)]
    write_jsonl(short + long, tmp_path / "train.jsonl")
    flags = ["--data.max_len", "128", "--oger.teacher_key", "how", "--oger.max_replace_num", "1"]
    run(*flags)
    printed = capsys.readouterr().out.splitlines()
    assert (
        "warning: data: 4 of 7 prompts are left out: they are longer than 64 tokens: data.max_len 128 "
        "minus 64 tokens for the response; raise data.max_len"
    ) in printed
    [teachers] = [line for line in printed if "teachers are left out" in line]
    assert teachers.startswith(
        "warning: data: 4 of 7 teachers are left out (2 wrong, 2 too long): the verifier rejects"
    )
    write_jsonl(short + long[:3], tmp_path / "train.jsonl")  # one half
    run(*flags, "--oger.run_dir", "other")
    assert "prompts are left out" not in capsys.readouterr().out.partition("evaluation data")[0]


def test_prompts_without_teachers_are_said_where_they_are_most(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"{number} + 2?", "answer": 4, "how": ["4"] * (number == 0)} for number in range(3)]
    write_jsonl(rows, tmp_path / "train.jsonl")
    run("--oger.teacher_key", "how", "--oger.max_replace_num", "1")
    said = "warning: data: 2 of 3 prompts have no teacher: they train as plain GRPO"
    assert said in capsys.readouterr().out.splitlines()


# ---- a benchmark that has its problems several times


def _luffy(source: str, question: str, answer: str, index: int) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": "default", "index": index},
    }


@pytest.mark.parametrize("indices", ["one", "each its own"])
def test_repeated_problems_of_a_benchmark_become_more_samples_of_it(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], indices: str
) -> None:
    """Three problems 8 times, two 4 times with one of them 5 times, and one that is there once."""
    asked = [("aime", f"{number} + 1?", 8) for number in range(3)]
    asked += [("amc", "2 + 2?", 4), ("amc", "3 + 3?", 5), ("math", "4 + 4?", 1)]
    problems = [(source, question) for source, question, count in asked for _ in range(count)]
    index = {"one": lambda place: -1, "each its own": lambda place: place}[indices]
    rows = [_luffy(*problem, "5", index(place)) for place, problem in enumerate(problems)]
    write_jsonl(rows, tmp_path / "test.jsonl")
    found = run("--eval.dataset", "test.jsonl", "--oger.eval.input_key", "prompt", "--data.apply_chat_template")[3]
    labels = [(problem["datasource"], json.loads(problem["label"]).get("times_asked", 1)) for problem in found]
    assert labels == [("aime", 8)] * 3 + [("amc", 4)] * 2 + [("math", 1)]
    printed = capsys.readouterr().out
    said = "note: {} repeats each of its {} problems {} times: each is asked once, with {} times the samples"
    assert said.format("aime", 3, 8, 8) in printed and said.format("amc", 2, 4, 4) in printed
    assert "evaluation data: 1 duplicates, 6 prompts" in printed


# ---- `oger data validate` and the run


def _validated(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[bool, str]:
    capsys.readouterr()
    try:
        data.main(["validate", "train.jsonl", *flags])
    except SystemExit:
        return False, capsys.readouterr().out
    return True, capsys.readouterr().out


GOOD = {"q": "2 + 2?", "a": "It is #### 4", "solved": ["It is 4."]}
CASES: dict[str, Any] = {
    "good": GOOD,
    "a text for a list": GOOD | {"solved": "It is 4."},
    "no teachers in this row": GOOD | {"solved": None},
    "a number for an answer": GOOD | {"a": 4.0},
    "no prompt": GOOD | {"q": ""},
    "no column of the answer": {"q": "2 + 2?", "solved": []},
    "no column of the teachers": {"q": "2 + 2?", "a": "4"},
    "teachers of another kind": GOOD | {"solved": {"r1": "It is 4."}},
    "an answer without a number": GOOD | {"a": "four"},
    "another task": GOOD | {"task": "chess"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spelling", ["data.{}", "{}"])
def test_the_run_and_the_validation_agree_on_what_is_bad(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, spelling: str
) -> None:
    write_jsonl([CASES[case], GOOD | {"q": "3 + 1?"}, GOOD | {"q": "1 + 3?"}], tmp_path / "train.jsonl")
    input_key, label_key = (spelling.format(key) for key in ("input_key", "label_key"))
    names = ("teacher_key", "task_name") if spelling == "{}" else ("oger.teacher_key", "oger.task_name")
    columns = [f"--{input_key}", "q", f"--{label_key}", "a", f"--{names[0]}", "solved", f"--{names[1]}", "gsm8k"]
    good, report = _validated(capsys, *columns)
    assert good == (list(CASES).index(case) < 4)
    flags = ["--data.input_key", "q", "--data.label_key", "a", "--oger.teacher_key", "solved", "--oger.eval.input_key"]
    flags += ["question", "--oger.eval.label_key", "answer", "--oger.max_replace_num", "1"]
    if good:
        assert len(run(*flags)[2]) == 3
        return
    with pytest.raises(SystemExit) as stop:
        train.main(["--recipe", "recipe.yaml", *flags])
    reason = report.splitlines()[0].partition(": ")[2]
    assert reason and reason in str(stop.value.code), (reason, stop.value.code)


def test_the_validation_names_columns_that_may_be_the_teachers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl([{"q": "2 + 2?", "a": SOLUTION, "solved": [SOLUTION]}], tmp_path / "train.jsonl")
    good, report = _validated(capsys, "--input_key", "q", "--label_key", "a", "--task_name", "gsm8k")
    assert good and report.splitlines()[-1] == (
        "no teachers; if one of these columns has them, name it by --teacher_key: 'a' has long texts, "
        "'solved' has lists"
    )


@pytest.mark.parametrize("flag", ["--oger.eval.input_key", "--oger.eval.label_key"])
def test_a_column_that_the_evaluation_lacks_is_named_by_its_own_flag(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    write_jsonl([{"prompt": "4+1?", "answer": "5", "task": "gsm8k"}], tmp_path / "test.jsonl")
    with pytest.raises(SystemExit) as stop:
        train.main(
            ["--recipe", str(recipe), "--dry-run", "--eval.dataset", str(tmp_path / "test.jsonl"), flag, "absent"]
        )
    assert flag.removeprefix("--") in str(stop.value.code) and "absent" in str(stop.value.code)


# ---- one reader

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "test.jsonl"
RAW = [
    {"question": "Ann has 40 eggs and buys 2. How many?", "answer": "40+2=<<40+2=42>>42 eggs.\n#### 42"},
    {"question": "Half of 2,500?", "answer": "2,500/2 = 1,250\n#### 1,250"},
]
RAW_KEYS = ["--data.input_key", "question", "--data.label_key", "answer", "--oger.task_name", "gsm8k"]


@pytest.mark.parametrize("name", ["by hand", "GSM8K's own file"])
def test_training_evaluation_and_validation_read_raw_rows_alike(
    name: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name != "by hand" and not GSM8K.is_file():
        pytest.skip(f"{GSM8K} is not there")
    raw = RAW if name == "by hand" else read_jsonl(GSM8K)[:40]
    write_jsonl(raw, tmp_path / "train.jsonl")
    write_jsonl(raw, tmp_path / "test.jsonl")
    assert f"{len(raw)} rows, 0 bad" in _validated(capsys, *RAW_KEYS)[1]
    trained = run(*RAW_KEYS, "--oger.max_replace_num", "0", "--oger.teacher_key", "teachers")[2]
    labels = {label["uid"]: label for label in (json.loads(row["label"]) for row in trained)}
    args, flags = eval.build_parser().parse_known_args(
        ["model", "--benchmark", f"mine={tmp_path}/test.jsonl", *RAW_KEYS]
    )
    settings = settings_of_run(None, flags, eval.build_parser())
    problems = eval._benchmarks(args, settings)["mine"]
    assert len(problems) == len(raw) and {each.uid for each in problems} == labels.keys()
    for problem in problems:
        row, label = problem.row(None), labels[problem.uid]
        solution = next(each["answer"] for each in raw if each["question"] == problem.question)
        right = solution.rpartition("####")[2].strip()
        for text, score in ((f"So it is {right}", 1.0), (f"So it is {right}1", 0.0)):
            task, response, answer, options = grading_rules(settings, evaluation=True).answer(row, text)
            assert verify(task, response, answer, **options).score == score
            assert verify(label["task"], text, label["answer"], **label.get("options", {})).score == score


def test_rows_with_the_recipes_columns_stay_a_benchmark_beside_columns_of_the_training_data(tmp_path: Path) -> None:
    rows = [{"uid": "a", "prompt": "1+1?", "answer": "2", "task": "gsm8k", "question": "1+2?"}]
    write_jsonl(rows, tmp_path / "both.jsonl")
    write_jsonl([{name: rows[0][name] for name in ("uid", "prompt", "answer", "task")}], tmp_path / "own.jsonl")
    columns = Columns("question", "answer", task="gsm8k")
    assert [each.question for each in load_benchmark("mine", tmp_path / "own.jsonl", columns=columns)] == ["1+1?"]
    assert [each.question for each in load_benchmark("mine", tmp_path / "both.jsonl", columns=columns)] == ["1+2?"]
