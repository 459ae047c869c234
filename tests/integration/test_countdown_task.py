"""The Countdown task: problems, splits, teachers and rows, checked against arithmetic redone here."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from oger_recipe.base.files import read_jsonl
from oger_recipe.grading.verifiers import verify
from oger_recipe.lab.build import build_countdown, problems_of_each
from oger_recipe.lab.countdown import (
    Difficulty,
    Problem,
    build_rows,
    generate_problems,
    prompt_of,
    split_of,
    write_rows,
)
from oger_recipe.lab.countdown_problem import Expression, render, solutions
from oger_recipe.lab.countdown_teachers import TEACHERS, backward, forward, search
from oger_recipe.settings.task import TaskSettings

EXAMPLE = Problem(numbers=(3, 5, 12), target=96, expression=("*", ("+", 3, 5), 12))
STATEMENT = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
MIRRORED = re.compile(r"(\d+)=(\d+)([-+*/])(\d+)")


def _sample(count: int, num_numbers: int = 3, seed: int = 0, split: str = "train", **settings: Any) -> list[Problem]:
    difficulty = Difficulty(num_numbers=num_numbers, **settings)
    return generate_problems(count, difficulty=difficulty, seed=seed, split=split)  # type: ignore[arg-type]


def _answer_of(problem: Problem) -> str:
    return json.dumps({"numbers": problem.numbers, "target": problem.target})


def _thought(text: str) -> str:
    match = re.fullmatch(r"<think>(.*)</think>\n<answer>\S+</answer>", text)
    assert match, text
    return match.group(1)


def _holds(left: str, operator: str, right: str, result: str) -> bool:
    a, b = Fraction(left), Fraction(right)
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[operator]
    return value == int(result)


def _statements(text: str) -> list[tuple[str, str, str, str]]:
    """All equations of a think block as (left, operator, right, result); fails where arithmetic is left over."""
    thought = _thought(text)
    if "need" in thought:
        found = [(left, op, right, result) for result, left, op, right in MIRRORED.findall(thought)]
        rest = MIRRORED.sub("", thought)
    else:
        found, rest = STATEMENT.findall(thought), STATEMENT.sub("", thought)
    assert not re.search(r"[\d=+*/-]", rest), text
    return found


def _reachable(numbers: tuple[int, ...]) -> Counter[Fraction]:
    """How many ways three numbers reach each value, by trying every order, operator and bracketing."""
    ways: Counter[Fraction] = Counter()
    pending = [tuple(map(Fraction, numbers))]
    while pending:
        pool = pending.pop()
        if len(pool) == 1:
            ways[pool[0]] += 1
            continue
        for i, a in enumerate(pool):
            for j, b in enumerate(pool):
                if i == j:
                    continue
                rest = tuple(x for k, x in enumerate(pool) if k not in (i, j))
                values = [a - b] + ([a + b, a * b] if i < j else []) + ([a / b] if b else [])
                pending += [(*rest, value) for value in values]
    return ways


def test_the_same_seed_gives_the_same_problems_and_another_seed_gives_others() -> None:
    assert _sample(300, seed=7) == _sample(300, seed=7)
    other = {problem.uid for problem in _sample(300, seed=8)}
    assert len({problem.uid for problem in _sample(300, seed=7)} & other) < 60


def test_a_longer_list_of_problems_begins_with_the_shorter_one() -> None:
    assert _sample(200)[:50] == _sample(50)


@pytest.mark.parametrize("num_numbers", [2, 3, 4, 5, 6])
def test_problems_are_distinct_and_keep_to_their_difficulty(num_numbers: int) -> None:
    problems = _sample(300, num_numbers, max_number=30, max_target=60)
    assert len({(tuple(sorted(p.numbers)), p.target) for p in problems}) == 300
    for problem in problems:
        assert len(problem.numbers) == num_numbers
        assert all(1 <= number <= 30 for number in problem.numbers)
        assert 1 <= problem.target <= 60
        verdict = verify("countdown", f"<answer>{render(problem.expression)}</answer>", _answer_of(problem))
        assert verdict.score == 1.0, verdict


def test_values_on_the_way_stay_within_ten_times_the_largest_target() -> None:
    problems = _sample(800, 4, max_target=10)
    values = [int(result) for p in problems for *_, result in _statements(forward(p, random.Random(0)))]
    assert min(values) >= 1 and 80 < max(values) <= 100


def test_no_solution_has_filler_steps() -> None:
    for problem in _sample(800, 4, max_number=5, max_target=20):
        for left, operator, right, _ in _statements(forward(problem, random.Random(0))):
            assert not (operator == "*" and "1" in (left, right))
            assert not (operator == "/" and right == "1")


def test_only_the_chosen_operators_are_used_and_all_of_them_are() -> None:
    texts = "".join(render(problem.expression) for problem in _sample(300, operators="+/"))
    assert set(re.findall(r"[-+*/]", texts)) == {"+", "/"}


def test_five_thousand_problems_use_every_operator_and_many_targets() -> None:
    problems = _sample(5000)
    operators = Counter("".join(re.findall(r"[-+*/]", "".join(render(p.expression) for p in problems))))
    assert min(operators[operator] for operator in "+-*/") > 250
    assert len({problem.target for problem in problems}) == 100


def test_train_and_held_out_share_no_set_of_numbers() -> None:
    train = {tuple(sorted(p.numbers)) for p in _sample(5000, 4)}
    held_out = {tuple(sorted(p.numbers)) for p in _sample(2000, 4, split="held_out")}
    assert len(held_out) > 300
    assert not train & held_out


def test_train_and_held_out_are_equally_hard() -> None:
    train, held_out = _sample(4000, 4), _sample(4000, 4, split="held_out")
    targets = [[p.target for p in problems] for problems in (train, held_out)]
    assert mean(targets[0]) == pytest.approx(mean(targets[1]), rel=0.05)
    assert stdev(targets[0]) == pytest.approx(stdev(targets[1]), rel=0.05)
    triples = _sample(500), _sample(500, split="held_out")
    ways = [mean(_reachable(p.numbers)[Fraction(p.target)] for p in problems) for problems in triples]
    assert ways[0] == pytest.approx(ways[1], rel=0.15)


def test_the_split_depends_on_the_set_of_numbers_only_and_has_the_share_asked_for() -> None:
    assert split_of([3, 5, 12]) == split_of((12, 3, 5))
    rng = random.Random(0)
    splits = [split_of([rng.randint(1, 99) for _ in range(4)], held_out_share=0.25) for _ in range(4000)]
    assert splits.count("held_out") / 4000 == pytest.approx(0.25, abs=0.03)
    assert {split_of([n, n], held_out_share=0.0) for n in range(50)} == {"train"}
    assert {split_of([n, n], held_out_share=1.0) for n in range(50)} == {"held_out"}


def test_the_uid_ignores_the_order_of_the_numbers_but_not_the_target() -> None:
    shuffled = Problem(numbers=(12, 3, 5), target=96, expression=("*", 12, ("+", 5, 3)))
    assert shuffled.uid == EXAMPLE.uid == "countdown-3-5-12-96"
    assert Problem(numbers=(3, 5, 12), target=20, expression=("+", ("+", 3, 5), 12)).uid != EXAMPLE.uid


def test_a_space_that_is_too_small_is_an_error_with_the_count_and_the_setting() -> None:
    # With two numbers up to 3 and only "+": 1+1 1+2 1+3 2+2 2+3 3+3.
    tiny = Difficulty(num_numbers=2, max_number=3, operators="+")
    problems = generate_problems(6, difficulty=tiny, seed=0, split="train", held_out_share=0.0)
    assert sorted(p.target for p in problems) == [2, 3, 4, 4, 5, 6]
    with pytest.raises(ValueError, match=r"only 6 of 7 train .*raise max_number"):
        generate_problems(7, difficulty=tiny, seed=0, split="train", held_out_share=0.0)
    with pytest.raises(ValueError, match=r"only 0 of 1 held_out .*max_target, or ask for fewer"):
        generate_problems(1, difficulty=tiny, seed=0, split="held_out", held_out_share=0.0)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"num_numbers": 1}, "num_numbers"),
        ({"num_numbers": 7}, "num_numbers"),
        ({"max_number": 1}, "max_number"),
        ({"max_target": 0}, "max_target"),
        ({"operators": ""}, "operators"),
        ({"operators": "+^"}, "operators"),
        ({"operators": "++"}, "operators"),
        ({"min_solutions": 0}, "min_solutions"),
        ({"min_solutions": 2, "num_numbers": 6}, "num_numbers of at most 5"),
    ],
)
def test_impossible_difficulties_are_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Difficulty(**settings)


def test_unknown_splits_and_shares_outside_zero_to_one_are_refused() -> None:
    with pytest.raises(ValueError, match="split must be 'train' or 'held_out', not 'test'"):
        _sample(1, split="test")
    with pytest.raises(ValueError, match="held_out_share"):
        generate_problems(1, difficulty=Difficulty(), seed=0, split="train", held_out_share=1.5)
    with pytest.raises(ValueError, match="wrong_share"):
        build_rows([EXAMPLE], seed=0, wrong_share=-0.1)
    with pytest.raises(ValueError, match="max_teachers"):
        build_rows([EXAMPLE], seed=0, max_teachers=4)
    with pytest.raises(ValueError, match="teacher_solutions must be same or different, not 'other'"):
        build_rows([EXAMPLE], seed=0, teacher_solutions="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="different teacher_solutions need at most 5 numbers, not 6"):
        build_rows(_sample(1, num_numbers=6), seed=0, teacher_solutions="different")


def test_the_prompt_has_the_documented_wording() -> None:
    assert prompt_of(EXAMPLE) == "Using the numbers [3, 5, 12], create an equation that equals 96."


def test_the_three_teachers_write_the_documented_formats() -> None:
    rng = random.Random(0)
    answer = "\n<answer>(3+5)*12</answer>"
    assert forward(EXAMPLE, rng) == f"<think>start with 3+5=8, then 8*12=96, done.</think>{answer}"
    assert backward(EXAMPLE, rng) == f"<think>need 96=8*12, need 8=3+5, found.</think>{answer}"
    dead_end = r"try \d+\S\d+=\d+, \d+\S\d+=\d+, no\. "
    solution = re.escape(f"try 3+5=8, 8*12=96, yes.</think>{answer}")
    assert re.fullmatch(f"<think>{dead_end}{solution}", search(EXAMPLE, rng))


def test_rendering_puts_every_inner_operation_in_brackets_and_the_outermost_in_none() -> None:
    assert render(7) == "7"
    assert render(("-", 7, 2)) == "7-2"
    assert render(("-", ("+", 1, ("*", 2, 3)), ("/", 8, 4))) == "(1+(2*3))-(8/4)"


@pytest.mark.parametrize("source", sorted(TEACHERS))
@pytest.mark.parametrize("num_numbers", [2, 3, 4, 5, 6])
def test_every_trajectory_of_every_teacher_is_right_and_states_only_true_equations(
    source: str, num_numbers: int
) -> None:
    rng = random.Random(num_numbers)
    for problem in _sample(200, num_numbers):
        text = TEACHERS[source](problem, rng)
        assert verify("countdown", text, _answer_of(problem)).score == 1.0, text
        statements = _statements(text)
        assert len(statements) >= num_numbers - 1
        assert all(_holds(*statement) for statement in statements), text


def test_the_searching_teacher_tries_all_numbers_and_misses_before_it_succeeds() -> None:
    for num_numbers in (2, 3, 5):
        seen = set()
        for problem in _sample(300, num_numbers):
            *failed, solved = _thought(search(problem, random.Random(problem.uid))).split(". ")
            seen.add(len(failed))
            assert len(set(failed)) == len(failed)
            for attempt in failed:
                statements = STATEMENT.findall(attempt)
                assert attempt.endswith(", no") and len(statements) == num_numbers - 1
                assert int(statements[-1][3]) != problem.target
            assert solved.endswith(f"={problem.target}, yes.")
        assert seen == ({1, 2} if num_numbers == 2 else {1})


def test_the_searching_teacher_finds_a_dead_end_where_hardly_any_exists() -> None:
    ones = Problem(numbers=(1, 1), target=2, expression=("+", 1, 1))
    twos = Problem(numbers=(2, 2), target=4, expression=("*", 2, 2))
    for seed in range(20):
        assert re.match(r"<think>try 1[*/]1=1, no\.", search(ones, random.Random(seed)))
        assert re.match(r"<think>try 2/2=1, no\.", search(twos, random.Random(seed)))


def test_a_tree_with_a_step_that_is_no_positive_integer_is_refused() -> None:
    broken = Problem(numbers=(3, 5, 12), target=96, expression=("*", ("-", 3, 5), 12))
    with pytest.raises(ValueError, match="3-5 has a step"):
        forward(broken, random.Random(0))


def test_the_three_styles_differ_visibly() -> None:
    rng = random.Random(1)
    overlaps: dict[tuple[str, str], list[float]] = {}
    for problem in _sample(300):
        words = {source: set(teacher(problem, rng).split()) for source, teacher in TEACHERS.items()}
        for one, other in [("forward", "search"), ("forward", "backward"), ("search", "backward")]:
            shared = len(words[one] & words[other]) / len(words[one] | words[other])
            overlaps.setdefault((one, other), []).append(shared)
        assert _thought(backward(problem, rng)).startswith(f"need {problem.target}=")
        assert _thought(forward(problem, rng)).endswith(f"={problem.target}, done.")
    assert all(mean(values) < 0.5 for values in overlaps.values()), overlaps
    assert mean(overlaps["forward", "backward"]) < 0.25
    assert mean(overlaps["search", "backward"]) < 0.25


def test_trajectories_for_three_numbers_stay_short() -> None:
    token = re.compile(r"</?think>|</?answer>|\d+|[a-z]+|[-+*/=()]")
    for row in build_rows(_sample(500), seed=0, wrong_share=0.2):
        for teacher in row["teachers"]:
            assert len(token.findall(teacher["text"])) < 40, teacher["text"]
            assert not re.search(r"\d[a-z]|[a-z]\d|\d [-+*/=]|[-+*/=] \d", teacher["text"])


def test_rows_have_the_documented_fields() -> None:
    (row,) = build_rows([EXAMPLE], seed=0)
    teachers = row.pop("teachers")
    assert row == {
        "uid": "countdown-3-5-12-96",
        "prompt": "Using the numbers [3, 5, 12], create an equation that equals 96.",
        "answer": '{"numbers":[3,5,12],"target":96}',
        "solution": "(3+5)*12",
        "task": "countdown",
        "datasource": "countdown",
    }
    assert [teacher["source"] for teacher in teachers] == ["forward", "search", "backward"]
    assert all(set(teacher) == {"source", "text", "correct"} for teacher in teachers)


def test_the_share_of_wrong_trajectories_is_the_one_asked_for() -> None:
    problems = _sample(1000)
    for share in (0.0, 0.3, 1.0):
        marks = [t["correct"] for row in build_rows(problems, seed=3, wrong_share=share) for t in row["teachers"]]
        assert marks.count(False) / len(marks) == pytest.approx(share, abs=0.03 if share == 0.3 else 0.0)


def test_wrong_trajectories_look_like_answers_and_fail_in_both_ways() -> None:
    reasons: Counter[str] = Counter()
    for row in build_rows(_sample(300), seed=0, wrong_share=1.0):
        for teacher in row["teachers"]:
            assert _statements(teacher["text"])
            verdict = verify("countdown", teacher["text"], row["answer"])
            assert verdict.reward == 0.1, teacher["text"]
            reasons[verdict.reason.split()[0]] += 1
    assert set(reasons) == {"equals", "uses"} and min(reasons.values()) > 300


def test_the_problems_of_a_warm_start_are_shared_out_as_the_weights_are_written() -> None:
    # 0.07 * 100 is 7.000000000000001; the thirds of 10 are rounded up.
    assert problems_of_each(100, {"3": 0.07, "4": 0.93}) == {"3": 7, "4": 93}
    assert problems_of_each(10, {"3": 1.0, "4": 2.0}) == {"3": 4, "4": 7}


def test_rows_depend_on_the_seed_and_not_on_their_neighbours() -> None:
    problems = _sample(100)
    rows = build_rows(problems, seed=5, wrong_share=0.5)
    assert build_rows(problems[40:], seed=5, wrong_share=0.5) == rows[40:]
    assert build_rows(problems, seed=6, wrong_share=0.5) != rows


# ---- problems with several solutions


def _solution(text: str, problem: Problem) -> str | None:
    return verify("countdown", f"<answer>{text}</answer>", _answer_of(problem)).solution


def test_solutions_are_listed_by_class() -> None:
    # 1 + 2 + 3 and 1 * 2 * 3, where factors and divisors of 1 make no other solution.
    assert set(solutions((3, 1, 2), 6)) == {"1+2+3", "2*3"}
    assert set(solutions((2, 2), 4)) == {"2+2", "2*2"}
    assert solutions((2, 2), 5) == {}
    # Over fractions alone: 3 - 8 / 3 is a third.
    assert list(solutions((8, 3, 8, 3), 24).values()) == [[("/", 8, ("-", 3, ("/", 8, 3)))]]


def _all_texts(numbers: tuple[int, ...]) -> Iterator[str]:
    """Every expression of four numbers: orders, operators, and the five ways to set brackets."""
    forms = (
        "((%s%s%s)%s%s)%s%s",
        "(%s%s(%s%s%s))%s%s",
        "(%s%s%s)%s(%s%s%s)",
        "%s%s((%s%s%s)%s%s)",
        "%s%s(%s%s(%s%s%s))",
    )
    for a, b, c, d in set(itertools.permutations(numbers)):
        for first, second, third in itertools.product("+-*/", repeat=3):
            for form in forms:
                yield form % (a, first, b, second, c, third, d)


def _near(text: str, target: int) -> bool:
    try:
        return abs(eval(text) - target) < 1e-6
    except ZeroDivisionError:
        return False


def test_the_listed_solutions_are_all_that_the_verifier_accepts() -> None:
    for problem in _sample(6, num_numbers=4, max_number=10, max_target=30):
        found = {_solution(text, problem) for text in _all_texts(problem.numbers) if _near(text, problem.target)}
        listed = solutions(problem.numbers, problem.target)
        assert set(listed) == found - {None}, problem
        for name, trees in listed.items():
            assert {_solution(render(tree), problem) for tree in trees} == {name}


def test_problems_have_as_many_solutions_as_are_asked_for() -> None:
    several: dict[str, Any] = {"num_numbers": 4, "max_number": 10, "max_target": 30}
    for least in (1, 4):
        problems = _sample(100, min_solutions=least, **several)
        counts = [len(solutions(each.numbers, each.target)) for each in problems]
        assert min(counts) == least < max(counts)
    with pytest.raises(ValueError, match=r"lower min_solutions"):
        _sample(1, num_numbers=2, max_number=3, min_solutions=9)


def _whole(expression: Expression) -> Fraction | None:
    """The value of a tree that a teacher can explain: of positive integers, without 1 as a factor or a divisor."""
    if isinstance(expression, int):
        return Fraction(expression)
    operator, *operands = expression
    left, right = map(_whole, operands)
    if left is None or right is None or (operator == "*" and 1 in (left, right)) or (operator == "/" and right == 1):
        return None
    value = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[operator]
    return value if value > 0 and value.denominator == 1 else None


def test_teachers_explain_one_solution_or_different_ones_while_there_are_enough() -> None:
    problems = _sample(60, num_numbers=4, max_number=10, max_target=30)
    same = build_rows(problems, seed=1)
    different = build_rows(problems, seed=1, teacher_solutions="different")
    places = set()
    for problem, one, other in zip(problems, same, different, strict=True):
        verdicts = [[verify("countdown", t["text"], row["answer"]) for t in row["teachers"]] for row in (one, other)]
        assert all(each.score == 1 for row in verdicts for each in row)
        (own,), classes = {each.solution for each in verdicts[0]}, [each.solution for each in verdicts[1]]
        assert own == _solution(render(problem.expression), problem)
        listed = solutions(problem.numbers, problem.target)
        explained = {name for name, trees in listed.items() if any(map(_whole, trees))}
        assert set(classes) <= explained and len(set(classes)) == min(3, len(explained)), problem
        places.add(classes.index(own) if own in classes else None)
        assert one | {"teachers": None} == other | {"teachers": None}
        assert all(_holds(*each) for teacher in other["teachers"] for each in _statements(teacher["text"]))
    assert places == {0, 1, 2, None}  # the generator's own solution has no teacher of its own
    assert build_rows(problems[30:], seed=1, teacher_solutions="different") == different[30:]
    (many,) = _sample(1, num_numbers=4, max_number=10, max_target=30, min_solutions=8)
    rows = [row for seed in range(20) for row in build_rows([many], seed=seed, teacher_solutions="different")]
    assert (
        len({_solution(t["text"].split("<answer>")[1].split("<")[0], many) for r in rows for t in r["teachers"]}) > 5
    )


def test_settings_of_several_solutions_reach_the_data(tmp_path: Path) -> None:
    settings = TaskSettings(
        cache=str(tmp_path), num_numbers=4, max_number=10, max_target=30, train_problems=20, eval_problems=10,
        min_solutions=3, teacher_solutions="different",
    )  # fmt: skip
    built = build_countdown(settings, policy=False)
    assert built.train_rows and built.eval_rows
    train, held_out = (read_jsonl(path) for path in (built.train_rows, built.eval_rows))
    for row in (*train, *held_out):
        answer = json.loads(row["answer"])
        assert len(solutions(answer["numbers"], answer["target"])) >= 3
    texts = [[t["text"].split("<answer>")[1] for t in row["teachers"]] for row in train]
    assert sum(len(set(each)) == 3 for each in texts) > 10
    same = build_countdown(replace(settings, teacher_solutions="same"), policy=False)
    assert same.train_rows and same.train_rows != built.train_rows
    for row in read_jsonl(same.train_rows):
        assert len({t["text"].split("<answer>")[1] for t in row["teachers"]}) == 1


def test_fewer_teachers_than_styles_are_drawn_from_all_styles() -> None:
    rows = build_rows(_sample(300), seed=0, max_teachers=1)
    assert all(len(row["teachers"]) == 1 for row in rows)
    sources = Counter(row["teachers"][0]["source"] for row in rows)
    assert set(sources) == set(TEACHERS) and min(sources.values()) > 60
    assert build_rows([EXAMPLE], seed=0, max_teachers=0)[0]["teachers"] == []


def test_written_rows_read_back_and_leave_no_other_file(tmp_path: Path) -> None:
    rows = build_rows(_sample(20), seed=0)
    path = tmp_path / "data" / "train.jsonl"
    write_rows(rows, path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_rows([{"uid": "old"}], path)
    with pytest.raises(TypeError):
        write_rows([{"uid": "new"}, {"uid": object()}], path)
    assert path.read_text() == '{"uid": "old"}\n'
    assert list(tmp_path.iterdir()) == [path]
