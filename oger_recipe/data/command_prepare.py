"""`oger data prepare`: from the datasets of a mix to one file of rows, one a problem, with the right teachers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError, cut, shown
from oger_recipe.base.files import atomic_write, write_jsonl
from oger_recipe.base.progress import Progress, progress
from oger_recipe.data.mix import WRITTEN, Mix, Source
from oger_recipe.data.rows import Row, check_row, problem_key
from oger_recipe.data.sources import Columns, as_text, read_records, to_row
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.rules import GradingRules
from oger_recipe.grading.verdict import Graded
from oger_recipe.grading.verifiers import verify
from oger_recipe.grading.verifiers.boxed import last_boxed

_NO_UID = "-"
_BATCH = 256  # texts that the tokenizer is given at once


@dataclass
class Tally:
    """Counts of one source.

    Rows: ``rows`` were read; of these ``rows_held_out`` ask a problem that is held out, ``rows_too_long`` one that is
    too long, and ``rows_other_answer`` give another answer than the first source.
    Trajectories: each is one of ``teachers`` (written), ``wrong`` (also written, where wrong ones are kept),
    ``duplicates`` (an earlier source has the same text for the problem), ``too_long`` and ``ungraded``. ``right`` of
    ``graded`` ones, copies and long ones included, are right; of ``disagreed`` ones the source says otherwise.
    ``tokens`` are those of ``teachers``.
    """

    problems: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    @property
    def accuracy(self) -> float | None:
        return self["right"] / self["graded"] if self["graded"] else None


@dataclass
class _Trajectory:
    """A teacher's text. ``source``: the first that has it; ``said``: the claim of each source that has it."""

    source: str
    text: str
    probs: list[float] | None
    said: list[tuple[Tally, bool | None]]
    tokens: int = 0


@dataclass
class _Problem:
    """A problem by the first row that asks it, with the trajectories of all rows. ``others``: answers with another
    text; ``uid_where``: the place of the row that gave the uid."""

    row: Row
    where: str
    uid_where: str
    trajectories: dict[str, _Trajectory] = field(default_factory=dict)
    others: list[tuple[Tally, str]] = field(default_factory=list)
    asked_by: list[Tally] = field(default_factory=list)


@dataclass
class Part:
    """Rows to write, and the counts of each source by its name."""

    rows: list[Row]
    tallies: dict[str, Tally]


def build(
    mix: Mix, rules: GradingRules, grading: GradingSettings, tokenizer: Any = None, *, held_out: bool = False
) -> tuple[Part, Part | None]:
    """Build the rows of a mix and, where asked for, those of the problems that it holds out.

    Two rows ask the same problem when their questions are the same up to white space; the first decides on prompt,
    answer and task. Every trajectory is verified by the rules and limits of a run. ``tokenizer`` counts tokens where
    the mix has limits.

    Raises:
        RecipeError: a source cannot be read, a row is malformed, an answer cannot be read by its verifier, two
            problems have the same uid, or no problem is left.
    """
    ours = [source for source in mix.sources if not source.held_out]
    theirs = [source for source in mix.sources if source.held_out]
    kept_out, tallies_out = _collect(theirs, (), rules, mix.keep)
    problems, tallies = _collect(ours, kept_out, rules, mix.keep)
    for name in mix.keep:
        if all(problem.row[name] is None for problem in problems.values()):
            raise RecipeError(f"'keep': no row has a column {name!r}")
    tasks = rules.tasks(problem.row for problem in (*problems.values(), *kept_out.values()))
    with GradingPool(grading.for_tasks(tasks)) as pool:
        part = _part(problems, tallies, mix, rules, pool, tokenizer)
        if not part.rows:
            raise RecipeError("no problem is left: all are held out or longer than max_prompt_length")
        return part, _part(kept_out, tallies_out, mix, rules, pool, tokenizer) if held_out else None


# ---- reading


