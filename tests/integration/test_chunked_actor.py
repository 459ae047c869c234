"""The policy without its logits: the numbers and the gradients are those of OpenRLHF's Actor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from doubles import Strategy
from openrlhf.models.actor import Actor
from openrlhf.trainer.ray import ppo_actor

from oger_recipe.algorithm import token_stats
from oger_recipe.pipeline.policy.chunked_actor import ChunkedActor
from oger_recipe.pipeline.policy.policy_actor import OgerPolicyModelActor

# Two rows, one padded on both sides; the responses have four and two tokens.
SEQUENCES = torch.tensor([[9, 8, 7, 6, 5, 4, 3], [0, 5, 6, 7, 8, 0, 0]])
ATTENTION = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]])
ACTIONS = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])  # of the last four of six predicted tokens


def _make(kind: type[Actor], folder: Path, temperature: float) -> Actor:
    actor = kind(str(folder), attn_implementation="eager", temperature=temperature)
    actor.model.float()
    return actor


def _results(actor: Actor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    log_probs, output = actor(SEQUENCES, ACTIONS, ATTENTION, return_output=True, return_entropy=True)
    entropy = output.entropy[:, -4:] * ACTIONS
    weights = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.3, 1.0, 7.0, 7.0]])
    ((log_probs * weights).sum() + 0.7 * (entropy * weights).sum()).backward()
    return log_probs.detach(), entropy.detach(), {name: p.grad for name, p in actor.model.named_parameters()}


@pytest.mark.parametrize("chunk_logits", [1, 3000, 2**26], ids=["a token at a time", "some", "all"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_the_actor(policy_folder, monkeypatch, chunk_logits, temperature) -> None:
    monkeypatch.setattr(token_stats, "CHUNK_LOGITS", chunk_logits)
    expected = _results(_make(Actor, policy_folder, temperature))
    found = _results(_make(ChunkedActor, policy_folder, temperature))
    assert torch.allclose(found[0], expected[0], atol=1e-5) and torch.allclose(found[1], expected[1], atol=1e-5)
    assert found[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert torch.allclose(found[2][name], gradient, atol=1e-5), name


def test_all_logits_are_never_there(policy_folder, monkeypatch) -> None:
    monkeypatch.setattr(token_stats, "CHUNK_LOGITS", 1)
    actor = _make(ChunkedActor, policy_folder, 1.0)
    output = actor(SEQUENCES, ACTIONS, ATTENTION, return_output=True)[1]
    assert output.logits is None and output.entropy.shape == (2, 6)


def test_without_a_response_to_score_the_logits_are_the_models(policy_folder) -> None:
    actor = _make(ChunkedActor, policy_folder, 1.0)
    actor(SEQUENCES, ACTIONS, ATTENTION)
    output = actor(SEQUENCES, attention_mask=ATTENTION, return_output=True)
    assert output["logits"].shape == (2, 7, actor.model.config.vocab_size)


def test_a_model_that_changes_its_logits_afterwards_is_found_out(policy_folder) -> None:
    actor = _make(ChunkedActor, policy_folder, 1.0)
    upstream = actor.model.forward

    def capped(*args, **kwargs):
        output = upstream(*args, **kwargs)
        output.logits = 30 * torch.tanh(output.logits / 30)
        return output

    actor.model.forward = capped
    actor(SEQUENCES, torch.zeros_like(ACTIONS), ATTENTION)  # without a token nothing shows
    with pytest.raises(RuntimeError, match="no-oger.chunked_token_stats"):
        actor(SEQUENCES, ACTIONS, ATTENTION)


@pytest.fixture()
def policy_actor(nested, policy_folder, monkeypatch) -> Callable[..., OgerPolicyModelActor]:
    """Makes OpenRLHF's actor of the policy from flags, on one rank without DeepSpeed."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # written by the actor's constructor
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(ppo_actor, "Actor", Actor)  # put back: which one is chosen for the process

    def make(*flags: str) -> OgerPolicyModelActor:
        given = ("--ds.attn_implementation=eager", "--oger.entropy_top_share=0.5")
        actor = OgerPolicyModelActor(1, 0, "127.0.0.1", 1)
        actor.init_model_from_pretrained(Strategy(nested(*given, *flags)), str(policy_folder), max_steps=1)
        return actor

    return make


