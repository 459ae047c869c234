"""Measures what an encoder is good for: is a new solution farther from the teacher trajectories than their own is?

A problem has two kinds of right answers: the teacher's solution in other words, and another solution. AUC: how often
the second is farther from the teacher trajectories, within a problem. Countdown: the built-in teachers' texts on four
numbers; operands that change places are the same solution. GSM8K (``--data FOLDER``, which holds
gsm8k/example_model_solutions.jsonl): right answers of four models beside the data's own; those with its equations are
the same. Then rank correlation with the first encoder within problems, and one thread's seconds for 256 of the texts;
and what OGER's bonus by the first encoder would be in groups of the four models' answers to GSM8K.

``--encoder`` takes names and folders of sentence-transformers; NAME:3 keeps the first three layers.
"""

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from oger_recipe.algorithm.exploration import spread_within_groups
from oger_recipe.base.files import read_jsonl
from oger_recipe.embedding.encoder import keep_layers, model_location
from oger_recipe.embedding.settings import PACKAGED_MODEL
from oger_recipe.evaluation.scores import auc, correlation, ranks
from oger_recipe.lab.bonus_ranks import Group, bonus_ranks
from oger_recipe.lab.countdown import Difficulty, generate_problems
from oger_recipe.lab.countdown_problem import Expression, Problem, random_expression, steps
from oger_recipe.lab.countdown_teachers import TEACHERS

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")  # keys of GSM8K's file
Encode = Callable[[list[str]], torch.Tensor]


@dataclass(frozen=True)
class Answers:
    """A problem's teacher trajectories, and right answers to it; new: those that are another solution."""

    teachers: list[str]
    texts: list[str]
    new: list[int]


def solution_of(expression: Expression) -> tuple:
    """Names a solution by its steps, whatever the order of operands of sums and products and of the steps."""
    of_steps = [
        (operator, *(sorted((left, right)) if operator in "+*" else (left, right)))
        for left, operator, right, _ in steps(expression)
    ]
    return tuple(sorted(of_steps))


def turned(expression: Expression, rng: random.Random) -> Expression:
    """Lets operands of sums and products change places."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    left, right = turned(left, rng), turned(right, rng)
    return (operator, right, left) if operator in "+*" and rng.random() < 0.5 else (operator, left, right)


def countdown(count: int) -> Iterator[Answers]:
    rng = random.Random(0)
    difficulty = Difficulty(num_numbers=4, max_number=20, max_target=100, operators="+-*/")
    for problem in generate_problems(count, difficulty=difficulty, seed=0, split="train"):
        found: dict[tuple, Expression] = {}
        for _ in range(3000):
            drawn = random_expression(problem.numbers, "+-*/", rng, 1000)
            if drawn and drawn[1] == problem.target:
                found.setdefault(solution_of(drawn[0]), drawn[0])
        own = found.pop(solution_of(problem.expression), None)
        style = rng.choice(list(TEACHERS.values()))

        def said(expression: Expression, problem: Problem = problem, style=style) -> str:
            return style(replace(problem, expression=expression), rng)

        teachers = [each(problem, rng) for each in TEACHERS.values()]
        same = {said(turned(problem.expression, rng)) for _ in range(8)} - set(teachers)
        if own is not None and found and same:
            others = [said(each) for each in list(found.values())[:4]]
            yield Answers(teachers, [*sorted(same)[:4], *others], [0] * len(sorted(same)[:4]) + [1] * len(others))


def equations(text: str) -> tuple[str, ...]:
    """Returns the equations that GSM8K marks, whatever their order and that of operands of sums and products."""
    found = []
    for equation in re.findall(r"<<(.*?)>>", text):
        left = equation.partition("=")[0]
        commutes = re.fullmatch(r"[\d.]+([+*][\d.]+)+", left) and len(set(re.findall(r"[+*]", left))) == 1
        found.append("".join(sorted(re.findall(r"[\d.]+|[+*]", left))) if commutes else left)
    return tuple(sorted(found))


def gsm8k(path: Path) -> Iterator[Answers]:
    for row in read_jsonl(path):
        own = equations(row["ground_truth"])
        texts = [row[model]["solution"] for model in MODELS if row[model]["is_correct"]]
        new = [int(equations(text) != own) for text in texts]
        if len(set(new)) == 2 and own:
            yield Answers([row["ground_truth"]], texts, new)


def groups(encode: Encode, path: Path) -> Iterator[Group]:
    """Yields for each problem of GSM8K the models' answers as a group whose teacher is the data's own.

    An answer earns R + D R: right or wrong, and its divergence from the teacher. That is OGER's reward (arXiv
    2604.18530) with weight 1, for a policy without entropy.
    """
    rows = read_jsonl(path)
    answers = [Answers([row["ground_truth"]], [row[model]["solution"] for model in MODELS], []) for row in rows]
    for row, far in zip(rows, divergences(encode, answers), strict=True):
        right = [bool(row[model]["is_correct"]) for model in MODELS]
        named = [" ".join(equations(row[model]["solution"])) for model in MODELS]
        rewards = [(1 + one) * is_right for one, is_right in zip(far, right, strict=True)]
        classes = [name if is_right else None for name, is_right in zip(named, right, strict=True)]
        yield list(zip(rewards, classes, strict=True)), {" ".join(equations(row["ground_truth"]))}


def paid(found: list[Group]) -> str:
    """Says what the bonus is in groups: its spread among right answers, and its part of the reward's variance."""
    rewards = torch.tensor([[reward for reward, _ in rollouts] for rollouts, _ in found])
    spread = spread_within_groups(rewards, torch.tensor([[name is not None for _, name in each] for each, _ in found]))
    done = bonus_ranks(found)
    (won, pairs), (rarer, of) = done["new"], done["rarer"]
    return (
        f"GSM8K, bonus of weight 1 in {len(found)} groups: spread {spread:.3f}, {done['share']:.2%} of the variance; "
        f"a class that the teacher lacks earns more in {won / pairs:.0%} of {pairs} pairs, a rarer one in "
        f"{rarer / of:.0%} of {of}; {done['several']:.0%} of the groups hold several"
    )