def _collect(
    sources: Sequence[Source], held_out: Collection[str], rules: GradingRules, keep: Sequence[str]
) -> tuple[dict[str, _Problem], dict[str, Tally]]:
    problems: dict[str, _Problem] = {}
    by_name: dict[str, Tally] = {}
    for source in sources:
        tally = by_name.setdefault(source.name, Tally())
        for row, where in _rows(source, tuple(rules.own), keep):
            tally.counts["rows"] += 1
            key = problem_key(row["prompt"])
            if key in held_out:
                tally.counts["rows_held_out"] += 1
                continue
            tally.problems.add(key)
            problem = problems.setdefault(key, _Problem(row, where, where))
            _add(problem, row, where, tally)
            problem.row |= {name: row[name] for name in keep if problem.row[name] is None}
    _name(problems)
    return problems, by_name


def _rows(source: Source, own_tasks: tuple[str, ...], keep: Sequence[str]) -> Iterator[tuple[Row, str]]:
    records = read_records(source.path, source.split)
    number = 0
    for number, record in progress(records, source.name, "rows"):
        where = f"{source.path}:{number}"
        row = _mapped(record, source, where) if source.columns else _as_it_is(record, source, where)
        if isinstance(row, dict):
            row["uid"] = row.get("uid") or _NO_UID
        check_row(row, where, own_tasks)
        row["datasource"] = source.datasource or row.get("datasource") or row["task"]
        row |= {name: record.get(name) for name in keep}
        yield row, where
    if not number:
        raise RecipeError(f"{source.path}: the dataset has no rows")


def _as_it_is(record: Any, source: Source, where: str) -> Any:
    row = to_row(record, Columns(task=source.task, flags=("set 'columns'",) * 2, task_flag="'task'"), where)
    for teacher in (row.get("teachers") or []) if isinstance(row, dict) else []:
        if isinstance(teacher, dict) and isinstance(teacher.get("source"), str):
            teacher["source"] = f"{source.name}/{teacher['source']}"
    return row


def _mapped(record: Any, source: Source, where: str) -> Any:
    if not isinstance(record, dict):
        return record
    values = {name: _column(record, column, where) for name, column in (source.columns or {}).items()}
    return {
        "uid": as_text(values.get("uid")),
        "prompt": values["prompt"],
        "answer": _answer(as_text(values["answer"]), source.answer_from, where),
        "task": source.task,
        "teachers": _teachers(values.get("teacher"), values.get("correct"), source.name, where),
    }


def _column(record: dict[str, Any], column: str, where: str) -> Any:
    """Return the value of a column, or of a field inside one: ``outer.inner``."""
    if column in record:
        return record[column]
    value: Any = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            there = cut(", ".join(map(repr, record)), 300)
            raise RecipeError(f"{where}: no column {column!r}; the columns are {there}")
        value = value[name]
    return value


def _answer(text: Any, answer_from: str | None, where: str) -> Any:
    if answer_from is None or not isinstance(text, str):
        return text
    if answer_from == "hashes":
        found: str | None = text.rpartition("####")[2].strip() if "####" in text else None
    elif answer_from == "boxed":
        found = last_boxed(text)
    else:
        found = verify("gsm8k", text, "0").extracted
    if not found:
        raise RecipeError(f"{where}: answer_from {answer_from} finds nothing in {text[-100:]!r}")
    return found


def _teachers(value: Any, said: Any, name: str, where: str) -> list[dict[str, Any]]:
    """Read one trajectory or a list of them, as texts or as messages; leave empty ones out."""
    values = value if isinstance(value, list) else [value]
    claims = said if isinstance(said, list) else [said] * len(values)
    if len(claims) != len(values):
        raise RecipeError(f"{where}: {len(values)} trajectories, but {len(claims)} marks of correctness")
    texts = [item.get("content", item.get("text")) if isinstance(item, dict) else item for item in values]
    return [
        {"source": name, "text": text, "correct": claim} for text, claim in zip(texts, claims, strict=True) if text
    ]


# ---- grouping


