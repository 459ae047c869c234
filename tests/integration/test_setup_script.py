"""scripts/setup.sh on machines with GPUs and without, whose pip is a stand-in that installs nothing."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A pip that installs nothing, and notes what it was asked for: words, the list behind -r, what a compiler would read.
ENVIRONMENT = """#!/usr/bin/env bash
case "$*" in
*"pip install"*)
    words=()
    for word in "$@"; do
        if [[ "$word" == /dev/fd/* ]]; then cat "$word" >"$NOTES/listed"; else words+=("$word"); fi
    done
    echo "${words[*]}" >>"$NOTES/calls"
    [[ "$*" != *"-e ." ]] || exit "${STOPPED:-0}"
    [[ "$*" != *flash-attn* ]] || echo "$CUDA_HOME $MAX_JOBS $FLASH_ATTENTION_FORCE_BUILD" >"$NOTES/compiled" ;;
*"pip index"*) echo "2.13.0+cpu" ;;
*flash_attn_2_cuda*) exit "${BROKEN:-0}" ;;
esac
"""


@dataclass
class Machine:
    """One with GPUs or without, and an environment whose pip is a stand-in."""

    folder: Path

    def __post_init__(self) -> None:
        self.add("bin/nvidia-smi", '#!/usr/bin/env bash\n[[ -z "$GPUS" ]] && exit 9\necho "$GPUS"\n')
        self.toolkit("13.0")

    def add(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def toolkit(self, release: str) -> None:
        text = f"Cuda compilation tools, release {release}, V{release}.88"
        self.add("cuda/bin/nvcc", f"#!/usr/bin/env bash\necho '{text}'\n")
        self.add("cuda/include/cuda_runtime.h", "")

    def setup(self, *words: str, gpus: str = "", **variables: str) -> tuple[int, str]:
        """Exit code and messages of scripts/setup.sh."""
        here = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "OGER_VENV": str(self.folder / "venv")}
        here |= {"GPUS": gpus, "NOTES": str(self.folder), "CUDA_HOME": str(self.folder / "cuda"), "MAX_JOBS": "3"}
        command = ["bash", str(ROOT / "scripts" / "setup.sh"), *words]
        done = subprocess.run(command, env=os.environ | here | variables, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def calls(self) -> list[str]:
        """What pip was asked to install since the last time, without what is said of all."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.removeprefix("-m pip install --no-deps --use-pep517 ") for line in lines]


H100 = "NVIDIA H100 80GB HBM3, 580.95.05"


@pytest.fixture()
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture()
def prepared(machine: Machine) -> Machine:
    machine.add("venv/bin/python", ENVIRONMENT)
    machine.add("venv/pyvenv.cfg", "")
    (machine.folder / "venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    return machine


@pytest.mark.parametrize(
    ("gpus", "words", "says"),
    [
        (H100, [], "is to be for GPUs, because nvidia-smi lists NVIDIA H100 80GB HBM3\n"),
        (f"{H100}\n{H100}", [], "is to be for GPUs, because nvidia-smi lists NVIDIA H100 80GB HBM3\n"),
        (H100, ["--cpu"], "is to be for CPUs, because --cpu was given\n"),
        ("", [], "is to be for CPUs, because no nvidia-smi lists a GPU\n"),
        ("No devices were found", [], "is to be for CPUs, because no nvidia-smi lists a GPU\n"),
        ("", ["--gpu"], "is to be for GPUs, because --gpu was given\n"),
    ],
)
def test_setup_says_which_build_it_takes_and_why(machine: Machine, gpus: str, words: list[str], says: str) -> None:
    code, output = machine.setup("--dry-run", *words, gpus=gpus)
    assert code == 0 and says in output
    lock = "requirements-gpu.lock" if "for GPUs, because" in says else "requirements.lock"
    assert f"packages from {lock}\n" in output
    assert ("OGER_VENV=.venv-gpu bash scripts/setup.sh --gpu" in output) == (words == ["--cpu"])
    assert not (machine.folder / "venv").exists()


def test_a_dry_run_of_setup_names_all_that_a_gpu_machine_lacks(machine: Machine) -> None:
    code, output = machine.setup("--dry-run", gpus=H100)
    assert code == 0 and "stop" not in output
    assert "driver 580.95.05; CUDA 13.0 needs 580 or newer\n" in output and "2. flash-attn==2.8.3\n" in output
    assert f"toolkit 13.0 in {machine.folder / 'cuda'};" in output and "MAX_JOBS=3 jobs" in output
    for release in ("12.8", "13.4"):  # DeepSpeed compiles with no other than torch's
        machine.toolkit(release)
        code, output = machine.setup("--dry-run", gpus="NVIDIA A100, 570.9")
        assert code == 1 and "it would stop here: The driver 570.9 is too old" in output
        assert f"CUDA toolkit {release} in" in output and "it would stop here: No whole CUDA toolkit 13.0 in" in output
    code, output = machine.setup("--dry-run", gpus=H100, CUDA_HOME="/nowhere")
    assert code == 1 and "CUDA toolkit not found in /nowhere" in output
    machine.toolkit("13.0")
    (machine.folder / "cuda" / "include" / "cuda_runtime.h").unlink()
    code, output = machine.setup(gpus=H100)
    assert code == 1 and "error: No whole CUDA toolkit 13.0" in output and not (machine.folder / "venv").exists()


def test_setup_finds_the_toolkit_by_its_compiler(machine: Machine) -> None:
    (machine.folder / "bin" / "nvcc").symlink_to(machine.folder / "cuda" / "bin" / "nvcc")
    code, output = machine.setup("--dry-run", gpus=H100, CUDA_HOME="")
    assert code == 0 and f"toolkit 13.0 in {machine.folder / 'cuda'};" in output


def test_setup_compiles_flash_attn_against_what_the_gpu_lock_has_brought(prepared: Machine) -> None:
    code, output = prepared.setup(gpus=H100)
    assert code == 0, output
    assert prepared.calls() == [
        "-r", "--no-build-isolation --no-cache-dir flash-attn==2.8.3", "--no-build-isolation -e .",
    ]  # fmt: skip
    pins = [line for line in (ROOT / "requirements-gpu.lock").read_text().splitlines() if line[0].isalpha()]
    listed = [line for line in (prepared.folder / "listed").read_text().splitlines() if line[0].isalpha()]
    assert listed == [line for line in pins if line != "flash-attn==2.8.3"] and len(listed) == len(pins) - 1
    assert (prepared.folder / "compiled").read_text() == f"{prepared.folder / 'cuda'} 3 TRUE\n"


def test_setup_takes_a_wheel_of_flash_attn_or_the_one_that_is_there(prepared: Machine) -> None:
    code, output = prepared.setup(gpus=H100, FLASH_ATTN_WHEEL="/wheels/flash_attn.whl", BROKEN="1")
    assert code == 1 and "compiled" not in output.partition("error")[0]
    assert "flash-attn cannot be imported: was it compiled for another torch?" in output
    assert prepared.calls()[1:] == ["--no-build-isolation --no-cache-dir /wheels/flash_attn.whl"]
    prepared.add("venv/lib/python3.11/site-packages/flash_attn-2.8.3+cu130.dist-info/RECORD", "")
    code, output = prepared.setup(gpus=H100)
    assert code == 0 and "2. flash-attn is there\n" in output
    assert prepared.calls() == ["-r", "--no-build-isolation -e ."]


@pytest.mark.parametrize(("build", "other"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_an_environment_stays_what_it_is(prepared: Machine, build: str, other: str) -> None:
    """On a machine of the other kind, too, and when its installation was interrupted."""
    there = {"gpu": H100, "cpu": ""}
    assert prepared.setup(gpus=there[build], STOPPED="1")[0] == 1 and prepared.calls()
    code, output = prepared.setup(gpus=there[other])
    assert code == 0 and prepared.calls() and f"is to be for {build.upper()}s, because that is what it was" in output
    code, output = prepared.setup(gpus=there[other])
    assert code == 0 and not prepared.calls()
    assert ("nvidia-smi lists NVIDIA H100" in output) == (build == "cpu")
    code, output = prepared.setup(f"--{other}", gpus=there[other])
    assert code == 1 and not prepared.calls()
    assert f"venv is for {build.upper()}s." in output and f"OGER_VENV=.venv-{other} bash scripts/setup.sh" in output


def test_setup_refuses_a_word_that_it_does_not_know(machine: Machine) -> None:
    code, output = machine.setup("--gpus", gpus=H100)
    assert code == 1 and "unknown option --gpus; there are --gpu, --cpu and --dry-run" in output
