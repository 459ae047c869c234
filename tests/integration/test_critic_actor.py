"""What the critic reports of itself, and that what it reports rises when it learns.

Real parts: OpenRLHF's critic actor and DeepSpeed, in processes of their own, which run this file:
``python test_critic_actor.py RANK RANKS PORT FOLDER`` writes, on rank 0, FOLDER/results.pt.
"""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from oger_recipe.lab import tiny_policy

CUTS = {
    "static": ["--train.micro_batch_size=2"],
    "dynamic": ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu=30"],
}
KINDS = {
    "tokens": [],
    "first tokens of steps": ["--algo.advantage.estimator=appo"],
    "Huber": ["--oger.critic.huber_delta=0.3"],
}
HEAD = ["--oger.critic.hidden_sizes", "24", "12"]
CLIP = 0.05  # of values that start around 0 and whose old ones are within 0.3 of it
STEPS = {"learnt": 16, "frozen": 2}  # of the critic that learns, and of one that does not
GOOD, BAD = 5, 6  # first response tokens that end well and badly


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, run_ranks) -> dict[int, dict[str, Any]]:
    """What main() found, by the number of ranks."""
    found = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        tokenizer = tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)
        torch.manual_seed(0)
        tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=2).save_pretrained(folder / "policy")
        tokenizer.save_pretrained(folder / "policy")
        run_ranks(Path(__file__), ranks, folder)
        found[ranks] = torch.load(folder / "results.pt")
    return found


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_of_a_step_are_those_of_what_it_trains(results, kind: str, cut: str, ranks: int) -> None:
    """One optimizer step: every micro-batch sees the critic's first values. Steps of reasoning have three tokens."""
    status, by_step = results[ranks][f"{kind}, {cut}"], kind == "first tokens of steps"
    tokens = [token for place, *token in results[ranks]["tokens"] if place % 3 == 0 or not by_step]
    returns = [target for _, _, target in tokens]
    residuals = [target - old for _, old, target in tokens]
    expected = 1 - statistics.pvariance(residuals) / statistics.pvariance(returns)
    assert status["explained_variance"] == pytest.approx(expected, abs=1e-5)
    assert status["values"] == pytest.approx(statistics.fmean(value for value, _, _ in tokens), abs=1e-3)
    held = [(min(max(value, old - CLIP), old + CLIP), value, target) for value, old, target in tokens]
    clipped = [(bound - target) ** 2 > (value - target) ** 2 for bound, value, target in held]
    assert 0.1 < statistics.fmean(clipped) < 0.9
    # A value that is rounded otherwise in another cut may pass its bound: three of the 84 tokens at most.
    assert status["value_clip_share"] == pytest.approx(statistics.fmean(clipped), abs=3.5 / len(tokens))
    delta = 0.3 if kind == "Huber" else math.inf
    errors = [max(abs(bound - target), abs(value - target)) for bound, value, target in held]
    losses = [error**2 / 2 if error <= delta else delta * (error - delta / 2) for error in errors]
    assert min(errors) < 0.3 < max(errors)
    assert status["critic_loss"] == pytest.approx(statistics.fmean(losses), rel=0.01)


def test_a_critic_that_learns_explains_the_returns_of_rows_it_has_not_seen(results) -> None:
    """The return is 1 or 0 by the first response token, so that only the value before that token cannot know it.

    Rows have 9.5 tokens on average: about 1 / 9.5 of the variance stays, 0.89 can be explained. A mean explains 0.
    """
    learnt, frozen = results[1]["learnt"], results[1]["frozen"]
    assert learnt[0] == pytest.approx(frozen[0], abs=1e-6)
    assert max(frozen) < 0.05
    assert all(0.6 < explained < 0.95 for explained in learnt[-3:])


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_a_head_with_hidden_layers_is_saved_with_its_sizes_and_says_the_same_when_it_is_loaded(results, kind) -> None:
    found = results[1][f"head, {kind}"]
    shapes = {"score.0.weight": (24, 32), "score.0.bias": (24,), "score.2.weight": (12, 24), "score.2.bias": (12,)}
    assert found["shapes"] == shapes | {"score.4.weight": (1, 12)}
    # He's weights and zeros, though ZeRO 3 builds a model without initial weights.
    assert found["std"] == pytest.approx((2 / 32) ** 0.5, rel=0.1)
    assert not torch.equal(found["trained"], found["first"])
    for where in ("loaded", "resumed"):
        assert torch.equal(found[where], found["trained"]), where
    assert "oger.critic.hidden_sizes is 8, but the value head of" in found["refused"]


