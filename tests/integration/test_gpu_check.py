"""`oger doctor --gpu` where there is no GPU: its checks at a CPU's size, what they find wrong, and their report."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import odd_checks
import pytest
import torch

from oger_recipe.checks import gpu_models, gpu_numbers
from oger_recipe.checks.gpu_checks import CHECKS, ONE_GPU, TWO_STEPS, Check, run_flags
from oger_recipe.checks.gpu_here import Failed, Here, Skipped
from oger_recipe.checks.gpu_report import FAILED, OK, SKIPPED, run_checks, shareable, write_report
from oger_recipe.checks.machine import machine_problems
from oger_recipe.checks.memory import estimate, shape_of
from oger_recipe.checks.settings import recipe_problems
from oger_recipe.cli import doctor
from oger_recipe.cli.train_ppo_ray import settings_of
from oger_recipe.lab import tiny_policy
from oger_recipe.pipeline.driver.trial import EngineTrial, Samples
from oger_recipe.settings.derived import in_prompts
from oger_recipe.settings.shipped import find_recipe


@pytest.fixture()
def here(tmp_path: Path, parser) -> Here:
    return Here("cpu", tmp_path, vars(parser.parse_args([])), "nobody/nothing")


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--gpu"])
    assert isinstance(ended.value.code, str)  # printed, with exit status 1
    assert "sees no GPU" in ended.value.code and "--device cpu" in ended.value.code and "\n" not in ended.value.code
    assert capsys.readouterr().out == "" and list(tmp_path.iterdir()) == []


def test_a_log_beside_the_report_is_written_on_and_never_removed(tmp_path: Path) -> None:
    """It may be another program's: the user has named the report alone."""
    (tmp_path / "train.log").write_text("of another program\n")
    doctor.main(["--gpu", "--device", "cpu", "--only", "peak memory", "--out", str(tmp_path / "train.json")])
    assert (tmp_path / "train.json").is_file()
    assert (tmp_path / "train.log").read_text() == "of another program\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "cpu", "--only", "packing", "lost"], "no check lost; known: packages and driver"),
        (["--device", "cpu", "--out", "gpu.log"], "--out gpu.log: the log beside the report has this name"),
        (["--device", "cpu", "--actor.adam.lr", "1"], "takes no settings of a run: leave out --actor.adam.lr 1"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_starts(flags: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        doctor.main(["--gpu", *flags])


@pytest.mark.parametrize("name", ["token statistics fp32", "token statistics bf16", "loss", "packing"])
def test_the_cpu_is_as_near_to_itself_as_rounding_lets_it(here: Here, name: str) -> None:
    CHECKS[name].find(here)


def _tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Rounded to 10 bits, as tensor cores read float32 where that is allowed."""
    return (tensor.detach().view(torch.int32) + 0x1000).bitwise_and(-0x2000).view(torch.float32)


def _of_device(dtype: torch.dtype, change) -> Any:
    """token_log_probs_and_entropy, with other inputs where the device would compute."""

    def computed(hidden, weight, labels):
        if hidden.dtype == dtype:
            hidden, weight, labels = change(hidden, weight, labels)
        return token_log_probs_and_entropy(hidden, weight, labels)

    from oger_recipe.algorithm.token_stats import token_log_probs_and_entropy

    return computed


@pytest.mark.parametrize(
    ("name", "dtype", "change"),
    [
        ("token statistics fp32", torch.float32, lambda h, w, y: (h + (_tf32(h) - h).detach(), _tf32(w), y)),
        ("token statistics fp32", torch.float32, lambda h, w, y: (h, w, y.roll(1))),
        ("token statistics bf16", torch.bfloat16, lambda h, w, y: (h, w, y.roll(1))),
        ("token statistics bf16", torch.bfloat16, lambda h, w, y: (0.9 * h, w, y)),
    ],
    ids=["TF32", "labels", "labels bf16", "scale bf16"],
)  # fmt: skip
def test_a_device_that_computes_otherwise_is_found_out(here: Here, monkeypatch, name: str, dtype, change) -> None:
    monkeypatch.setattr(gpu_numbers, "token_log_probs_and_entropy", _of_device(dtype, change))
    with pytest.raises(Failed, match="differs from the CPU by more than rounding explains") as failed:
        CHECKS[name].find(here)
    assert max(failed.value.numbers.values()) > 1


def test_a_loss_that_lost_a_token_is_found_out(here: Here, monkeypatch) -> None:
    def lossy(log_probs, old, advantages, mask, *args, **settings):
        if log_probs.dtype == torch.float32:
            mask = mask.clone()
            mask[3, 5] = False
        return hybrid_policy_loss(log_probs, old, advantages, mask, *args, **settings)

    from oger_recipe.algorithm.policy_loss import hybrid_policy_loss

    monkeypatch.setattr(gpu_numbers, "hybrid_policy_loss", lossy)
    with pytest.raises(Failed, match="the loss"):
        CHECKS["loss"].find(here)


def test_packed_rows_that_see_each_other_are_found_out(here: Here, monkeypatch) -> None:
    def without_borders(*args):
        inputs, positions, *others = unpad_and_slice_tensor(*args)
        return inputs, torch.arange(positions.numel()).view_as(positions), *others

    from oger_recipe.pipeline.policy import chunked_actor
    from oger_recipe.pipeline.policy.chunked_actor import unpad_and_slice_tensor

    monkeypatch.setattr(chunked_actor, "unpad_and_slice_tensor", without_borders)
    with pytest.raises(Failed, match="log-probabilities of packed rows differ"):
        CHECKS["packing"].find(here)


@pytest.mark.parametrize("kept", [1, 2 / 3])
def test_dynamic_batches_that_lose_a_micro_batch_are_found_out(here: Here, monkeypatch, kept: float) -> None:
    def of_ranks(here, folder, cases, ranks):
        assert [case["settings"]["train.dynamic_batch_enable"] for case in cases] == [False, True]
        assert (folder / "policy" / "config.json").is_file() and ranks == 2
        whole = {"change": {"w": torch.ones(4)}, "norms": [1.0, 1.0]}
        return {"static": whole, "dynamic": {"change": {"w": kept * torch.ones(4)}, "norms": [1.0, 1.0]}}

    monkeypatch.setattr(gpu_models, "_ranks", of_ranks)
    if kept == 1:
        CHECKS["dynamic batches"].find(here)
        return
    with pytest.raises(Failed, match="do not train like static ones"):
        CHECKS["dynamic batches"].find(here)


class _InProcess(EngineTrial):
    """The engine is a copy of the policy; ``faults``: what of it does not work."""

    def __init__(self, tokenizer: Any, *faults: str) -> None:
        torch.manual_seed(0)
        self.model = tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=1).to(torch.bfloat16).eval()
        tiny_policy.renew(self.model, seed=1)
        self.device, self.tokenizer, self.faults = "cpu", tokenizer, faults
        self.engine = copy.deepcopy(self.model)
        if "other weights" in faults:
            tiny_policy.renew(self.engine, seed=5)

    def send(self) -> None:
        for (name, weight), mine in zip(self.model.named_parameters(), self.engine.parameters(), strict=True):
            if not ("send" in self.faults or ("part" in self.faults and "embed" in name)):
                mine.data.copy_(weight)

    def sleep(self) -> None:
        if "sleep" in self.faults:
            tiny_policy.renew(self.engine, seed=3)

    def wake_up(self) -> None:
        pass

    def sample(self, prompts=("a", "bcd"), *, number: int = 4, temperature: float = 1.0) -> Samples:
        samples = []
        for prompt in [*prompts] * number:
            tokens, log_probs = self.tokenizer.encode(prompt), []
            for _ in range(8):
                with torch.no_grad():
                    of_next = self.engine(torch.tensor([tokens])).logits[0, -1].float().log_softmax(dim=0)
                next_ = int(of_next.exp().multinomial(1) if temperature else of_next.argmax())
                tokens, log_probs = [*tokens, next_], [*log_probs, float(of_next[next_])]
            samples.append((tokens, log_probs))
        return samples


@pytest.mark.parametrize(
    ("name", "faults", "said"),
    [
        ("engine V1 eager", (), None),
        ("engine V1 eager", ("other weights",), "differ from the policy"),
        ("weight sync", (), None),
        ("weight sync", ("send",), "differ from the policy"),
        ("weight sync", ("part",), "differ from the policy"),
        ("sleep and wake", (), None),
        ("sleep and wake", ("sleep",), "answers changed after it slept"),
        ("sleep and wake", ("memory",), "freed no memory"),
    ],
)
def test_an_engine_that_does_not_do_as_told_is_found_out(here, letters, monkeypatch, name, faults, said) -> None:
    trial = _InProcess(letters, *faults)
    free = iter([0, 0 if "memory" in faults else 2**30])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free), 2**40))
    monkeypatch.setattr(gpu_models, "_engine", lambda *_: trial)
    if said is None:
        CHECKS[name].find(here)
        return
    with pytest.raises(Failed, match=said):
        CHECKS[name].find(here)


def test_a_peak_far_from_the_estimate_is_found_out(here: Here, policy_folder: Path) -> None:
    near = partial(gpu_models.against_estimate, here.settings, policy_folder)
    estimated = sum(estimate(here.settings, shape_of(str(policy_folder))).policy.values())
    near(int(estimated))
    for wrong in (0.4, 1.3):
        with pytest.raises(Failed, match="half of the estimate"):
            near(int(wrong * estimated))


@pytest.mark.parametrize("more", [(), TWO_STEPS], ids=["Countdown", "SmolLM2"])
def test_the_runs_fit_one_gpu(gpu_parser, more: tuple[str, ...]) -> None:
    recipe, flags = run_flags("cuda", *more)[1], run_flags("cuda", *more)[2:]
    assert set(ONE_GPU) <= set(flags)
    value = in_prompts(settings_of(gpu_parser, flags, find_recipe(Path(recipe))))
    assert recipe_problems(value) == []
    assert machine_problems(value, cpu=False, gpus_here=1) == []


def test_without_hub_and_folder_smollm2_is_skipped_and_says_why(here: Here, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(Skipped, match="give a folder by --smollm2"):
        CHECKS["SmolLM2 run"].find(here)


def test_what_dies_hangs_or_raises_stops_no_other_check(here: Here, tmp_path: Path, capsys) -> None:
    log, out = tmp_path / "log", tmp_path / "report.json"
    checks = {
        "first": Check(odd_checks.fine), "second": Check(odd_checks.fine), "skips": Check(odd_checks.skips),
        "raises": Check(odd_checks.raises), "of cuda": Check(odd_checks.dies, cuda_only="no CUDA"),
        "dies": Check(odd_checks.dies), "hangs": Check(odd_checks.hangs, limit_s=0.1),
    }  # fmt: skip
    found = run_checks(checks, here, log)
    write_report(found, here, out)
    expected = [OK, OK, SKIPPED, FAILED, SKIPPED, FAILED, FAILED]
    assert [each.verdict for each in found.values()] == expected
    assert found["first"].numbers == found["second"].numbers  # one process
    assert found["hangs"].text == "did not end within 0.1 s"
    assert found["dies"].text == "its process died (exit code 3)"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == expected and "for the log" in log.read_text()
    report = json.loads(out.read_text())
    assert {name: each["verdict"] for name, each in report["checks"].items()} == dict(
        zip(checks, expected, strict=True)
    )
    assert report["checks"]["raises"]["text"] == "ValueError: nothing in .../a.txt"
    assert str(tmp_path) not in out.read_text() and report["versions"]["torch"] == torch.__version__


def test_a_report_has_no_keys_folders_hosts_and_users(monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdefghij")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "node7.lab.org")
    said = (
        "OSError: '/home/ada/runs/a b.txt' and ~/x/y.json, node7:29500 of node7.lab.org (10.1.2.3), ada, "
        "hf_0123456789abcdefghij: 3/4 of https://github.com/a/b, flash-attn 2.8.3, adam"
    )
    expected = (
        "OSError: '.../a b.txt' and .../y.json, ...:29500 of ... (...), ..., "
        "$HF_TOKEN: 3/4 of https://github.com/a/b, flash-attn 2.8.3, adam"
    )
    assert shareable(said) == expected
