"""Which rollouts make room for teachers: every mode on groups small enough to rank by eye."""

import math

import pytest
import torch

from oger_recipe.algorithm.hybrid_group import (
    DRAWS,
    REPLACE_MODES,
    draw_teachers,
    own_or_all,
    select_replaced,
    solve_rates,
)

SIMILARITY = torch.tensor([0.3, 0.9, 0.1, 0.9, 0.5])
REWARD = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0])
DESCENDING = [1, 3, 4, 0, 2]
ASCENDING = [2, 0, 4, 1, 3]
REDUCES = ["mean", "max", "min"]
RANKING = [
    f"{when}similarity_{reduce}_{way}" for when in ("", "wrong_first_") for reduce in REDUCES for way in ("des", "asc")
]


@pytest.mark.parametrize("reduce", REDUCES)
def test_modes_rank_by_similarity_and_ties_keep_the_lower_index_first(reduce: str) -> None:
    descending = select_replaced(SIMILARITY, REWARD, max_replace_num=5, mode=f"similarity_{reduce}_des")
    ascending = select_replaced(SIMILARITY, REWARD, max_replace_num=5, mode=f"similarity_{reduce}_asc")
    assert descending.tolist() == DESCENDING
    assert ascending.tolist() == ASCENDING


@pytest.mark.parametrize("reduce", REDUCES)
def test_wrong_rollouts_go_first_and_keep_the_inner_order(reduce: str) -> None:
    # wrong: 0 (0.3) and 4 (0.5); right: 1 and 3 (0.9 each), 2 (0.1)
    mode = f"wrong_first_similarity_{reduce}"
    descending = select_replaced(SIMILARITY, REWARD, max_replace_num=5, mode=f"{mode}_des")
    ascending = select_replaced(SIMILARITY, REWARD, max_replace_num=5, mode=f"{mode}_asc")
    assert descending.tolist() == [4, 0, 1, 3, 2]
    assert ascending.tolist() == [0, 4, 2, 1, 3]


def test_the_papers_mode_is_the_default_and_is_blind_to_correctness() -> None:
    assert select_replaced(SIMILARITY, REWARD, max_replace_num=1).tolist() == [1]
    assert select_replaced(SIMILARITY, 1 - REWARD, max_replace_num=1).tolist() == [1]


def test_a_negative_reward_counts_as_wrong() -> None:
    reward = torch.tensor([1.0, -0.5, 0.2, 1.0, 1.0])
    chosen = select_replaced(SIMILARITY, reward, max_replace_num=2, mode="wrong_first_similarity_mean_asc")
    # wrong: only 1; then the least similar of the others: 2 (0.1)
    assert chosen.tolist() == [1, 2]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_among_all_wrong_or_all_correct_rollouts_the_inner_order_decides(value: float) -> None:
    reward = torch.full((5,), value)
    chosen = select_replaced(SIMILARITY, reward, max_replace_num=5, mode="wrong_first_similarity_mean_des")
    assert chosen.tolist() == DESCENDING


@pytest.mark.parametrize("mode", RANKING)
def test_a_group_of_equal_texts_is_taken_in_order(mode: str) -> None:
    chosen = select_replaced(torch.full((40,), 0.7), torch.ones(40), max_replace_num=40, mode=mode)
    assert chosen.tolist() == list(range(40))


@pytest.mark.parametrize("mode", REPLACE_MODES)
@pytest.mark.parametrize(("max_replace_num", "k"), [(0, 0), (2, 2), (5, 5), (9, 5)])
def test_as_many_distinct_rollouts_are_chosen_as_asked_and_present(mode: str, max_replace_num: int, k: int) -> None:
    chosen = select_replaced(SIMILARITY, REWARD, max_replace_num=max_replace_num, mode=mode)
    assert chosen.dtype == torch.long
    assert chosen.shape == (k,)
    assert len(set(chosen.tolist())) == k
    assert set(chosen.tolist()) <= set(range(5))


@pytest.mark.parametrize("mode", REPLACE_MODES)
def test_without_teachers_nothing_is_replaced(mode: str) -> None:
    nothing = torch.full((4,), math.nan)
    partly = torch.tensor([0.1, math.nan, 0.3, 0.4])
    for similarity in (nothing, partly):
        chosen = select_replaced(similarity, torch.ones(4), max_replace_num=2, mode=mode)
        assert chosen.dtype == torch.long
        assert chosen.tolist() == []