@pytest.mark.parametrize("kind", ["linear", "hidden, sharded"])
def test_a_head_may_be_trained_alone(results, kind: str) -> None:
    assert results[1][f"alone, {kind}"] == {"head": {True}, "below": {False}}


def _critic(flags: list[str], rank: int, ranks: int, port: int, folder: Path) -> Any:
    """OpenRLHF's critic actor with a new value head, one optimizer step for eight rows a pass."""
    from openrlhf.utils import get_strategy
    from openrlhf.utils.config import hierarchize

    from oger_recipe.cli.train_ppo_ray import build_parser
    from oger_recipe.pipeline.policy.critic_actor import OgerCriticModelActor

    policy = str(folder / "policy")
    common = [
        "--rollout.batch_size=2", "--rollout.n_samples_per_prompt=4", "--train.batch_size=8",
        "--critic.lr_scheduler=constant", "--critic.lr_warmup_ratio=0", f"--ckpt.path={folder / 'none'}",
        f"--actor.model_name_or_path={policy}", f"--critic.model_name_or_path={policy}",
    ]  # fmt: skip
    args = hierarchize(build_parser(cpu=True).parse_args([*common, *flags]))
    actor = OgerCriticModelActor(ranks, rank, "127.0.0.1", port)
    torch.manual_seed(0)  # of the value head
    actor.init_model_from_pretrained(get_strategy(args), args.critic.model_name_or_path, max_steps=100)
    return actor


def _values(actor: Any, row: Any) -> torch.Tensor:
    """[1, A]."""
    return actor.forward(row.sequences, row.action_mask, row.attention_mask)


