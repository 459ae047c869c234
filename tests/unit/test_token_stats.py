"""Token statistics against float64 softmax on the whole logits, which the code under test never has."""

import math
from fractions import Fraction

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oger_recipe.algorithm import token_stats
from oger_recipe.algorithm.token_stats import response_entropy, token_log_probs_and_entropy, tokens_of_share


def reference(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    probs = torch.softmax(hidden.double() @ weight.double().T / temperature, dim=-1)
    chosen = probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return chosen.log(), -(probs * probs.log()).sum(dim=-1)


def make(*shape: int, vocabulary: int = 11, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(sum(shape))
    hidden = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, shape[-1], generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, shape[:-1], generator=generator)


def test_a_two_word_vocabulary_gives_the_numbers_of_the_textbook() -> None:
    # hidden 1, weights ln 3 and 0: probabilities 3/4 and 1/4. At temperature 1/2 the logits double: 9/10 and 1/10.
    hidden, weight = torch.ones(2, 1, dtype=torch.float64), torch.tensor([[math.log(3.0)], [0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    for temperature, p in [(1.0, 0.75), (0.5, 0.9)]:
        log_probs, entropy = token_log_probs_and_entropy(hidden, weight, labels, temperature=temperature)
        expected_entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
        torch.testing.assert_close(log_probs, torch.tensor([math.log(p), math.log(1 - p)], dtype=torch.float64))
        torch.testing.assert_close(entropy, torch.full((2,), expected_entropy, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5), (1, 1, 5)])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
def test_values_are_those_of_the_whole_softmax(shape: tuple[int, ...], temperature: float) -> None:
    hidden, weight, labels = make(*shape)
    log_probs, entropy = token_log_probs_and_entropy(hidden, weight, labels, temperature=temperature, chunk_size=2)
    expected_log_probs, expected_entropy = reference(hidden, weight, labels, temperature)
    assert log_probs.shape == entropy.shape == labels.shape
    torch.testing.assert_close(log_probs.double(), expected_log_probs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3, 6, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_of_both_outputs_pass_the_finite_difference_check(chunk_size: int, temperature: float) -> None:
    hidden, weight, labels = make(2, 3, 4, vocabulary=5, dtype=torch.float64)

    def stats(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_log_probs_and_entropy(h, w, labels, temperature=temperature, chunk_size=chunk_size)

    assert stats(hidden, weight)[0].dtype == torch.float64
    assert torch.autograd.gradcheck(stats, (hidden, weight))


@pytest.mark.parametrize("output", [0, 1])
def test_the_gradient_of_one_output_alone_is_that_of_the_whole_softmax(output: int) -> None:
    hidden, weight, labels = make(7, 5)
    token_log_probs_and_entropy(hidden, weight, labels, temperature=0.8, chunk_size=3)[output].sum().backward()
    expected_hidden, expected_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    reference(expected_hidden, expected_weight, labels, 0.8)[output].sum().backward()
    torch.testing.assert_close(hidden.grad.double(), expected_hidden.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), expected_weight.grad, rtol=1e-5, atol=1e-5)


def test_the_chunk_size_changes_neither_values_nor_gradients() -> None:
    outcomes = []
    for chunk_size in (1, 4, 5, 13, 1024):
        hidden, weight, labels = make(13, 16, vocabulary=50)
        log_probs, entropy = token_log_probs_and_entropy(hidden, weight, labels, chunk_size=chunk_size)
        (log_probs.mean() + 0.5 * entropy.mean()).backward()
        outcomes.append((log_probs.detach(), entropy.detach(), hidden.grad, weight.grad))
    for outcome in outcomes[1:]:
        for value, expected in zip(outcome, outcomes[0], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in (result if isinstance(result, tuple | list) else [result]) if torch.is_tensor(x)]
        self.numel = max([self.numel, *(tensor.numel() for tensor in tensors)])
        return result


def test_the_logits_of_all_tokens_never_exist_together() -> None:
    tokens, vocabulary, width, chunk_size = 64, 96, 8, 4
    hidden, weight, labels = make(tokens, width, vocabulary=vocabulary)
    with LargestTensor() as forward:
        log_probs, entropy = token_log_probs_and_entropy(hidden, weight, labels, chunk_size=chunk_size)
    with LargestTensor() as backward:
        (log_probs.sum() + entropy.sum()).backward()
    # weight itself has 96 * 8 = 768 numbers, a chunk of logits 4 * 96 = 384, all logits 64 * 96 = 6144
    assert 384 <= forward.numel <= 768
    assert 384 <= backward.numel <= 768


def test_by_default_logits_are_counted_and_not_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stats, "CHUNK_LOGITS", 400)  # four rows of a vocabulary of 96
    hidden, weight, labels = make(64, 4, vocabulary=96)
    with LargestTensor() as forward:
        log_probs, entropy = token_log_probs_and_entropy(hidden, weight, labels)
    with LargestTensor() as backward:
        (log_probs.sum() + entropy.sum()).backward()
    assert forward.numel == backward.numel == 4 * 96
    monkeypatch.setattr(token_stats, "CHUNK_LOGITS", 50)  # less than one row: a row at a time all the same
    torch.testing.assert_close(token_log_probs_and_entropy(hidden, weight, labels)[0], log_probs)


# ---- the entropy that stands for a response: rows of one, three and four response tokens, and one without any

ENTROPIES = torch.tensor(
    [[9.0, 9.0, 0.5, 9.0, 9.0], [0.1, 0.4, 0.2, 9.0, 9.0], [9.0, 0.3, 0.1, 0.2, 0.8], [9.0, 9.0, 9.0, 9.0, 9.0]]
)
RESPONSES = torch.tensor([[0, 0, 1, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("position", "top_share", "expected"),
    [
        ("last", 0.2, [0.5, 0.2, 0.8]),  # of the distribution that produced the last response token
        ("mean", 0.2, [0.5, 0.7 / 3, 0.35]),
        ("top", 0.2, [0.5, 0.4, 0.8]),  # a fifth of four tokens is one token
        ("top", 0.5, [0.5, 0.3, 0.55]),  # one, two of three, two of four
        ("top", 1.0, [0.5, 0.7 / 3, 0.35]),
    ],
)
def test_the_entropy_of_a_response_by_position(position: str, top_share: float, expected: list[float]) -> None:
    found = response_entropy(ENTROPIES, RESPONSES, position=position, top_share=top_share)
    assert found[:3].tolist() == pytest.approx(expected)
    if position != "last":
        assert found[3] == 0


@pytest.mark.parametrize("share", [0.05, *(tenths / 10 for tenths in range(1, 10)), 1.0])
def test_the_top_share_is_the_smallest_number_of_tokens_that_is_at_least_the_share_as_written(share: float) -> None:
    lengths = range(1, 8193)
    expected = [math.ceil(Fraction(str(share)) * length) for length in lengths]
    assert tokens_of_share(torch.tensor(lengths), share).tolist() == expected
    assert tokens_of_share(torch.tensor([0]), share).tolist() == [0]


def test_three_of_ten_tokens_are_the_top_at_a_share_of_0_3() -> None:
    entropies = torch.tensor([[1.0, 8.0, 1.0, 7.0, 1.0, 1.0, 6.0, 1.0, 1.0, 1.0]])
    found = response_entropy(entropies, torch.ones(1, 10), position="top", top_share=0.3)
    assert found.tolist() == [7.0]


@pytest.mark.parametrize("position", ["last", "mean", "top"])
def test_padding_on_either_side_and_the_order_of_rows_change_no_responses_entropy(position: str) -> None:
    expected = response_entropy(ENTROPIES, RESPONSES, position=position, top_share=0.5)[:3]
    noise, none = torch.full((4, 3), 7.0), torch.zeros(4, 3, dtype=torch.long)
    wider = torch.cat([noise, ENTROPIES, noise], dim=1), torch.cat([none, RESPONSES, none], dim=1)
    assert torch.equal(response_entropy(*wider, position=position, top_share=0.5)[:3], expected)
    order = [2, 0, 1]
    found = response_entropy(ENTROPIES[order], RESPONSES[order], position=position, top_share=0.5)
    assert torch.equal(found, expected[order])


def test_an_entropys_position_and_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="position='first' is unknown; valid values: last, mean, top"):
        response_entropy(ENTROPIES, RESPONSES, position="first")
    with pytest.raises(ValueError, match=r"both must be \[B, T\]"):
        response_entropy(ENTROPIES, RESPONSES[:, 1:], position="last")


def test_half_precision_inputs_give_float32_statistics_and_half_precision_gradients() -> None:
    hidden, weight, labels = make(6, 8, dtype=torch.bfloat16)
    log_probs, entropy = token_log_probs_and_entropy(hidden, weight, labels, chunk_size=4)
    assert log_probs.dtype == entropy.dtype == torch.float32
    (log_probs.sum() + entropy.sum()).backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16
    # The logits are rounded to 8 bits, as a bfloat16 head rounds them; nothing after that may be.
    log_softmax = torch.log_softmax((hidden.detach() @ weight.detach().T).double(), dim=-1)
    torch.testing.assert_close(log_probs.double(), log_softmax.gather(1, labels[:, None])[:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), -(log_softmax.exp() * log_softmax).sum(1), rtol=1e-5, atol=1e-6)


def test_half_precision_weight_gradients_are_summed_in_float32() -> None:
    # Each token pushes the weight of word 0 by p - 1 = -1/2 or by p = 1/2 times its hidden value; uniform logits.
    # 1024 tokens of hidden value 1 and label 0 sum to 512; in bfloat16 a running sum of halves stops at 128.
    hidden = torch.ones(1024, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(1024, dtype=torch.long)
    token_log_probs_and_entropy(hidden, weight, labels, chunk_size=1)[0].sum().backward()
    assert weight.grad.tolist() == [[512.0], [-512.0]]


def test_mixed_precision_and_autocast_leave_values_and_gradients_consistent() -> None:
    hidden, weight, labels = make(6, 8)
    plain = token_log_probs_and_entropy(hidden, weight, labels)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(token_log_probs_and_entropy(hidden, weight, labels)[0], plain)
    half = hidden.detach().bfloat16()
    mixed = token_log_probs_and_entropy(half, weight, labels)[0]
    assert torch.equal(mixed, token_log_probs_and_entropy(half.float(), weight, labels)[0])


def test_very_sharp_distributions_have_finite_values_and_gradients() -> None:
    # logits 0, 1000, -1000: the label has log-probability -2000 or 0, the entropy is 0.
    hidden = torch.ones(2, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [1000.0], [-1000.0]], requires_grad=True)
    log_probs, entropy = token_log_probs_and_entropy(hidden, weight, torch.tensor([2, 1]))
    assert log_probs.tolist() == [-2000.0, 0.0]
    assert entropy.tolist() == [0.0, 0.0]
    (log_probs.sum() + entropy.sum()).backward()
    # d log p / d hidden = w_label - sum_k p_k w_k = -1000 - 1000 = -2000, then 1000 - 1000 = 0
    assert hidden.grad.tolist() == [[-2000.0], [0.0]]
    assert weight.grad.tolist() == [[0.0], [-1.0], [1.0]]


def test_uniform_logits_give_the_largest_entropy_and_no_entropy_gradient() -> None:
    hidden = torch.zeros(3, 4, requires_grad=True)
    weight = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    log_probs, entropy = token_log_probs_and_entropy(hidden, weight, torch.tensor([0, 5, 31]))
    torch.testing.assert_close(entropy, torch.full((3,), math.log(32.0)))
    torch.testing.assert_close(log_probs, torch.full((3,), -math.log(32.0)))
    entropy.sum().backward()
    torch.testing.assert_close(hidden.grad, torch.zeros(3, 4))


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_still_do() -> None:
    hidden, weight, labels = make(7, 5)
    frozen = weight.detach()
    token_log_probs_and_entropy(hidden, frozen, labels)[0].sum().backward()
    expected = hidden.detach().clone().requires_grad_()
    token_log_probs_and_entropy(expected, weight, labels)[0].sum().backward()
    assert frozen.grad is None
    assert torch.equal(hidden.grad, expected.grad)


def test_no_tokens_give_no_statistics_and_zero_gradients() -> None:
    hidden, weight, labels = make(0, 5)
    log_probs, entropy = token_log_probs_and_entropy(hidden, weight, labels)
    assert log_probs.shape == entropy.shape == (0,)
    (log_probs.sum() + entropy.sum()).backward()
    assert weight.grad.abs().max().item() == 0.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        token_log_probs_and_entropy(*make(7, 5), temperature=temperature)


def test_a_chunk_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        token_log_probs_and_entropy(*make(7, 5), chunk_size=0)


@pytest.mark.parametrize(
    ("hidden", "weight", "labels"),
    [
        ((7, 5), (11, 4), (7,)),
        ((7, 5), (11, 5), (6,)),
        ((2, 3, 5), (11, 5), (6,)),
        ((5,), (11, 5), ()),
        ((7, 5), (5,), (7,)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    hidden: tuple[int, ...], weight: tuple[int, ...], labels: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="expected hidden"):
        token_log_probs_and_entropy(torch.ones(hidden), torch.ones(weight), torch.zeros(labels, dtype=torch.long))