def divergences(encode: Encode, problems: list[Answers]) -> list[list[float]]:
    """Returns 1 - the mean cosine similarity to the problem's teachers, as the bonus takes it."""
    texts = list(dict.fromkeys(text for each in problems for text in [*each.teachers, *each.texts]))
    vectors = dict(zip(texts, encode(texts), strict=True))
    return [
        (
            1
            - torch.stack([vectors[text] for text in each.texts])
            @ torch.stack([vectors[text] for text in each.teachers]).mT
        )
        .mean(dim=1)
        .tolist()
        for each in problems
    ]


def within(problems: list[Answers], values: list[list[float]]) -> float:
    """Averages the AUC of the problems."""
    return statistics.fmean(auc(each.new, found) for each, found in zip(problems, values, strict=True))


def agreement(values: list[list[float]], first: list[list[float]]) -> float:
    """Averages the rank correlation of the problems with at least three answers."""
    pairs = [(mine, theirs) for mine, theirs in zip(values, first, strict=True) if len(set(mine)) > 2]
    return statistics.fmean(correlation(ranks(mine), ranks(theirs)) for mine, theirs in pairs) if pairs else 0.0


def load(name: str) -> Encode:
    name, _, layers = name.partition(":")
    model = SentenceTransformer(model_location(name), device="cpu")
    if layers:
        keep_layers(model, int(layers))
    return lambda texts: model.encode(
        texts, batch_size=64, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--encoder", nargs="+", default=[PACKAGED_MODEL, *(f"{PACKAGED_MODEL}:{n}" for n in (4, 3, 2, 1, 0))]
    )
    parser.add_argument("--problems", type=int, default=300, help="of Countdown")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sets = {"Countdown": list(countdown(args.problems))}
    if args.data:
        answers = args.data / "gsm8k" / "example_model_solutions.jsonl"
        sets["GSM8K"] = list(gsm8k(answers))
    print(
        ", ".join(
            f"{name}: {len(each)} problems, {sum(len(one.texts) for one in each)} answers"
            for name, each in sets.items()
        )
    )
    print(f"\n| encoder | {' | '.join(f'{name}: AUC | ranks as the first' for name in sets)} | seconds |")
    print("|---" * (2 + 2 * len(sets)) + "|")
    timed = [text for each in sets["Countdown"] for text in each.texts][:256]
    first: dict[str, list[list[float]]] = {}
    results = {}
    for name in args.encoder:
        encode = load(name)
        found: dict[str, float] = {}
        for kind, problems in sets.items():
            values = divergences(encode, problems)
            first.setdefault(kind, values)
            found |= {f"{kind}: AUC": within(problems, values), f"{kind}: ranks": agreement(values, first[kind])}
        seconds = []
        for _ in range(args.rounds):
            started = time.perf_counter()
            encode(timed)
            seconds.append(time.perf_counter() - started)
        results[name] = found | {"seconds": min(seconds)}
        print(
            f"| {name} | {' | '.join(f'{value:.3f}' for value in found.values())} | {min(seconds):.2f} |", flush=True
        )
    if args.data:
        print(f"\n{paid(list(groups(load(args.encoder[0]), answers)))}")
    if args.out:
        args.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