def _add(problem: _Problem, row: Row, where: str, tally: Tally) -> None:
    problem.asked_by.append(tally)
    if row["answer"] != problem.row["answer"]:
        problem.others.append((tally, row["answer"]))
    if problem.row["uid"] == _NO_UID:
        problem.row["uid"], problem.uid_where = row["uid"], where
    for teacher in row.get("teachers") or []:
        text, said = teacher["text"], (tally, teacher.get("correct"))
        found = problem.trajectories.get(text.strip())
        if found is None:
            found = _Trajectory(teacher["source"], text, teacher.get("probs"), [])
            problem.trajectories[text.strip()] = found
        found.said.append(said)


def _name(problems: dict[str, _Problem]) -> None:
    """Give a uid to every problem without one. Raise RecipeError when two have the same."""
    used: dict[str, str] = {}
    for key, problem in problems.items():
        if problem.row["uid"] == _NO_UID:
            problem.row["uid"] = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        uid = problem.row["uid"]
        if uid in used:
            raise RecipeError(
                f"{problem.uid_where}: uid {shown(uid)} belongs to another problem, {used[uid]}; leave the uid "
                "column out to make uids from the questions"
            )
        used[uid] = problem.uid_where


# ---- verifying and counting


def _part(
    problems: dict[str, _Problem],
    tallies: dict[str, Tally],
    mix: Mix,
    rules: GradingRules,
    pool: GradingPool,
    tokenizer: Any,
) -> Part:
    kept = _short_problems(list(problems.values()), mix, tokenizer)
    pairs = [(problem, trajectory) for problem in kept for trajectory in problem.trajectories.values()]
    if tokenizer is not None:
        lengths = _lengths([trajectory.text for _, trajectory in pairs], tokenizer)
        for (_, trajectory), length in zip(pairs, lengths, strict=True):
            trajectory.tokens = length + 1  # with the end of sequence
    answers = [rules.answer(problem.row, trajectory.text) for problem, trajectory in pairs]
    teachers: dict[str, list[dict[str, Any]]] = {}
    for (problem, trajectory), graded in zip(
        pairs, pool.grade_many(answers, progress=len(answers) > 2000), strict=True
    ):
        if _is_used(problem, trajectory, graded, mix):
            teacher = {"source": trajectory.source, "text": trajectory.text, "correct": bool(graded.verdict.score)}
            teacher |= {"probs": trajectory.probs} if trajectory.probs else {}
            teachers.setdefault(problem.row["uid"], []).append(teacher)
    _check_answers([problem for problem in kept if not problem.trajectories], rules, pool)
    _compare_answers(kept, rules, pool)
    chats = any(not isinstance(problem.row["prompt"], str) for problem in kept)
    return Part([_written(problem.row, teachers, chats, mix.keep) for problem in kept], tallies)


def _short_problems(problems: list[_Problem], mix: Mix, tokenizer: Any) -> list[_Problem]:
    if mix.max_prompt_length is None:
        return problems
    lengths = _lengths([problem_key(problem.row["prompt"]) for problem in problems], tokenizer)
    kept = []
    for problem, length in zip(problems, lengths, strict=True):
        if length <= mix.max_prompt_length:
            kept.append(problem)
            continue
        for tally in problem.asked_by:
            tally.counts["rows_too_long"] += 1
            tally.problems.discard(problem_key(problem.row["prompt"]))
    return kept


def _lengths(texts: list[str], tokenizer: Any) -> list[int]:
    """Count the tokens of each text, without special tokens."""
    lengths: list[int] = []
    with Progress("tokens", "texts", len(texts)) as counted:
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            lengths += map(len, tokenizer(batch, add_special_tokens=False)["input_ids"])
            counted.add(len(batch))
    return lengths


