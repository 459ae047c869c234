"""The shapes of run that have to give the same training; going on with a run is in tests/walks/test_killed_runs.py."""

import pytest
from runs import lines, train

VARIANTS = {
    "two ranks over gloo, with a reference": [
        "--actor.num_gpus_per_node", "2", "--train.micro_batch_size", "32",
        "--algo.kl.init_coef", "0.001", "--algo.kl.use_loss", "--algo.kl.estimator", "k3",
    ],
    "ZeRO 3, packed, dynamic batches": [
        "--ds.zero_stage", "3", "--ds.packing_samples", "--train.dynamic_batch_enable",
        "--train.max_tokens_per_gpu", "4096",
    ],
}  # fmt: skip


@pytest.mark.parametrize("flags", VARIANTS.values(), ids=VARIANTS)
def test_variant_trains_like_the_plain_run(smoke_run, cache, tmp_path, flags):
    """Two steps from the smoke run's final model, which vLLM and the policy load again."""
    run_dir = tmp_path / "variant"
    shape = ["--actor.model_name_or_path", str(smoke_run / "model"), "--oger.total_training_steps", "2"]
    quick = ["--no-oger.val_before_train", "--no-oger.val_after_train", "--ckpt.save_steps", "-1"]
    done = train(run_dir, cache, *shape, *quick, *flags)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    first, second = lines(run_dir / "metrics.jsonl")
    before = lines(smoke_run / "metrics.jsonl")[-1]  # other problems, and a step of training ago
    assert first["rollout/entropy"] == pytest.approx(before["rollout/entropy"], rel=0.2)
    for record in (first, second):
        assert record["vllm_logprob_difference"] < 0.02
        assert record["oger/replaced"] == 16
        assert record["off_policy_token_share"] > 0
    assert first["on_policy_ratio"] == pytest.approx(1, abs=0.02)
    assert second["off_policy_prob"] > 0.9 * first["off_policy_prob"]


def test_an_engine_that_cannot_start_ends_the_run_with_its_reason(cache, tmp_path):
    done = train(tmp_path / "run", cache, "--data.max_len", "4096")  # the policy's positions end at 1024
    assert done.returncode == 1
    assert "training stopped" in done.stderr and "max_model_len (4096) is greater than" in done.stderr
