"""The built-in task's process reward models: tiny, trained by `oger prm train`'s code on labels that arithmetic gives.

They know problems of three and four numbers up to 10, with + and -. They learn from the teachers' solutions and dead
ends, in most of which something is wrong, and from what a language model writes that was trained like the task's
policies: mistakes that look right.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from oger_recipe.base.cutting import cut_text
from oger_recipe.data.labelled_steps import Solution
from oger_recipe.lab import tiny_policy
from oger_recipe.lab.countdown import Difficulty, build_rows, generate_problems, prompt_of
from oger_recipe.lab.countdown_problem import Problem, random_expression, value_of
from oger_recipe.lab.countdown_steps import STEPS, step_labels
from oger_recipe.lab.countdown_teachers import TEACHERS
from oger_recipe.prm.options import Training

_COUNTS = {3: 450, 4: 3000}  # numbers of a problem -> problems
_OPERATORS = "+-"
_RIGHT = 0.6  # share of solutions that are right before something is made wrong in them
_WRONG_NUMBERS = (0.04, 0.1, 0.2)  # shares of the numbers of a solution


@dataclass(frozen=True)
class Data:
    """What to learn from: solutions, the share of them that a model writes, and how often they are seen."""

    solutions: int
    written_by_model: float
    epochs: int


GOOD = Data(solutions=38_400, written_by_model=1 / 6, epochs=1)
BAD = Data(solutions=160, written_by_model=0.0, epochs=20)  # it knows them by heart, and guesses elsewhere
_TEMPERATURES, _AT_ONCE, _LONGEST = (1.0, 1.25), 256, 80


def save_prm(base: Path, data: Data, folder: Path) -> Path:
    """Train the model of `save_base` to score steps, format trl; prm.json: what it reaches on held-out problems."""
    from oger_recipe.prm.command_train import train

    entry = {"model": str(base), "format": "trl"}
    how = Training(
        epochs=data.epochs, learning_rate=1e-3, batch_size=64, micro_batch_size=64, max_length=512, held_out=0.1
    )
    made = folder / "made"
    sampled = round(data.written_by_model * data.solutions)
    known = [*solutions(data.solutions - sampled, seed=1), *sampled_solutions(base, sampled, seed=2)]
    train(entry, known, ["countdown"], how, made)
    for file in made.iterdir():
        file.rename(folder / file.name)
    made.rmdir()
    return folder


def save_base(folder: Path) -> Path:
    """Make a language model that writes such solutions: it knows sums and differences before it judges them."""
    tiny_policy.warm_start(
        build_rows(_problems(seed=1), seed=1),
        folder,
        steps=500,
        batch_size=32,
        learning_rate=2e-3,
        decay=0.4,
        hidden_size=96,
        num_layers=3,
        seed=0,
    )
    shutil.rmtree(folder / "trainer", ignore_errors=True)
    return folder


def solutions(count: int, seed: int) -> Iterator[Solution]:
    """Yield labelled solutions in the teachers' styles, some for each problem."""
    rng = random.Random(seed)
    for problem in _shuffled(count, rng, seed):
        yield _labelled(problem, _written(problem, rng))


def sampled_solutions(base: Path, count: int, seed: int) -> Iterator[Solution]:
    """Yield labelled solutions of a language model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32").eval()
    problems = _shuffled(count, random.Random(seed), seed)
    torch.manual_seed(seed)
    for number, start in enumerate(range(0, count, _AT_ONCE)):
        batch = problems[start : start + _AT_ONCE]
        chats = [[{"role": "user", "content": prompt_of(problem)}] for problem in batch]
        prompts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            written = model.generate(
                **tokens,
                do_sample=True,
                temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
                top_k=0,
                max_new_tokens=_LONGEST,
            )
        texts = tokenizer.batch_decode(written[:, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
        yield from (_labelled(problem, text) for problem, text in zip(batch, texts, strict=True) if text.strip())


def _shuffled(count: int, rng: random.Random, seed: int) -> list[Problem]:
    """Draw ``count`` problems; repeat them where there are fewer."""
    problems = _problems(seed)
    rng.shuffle(problems)
    return [problems[number % len(problems)] for number in range(count)]


def _labelled(problem: Problem, text: str) -> Solution:
    steps = tuple(cut_text(text, STEPS))
    labels = step_labels(steps, problem.numbers, problem.target)
    return Solution(problem.uid, prompt_of(problem), steps, tuple(map(float, labels)))


def _problems(seed: int) -> list[Problem]:
    return [
        problem
        for numbers, count in _COUNTS.items()
        for problem in generate_problems(
            count, difficulty=Difficulty(numbers, max_number=10, operators=_OPERATORS), seed=seed, split="train"
        )
    ]


def _written(problem: Problem, rng: random.Random) -> str:
    """Write a solution or a miss of the target in a teacher's style, in most cases with something wrong in it."""
    meant = problem if rng.random() < _RIGHT else _another(problem, rng)
    text = rng.choice([*TEACHERS.values()])(meant, rng)
    for wrong, share in _WRONGS.items():
        if rng.random() < share:
            text = wrong(text, meant, problem.target, rng)
    return text


def _another(problem: Problem, rng: random.Random) -> Problem:
    """Return the problem with a tree of sums and differences that misses the target, unless 20 draws find none."""
    drawn = (random_expression(problem.numbers, _OPERATORS, rng, 10 * problem.target) for _ in range(20))
    missed = next((each[0] for each in drawn if each is not None and each[1] != problem.target), problem.expression)
    return replace(problem, expression=missed)


def _with_a_lie(text: str, meant: Problem, target: int, rng: random.Random) -> str:
    """Claim to reach the target where the text misses it."""
    value = value_of(meant.expression)
    for end in (", done.", ", yes."):
        text = text.replace(f"={value}{end}", f"={target}{end}")
    return text.replace(f"need {value}=", f"need {target}=", 1)


def _with_another_operand(text: str, meant: Problem, target: int, rng: random.Random) -> str:
    """Change one number of the answer, and its last use in the solution; results stay as they are."""
    thought, _, answer = text.partition("<answer>")
    found = rng.choice([*re.finditer(r"\d+", answer)])
    other = str(rng.choice((*meant.numbers, rng.randint(1, 10))))
    used = [*re.finditer(rf"(?<![\d=]){found.group()}(?=[-+])|(?<=[-+]){found.group()}(?!\d)", thought)]
    if used:
        thought = f"{thought[: used[-1].start()]}{other}{thought[used[-1].end() :]}"
    return f"{thought}<answer>{answer[: found.start()]}{other}{answer[found.end() :]}"


def _with_wrong_numbers(text: str, meant: Problem, target: int, rng: random.Random) -> str:
    share = rng.choice(_WRONG_NUMBERS)

    def wrong(found: re.Match[str]) -> str:
        number = int(found.group())
        if rng.random() >= share:
            return found.group()
        near: Sequence[int] = (number - 2, number - 1, number + 1, number + 2)
        return str(max(1, rng.choice((*near, rng.randint(1, 10), rng.randint(1, 30)))))

    return re.sub(r"\d+", wrong, text)


_WRONGS = {
    _with_a_lie: 0.6,
    _with_another_operand: 0.45,
    _with_wrong_numbers: 0.3,
}  # with their shares of all solutions
