"""avg@n, pass@k, maj@k and their intervals against values worked out by hand and by enumeration."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from oger_recipe.evaluation.metrics import (
    avg_at_n,
    bootstrap_means,
    distinct_at_k,
    evaluate_answers,
    interval,
    maj_at_k,
    pass_at_k,
    powers_up_to,
)
from oger_recipe.evaluation.tables import headlines, markdown_table


def _answers(benchmark: str, scores: dict[str, list[int]], **changes: Any) -> list[dict[str, Any]]:
    """Records of problems by uid; right answers are "r", wrong ones "w"."""
    return [
        {
            "uid": uid,
            "benchmark": benchmark,
            "sample": sample,
            "score": float(score),
            "extracted": "r" if score else "w",
            "format": 1.0,
            "response_length": 10,
            "truncated": False,
            "graded": True,
        }
        | changes
        for uid, row in scores.items()
        for sample, score in enumerate(row)
    ]


SOLUTIONS = [
    ["a", "b", "a", None],
    [None, None, None, None],
    ["a", "a", "a", "a"],
    ["a", "b", "c", "d"],
    [None, "c", None, None],
]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_distinct_at_k_is_the_mean_over_all_draws(k: int) -> None:
    by_hand = {1: [3 / 4, 0, 1, 1, 1 / 4], 2: [8 / 6, 0, 1, 2, 1 / 2], 3: [7 / 4, 0, 1, 3, 3 / 4], 4: [2, 0, 1, 4, 1]}
    draws = [list(itertools.combinations(row, k)) for row in SOLUTIONS]
    counted = [np.mean([len({*draw} - {None}) for draw in each]) for each in draws]
    assert distinct_at_k(SOLUTIONS, k).tolist() == pytest.approx(by_hand[k]) == counted


def test_distinct_at_k_of_many_samples_is_the_mean_over_all_draws() -> None:
    draw = random.Random(0)
    row = [draw.choice(["a", "b", "c", "d", None]) for _ in range(9)]
    for k in range(1, 10):
        counted = np.mean([len({*each} - {None}) for each in itertools.combinations(row, k)])
        assert distinct_at_k([row], k).tolist() == pytest.approx([counted])


@pytest.mark.parametrize("k", [0, 3])
def test_distinct_at_k_needs_k_samples(k: int) -> None:
    with pytest.raises(ValueError, match=f"distinct@{k} needs .* found n = 2"):
        distinct_at_k([["a", "b", None], ["a", None]], k)


def test_different_solutions_are_counted_where_every_right_answer_has_a_class() -> None:
    records = _answers("b", {"p": [1, 0, 1, 1], "q": [1, 0, 0, 0]})
    for record, solution in zip(records, ["1+2", None, "2*3", "1+2", "5"], strict=False):
        record["solution"] = solution
    figures = evaluate_answers(records)["benchmarks"]["b"]
    assert figures["distinct_at_4"] == (2 + 1) / 2 and figures["distinct_at_4_interval"] == [1.0, 2.0]
    assert figures["distinct_at_2"] == pytest.approx((5 / 6 + 1 / 2 + 1 / 2) / 2)
    assert "distinct_at_1" not in figures  # it is avg@n
    table = markdown_table(evaluate_answers(records))
    assert "| maj@n | distinct@n | length |" in table and "| 1.50 | 10 |" in table
    assert headlines(evaluate_answers(records))["b"]["distinct_at_4"] == 1.5
    del records[0]["solution"]
    assert "distinct_at_4" not in evaluate_answers(records)["benchmarks"]["b"]


def test_no_solutions_are_counted_where_classes_are_not_known() -> None:
    for scores in ([1, 0], [0, 0]):
        result = evaluate_answers(_answers("b", {"p": scores}))
        assert "distinct_at_2" not in result["benchmarks"]["b"]
        assert "distinct@n" not in markdown_table(result)


def test_a_wrong_answer_counts_as_no_solution_whatever_its_record_says() -> None:
    records = _answers("b", {"p": [1, 0]}, solution="1+2")
    records[1]["solution"] = "other"
    assert evaluate_answers(records)["benchmarks"]["b"]["distinct_at_2"] == 1.0


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_the_curve_doubles_k_up_to_n(n: int, ks: list[int]) -> None:
    assert powers_up_to(n) == ks


def test_avg_is_the_share_of_right_samples() -> None:
    assert avg_at_n(np.array([[1.0, 0, 0, 1], [0, 0, 0, 0]])).tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("right", "k", "expected"),
    [(1, 2, 1 / 2), (2, 2, 5 / 6), (3, 2, 1.0), (0, 2, 0.0), (1, 1, 1 / 4), (1, 4, 1.0), (0, 4, 0.0), (1, 3, 3 / 4)],
)
def test_pass_at_k_of_four_samples(right: int, k: int, expected: float) -> None:
    """E.g. one of four right: of the C(4, 2) = 6 pairs 3 hold it."""
    scores = np.array([[1.0] * right + [0.0] * (4 - right)])
    assert pass_at_k(scores, k).tolist() == pytest.approx([expected])


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample() -> None:
    generator = np.random.default_rng(0)
    scores = (generator.random((5, 7)) < 0.3).astype(float)
    for k in range(1, 8):
        expected = [np.mean([max(subset) for subset in itertools.combinations(row, k)]) for row in scores]
        assert pass_at_k(scores, k) == pytest.approx(np.array(expected))


@pytest.mark.parametrize("k", [0, 5])
def test_k_is_at_most_n(k: int) -> None:
    scores = np.zeros((1, 4))
    with pytest.raises(ValueError, match=f"pass@{k} .* n = 4"):
        pass_at_k(scores, k)
    with pytest.raises(ValueError, match=f"maj@{k} .* n = 4"):
        maj_at_k([["a"] * 4], scores, k)


@pytest.mark.parametrize(
    ("answers", "right", "expected"),
    [
        (["7", "7", "3", None], "7", 1.0),
        (["7", "3", "3", None], "7", 0.0),
        (["7", "7", "3", "3"], "7", 0.5),
        (["7", "5", "3", "1"], "7", 0.25),
        (["7", None, None, None], "7", 1.0),  # samples without an answer do not vote
        ([None] * 4, "7", 0.0),
    ],
)
def test_the_most_frequent_answer_decides(answers: list[str | None], right: str, expected: float) -> None:
    for order in itertools.permutations(answers):
        scores = np.array([[float(answer == right) for answer in order]])
        assert maj_at_k([order], scores, 4).tolist() == [expected]


def test_votes_are_counted_in_consecutive_blocks_and_what_is_left_over_is_left_out() -> None:
    answers = [["7", "7", "3", "3", "7"], ["3", "7", "7", "7", "3"]]
    scores = np.array([[float(answer == "7") for answer in row] for row in answers])
    # First: blocks (7 7), (3 3): 1 and 0. Second: (3 7) is a tie, (7 7) right: 0.5 and 1.
    assert maj_at_k(answers, scores, 2).tolist() == [0.5, 0.75]


def test_the_interval_of_a_share_is_that_of_the_binomial_distribution() -> None:
    values = np.array([[1.0], [0.0]] * 200)
    [[low, high]] = interval(bootstrap_means(values, seed=0))
    margin = 1.96 * (0.25 / 400) ** 0.5
    assert (low, high) == pytest.approx((0.5 - margin, 0.5 + margin), abs=0.004)


def test_metrics_share_their_resamples_and_many_problems_are_drawn_in_parts() -> None:
    values = np.random.default_rng(0).random((3000, 1))
    means = bootstrap_means(np.hstack([values, 2 * values]), seed=1, resamples=2000)
    assert means.shape == (2000, 2)
    assert means[:, 1] == pytest.approx(2 * means[:, 0])
    assert means[:, 0].mean() == pytest.approx(values.mean(), abs=0.001)
    assert means[:, 0].std() == pytest.approx(values.std() / 3000**0.5, rel=0.1)


def test_every_benchmark_weighs_the_same_in_the_average() -> None:
    small = _answers("small", {"a": [1, 1], "b": [0, 0]})
    large = _answers("large", {str(number): [1, 1] for number in range(8)})
    result = evaluate_answers(small + large)
    assert result["benchmarks"]["small"]["avg_at_2"] == 0.5
    assert result["benchmarks"]["large"]["avg_at_2"] == 1.0
    assert result["average"]["avg_at_2"] == 0.75
    # Two problems drawn from a right and a wrong one are both right or both wrong in a quarter of all cases each.
    assert result["benchmarks"]["small"]["avg_at_2_interval"] == [0.0, 1.0]
    assert result["benchmarks"]["large"]["avg_at_2_interval"] == [1.0, 1.0]
    assert result["average"]["avg_at_2_interval"] == [0.5, 1.0]


def test_the_interval_of_the_average_comes_from_independent_resamples_of_each_benchmark() -> None:
    scores = {str(number): [number % 2] for number in range(400)}
    average = evaluate_answers(_answers("a", scores) + _answers("b", scores))["average"]
    margin = 1.96 * (0.25 / 400 / 2) ** 0.5  # the mean of two has half the variance
    assert average["avg_at_1_interval"] == pytest.approx([0.5 - margin, 0.5 + margin], abs=0.004)


def test_all_figures_of_a_benchmark() -> None:
    records = _answers("b", {"p": [1, 0, 0, 0], "q": [1, 1, 1, 0]})
    records[1] |= {"format": 0.0, "extracted": None, "graded": False}
    records[2] |= {"truncated": True, "response_length": 90}
    [figures] = evaluate_answers(records)["benchmarks"].values()
    assert {key: value for key, value in figures.items() if not key.endswith("_interval")} == pytest.approx(
        {
            "problems": 2,
            "n": 4,
            "avg_at_4": 0.5,
            "pass_at_1": 0.5,
            "pass_at_2": (1 / 2 + 1) / 2,
            "pass_at_4": 1.0,
            "maj_at_2": (1 / 2 + 3 / 4) / 2,  # p: (r -) right, (w w) wrong; q: (r r) right, (r w) a tie
            "maj_at_4": (0 + 1) / 2,
            "response_length": (7 * 10 + 90) / 8,
            "truncated": 1 / 8,
            "format": 7 / 8,
            "ungraded": 1,
            "no_room": 0,
        }
    )


def test_problems_whose_prompt_leaves_no_room_are_counted_and_unsolved() -> None:
    fits = _answers("b", {"p": [1, 1]})
    too_long = _answers("b", {"q": [0, 0], "r": [0, 0]}, response_length=0, truncated=True, extracted=None)
    cut = _answers("b", {"s": [0, 0]}, truncated=True)
    figures = evaluate_answers(fits + too_long + cut)["benchmarks"]["b"]
    assert (figures["problems"], figures["no_room"], figures["avg_at_2"]) == (4, 2, 0.25)


def test_no_figure_depends_on_the_order_of_the_answers() -> None:
    generator = random.Random(0)
    records = [
        record
        for name in ("a", "b")
        for record in _answers(name, {str(p): [generator.randint(0, 1) for _ in range(4)] for p in range(30)})
    ]
    expected = evaluate_answers(records)
    for _ in range(5):
        generator.shuffle(records)
        assert evaluate_answers(records) == expected


def test_a_benchmark_has_the_same_figures_whatever_it_is_evaluated_with() -> None:
    records = _answers("a", {str(number): [number % 2, 1] for number in range(30)})
    alone = evaluate_answers(records)
    together = evaluate_answers(_answers("b", {"p": [0, 1]}) + records)
    assert together["benchmarks"]["a"] == alone["benchmarks"]["a"]


def test_without_extracted_answers_there_is_no_majority_vote() -> None:
    records = _answers("a", {"p": [1, 0]}, extracted=None)
    others = _answers("b", {"p": [1, 0]})
    result = evaluate_answers(records + others)
    assert "maj_at_2" not in result["benchmarks"]["a"]
    assert result["benchmarks"]["b"]["maj_at_2"] == 0.5
    assert "maj_at_2" not in result["average"]


def test_an_average_over_different_n_keeps_what_all_benchmarks_have() -> None:
    average = evaluate_answers(_answers("a", {"p": [1, 0]}) + _answers("b", {"p": [1, 1, 1, 1]}))["average"]
    assert average["pass_at_1"] == 0.75
    assert not {"n", "avg_at_2", "avg_at_4", "pass_at_4"} & average.keys()


@pytest.mark.parametrize(
    ("scores", "message"),
    [({"p": [1, 0], "q": [1]}, r"'q' has the samples \[0\], others have 2"), ({}, "no answers")],
)
def test_incomplete_answers_are_refused(scores: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_answers(_answers("a", scores))


def test_benchmarks_with_different_n_keep_their_own_and_the_average_is_over_each_ones() -> None:
    """Two problems of four samples (3/4 and 1/4 right), and three of one sample (two right, one wrong)."""
    records = _answers("aime", {"a": [1, 1, 1, 0], "b": [0, 0, 0, 1]}) + _answers(
        "math", {"a": [1], "c": [1], "d": [0]}
    )
    result = evaluate_answers(records)
    aime, math, average = result["benchmarks"]["aime"], result["benchmarks"]["math"], result["average"]
    assert (aime["n"], aime["avg_at_4"], aime["pass_at_4"]) == (4, 0.5, 1.0)
    assert aime["pass_at_2"] == pytest.approx((1.0 + 0.5) / 2)  # of 6 pairs all, and 3, hold a right one
    assert aime["maj_at_4"] == 0.5 and (math["n"], math["avg_at_1"]) == (1, pytest.approx(2 / 3))
    assert average["avg_at_n"] == pytest.approx((1 / 2 + 2 / 3) / 2) == average["pass_at_1"]
    assert average["avg_at_n_interval"] == average["pass_at_1_interval"]
    assert not {"n", "avg_at_4", "avg_at_1", "pass_at_4", "maj_at_4"} & average.keys()
    same = evaluate_answers(_answers("aime", {"a": [1, 0]}) + _answers("math", {"a": [0, 0]}))["average"]
    assert same["avg_at_2"] == 0.25 and "avg_at_n" not in same
