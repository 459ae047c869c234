"""Which machine a run is meant for: what is asked of a Ray cluster whose head has no GPU.

The stand-in is a real Ray that was told to have two GPUs and their type, as it finds both beside real ones.
"""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from forks import Forks
from hang import HANG_S

import oger_recipe
from oger_recipe.base.cpu import ON_LOOPBACK
from oger_recipe.base.machine import machine, of_cluster
from oger_recipe.checks import resources
from oger_recipe.checks.job import OK, PROBLEM, WARNING, Finding, Job
from oger_recipe.checks.preflight import CHECKS
from oger_recipe.cli import train
from oger_recipe.pipeline.driver import start_ray
from oger_recipe.settings.parser import build_parser

PACKAGE = Path(oger_recipe.__file__).parent
HEAD = """
import sys, ray
resources = {"num_cpus": 2, "num_gpus": 2, "resources": {"accelerator_type:H100": 1}}
quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
here = {"_node_ip_address": "127.0.0.1", "_temp_dir": sys.argv[1], "object_store_memory": 80 * 2**20}
print(ray.init(**resources, **quiet, **here).address_info["gcs_address"], flush=True)
sys.stdin.read()
"""
# What a command and an actor of it take themselves for; a process that Ray has not told of the run asks torch.
JOINS = """
import ray
from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.base.machine import machine
from oger_recipe.pipeline.driver.start_ray import run_environment, start_ray
cpu = machine().cpu
start_ray(run_environment(cpu), cpu, 2, False, None)
print(is_without_cuda(), ray.get(ray.remote(num_cpus=0)(is_without_cuda).remote()))
"""

