"""Measures how the recipe's part of a step grows: seconds by phase against prompts, group, length and teachers.

One setting moves at a time, the others stay at 32 prompts x 8 rollouts x 256 tokens with 3 teachers each. Texts are
random words; the encoder is MiniLM, which reads a text's first 256 tokens. One process, the recipe's own functions, no
engine and no policy. Writes a figure; prints each phase's exponent between the two largest values: 1 is linear.
"""

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oger_recipe.pipeline.controller.hybrid_batch import make_hybrid, read_rollouts
from oger_recipe.pipeline.controller.metrics import metrics_of
from oger_recipe.pipeline.controller.reward_sources import RewardSources
from oger_recipe.pipeline.controller.samples import sample_lines
from oger_recipe.pipeline.controller.training_step import TrainingStep
from oger_recipe.pipeline.judges.engines import RunEngines

# isort: split
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.credit import hybrid_advantages
from oger_recipe.algorithm.policy_loss import hybrid_policy_loss
from oger_recipe.base.cpu import CORES
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import TrajectoryEncoder
from oger_recipe.embedding.settings import PACKAGED_MODEL, EncoderSettings
from oger_recipe.embedding.similarity import EmbeddingSimilarity
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.report.panels import styles
from oger_recipe.rewards.spec import Surroundings
from oger_recipe.run_folder.records import write_samples
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.store import Teacher, TeacherStore, write_teacher_store

BASE = {"prompts": 32, "group": 8, "length": 256, "teachers": 3}
SWEEPS = {
    "prompts": (8, 32, 128, 512),
    "group": (4, 8, 16, 32),
    "length": (64, 256, 1024, 4096),
    "teachers": (1, 2, 4, 8, 16),
}
PHASES = ("texts", "similarity", "groups", "bonus and advantages", "metrics and records", "loss")
PROMPT = 32  # tokens


class Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - started


class Known:
    """The measure, with its answer made before: the encoder and the rest of the work are timed apart."""

    def __init__(self, similarity: torch.Tensor) -> None:
        self._similarity = similarity

    def of_groups(self, *_: Any) -> torch.Tensor:
        return self._similarity


def rollouts_of(words: list[int], prompts: int, group: int, length: int) -> list[Experience]:
    samples = []
    for row in range(prompts * group):
        sequences = torch.tensor(words)[torch.randint(len(words), (1, PROMPT + length))]
        action_mask = torch.ones(1, PROMPT + length - 1, dtype=torch.long)
        action_mask[:, : PROMPT - 1] = 0
        score = torch.tensor([float(row % 3 == 0)])
        samples.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=action_mask,
                rollout_log_probs=torch.zeros(1, PROMPT + length - 1),
                prompts=["a prompt"],
                labels=[json.dumps({"uid": f"p{row // group}", "answer": "2", "task": "gsm8k"})],
                rewards=score.clone(),
                scores=score,
                response_length=torch.tensor([length]),
                truncated=torch.zeros(1),
                total_length=torch.tensor([float(PROMPT + length)]),
                info={"reward": score.clone(), "score": score.clone(), "reward_error": torch.zeros(1)},
            )
        )
        samples[-1].graded = Graded(Verdict(score.item(), score.item(), ""))
    return samples


