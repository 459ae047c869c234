"""Benchmarks by name: where their problems are, and what their columns mean.

They are read from the Hub, or from a file with the same columns; a file of the recipe's own rows does as well.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError, cut, shown
from oger_recipe.base.seeds import stable_seed
from oger_recipe.data.luffy import is_luffy
from oger_recipe.data.sources import TEACHERS, Columns, Seen, read_dataset, read_records
from oger_recipe.data.templates import BOXED
from oger_recipe.grading.rules import TIMES_ASKED

LETTERS = "ABCDEFGHIJ"
FILE_SUFFIXES = (".jsonl", ".parquet")
_LETTER = "Please reason step by step, and put the letter of the correct option within \\boxed{}."
Record = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """question: text or chat messages; answer: what the task's verifier reads; instruction: asks for a boxed answer
    after the question, unless a prompt template takes its place; columns: the other columns of its row."""

    uid: str
    question: str | list[dict[str, Any]]
    answer: str
    task: str
    instruction: str = ""
    columns: dict[str, Any] = field(default_factory=dict)

    def asked(self, template: str | None) -> dict[str, Any]:
        """Return the row's prompt before any template, and ``answer_in`` where it asks for the answer in a place."""
        if template is not None or not self.instruction or not isinstance(self.question, str):
            return self.columns | {"prompt": self.question}
        return self.columns | {"prompt": self.question + self.instruction, "answer_in": "boxed"}

    @property
    def times_asked(self) -> int:
        """The number of samples that are drawn where a problem of another benchmark has one."""
        times: int = self.columns.get(TIMES_ASKED, 1)
        return times

    def row(self, template: str | None) -> dict[str, Any]:
        """Make a row of a dataset, for the rules of grading."""
        return {"uid": self.uid, "answer": self.answer, "task": self.task} | self.asked(template)


@dataclass(frozen=True)
class Benchmark:
    """A dataset of the Hub (path, config, split) and how one of its records becomes a problem."""

    path: str
    split: str
    problem: Callable[[Record], Problem]
    config: str = ""
    gated: bool = False

    @property
    def source(self) -> str:
        return f"{self.config}@{self.path}" if self.config else self.path


def _math(
    record: Record, *, question: tuple[str, ...] = ("question", "problem"), answer: str = "answer", uid: str = "id"
) -> Problem:
    text, reference = _first(record, *question), _text(record[answer])
    return Problem(_uid(record, uid, text, reference), text, reference, "math", "\n\n" + BOXED)


def _gsm8k(record: Record) -> Problem:
    question, answer = record["question"], record["answer"].rpartition("####")[2].strip()
    return Problem(_uid(record, "id", question, answer), question, answer, "gsm8k", "\n\n" + BOXED)


def _arc(record: Record) -> Problem:
    choices = record["choices"]
    right = list(choices["label"]).index(record["answerKey"])  # some problems number their options 1 to 4
    return _choice(record, "id", record["question"], list(choices["text"]), right)


def _gpqa(record: Record) -> Problem:
    """Make a problem whose options, the right one from its own column, are in an order drawn by its seed."""
    question = record["Question"].strip()
    options = [record["Correct Answer"], *(record[f"Incorrect Answer {number}"] for number in (1, 2, 3))]
    options = [option.strip() for option in options]
    order = list(range(4))
    random.Random(stable_seed("gpqa", _uid(record, "Record ID", question, options[0]))).shuffle(order)
    return _choice(record, "Record ID", question, [options[index] for index in order], order.index(0))


def _mmlu_pro(record: Record) -> Problem:
    return _choice(record, "question_id", record["question"], record["options"], LETTERS.index(record["answer"]))


def _choice(record: Record, uid: str, question: str, options: Sequence[str], right: int) -> Problem:
    listed = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
    if not 0 <= right < len(options) <= len(LETTERS):
        raise ValueError(
            f"option {right + 1} of {len(options)} is marked right; at most {len(LETTERS)} options are possible"
        )
    text = "\n".join([question, "", *listed, "", _LETTER])
    return Problem(_uid(record, uid, question, options[right]), text, LETTERS[right], "choice")