# What an actor finds of the folder that Ray copied for it.
SHIPPED = """
import os, ray
from oger_recipe.pipeline.driver.start_ray import start_ray
start_ray({}, True, 2, False, None)
def there():
    import own_module
    return sorted(os.listdir()), own_module.WHO, os.getcwd()
names, who, folder = ray.get(ray.remote(num_cpus=0)(there).remote())
print(*names, who, folder != os.environ["OGER_WORKING_DIR"])
"""


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "OGER_ON_GPUS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def cluster(forks: Forks) -> Iterator[str]:
    """The address of a cluster, for the tests of this file alone: one start takes seconds."""
    with tempfile.TemporaryDirectory(prefix="oger-") as folder:
        with forks.start("-c", HEAD, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
            assert head.stdin and head.stdout
            try:
                yield head.stdout.readline().strip()
                head.stdin.close()
                assert head.wait(HANG_S) == 0
            finally:
                head.kill()


@pytest.fixture()
def closed() -> Iterator[str]:
    """An address where nobody answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture()
def dry_run(recipe: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def said(*flags: str) -> str:
        with pytest.raises(SystemExit) as ended:
            train.main(["--recipe", str(recipe), "--dry-run", *flags])
        return capsys.readouterr().out + str(ended.value)

    return said


def _found(what: str, flags: list[str] | None = None, *, cpu: bool) -> list[Finding]:
    (check,) = [each for each in CHECKS if each.what == what]
    return list(check.find(Job(vars(build_parser(cpu=cpu).parse_args(flags or [])), Path("run"), cpu)))


def test_a_head_without_gpus_plans_for_those_of_its_cluster(
    cluster: str, dry_run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "runs use the CPU" in _found("GPUs", cpu=True)[0].text
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    assert not machine().cpu
    found, *_ = _found("GPUs", cpu=False)  # its address may be beyond loopback, and earn a warning
    there = f"those of the Ray cluster at RAY_ADDRESS={cluster}, with 2 GPUs (H100); runs use GPUs"
    assert (found.state, found.text) == (OK, there)
    said = dry_run("--actor.num_nodes", "2", "--actor.num_gpus_per_node", "1")
    assert "no CUDA" not in said
    counted = "= 3 GPUs are needed, but 2 are declared (found in the Ray cluster at RAY_ADDRESS)"
    assert counted in said
    said = dry_run("--actor.num_gpus_per_node", "1")
    assert "GPUs are needed" not in said
    assert "flash" in said  # not installed here, and a run on GPUs needs it
    assert "supervised stage: it needs 1 GPUs of this machine" in dry_run(
        "--actor.num_gpus_per_node", "1", "--oger.sft.epochs", "1"
    )


def test_a_dry_run_says_of_which_machine_it_speaks(
    cluster: str,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "flash_attn-2.8.3.dist-info").mkdir()  # which the checks of a machine with GPUs look for
    (tmp_path / "flash_attn-2.8.3.dist-info" / "METADATA").write_text("Name: flash-attn\nVersion: 2.8.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    alone = ("--actor.num_gpus_per_node", "1", "--ds.attn_implementation", "sdpa", "--algo.kl.init_coef", "0")
    train.main(["--recipe", str(recipe), "--dry-run", *alone])
    there = f"on the Ray cluster at RAY_ADDRESS={cluster}, with 2 GPUs (H100):"
    assert capsys.readouterr().out.endswith(f"\n{there}\n  the run can start\n")


def test_the_driver_and_what_it_starts_are_told_what_the_cluster_has(
    cluster: str, monkeypatch: pytest.MonkeyPatch, forks: Forks
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    done = forks.run("-c", JOINS)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_nodes_own_modules_reach_the_others_without_what_is_excluded(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: Forks
) -> None:
    for name in ("own_module.py", "large.ckpt", "data/rows.jsonl"):
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text("WHO = 'mine'")
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    monkeypatch.setenv("OGER_WORKING_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("OGER_EXCLUDES", "data/,*.ckpt")
    done = forks.run("-c", SHIPPED)
    assert done.stdout.split() == ["own_module.py", "mine", "True"], done.stderr


def test_a_cluster_that_does_not_answer_keeps_a_run_from_starting(
    closed: str, dry_run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is shown all the same, as for this machine."""
    monkeypatch.setenv("RAY_ADDRESS", closed)
    said = dry_run()
    assert "no CUDA here, so: " in said
    assert "steps: 15" in said
    assert f"GPUs: the Ray cluster at RAY_ADDRESS={closed} does not answer (Connection refused)" in said


@pytest.mark.parametrize("address", ["", "local"])
def test_without_an_address_ray_is_started_here(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray itself reads the variable."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert machine() == (True, None, None, (), None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert machine() == (False, 4, None, (), None)


@pytest.mark.parametrize("address", ["", "127.0.0.2:6379", "localhost:6379"])
def test_a_run_on_the_cpus_of_one_machine_stays_on_loopback(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"RAY_ADDRESS": address, "GLOO_SOCKET_IFNAME": "eth1"})
    workers = start_ray.run_environment(cpu=True)
    for environment in (workers, os.environ):
        assert (environment["VLLM_HOST_IP"], environment["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "auto"])
@pytest.mark.parametrize("of_user", [{}, {"VLLM_HOST_IP": "10.0.0.7", "GLOO_SOCKET_IFNAME": "eth1"}])
def test_the_hosts_of_a_cpu_cluster_are_not_sent_to_their_loopback(
    address: str, of_user: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address is one host's own: the others must not have it. An interface has the same name on all of them."""
    monkeypatch.setattr(os, "environ", {"RAY_ADDRESS": address} | of_user)
    workers = start_ray.run_environment(cpu=True)
    assert "VLLM_HOST_IP" not in workers
    assert workers.get("GLOO_SOCKET_IFNAME") == of_user.get("GLOO_SOCKET_IFNAME")
    assert workers["DS_ACCELERATOR"] == "cpu" and workers["OGER_ON_GPUS"] == "0"
    assert {name: os.environ.get(name) for name in ON_LOOPBACK} == {name: of_user.get(name) for name in ON_LOOPBACK}


@pytest.mark.parametrize(
    ("resources", "cuda", "cpu", "gpus"),
    [
        ({"GPU": 8.0, "accelerator_type:A100": 1.0}, False, False, 8),
        ({"GPU": 8.0, "accelerator_type:A100": 1.0}, True, False, 8),
        ({"GPU": 8.0}, True, False, 8),  # a GPU whose name Ray cannot read
        ({"GPU": 8.0}, False, True, 8),  # numbers: how a run on CPUs gets its places
        ({"CPU": 8.0}, False, True, 0),
        ({"CPU": 8.0}, True, True, 0),  # of this machine's GPUs Ray hands none out
    ],
)
def test_a_cluster_is_on_gpus_where_it_has_some_that_are_real(
    resources: dict[str, float], cuda: bool, cpu: bool, gpus: int
) -> None:
    there = of_cluster("head:6379", resources, cuda=cuda)
    assert (there.cpu, there.gpus) == (cpu, gpus)


@pytest.mark.parametrize(
    ("address", "mode", "warned"),
    [
        ("10.0.0.1:6379", "", True),
        ("10.0.0.1:6379", "token", False),
        ("127.0.0.1:6379", "", False),  # nobody beyond this machine reaches it
    ],
)
def test_a_cluster_that_asks_for_no_token_gets_a_warning(
    address: str, mode: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr(
        resources, "machine", lambda: of_cluster(address, {"GPU": 8.0, "accelerator_type:A100": 1}, cuda=False)
    )
    texts = [found.text for found in _found("GPUs", cpu=False) if found.state == WARNING]
    assert [f"the Ray cluster at {address} asks for no token" in text for text in texts] == [True] * warned


def test_the_supervised_stage_is_where_this_machine_has_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--actor.num_gpus_per_node", "4", "--oger.sft.epochs", "1"]

    def state(flags: list[str], gpus: int, *, cpu: bool = False) -> list[str]:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        return [found.state for found in _found("supervised stage", flags, cpu=cpu)]

    assert [state(flags, gpus) for gpus in (0, 3, 4, 8)] == [[PROBLEM], [PROBLEM], [OK], [OK]]
    assert state(flags, 0, cpu=True) == state(flags[:2], 0) == []


def _asks(tree: ast.AST) -> bool:
    """Whether it asks which device there is, to decide by it."""
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return "torch.cuda.is_available" in calls


def test_one_place_decides_for_a_run() -> None:
    """Rooms that are left out, and modules that are named, work in one process, whose own device it is."""
    rooms = [PACKAGE / room for room in ("base", "checks", "cli", "convert", "pipeline", "run", "settings")]
    deciding = [module for room in (*rooms, PACKAGE.parent / "patches") for module in room.rglob("*.py")]
    asking = {str(each.relative_to(PACKAGE.parent)) for each in deciding if _asks(ast.parse(each.read_text()))}
    of_this_process = {
        "oger_recipe/base/arithmetic.py",
        "oger_recipe/base/cpu.py",  # is_without_cuda, where no run has said it
        "oger_recipe/pipeline/engine/engine_worker.py",
        "oger_recipe/pipeline/sampler.py",
        "oger_recipe/pipeline/policy/trial.py",
    }
    of_this_machine = {"oger_recipe/cli/doctor.py", "oger_recipe/checks/memory.py"}  # its --gpu; what a GPU here has
    assert asking == {"oger_recipe/base/machine.py"} | of_this_process | of_this_machine
