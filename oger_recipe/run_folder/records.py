"""What the controller writes into the run folder while it runs."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS
from oger_recipe.evaluation.tables import markdown_table
from oger_recipe.plugin.controller.answers import Evaluation

if TYPE_CHECKING:
    from oger_recipe.plugin.controller.hybrid_batch import HybridBatch, Rollouts


def append_json(path: Path, record: dict[str, Any]) -> None:
    """One line; figures that are not finite become null, which JSON can say."""
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(clean, ensure_ascii=False) + "\n")


def event(run_dir: Path, name: str, **facts: Any) -> None:
    """Appends to events.jsonl, which the command line follows to show progress."""
    append_json(run_dir / "events.jsonl", {"time": time.time(), "event": name} | facts)


class Phases:
    """Says in events.jsonl what the run is at: every change, and how far it is at most every few seconds."""

    _SECONDS = 2.0

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._phase, self._said = run_dir, "", -math.inf

    def at(self, phase: str, **facts: Any) -> None:
        """``facts``: ``step``, and ``done`` and ``of`` where the phase can be counted."""
        now = time.monotonic()
        if phase != self._phase or now - self._said >= self._SECONDS:
            self._phase, self._said = phase, now
            event(self._run_dir, "phase", phase=phase, **facts)


def write_samples(
    run_dir: Path,
    step: int,
    rollouts: Rollouts,
    batch: HybridBatch,
    bonus: torch.Tensor,
    entropy: torch.Tensor,
    advantages: torch.Tensor,
    oger,
) -> None:
    """samples/step_<step>.jsonl: every rollout and every injected teacher of the step.

    A rollout that made room for a teacher is listed too (``replaced``), without the figures of rows that are trained.
    """
    path = run_dir / "samples" / f"step_{step:05d}.jsonl"
    path.unlink(missing_ok=True)  # of a run that was resumed before this step
    weight = ENTROPY_WEIGHTS[oger.last_token_enp_reward](entropy)
    for row, text in enumerate(rollouts.texts):
        teacher = batch.teachers.get(row)
        truncated = bool(rollouts.samples[row].truncated[0])
        common = {
            "uid": rollouts.uids[row // rollouts.size],
            "prompt": rollouts.samples[row].prompts[0],
            "truncated": truncated,
        }
        if rollouts.guided[row]:
            common["off_policy_tokens"] = int(batch.samples[row].info["off_policy_tokens"])
        similarity = {"similarity": batch.similarity[row].item(), "divergence": 1 - batch.similarity[row].item()}
        verdict = {"reward": rollouts.rewards[row].item(), "score": rollouts.scores[row].item()}
        trained = {"entropy": entropy[row].item(), "advantage": advantages[row].item()}
        if teacher is None:
            parts = {"bonus": bonus[row].item(), "entropy_weight": weight[row].item()}
            append_json(
                path,
                common
                | {"text": text, "off_policy": bool(rollouts.guided[row])}
                | verdict
                | similarity
                | parts
                | trained,
            )
            continue
        append_json(path, common | {"text": text, "off_policy": False, "replaced": True} | verdict | similarity)
        verdict = {"reward": teacher.reward, "score": teacher.score}
        append_json(
            path,
            common
            | {"text": teacher.text, "truncated": False, "source": teacher.source, "off_policy": True}
            | verdict
            | trained,
        )


def write_evaluation(run_dir: Path, step: int, evaluation: Evaluation) -> None:
    """eval/step_<step>.jsonl (every answer with its verdict), .json (all figures) and .md (their table)."""
    path = run_dir / "eval" / f"step_{step:05d}.jsonl"
    path.unlink(missing_ok=True)
    for record in evaluation.records:
        append_json(path, record)
    path.with_suffix(".json").write_text(json.dumps(evaluation.result, indent=2))
    path.with_suffix(".md").write_text(markdown_table(evaluation.result))
