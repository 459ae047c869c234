"""Metrics of process reward models, computed by hand."""

import math

import pytest

from oger_recipe.evaluation.prm_metrics import (
    best_threshold,
    calibration_error,
    first_error,
    labelled_step_metrics,
    predicted_error,
    processbench,
    processbench_intervals,
    reliability,
    rivals,
    solution_metrics,
)


def test_the_first_error_of_labels() -> None:
    assert first_error([1, 1, 0, 0]) == 2
    assert first_error([0]) == 0
    assert first_error([1, 1]) == -1
    assert first_error([1, 0, None, None]) == 1  # what comes behind it is of no matter
    assert first_error([1, None, 0]) is None  # the step without a label may be bad
    assert first_error([1, None]) is None
    assert first_error([0.25, 0.0]) == 1  # a step from which one of four rollouts was right is good


def test_the_first_score_below_the_threshold_is_the_predicted_error() -> None:
    assert predicted_error([0.9, 0.4, 0.1], 0.5) == 1
    assert predicted_error([0.9, 0.4, 0.1], 0.4) == 2  # a score at the threshold is not below it
    assert predicted_error([0.9, 0.4, 0.1], 0.1) == -1


def test_processbench_by_hand() -> None:
    #                    right, wrong index, missed, right | right, false alarm
    found = processbench([2, 1, 0, 3, -1, -1], [2, 2, -1, 3, -1, 0])
    assert found == {
        "accuracy_erroneous": 2 / 4,
        "accuracy_correct": 1 / 2,
        "f1": pytest.approx(0.5),
    }
    found = processbench([2, 1, 0, 0, -1, -1], [2, None, 1, 1, -1, -1])
    assert (found["accuracy_erroneous"], found["accuracy_correct"]) == (1 / 4, 1)
    assert found["f1"] == pytest.approx(2 * 0.25 * 1 / 1.25)


def test_who_never_or_always_sees_an_error_has_no_f1() -> None:
    assert processbench([0, 1, -1], [-1, -1, -1]) == {"accuracy_erroneous": 0, "accuracy_correct": 1, "f1": 0}
    assert processbench([0, 1, -1], [0, 1, 0])["f1"] == 0
    assert processbench([0, -1], [1, 1])["f1"] == 0  # both accuracies are 0
    assert math.isnan(processbench([0, 1], [0, 1])["f1"])  # there is no correct solution


def test_intervals_draw_all_solutions_of_a_problem_together() -> None:
    """Problem a: one of two errors found. Problem b: its correct solution is. Resamples without b or without a say
    nothing of one accuracy, and all others have 1/2, 1 and 2/3."""
    found = processbench_intervals([0, 1, -1], [0, 0, -1], ["a", "a", "b"], seed=1)
    assert found["accuracy_erroneous"] == [0.5, 0.5]
    assert found["accuracy_correct"] == [1, 1]
    assert found["f1"] == pytest.approx([2 / 3, 2 / 3])
    # Apart, the two erroneous solutions give 0, 1/2 or 1.
    apart = processbench_intervals([0, 1, -1], [0, 0, -1], ["a", "c", "b"], seed=1)
    assert apart["accuracy_erroneous"] == [0, 1]
    # Where nothing is right, f1 is 0 in every resample.
    assert processbench_intervals([0, -1], [1, 0], ["a", "a"], seed=1)["f1"] == [0, 0]


def test_the_best_threshold_lies_between_the_scores_it_parts() -> None:
    errors, scores = [1, -1, 0], [[0.9, 0.3, 0.8], [0.8, 0.6], [0.2, 0.9]]
    # Above 0.3 and up to 0.6 all three are right.
    assert best_threshold(errors, scores) == pytest.approx(0.45)
    threshold = best_threshold([1, -1], [[0.9, 0.7], [0.8, 0.75]])
    assert 0.7 < threshold < 0.75
    # At the lowest score itself no step is below, so that the error at 0.2 is not found.
    assert best_threshold([0, -1], [[0.2], [0.9]]) == pytest.approx(0.55)
    # 0.3 and 0.5 find one error each: the lower one is taken.
    assert best_threshold([1, 0, -1], [[0.4, 0.2], [0.4, 0.8], [0.6]]) == pytest.approx(0.3)
    # An error behind a step with a lower score is not found by any threshold.
    assert (
        processbench([1], [predicted_error([0.1, 0.2], best_threshold([1, -1], [[0.1, 0.2], [0.9]]))])[
            "accuracy_erroneous"
        ]
        == 0
    )


def test_steps_by_hand() -> None:
    found = labelled_step_metrics([1, 1, 0, 0, 0.5], [0.9, 0.4, 0.4, 0.2, 0.5], threshold=0.5)
    assert (found["steps"], found["bad_steps"]) == (5, 2)
    assert found["step_accuracy"] == pytest.approx(4 / 5)  # 0.4 of a good step is below
    # pairs good-bad: 0.9 and 0.5 are above both (4), 0.4 equals 0.4 (half) and is above 0.2 (1)
    assert found["auc"] == pytest.approx(5.5 / 6)
    # bins: 0.9 -> 1, two of 0.4 -> 1/2, 0.2 -> 0, 0.5 -> 1
    assert found["calibration_error"] == pytest.approx((0.1 + 2 * 0.1 + 0.2 + 0.5) / 5)


def test_reliability_by_hand() -> None:
    found = reliability([1, 0, 0, 1, 1], [0.05, 0.0, 0.09, 1.0, 0.95], bins=10)
    assert found == [
        (pytest.approx(0.14 / 3), pytest.approx(1 / 3), 3),
        (pytest.approx(1.95 / 2), 1.0, 2),  # 1.0 belongs to the last bin
    ]
    assert calibration_error(found) == pytest.approx((3 * (1 / 3 - 0.14 / 3) + 2 * 0.025) / 5)
    assert math.isnan(calibration_error([]))
    assert reliability([0.25, 0], [0.5, 0.5]) == [(0.5, 0.5, 2)]  # a share above 0 is good


def test_solutions_by_hand() -> None:
    labels = [[1, 0, None], [1, 1], [1, None, 0], [0, None]]
    scores = [[0.8, 0.3, 0.1], [0.9, 0.7], [0.9, 0.1, 0.2], None]
    found = solution_metrics(labels, scores, ["a", "b", "c", "a"], 0.5)
    # the third has an unlabelled step before its error: it is in the steps' metrics alone
    assert (found["solutions"], found["erroneous"], found["without_scores"]) == (3, 2, 1)
    assert (found["accuracy_erroneous"], found["accuracy_correct"]) == (1 / 2, 1)
    assert (found["steps"], found["bad_steps"], found["auc"]) == (6, 2, 1)
    assert found["step_accuracy"] == 1
    assert set(found["intervals"]) == {"accuracy_erroneous", "accuracy_correct", "f1"}
    # Below 0.2 no step is wrong; a correct solution without scores is not right either.
    lower = solution_metrics([*labels, [1]], [*scores, None], ["a", "b", "c", "a", "d"], 0.2)
    assert (lower["accuracy_erroneous"], lower["accuracy_correct"]) == (0, 1 / 2)


def test_rivals_say_what_their_names_say() -> None:
    found = rivals([["aa", "b"], ["ccc"]])
    assert found["short steps good"] == [[1 / 3, 1 / 2], [1 / 4]]
    assert found["early steps good"] == [[1, 1 / 2], [1]]