@pytest.mark.parametrize("mode", ["similarity_mean_des", "similarity_mean_asc", "wrong_first_similarity_mean_des"])
def test_permuting_a_group_without_ties_permutes_the_choice(mode: str) -> None:
    torch.manual_seed(0)
    similarity, reward = torch.randperm(8) / 8, torch.rand(8).round()
    order = torch.randperm(8)
    chosen = select_replaced(similarity, reward, max_replace_num=3, mode=mode)
    permuted = select_replaced(similarity[order], reward[order], max_replace_num=3, mode=mode)
    assert order[permuted].tolist() == chosen.tolist()


@pytest.mark.parametrize("mode", ["random", "wrong_first_random"])
def test_random_draws_are_repeated_by_the_same_seed_and_ignore_similarity(mode: str) -> None:
    def draw(similarity: torch.Tensor, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return select_replaced(similarity, REWARD, max_replace_num=5, mode=mode, generator=generator).tolist()

    assert draw(SIMILARITY, 7) == draw(-SIMILARITY, 7)
    assert len({tuple(draw(SIMILARITY, seed)) for seed in range(20)}) > 1


def test_random_choice_is_fair_and_wrong_first_random_is_fair_among_the_wrong() -> None:
    generator = torch.Generator().manual_seed(3)
    counts = {mode: torch.zeros(5) for mode in ("random", "wrong_first_random")}
    for mode, count in counts.items():
        for _ in range(1000):
            count[select_replaced(SIMILARITY, REWARD, max_replace_num=1, mode=mode, generator=generator)] += 1
    # 1000 draws, p = 1/5: sd = sqrt(1000 * 0.2 * 0.8) = 12.6; p = 1/2: sd = 15.8. Five of either is generous.
    assert (counts["random"] - 200).abs().max() < 65
    assert (counts["wrong_first_random"][[0, 4]] - 500).abs().max() < 80
    assert counts["wrong_first_random"][[1, 2, 3]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("mode", RANKING)
def test_the_generator_is_touched_by_random_modes_only(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    select_replaced(SIMILARITY, REWARD, max_replace_num=2, mode=mode, generator=generator)
    assert torch.equal(generator.get_state(), before)


def test_every_plain_mode_has_a_wrong_first_form() -> None:
    plain = {f"similarity_{reduce}_{way}" for reduce in REDUCES for way in ("des", "asc")} | {"random"}
    assert plain | {f"wrong_first_{mode}" for mode in plain} <= REPLACE_MODES.keys()
    for mode in plain:
        assert REPLACE_MODES[mode].similarity == REPLACE_MODES[f"wrong_first_{mode}"].similarity
    assert [REPLACE_MODES[f"similarity_{reduce}_asc"].similarity for reduce in REDUCES] == REDUCES


@pytest.mark.parametrize("mode", ["similarity_des", "wrong_first_", "wrong_first_wrong_first_random", ""])
def test_unknown_modes_are_refused_by_naming_the_known_ones(mode: str) -> None:
    with pytest.raises(ValueError, match="similarity_mean_des.*wrong_first_random"):
        select_replaced(SIMILARITY, REWARD, max_replace_num=1, mode=mode)


def test_wrong_shapes_and_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[5\] and \[4\]"):
        select_replaced(SIMILARITY, REWARD[:4], max_replace_num=1)
    with pytest.raises(ValueError, match=r"\[1, 5\] and \[1, 5\]"):
        select_replaced(SIMILARITY[None], REWARD[None], max_replace_num=1)
    with pytest.raises(ValueError, match="not -1"):
        select_replaced(SIMILARITY, REWARD, max_replace_num=-1)


SOURCES = ["r1", "gpt", "r1", "base", "gpt"]
LENGTHS = [30, 10, 20, 10, 50]


def draw(mode: str, count: int, seed: int = 0, **options) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return draw_teachers(SOURCES, LENGTHS, count=count, mode=mode, generator=generator, **options)


def test_the_shortest_teachers_come_first_and_ties_keep_their_order() -> None:
    assert draw("shortest", 5) == [1, 3, 2, 0, 4]
    assert draw("shortest", 2) == [1, 3]


def test_teachers_of_the_lowest_entropy_come_first_and_those_without_one_last() -> None:
    entropies = [0.3, None, 0.1, 0.3, 0.0]
    assert draw("lowest_entropy", 5, entropies=entropies) == [4, 2, 0, 3, 1]
    assert draw("lowest_entropy", 2, entropies=entropies) == [4, 2]
    assert draw("lowest_entropy", 2) == [0, 1]


def test_teachers_whose_answers_are_likeliest_come_first_and_those_not_asked_about_last() -> None:
    likelihoods = [0.3, None, 0.9, 0.3, 0.0]
    assert draw("likeliest_answer", 5, likelihoods=likelihoods) == [2, 0, 3, 4, 1]
    assert draw("likeliest_answer", 2, likelihoods=likelihoods) == [2, 0]
    assert draw("likeliest_answer", 2) == [0, 1]


def test_round_robin_goes_through_the_sorted_sources_from_its_turn_on() -> None:
    # base: 3; gpt: 1, 4; r1: 0, 2
    assert draw("round_robin", 5) == [3, 1, 4, 0, 2]
    assert [draw("round_robin", 1, turn=turn)[0] for turn in range(7)] == [3, 1, 4, 0, 2, 3, 1]
    assert draw("round_robin", 3, turn=4) == [2, 3, 1]
    assert draw("round_robin", 9, turn=1) == [1, 4, 0, 2, 3]


def test_uniform_draws_ignore_sources_and_weights_and_are_fair_in_every_place() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(2, 5)
    for _ in range(1000):
        first, second = draw_teachers(
            SOURCES, LENGTHS, count=2, mode="uniform", generator=generator, weights={"r1": 0.0}
        )
        counts[0, first] += 1
        counts[1, second] += 1
    # 1000 draws, p = 1/5: sd = 12.6
    assert (counts - 200).abs().max() < 65


def test_weighted_draws_are_proportional_and_without_replacement() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(2, 5)
    for _ in range(1000):
        first, second = draw_teachers(
            SOURCES, LENGTHS, count=2, mode="source_weights", generator=generator, weights={"r1": 0.0, "base": 8.0}
        )
        counts[0, first] += 1
        counts[1, second] += 1
    # weights 0, 1, 0, 8, 1 (gpt has no entry): 1/10, 8/10, 1/10, sd 12.6 at most; second: base 2/10 * 8/9
    assert counts[:, [0, 2]].sum() == 0
    assert (counts[0, [1, 3, 4]] - torch.tensor([100.0, 800.0, 100.0])).abs().max() < 65
    assert counts[1, 3].item() == pytest.approx(1000 * 0.2 * 8 / 9, abs=60)


def test_a_weight_of_zero_excludes_even_when_too_few_are_left() -> None:
    assert sorted(draw("source_weights", 5, weights={"r1": 0.0})) == [1, 3, 4]
    assert draw("source_weights", 5, weights={"r1": 0.0, "gpt": 0, "base": 0}) == []
    assert sorted(draw("source_weights", 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["shortest", "round_robin", "lowest_entropy", "likeliest_answer"])
def test_draws_without_chance_leave_the_generator_alone(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    draw_teachers(SOURCES, LENGTHS, count=2, mode=mode, generator=generator)
    assert torch.equal(generator.get_state(), before)


def test_wrong_draws_are_refused() -> None:
    with pytest.raises(ValueError, match=f"longest.*{', '.join(DRAWS)}"):
        draw("longest", 1)
    with pytest.raises(ValueError, match="-1"):
        draw("uniform", -1)
    with pytest.raises(ValueError, match="5 sources, 4 lengths, 5 entropies and 5 likelihoods"):
        draw_teachers(SOURCES, LENGTHS[:4], count=1, mode="uniform", generator=torch.Generator())
    with pytest.raises(ValueError, match="5 sources, 5 lengths, 1 entropies and 5 likelihoods"):
        draw("lowest_entropy", 1, entropies=[0.5])
    with pytest.raises(ValueError, match="5 sources, 5 lengths, 5 entropies and 6 likelihoods"):
        draw("likeliest_answer", 1, likelihoods=[0.5] * 6)
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite and 0 or more"):
            draw("source_weights", 1, weights={"gpt": weight})


def test_a_group_is_judged_by_the_policys_own_rollouts_and_by_all_where_it_has_none() -> None:
    scores = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]])
    own = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]).bool()
    assert own_or_all(own).int().tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert solve_rates(scores, own).tolist() == [0.5, 1.0, 0.75, 1.0]
    assert solve_rates(-scores, own).tolist() == [0.0] * 4  # a score above 0 is right
    order = [3, 1, 0, 2]
    assert solve_rates(scores[:, order], own[:, order]).tolist() == [0.5, 1.0, 0.75, 1.0]
