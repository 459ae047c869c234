"""The table of `oger score`, by hand."""

import math

import pytest

from oger_recipe.evaluation.scores import Column, correlation, score_table


def test_a_correlation_by_hand() -> None:
    # means 2 and 4; (x - 2)(y - 4): 2, 0, 1 -> 3; squares: 2 and 4 + 1 + 1 = 6 -> 3 / sqrt(12)
    assert correlation([1, 2, 3], [2, 5, 5]) == pytest.approx(3 / math.sqrt(12))
    assert correlation([1, 2, 3], [-1, -2, -3]) == pytest.approx(-1)
    assert correlation([1, math.nan, 2, 3], [2, 7, 5, 5]) == pytest.approx(3 / math.sqrt(12))
    assert correlation([1, 2, 3], [2, math.inf, 5]) == pytest.approx(1)


@pytest.mark.parametrize("x", [[1.0], [0.1, 0.1, 0.1], [0.1 + 0.2, 0.3, 0.3], [math.nan, 1.0], []])
def test_where_nothing_varies_there_is_no_correlation(x: list[float]) -> None:
    assert math.isnan(correlation(x, [1.0, 2.0, 3.0][: len(x)]))


def test_the_table_by_hand() -> None:
    columns = {
        "rule": Column([0, 1, 1], 0, 0.01),
        "judge": Column([1, math.nan, 3], 1, 0.5),
        "none": Column([math.nan] * 3, 3),
        "one": Column([math.inf, math.nan, 2], 0, 0.0),
    }
    assert score_table(columns, rule=[0, 1, 1], lengths=[10, 20, 30]).splitlines() == [
        "        answers   mean    std     r(rule)   r(length)   failed   answers/s",
        "rule    3         0.667   0.577   1.000     0.866       0        300",
        "judge   2         2.000   1.414   1.000     1.000       1        4.0",
        "none    0         -       -       -         -           3        -",
        "one     1         2.000   -       -         -           0        -",
    ]