def _first(record: Record, *columns: str) -> str:
    """Return the text in the first of these columns that has any."""
    text = next((record[column] for column in columns if record.get(column)), None)
    if not isinstance(text, str):
        raise ValueError(f"no text in {' or '.join(columns)}")
    return text


def _text(answer: Any) -> str:
    """Return the answer as text: OlympiadBench has a list, AMC 27.0 for 27."""
    if isinstance(answer, list) and answer:
        return ", ".join(map(_text, answer))
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ValueError(f"the answer is {shown(answer)}")
    return str(answer).strip()


def _uid(record: Record, column: str, question: str, answer: str) -> str:
    """Return the problem's own id, or one made from its content: never its place in the file."""
    if record.get(column) is not None:
        return str(record[column])
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()[:16]


BENCHMARKS = {
    "math500": Benchmark("HuggingFaceH4/MATH-500", "test", partial(_math, question=("problem",), uid="unique_id")),
    "aime24": Benchmark("HuggingFaceH4/aime_2024", "train", partial(_math, question=("problem",))),
    "aime25": Benchmark("math-ai/aime25", "test", partial(_math, question=("problem",))),
    "amc23": Benchmark("math-ai/amc23", "test", _math),
    "minerva": Benchmark("math-ai/minervamath", "test", _math),
    "olympiadbench": Benchmark("math-ai/olympiadbench", "test", partial(_math, answer="final_answer")),
    "gsm8k": Benchmark("openai/gsm8k", "test", _gsm8k, config="main"),
    "arc_c": Benchmark("allenai/ai2_arc", "test", _arc, config="ARC-Challenge"),
    "gpqa": Benchmark("Idavidrein/gpqa", "train", _gpqa, config="gpqa_diamond", gated=True),
    "mmlu_pro": Benchmark("TIGER-Lab/MMLU-Pro", "test", _mmlu_pro),
}


def asked_once(name: str, rows: Sequence[Record], times: Mapping[str, int]) -> list[Record]:
    """Mark rows with how often their benchmark asks each problem, and print a note where that is more than once:
    LUFFY's files, for one, have every problem of AIME 8 times, where others draw 8 samples of it.

    times: by uid, how often each row came (1 where it is not named). The rarest problem decides: rows beyond its
    number are duplicates.
    """
    least = min((times.get(row["uid"], 1) for row in rows), default=1)
    if least == 1:
        return list(rows)
    print(
        f"note: {name} repeats each of its {len(rows)} problems {least} times: each is asked once, with {least} times "
        "the samples",
        flush=True,
    )
    return [row | {TIMES_ASKED: least} for row in rows]


def load_benchmark(
    name: str, file: Path | None = None, *, max_problems: int | None = None, columns: Columns | None = None
) -> list[Problem]:
    """Load the problems of a benchmark, in the order of their uids.

    file: a .jsonl or .parquet file with the columns of the benchmark's dataset, or of the recipe's rows; for any other
    name also with ``columns``, those of a run's data, or LUFFY's. Of more than ``max_problems`` problems, keep those
    whose hash is least: the same ones in whatever order they come, and not all of one subject.
    Raises RecipeError for an unknown name without a file, an unreadable file or dataset, and malformed records.
    """
    benchmark = BENCHMARKS.get(name)
    if file is not None and not file.exists():
        raise RecipeError(f"benchmark {name}: {file}: no such file")
    if file is None:
        if benchmark is None:
            raise RecipeError(
                f"unknown benchmark {name!r}; known: {', '.join(BENCHMARKS)}; any other name needs a file of rows: "
                f"--benchmark {name}=rows.jsonl"
            )
        problems = _from_hub(name, benchmark)
    elif benchmark is None or _has_rows(file):
        problems = _own_rows(name, file, columns or Columns())
    else:
        problems = _problems(name, read_records(str(file), benchmark.split), benchmark, str(file))
    kept = sorted(problems, key=lambda problem: stable_seed(name, problem.uid))[:max_problems]
    return sorted(kept, key=lambda problem: problem.uid)