def _telling_rows(step: int) -> list[Any]:
    """32 fresh rows of 6 to 13 response tokens, of which the first tells the return."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    generator = torch.Generator().manual_seed(1000 + step)
    rows = []
    for number in range(32):
        length = 6 + number % 8
        sequences = torch.randint(10, 250, (1, 3 + length), generator=generator)
        good = bool(torch.rand((), generator=generator) < 0.5)
        sequences[0, 3] = GOOD if good else BAD
        mask = torch.ones(1, 2 + length, dtype=torch.long)
        mask[:, :2] = 0
        rows.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=mask,
                action_log_probs=torch.zeros(mask.shape),
                advantages=torch.zeros(mask.shape),
                returns=float(good) * mask,
                total_length=torch.tensor([3.0 + length]),
                info={},
            )
        )
    return rows


def _learn(actor: Any, steps: int) -> list[float]:
    explained = []
    for step in range(steps):
        for row in _telling_rows(step):
            row.values = _values(actor, row)
            actor.append(row)
        explained.append(actor.fit()["explained_variance"])
    return explained


def _head(flags: list[str], folder: Path) -> dict[str, Any]:
    """What becomes of a head with hidden layers that is trained, saved, and loaded in both ways."""
    from zero_training import rows_of_step

    from oger_recipe.base.errors import RecipeError

    rows = rows_of_step(0)

    def said(actor: Any) -> torch.Tensor:
        return torch.cat([_values(actor, row).flatten() for row in rows])

    places = [f"--ckpt.output_dir={folder / 'saved'}", f"--ckpt.path={folder / 'checkpoints'}", *flags]
    actor = _critic([*places, *HEAD, "--critic.save_value_network", "--critic.adam.lr=1e-2"], 0, 1, 1, folder)
    names = {name: parameter for name, parameter in actor.critic.module.named_parameters() if "score" in name}
    found: dict[str, Any] = {
        "shapes": {name: tuple(getattr(each, "ds_shape", each.shape)) for name, each in names.items()},
        "std": getattr(names["score.0.weight"], "ds_tensor", names["score.0.weight"]).float().std().item(),
        "first": said(actor),
    }
    for row in rows:
        actor.append(row)
    actor.fit()
    found["trained"] = said(actor)
    actor.save_model()
    actor.save_checkpoint("global_step1")
    resumed = _critic([*places, *HEAD, "--ckpt.load_enable"], 0, 1, 1, folder)
    found["resumed"] = said(resumed)
    saved = f"{folder / 'saved'}_critic"
    found["loaded"] = said(_critic([*flags, f"--critic.model_name_or_path={saved}"], 0, 1, 1, folder))
    try:
        _critic([*flags, f"--critic.model_name_or_path={saved}", "--oger.critic.hidden_sizes=8"], 0, 1, 1, folder)
    except RecipeError as error:
        found["refused"] = str(error)
    return found


def _head_alone(flags: list[str], folder: Path) -> dict[str, set[bool]]:
    """Whether the weights of the head, and those below it, are others after an optimizer step."""
    from zero_training import rows_of_step

    flags = [*flags, "--oger.critic.head_only", "--train.micro_batch_size=2", "--critic.adam.lr=1e-2"]
    actor = _critic(flags, 0, 1, 1, folder)
    parameters = dict(actor.critic.module.named_parameters())

    def weights() -> dict[str, torch.Tensor]:
        return {name: getattr(each, "ds_tensor", each).detach().clone() for name, each in parameters.items()}

    before = weights()
    for row in rows_of_step(0):
        actor.append(row)
    actor.fit()
    changed = {name: not torch.equal(each, before[name]) for name, each in weights().items()}
    head = {name for name in changed if "score" in name}
    return {"head": {changed[name] for name in head}, "below": {changed[name] for name in changed.keys() - head}}


def main() -> None:
    rank, ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    from zero_training import rows_of_step  # sets the environment of a machine without CUDA

    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for kind, of_kind in KINDS.items():
        for cut, flags in CUTS.items():
            actor = _critic([*flags, *of_kind, f"--critic.value_clip={CLIP}"], rank, ranks, port, folder)
            rows = rows_of_step(0)
            results["tokens"] = [
                (place, value.item(), old.item(), target.item())
                for row in rows
                for place, (value, old, target) in enumerate(
                    torch.stack([_values(actor, row), row.values, row.returns])[:, row.action_mask.bool()].T
                )
            ]
            for row in rows[rank::ranks]:
                actor.append(row)
            results[f"{kind}, {cut}"] = actor.fit()
    if ranks == 1:
        for name, rate in (("learnt", 3e-3), ("frozen", 0.0)):
            flags = ["--train.micro_batch_size=8", "--train.max_epochs=4", "--critic.value_clip=10"]
            actor = _critic([*flags, f"--critic.adam.lr={rate}"], rank, ranks, port, folder)
            results[name] = _learn(actor, STEPS[name])
        for name, stage in (("whole", 2), ("sharded", 3)):
            at = folder / name
            at.mkdir()
            (at / "policy").symlink_to(folder / "policy")
            results[f"head, {name}"] = _head(["--train.micro_batch_size=2", f"--ds.zero_stage={stage}"], at)
        results["alone, linear"] = _head_alone(["--ds.zero_stage=2"], folder)
        sharded = ["--ds.zero_stage=3", "--actor.gradient_checkpointing_enable", *HEAD]
        results["alone, hidden, sharded"] = _head_alone(sharded, folder)
    if rank == 0:
        torch.save(results, folder / "results.pt")


if __name__ == "__main__":
    main()