@pytest.mark.parametrize("position", ["last", "mean", "top"])
@pytest.mark.parametrize("asked", [(0, 1), (1,), (0,), ()], ids=str)
def test_only_rows_with_response_tokens_pass_through_the_model(policy_actor, asked, position) -> None:
    policy = policy_actor(f"--oger.entropy_position={position}")
    policy.actor.model.double()  # in float32 a row rounds otherwise alone than in a batch
    everything = policy.forward(SEQUENCES, ACTIONS, ATTENTION)
    passed = []
    policy.actor.model.register_forward_pre_hook(lambda _, inputs: passed.append(len(inputs[0])))
    mask = ACTIONS * torch.tensor([[row in asked] for row in range(2)])
    log_probs, *entropies = policy.forward(SEQUENCES, mask, ATTENTION)
    assert passed == [max(len(asked), 1)]  # at least one: other ranks may wait for this one's part of the weights
    for row in range(2):
        expected = everything[0][row] if row in asked else torch.zeros(4)
        assert torch.allclose(log_probs[row], expected, atol=1e-6)
        for found, of_all in zip(entropies, everything[1:], strict=True):
            if row in asked:
                assert found[row].item() == pytest.approx(of_all[row].item(), abs=1e-6)
            else:
                assert found[row].isnan()


@pytest.mark.parametrize("kind", [Actor, ChunkedActor])
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("position", ["last", "mean", "top"])
def test_the_entropy_of_a_rollout_is_that_of_its_own_tokens_however_batched(
    policy_actor, kind, packing, position
) -> None:
    """Against the whole logits of each row alone: position t of them makes token t + 1."""
    flags = ["--ds.packing_samples"] if packing else []
    flags.append(f"--{'no-' if kind is Actor else ''}oger.chunked_token_stats")
    # Untrained, the policy has nearly the same entropy everywhere; cooled down, rows and tokens differ.
    policy = policy_actor(*flags, f"--oger.entropy_position={position}", "--rollout.temperature=0.1")
    assert type(policy.actor) is kind
    policy.actor.model.double()
    log_probs, found, of_tokens = policy.forward(SEQUENCES, ACTIONS, ATTENTION)
    for row, (tokens, first) in enumerate([(SEQUENCES[0], 3), (SEQUENCES[1, 1:5], 2)]):
        with torch.no_grad():
            all_log_probs = (policy.actor.model(tokens.unsqueeze(0)).logits[0] / 0.1).log_softmax(dim=-1).float()
        # The response of row 0 are tokens 3 to 6, that of row 1 its tokens 2 and 3 (without the padding).
        predicted = all_log_probs[first - 1 : len(tokens) - 1]
        entropies = -(predicted.exp() * predicted).sum(dim=-1)
        expected = {
            "last": entropies[-1],
            "mean": entropies.mean(),
            "top": entropies.sort(descending=True).values[: len(entropies) // 2].mean(),
        }
        assert found[row].item() == pytest.approx(expected[position].item(), abs=1e-5)
        assert of_tokens[row].item() == pytest.approx(expected["mean"].item(), abs=1e-5)
        chosen = predicted.gather(1, tokens[first:].unsqueeze(1)).squeeze(1)
        asked = ACTIONS[row].bool()
        assert torch.allclose(log_probs[row][asked], chosen, atol=1e-5)
        assert (log_probs[row][~asked] == 0).all()
    assert found[0] != pytest.approx(found[1].item(), abs=1e-3)
