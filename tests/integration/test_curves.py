"""The pictures of runs and of the study: which curves they have, and where labels stand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oger_recipe.report import curves
from oger_recipe.report.curves import PICTURES, Panel, draw_curves, moving_mean
from oger_recipe.report.panels import from_zero, sheet, spread

STEPS = [
    {
        "step": step,
        "rollout/solve_rate": 0.1 * step,
        "rollout/solve_none": 0.5,
        "rollout/solve_all": 0.0,
        "rollout/reward": 0.2 * step,
        "rollout/entropy": 0.7,
        "rollout/truncated": 0.0,
        "rollout/repetitive": 0.0,
        "oger/bonus": 0.1,
        "oger/divergence": 0.3,
        "oger/divergence_std": 0.1,
        "oger/off_on_ratio": 1 / 7,
        "hybrid_batch/kl": 0.0,
    }
    for step in (1, 2, 3, 4)
]


def _figures(avg: float, n: int = 8) -> dict[str, Any]:
    return {"problems": 16, "n": n, f"avg_at_{n}": avg, f"avg_at_{n}_interval": [avg - 0.1, avg + 0.1]}


EVALUATIONS = [
    {"step": step, "benchmarks": {"gsm8k": _figures(0.2 + step / 10), "aime24": _figures(0.1, n=32)}}
    for step in (0, 4)
]


def _drawn(panel: Panel, steps: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The curves of a panel by label."""
    _, (axes,) = sheet(1)
    curves._draw_panel(axes, panel, steps)
    return {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()}


def _names(folder: Path) -> set[str]:
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())
    return {path.name for path in folder.iterdir()}


def test_a_run_has_a_picture_of_its_solve_rate_of_bonus_and_teachers_and_of_the_policy(tmp_path: Path) -> None:
    draw_curves(STEPS, EVALUATIONS, tmp_path / "curves")
    assert _names(tmp_path / "curves") == {"solve_rate.png", "bonus_and_teachers.png", "policy.png"}


def test_a_run_without_teachers_has_no_picture_of_them(tmp_path: Path) -> None:
    grpo = [step | {"oger/bonus": 0.0, "oger/replaced": 0.0, "oger/prefix_ratio": 0.0} for step in STEPS]
    draw_curves(grpo, [], tmp_path / "curves")
    assert _names(tmp_path / "curves") == {"solve_rate.png", "policy.png"}


def test_before_the_first_step_there_are_the_held_out_scores_alone_or_nothing(tmp_path: Path) -> None:
    draw_curves([], EVALUATIONS[:1], tmp_path / "curves")
    assert _names(tmp_path / "curves") == {"solve_rate.png"}
    draw_curves([], [], tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_curves_that_are_zero_throughout_are_left_out_with_a_word() -> None:
    assert _drawn(curves.TRAINING, STEPS) == {
        "right": pytest.approx([0.1, 0.2, 0.3, 0.4]),
        "groups: none right": [0.5] * 4,
        "groups: all right: 0 throughout": [],
    }


def test_a_curve_has_a_gap_where_a_step_has_no_figure_and_is_not_there_where_no_step_has_one() -> None:
    panel = Panel("entropy", {"entropy": "rollout/entropy", "other": "a figure of other methods"})
    steps = [STEPS[0], STEPS[1] | {"rollout/entropy": None}, STEPS[2]]
    (found,) = _drawn(panel, steps).values()
    assert (found[0], found[2]) == (0.7, 0.7) and math.isnan(found[1])


def test_an_axis_has_zero_on_it_and_is_no_shorter_than_was_asked_for() -> None:
    def limits(values: list[float], least: float) -> tuple[float, float]:
        _, (axes,) = sheet(1)
        axes.plot(range(len(values)), values)
        from_zero(axes, least)
        return axes.get_ylim()

    assert limits([0.96, 0.99], 1.0) == pytest.approx((-0.02, 1.04))
    assert limits([0.96, 0.99], 0.0) == pytest.approx((-0.02 * 0.99, 1.04 * 0.99))
    assert limits([-0.06, 0.04], 1.0) == pytest.approx((-0.08, 0.98))  # critics that explain nothing
    assert limits([-5.0, -3.0], 0.0) == pytest.approx((-5.1, 0.2))
    assert limits([300.0, 310.0], 0.0) == pytest.approx((-6.2, 322.4))
    assert limits([0.0, 0.0], 0.0) == pytest.approx((-0.02, 1.04))
    assert limits([], 1.0) == limits([], 5.0)  # where nothing is drawn


@pytest.mark.parametrize("base", [0.955, 0.055])
@pytest.mark.parametrize("metric", ["oger/entropy_weight", "on_policy_prob", "explained_variance"])
def test_what_hardly_moves_looks_as_if_it_hardly_moved(metric: str, base: float) -> None:
    (panel,) = [each for panels in PICTURES.values() for each in panels if metric in each.curves.values()]
    _, (axes,) = sheet(1)
    curves._draw_panel(axes, panel, [{"step": step, metric: base + 0.01 * step} for step in (1, 2, 3, 4)])
    low, high = axes.get_ylim()
    assert low < 0 < 1 < high


def test_rewards_are_shown_with_and_without_the_bonus_and_teachers_by_their_share() -> None:
    reward, share = PICTURES["bonus_and_teachers"][0], PICTURES["bonus_and_teachers"][4]
    found = _drawn(reward, STEPS)
    assert found["verified"] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert found["with the bonus"] == pytest.approx([0.3, 0.5, 0.7, 0.9])
    assert _drawn(share, STEPS)["rows"] == pytest.approx([1 / 8] * 4)  # one teacher to seven rollouts


def test_steps_are_whole_numbers_and_labels_stay_in_the_frame() -> None:
    _, (axes,) = sheet(1)
    points = [(evaluation["step"], evaluation["benchmarks"]["gsm8k"]) for evaluation in EVALUATIONS]
    curves._draw_benchmark(axes, "gsm8k", points, 7)
    ticks = axes.get_xticks()
    assert len(ticks) > 2 and all(tick == int(tick) and 0 <= tick <= 7 for tick in ticks)
    low, high = axes.get_ylim()
    assert [text.get_text() for text in axes.texts] == ["0.20", "avg@8 0.60"]
    assert all(low < text.xy[1] < high for text in axes.texts)


def test_a_moving_mean_is_over_the_neighbours_that_there_are() -> None:
    assert moving_mean([1.0, 2.0, 6.0, 4.0], 3) == pytest.approx([1.5, 3.0, 4.0, 5.0])
    found = moving_mean([1.0, math.nan, 5.0], 3)
    assert (found[0], found[2]) == (1.0, 5.0) and math.isnan(found[1])


def test_labels_are_moved_apart_as_little_as_possible() -> None:
    assert spread([0.9, 0.1], 0.1, 0.0, 1.0) == [0.9, 0.1]
    # 0.50 and 0.52 part evenly around 0.51; the third is far enough.
    assert spread([0.52, 0.50, 0.8], 0.1, 0.0, 1.0) == pytest.approx([0.56, 0.46, 0.8])
    assert spread([0.5, 0.5, 0.5], 0.1, 0.0, 1.0) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([1.0, 0.99], 0.1, 0.0, 1.0) == pytest.approx([1.0, 0.9])  # not out of the frame
    assert spread([0.0, 0.0], 0.1, 0.0, 1.0) == pytest.approx([0.0, 0.1])
    assert spread([], 0.1, 0.0, 1.0) == []