def _is_used(problem: _Problem, trajectory: _Trajectory, graded: Graded, mix: Mix) -> bool:
    """Say whether a trajectory is written, and count it for each source that has it."""
    _refuse_unreadable(problem, graded)
    right = bool(graded.verdict.score)
    (owner, _), *copies = trajectory.said
    if graded.error is None:
        for tally, said in trajectory.said:
            tally.counts += Counter(graded=1, right=right, disagreed=said is not None and bool(said) != right)
    for tally, _ in copies:
        tally.counts["duplicates"] += 1
    if graded.error is not None:
        owner.counts["ungraded"] += 1
        return False
    if mix.max_prefix_len is not None and trajectory.tokens > mix.max_prefix_len:
        owner.counts["too_long"] += 1
        return False
    owner.counts["wrong"] += not right
    if not right and not mix.keep_wrong_teachers:
        return False
    owner.counts += Counter(teachers=1, tokens=trajectory.tokens)
    return True


def _check_answers(problems: list[_Problem], rules: GradingRules, pool: GradingPool) -> None:
    """Have the verifiers read the answers of problems without a trajectory; an empty response is enough for that."""
    answers = [rules.answer(problem.row, "") for problem in problems]
    for problem, graded in zip(problems, pool.grade_many(answers, progress=len(answers) > 2000), strict=True):
        _refuse_unreadable(problem, graded)


def _refuse_unreadable(problem: _Problem, graded: Graded) -> None:
    if graded.unreadable:
        raise RecipeError(f"{problem.where}: {graded.error}")


def _compare_answers(problems: list[_Problem], rules: GradingRules, pool: GradingPool) -> None:
    """Count answers that differ from the problem's in more than their text: no rule of form applies to them."""
    others = [(problem, *other) for problem in problems for other in problem.others]
    plain = GradingRules(own=rules.own)
    answers = [plain.answer(p.row, _as_response(p.row["task"], text)) for p, _, text in others]
    for (_, tally, _), graded in zip(others, pool.grade_many(answers), strict=True):
        tally.counts["rows_other_answer"] += not graded.verdict.score


def _as_response(task: str, answer: str) -> str:
    """Put a mathematical answer into a box, where it is found for certain; others are responses already."""
    return f"\\boxed{{{answer}}}" if task == "math" and last_boxed(answer) is None else answer


def _written(row: Row, teachers: dict[str, list[dict[str, Any]]], chats: bool, keep: Sequence[str]) -> Row:
    """Return the row for the file, where prompts are all chats or all texts: readers want one type a column."""
    prompt = row["prompt"]
    if chats and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    given = {key: row[key] for key in ("answer", "task", "datasource")}
    written = {"uid": row["uid"], "prompt": prompt} | given | {"teachers": teachers.get(row["uid"], [])}
    return written | {name: row[name] for name in keep}


# ---- writing


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows as .parquet or .jsonl, whole or not at all."""
    with atomic_write(path) as partial:
        if path.suffix == ".parquet":
            _write_parquet(list(rows), partial)
        else:
            write_jsonl(rows, partial)


def _write_parquet(rows: list[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    teacher = [("source", pa.string()), ("text", pa.string()), ("correct", pa.bool_())]
    if any("probs" in teacher for row in rows for teacher in row["teachers"]):
        teacher.append(("probs", pa.list_(pa.float32())))
    texts = all(isinstance(row["prompt"], str) for row in rows)
    columns = [("uid", pa.string()), ("prompt", pa.string() if texts else pa.list_(message))]
    columns += [(name, pa.string()) for name in ("answer", "task", "datasource")]
    columns.append(("teachers", pa.list_(pa.struct(teacher))))
    columns += [(name, _arrow_type(name, rows)) for name in rows[0] if name not in WRITTEN]
    schema = pa.schema(columns)
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, len(rows), 1000):  # in groups: a column of one table may not pass 2 GiB
            writer.write_table(pa.Table.from_pylist(rows[start : start + 1000], schema))


def _arrow_type(name: str, rows: list[Row]) -> Any:
    import pyarrow as pa

    try:
        return pa.array([row[name] for row in rows]).type
    except pa.ArrowException as error:
        raise RecipeError(f"'keep': no .parquet column holds all values of {name!r} ({error}); write .jsonl") from None