def find_file(name: str, folder: Path) -> Path:
    """Return <folder>/<name>.jsonl or .parquet. Raises RecipeError when there is neither."""
    for suffix in FILE_SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    found = sorted(path.stem for path in folder.glob("*") if path.suffix in FILE_SUFFIXES)
    raise RecipeError(f"{folder} has no {name}.jsonl or {name}.parquet; it has {', '.join(found) or 'no benchmark'}")


def _from_hub(name: str, benchmark: Benchmark) -> list[Problem]:
    try:
        records = list(read_records(benchmark.source, benchmark.split))
    except RecipeError as error:
        gated = f" ({benchmark.path} is gated: accept its terms on the Hub and log in.)" if benchmark.gated else ""
        raise RecipeError(
            f"benchmark {name}: {error}, with the dataset's columns: --benchmark {name}=FILE, or --benchmark_dir DIR "
            f"that has {name}.jsonl or {name}.parquet{gated}"
        ) from None
    return _problems(name, records, benchmark, benchmark.path)


def _own_rows(name: str, file: Path, columns: Columns) -> list[Problem]:
    first = _first_record(file)
    if first.keys() >= {"prompt", "label"}:
        raise RecipeError(
            f"benchmark {name}: {file} was prepared by a run and holds finished prompts; to evaluate on the same "
            "problems, give the run's recipe: --recipe RUN/recipe.yaml without --benchmark"
        )
    has_task = "task" in first or columns.task is not None
    if not is_luffy(first) and not (has_task and first.keys() >= {columns.prompt, columns.answer}):
        if not _has_rows(file):
            raise RecipeError(
                f"benchmark {name}: {file} has the columns {', '.join(first)}, not uid, prompt, answer, task: "
                "name its columns and the task as for a run, e.g. --data.input_key question --data.label_key answer "
                f"--oger.task_name gsm8k; a file with a benchmark's columns needs its name: {', '.join(BENCHMARKS)}"
            )
        columns = Columns(own_tasks=columns.own_tasks)
    seen = Seen()
    rows = read_dataset(str(file), replace(columns, teachers=TEACHERS), split="test", seen=seen)
    return [problem_of(row) for row in asked_once(name, rows, seen.derived)]


def uid_in_a_run(name: str, uid: str) -> str:
    """Return a problem's uid among the evaluation rows of a run, where named benchmarks put their name in front."""
    return uid if name not in BENCHMARKS or uid.startswith(f"{name}-") else f"{name}-{uid}"


def problem_of(row: Record) -> Problem:
    """Make a problem of a row of the recipe."""
    others = {name: value for name, value in row.items() if name not in ("uid", "prompt", "answer", "task")}
    return Problem(row["uid"], row["prompt"], row["answer"], row["task"], columns=others)


def _has_rows(file: Path) -> bool:
    """Say whether a file holds the recipe's rows rather than a benchmark's own records."""
    return _first_record(file).keys() >= {"prompt", "answer", "task"}


def _first_record(file: Path) -> Record:
    first = next(iter(read_records(str(file), "test")), (0, None))[1]
    return first if isinstance(first, dict) else {}


def _problems(name: str, records: Any, benchmark: Benchmark, source: str) -> list[Problem]:
    problems: dict[str, Problem] = {}
    times: Counter[str] = Counter()
    for number, record in records:
        where = f"{source}:{number}"
        try:
            problem = benchmark.problem(record)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            reason = f"no column {error}" if isinstance(error, KeyError) else str(error)
            columns = cut(", ".join(map(str, record)), 300) if isinstance(record, dict) else type(record).__name__
            raise RecipeError(
                f"{where}: not a problem of {benchmark.path}: {reason} (its columns: {columns})"
            ) from None
        if problems.setdefault(problem.uid, problem) != problem:
            raise RecipeError(f"{where}: id {shown(problem.uid)} is used by two problems")
        times[problem.uid] += 1
    if not problems:
        raise RecipeError(f"{source}: no problems")
    asked = asked_once(name, [{"uid": uid} for uid in problems], times)
    return [
        replace(problems[row.pop("uid")], columns=row) if TIMES_ASKED in row else problems[row["uid"]] for row in asked
    ]
