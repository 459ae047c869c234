"""Checkpoint and resume, and the shapes of run that have to give the same training."""

import json
import os

import pytest
from runs import lines, samples, train

KEY = "0123456789abcdef0123456789abcdef76543210"
WANDB = """
import json, os, types
api = types.SimpleNamespace(api_key=os.environ.get("WANDB_API_KEY"))
def init(**settings):
    with open(os.environ["WANDB_RECEIVED"], "a") as file:
        json.dump([os.environ.get("WANDB_API_KEY"), os.environ.get("WANDB_DIR"), str(settings)], file)
        file.write(chr(10))
def define_metric(*names, **settings): pass
class Table:
    def __init__(self, columns, data=()): self.columns, self.data = columns, data
    def add_data(self, *values): pass
def log(figures): pass
def finish(): pass
"""


@pytest.fixture()
def wandb(tmp_path, monkeypatch):
    """A module in the place of W&B's, which need not be installed; the file where it writes what it is given."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(WANDB)
    path = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("WANDB_RECEIVED", str(tmp_path / "received.jsonl"))
    for name in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "received.jsonl"


def test_two_steps_and_two_more_are_the_four_steps(smoke_run, cache, tmp_path, wandb, monkeypatch):
    """With W&B, whose key is given as a flag first and then by the environment, as the run's own recipe wants it."""
    run_dir = tmp_path / "resumed"
    tracked = ["--logger.wandb.key", KEY, "--no-ckpt.save_hf"]
    first = train(run_dir, cache, "--oger.total_training_steps", "2", "--no-oger.val_after_train", *tracked)
    assert first.returncode == 0, first.stderr[-3000:]
    before = json.loads((run_dir / "summary.json").read_text())["before"]
    assert not list((run_dir / "checkpoints").glob("*_hf"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    resumed = ["--logger.wandb.key", "env", "--ckpt.load_enable"]
    second = train(run_dir, cache, "--oger.total_training_steps", "4", *resumed)
    assert second.returncode == 0, second.stderr[-3000:]

    for key, folder, settings in lines(wandb):
        assert key == KEY and folder == str(run_dir) and KEY not in settings
    assert len(lines(wandb)) == 2
    for file in run_dir.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
    assert KEY not in first.stdout + first.stderr + second.stdout + second.stderr
    assert "resuming after step 2" in second.stdout

    assert [record["step"] for record in lines(run_dir / "metrics.jsonl")] == [1, 2, 3, 4]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["steps"] == 4 and summary["before"] == before and "avg_at_8" in summary["after"]
    for step in range(1, 5):  # the same prompts at the same steps as in the run that was not interrupted
        assert {row["uid"] for row in samples(run_dir, step)} == {row["uid"] for row in samples(smoke_run, step)}
    # The optimizer went on from its state: a fresh one would learn the teachers' tokens less far.
    uninterrupted = lines(smoke_run / "metrics.jsonl")
    for ours, theirs in zip(lines(run_dir / "metrics.jsonl"), uninterrupted, strict=True):
        assert ours["off_policy_prob"] == pytest.approx(theirs["off_policy_prob"], rel=0.15)
        assert ours["vllm_logprob_difference"] < 0.02


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
