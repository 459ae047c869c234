"""Rows of a batch: their order, the teacher's tokens, and the first token's value."""

import torch

from oger_recipe.algorithm.batches import cut_for_ranks, longest_first, of_first_token, off_policy_mask

ACTION_MASK = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]])


def test_rows_are_ordered_by_falling_length_and_equal_ones_keep_their_order() -> None:
    assert longest_first([3, 9, 4, 4, 12]) == [4, 1, 2, 3, 0]
    assert longest_first([]) == []


def test_every_rank_gets_as_many_micro_batches_of_the_same_sizes() -> None:
    lengths = [7, 1, 6, 2, 5, 3, 4, 8, 10, 9]  # by falling length: 8 9 7 0 2 4 6 5 3 1
    assert cut_for_ranks(lengths, 2, 1) == [[8, 9], [7, 0], [2, 4], [6, 5], [3, 1]]
    assert cut_for_ranks(lengths, 3, 2) == [[8, 9, 7], [6, 5], [0, 2, 4], [3, 1]]
    assert cut_for_ranks(lengths, 4, 2) == cut_for_ranks(lengths, 3, 2)
    assert cut_for_ranks(lengths, 9, 5) == [[8, 9], [7, 0], [2, 4], [6, 5], [3, 1]]


def test_a_teachers_tokens_are_the_first_of_the_response() -> None:
    assert off_policy_mask(ACTION_MASK, torch.tensor([2.0, 0.0])).int().tolist() == [[0, 0, 1, 1, 0, 0], [0] * 6]
    whole = off_policy_mask(ACTION_MASK, torch.tensor([3.0, 9.0]))
    assert whole.tolist() == ACTION_MASK.bool().tolist()
    assert off_policy_mask(ACTION_MASK[0].bool(), torch.tensor(1.0)).int().tolist() == [0, 0, 1, 0, 0, 0]  # one row


def test_the_first_tokens_value_is_taken_where_the_response_begins() -> None:
    values = torch.arange(12.0).view(2, 6)
    assert of_first_token(values, ACTION_MASK).tolist() == [2.0, 7.0]