def measure(encoder: TrajectoryEncoder, sizes: dict[str, int], folder: Path, steps: int) -> dict[str, float]:
    """Returns median seconds by phase of one step, with new rollouts and teachers that were seen before."""
    tokenizer = encoder._model.tokenizer
    words = [
        tokenizer.convert_tokens_to_ids(word) for word in ("we", "then", "find", "that", "the", "sum", "is", "two")
    ]
    settings = OgerSettings()
    sources = RewardSources(Surroundings.of(settings, RunEngines(cpu=True).place, seed=0), folder, "dr_grpo")
    prompts, group, length, teachers = sizes.values()

    def teacher(number: int) -> Teacher:
        tokens = torch.tensor(words)[torch.randint(len(words), (length,))].tolist()
        return Teacher(f"t{number}", tokenizer.decode(tokens), tokens, 1.0, 1.0)

    path = folder / "teachers.arrow"
    write_teacher_store({f"p{n}": [teacher(k) for k in range(teachers)] for n in range(prompts)}, path)
    store = TeacherStore(path)
    similarity = EmbeddingSimilarity(encoder, EmbeddingCache(encoder, folder / "cache"))
    (folder / "samples").mkdir(exist_ok=True)
    clocks = []
    for step in range(steps + 1):
        samples, clock = rollouts_of(words, prompts, group, length), Clock()
        with clock("texts"):
            rollouts = read_rollouts(samples, tokenizer, group, find_repetition=False)
        groups = [rollouts.texts[start : start + group] for start in range(0, prompts * group, group)]
        references = [[each.text for each in store[uid]] for uid in rollouts.uids]
        with clock("similarity"):
            known = similarity.of_groups(groups, references, "mean")
        with clock("groups"):
            batch = make_hybrid(rollouts, store, Known(known), None, settings.teachers, step, step)
        now = TrainingStep(step, rollouts, batch, bonus_weight=1.0)
        now.entropy = now.token_entropy = torch.rand(prompts * group)
        now.entropy_weight, now.step_advantages = torch.exp(-now.entropy), None
        with clock("bonus and advantages"):
            now.rewards = sources.of(now)
            now.bonus = sources.bonus(now.rewards)
            of_groups = (now.rewards.total, batch.scores.view(prompts, group), batch.is_teacher.view(prompts, group))
            names = {"estimator": "dr_grpo", "baseline": "group", "all_correct_group": "keep"}
            advantages = now.advantages = hybrid_advantages(*of_groups, **names).flatten()
        with clock("metrics and records"):
            metrics_of(now)
            write_samples(folder, step, sample_lines(now))
        log_probs = -torch.rand(prompts * group, length)
        old, mask = log_probs.clone(), torch.ones(prompts * group, length, dtype=torch.bool)
        log_probs.requires_grad_()
        with clock("loss"):
            off_policy, spread = batch.is_teacher.unsqueeze(1) & mask, advantages.unsqueeze(1).expand_as(log_probs)
            hybrid_policy_loss(log_probs, old, spread, mask, off_policy, max_response_length=length)[0].backward()
        clocks.append(clock.seconds)
    return {phase: statistics.median(seconds[phase] for seconds in clocks[1:]) for phase in PHASES}


def draw(results: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(results), figsize=(4.2 * len(results), 4), layout="constrained", sharey=True, squeeze=False
    )
    for panel, (name, points) in zip(axes[0], results.items(), strict=True):
        values = list(points)
        for phase, look in styles(PHASES).items():
            seconds = [points[value][phase] for value in values]
            panel.loglog(values, seconds, color=look.colour, marker=look.marker, linestyle=look.line, label=phase)
        first = points[values[0]]["similarity"]
        panel.loglog(values, [first * value / values[0] for value in values], "k:", label="linear")
        panel.set(title=f"against {name}", xlabel=name, xticks=values, xticklabels=values)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("seconds a step")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=7, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sweep", choices=SWEEPS, action="append", help="default: all four")
    parser.add_argument("--out", type=Path, default=Path("growth.json"), help="the figure lies beside it")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(CORES)
    encoder = TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, max_tokens=256, long_texts="head"), 64)
    results: dict[str, dict[int, dict[str, float]]] = {}
    print(f"seconds a step; what does not move: {BASE}\n\n| | {' | '.join(PHASES)} |\n|" + "---|" * (len(PHASES) + 1))
    for name in args.sweep or SWEEPS:
        results[name] = {}
        for value in SWEEPS[name]:
            with tempfile.TemporaryDirectory() as folder:
                results[name][value] = measure(encoder, BASE | {name: value}, Path(folder), args.steps)
            cells = " | ".join(f"{results[name][value][phase]:.4f}" for phase in PHASES)
            print(f"| {name} {value} | {cells} |", flush=True)
        before, last = SWEEPS[name][-2:]
        exponents = [
            math.log(results[name][last][phase] / results[name][before][phase]) / math.log(last / before)
            for phase in PHASES
        ]
        print(f"| exponent | {' | '.join(f'{exponent:.2f}' for exponent in exponents)} |", flush=True)
    args.out.write_text(json.dumps(results, indent=2))
    draw(results, args.out.with_suffix(".png"))
    print(f"\nfigure: {args.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
