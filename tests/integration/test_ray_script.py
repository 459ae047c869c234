"""scripts/ray/train_oger.sh on nodes of stand-ins: Ray and `oger train` note their calls."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import stand_ins
from hang import HANG_S

ROOT = Path(__file__).parents[2]
NOTE = 'printf "%s\\n" "$(basename "$0") $*" >>"$NOTES/calls.$NODE_RANK"\n'
STAND_INS = {
    "ray": NOTE + 'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN ${MASTER_ADDR:-} ${WORLD_SIZE:-}" >>"$NOTES/ray.$NODE_RANK"\n'
    'if [[ "${RAY_FAILS:-}" == "$NODE_RANK" ]]; then exit 1; fi\nexec sleep 3600\n',
    # The nodes agree by files, in the place of Ray's control service.
    "python": 'case "$*" in\n'
    "*machine_flags.py*) "
    'if [[ -n "${READS:-}" ]]; then exec "$READS" "$@"; fi; printf "%s\\n" --vllm.num_engines 8 ;;\n'
    '*"nodes joined"*) for rank in $(seq 0 $(($4 - 1))); do\n'
    '    until [[ -e "$NOTES/ray.$rank" ]]; do\n'
    '        if ((SECONDS >= $5)); then echo "rank-$rank is missing" >&2; exit 1; fi; sleep 0.05\n'
    "    done\ndone ;;\n"
    '*"nodes ended"*) echo "$4" >"$NOTES/ended" ;;\n'
    '*"nodes follow"*) until [[ -s "$NOTES/ended" ]]; do sleep 0.05; done; exit "$(cat "$NOTES/ended")" ;;\n'
    '*watcher*) rm -r "$3"; echo "${4:-}" >"$NOTES/logs.$NODE_RANK" ;;\n'
    "esac\n",
    "oger": NOTE + 'echo "$RAY_ADDRESS" >"$NOTES/address"\n'
    'trap "sleep 0.3; exit 75" TERM\nif [[ -n "${TRAINS:-}" ]]; then while true; do sleep 0.05; done; fi\n'
    'exit "${RESULT:-0}"\n',
}


@dataclass
class Nodes:
    """The script on nodes that do not exist."""

    folder: Path
    port: int

    def start(self, rank: int, *words: str, **variables: str) -> subprocess.Popen[str]:
        node = {"NODE_RANK": str(rank), "NNODES": "2", "MASTER_ADDR": "127.0.0.1", "RAY_PORT": str(self.port)}
        node |= {"OGER_VENV": str(self.folder / "venv"), "NOTES": str(self.folder), "POLL_SECONDS": "0.05"}
        node |= {"RUN_DIR": str(self.folder / "run"), "RAY_TMPDIR": str(self.folder / "tmp"), "WORLD_SIZE": "2"}
        node |= {"HEAD_ADDRESS": "127.0.0.1" if rank else "127.0.0.2"}  # node 0 takes its own for the first
        command = ["bash", str(ROOT / "scripts" / "ray" / "train_oger.sh"), *(words or ("configs/oger_paper.yaml",))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=os.environ | node | variables, text=True, **pipes)

    def run(self, *words: str, ranks: tuple[int, ...] = (0, 1), **variables: str) -> list[tuple[int, str]]:
        """Exit codes and messages of the nodes."""
        nodes = [self.start(rank, *words, **variables) for rank in ranks]
        outputs = [node.communicate(timeout=HANG_S) for node in nodes]
        return [(node.returncode, "".join(output)) for node, output in zip(nodes, outputs, strict=True)]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def call(self, rank: int, program: str) -> str:
        [call] = [line for line in self.lines(f"calls.{rank}") if line.startswith(program + " ")]
        return call

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + HANG_S
        while not (self.folder / name).exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def left(self) -> list[str]:
        return [path.name for path in (self.folder / "tmp").iterdir()] + [
            path.name for path in self.folder.glob("*token*")
        ]


@pytest.fixture()
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    for name, body in STAND_INS.items():
        path = tmp_path / "venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}")
        path.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as head:  # in Ray's place
        yield Nodes(tmp_path, head.getsockname()[1])
        stand_ins.end_all(tmp_path)


def test_node_0_trains_when_the_others_have_joined_and_all_end_with_the_runs_code(nodes: Nodes) -> None:
    (code, shown), (other, _) = nodes.run("configs/oger_paper.yaml", "--train.seed", "3")
    assert (code, other) == (0, 0), shown
    head = nodes.call(0, "ray")
    assert head.startswith(f"ray start --head --port={nodes.port} ") and "--node-ip-address=127.0.0.2" in head
    assert "--num-gpus=8" in head and "--node-name=rank-0" in head
    joined = nodes.call(1, "ray")
    assert joined.startswith(f"ray start --address=127.0.0.1:{nodes.port} ") and "--node-name=rank-1" in joined
    run = f"--oger.run_dir {nodes.folder / 'run'} --vllm.num_engines 8 --train.seed 3"
    assert nodes.call(0, "oger") == f"oger train --recipe configs/oger_paper.yaml {run}"
    assert nodes.lines("address") == [f"127.0.0.2:{nodes.port}"]
    assert not nodes.left()


def test_ray_has_the_launchers_variables_no_more(nodes: Nodes) -> None:
    """Or a library in one of its workers would take the launcher's for its own."""
    nodes.run()
    for rank in (0, 1):
        [words] = nodes.lines(f"ray.{rank}")
        assert len(words.split()) == 2  # the token alone


def test_the_nodes_share_a_token_by_a_file_that_nobody_else_reads(nodes: Nodes) -> None:
    tokens = set()
    for _ in range(2):
        node = nodes.start(0, TRAINS="yes")
        nodes.wait_for("run.ray-token")
        assert (nodes.folder / "run.ray-token").stat().st_mode & 0o777 == 0o600
        other = nodes.start(1)
        nodes.wait_for("address")
        node.send_signal(signal.SIGTERM)
        assert [each.wait(HANG_S) for each in (node, other)] == [75, 75]
        [[mode, token]] = {tuple(nodes.lines(f"ray.{rank}")[0].split()) for rank in (0, 1)}
        assert mode == "token" and len(token) == 64
        assert token not in "".join(path.read_text() for path in nodes.folder.glob("calls.*"))
        tokens.add(token)
        for name in ("ray.0", "ray.1", "address", "ended"):
            (nodes.folder / name).unlink()
    assert len(tokens) == 2 and not nodes.left()


def test_a_token_of_the_environment_is_taken_and_written_nowhere(nodes: Nodes) -> None:
    nodes.run(RAY_AUTH_TOKEN="of-the-user")
    assert [nodes.lines(f"ray.{rank}")[0].split()[1] for rank in (0, 1)] == ["of-the-user"] * 2
    assert not list(nodes.folder.glob("*token*"))


def test_another_node_without_a_token_says_how_to_share_one(nodes: Nodes) -> None:
    [(code, shown)] = nodes.run(ranks=(1,), JOIN_SECONDS="1")
    assert (
        code == 1
        and "no token within 1 s: set RAY_AUTH_TOKEN to the same secret on every node, or TOKEN_FILE" in shown
    )
    assert not nodes.lines("ray.1")


@pytest.mark.parametrize("result", ["1", "75"])
def test_a_run_that_fails_fails_on_every_node(nodes: Nodes, result: str) -> None:
    (code, _), (other, _) = nodes.run(RESULT=result)
    assert (code, other) == (int(result), int(result)) and not nodes.left()


def test_nodes_that_do_not_join_are_named_and_the_others_leave(nodes: Nodes) -> None:
    (code, shown), (other, _) = nodes.run(NNODES="3", JOIN_SECONDS="4")
    assert code == 1 and "rank-2 is missing" in shown and "not every node joined" in shown
    assert other == 1 and nodes.lines("ended") == ["1"] and not nodes.left()
    assert not nodes.lines("address")


def test_a_head_that_never_answers_ends_the_other_nodes(nodes: Nodes) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = str(bound.getsockname()[1])
        [(code, shown)] = nodes.run(ranks=(1,), RAY_PORT=port, JOIN_SECONDS="1")
    assert code == 1 and f"nobody answers at node 0, 127.0.0.1:{port}, within 1 s" in shown


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ray_that_ends_ends_its_node(nodes: Nodes, rank: int) -> None:
    ends = nodes.run(RAY_FAILS=str(rank), TRAINS="yes" if rank == 0 else "", RAY_AUTH_TOKEN="t")
    assert ends[rank][0] == 1 and "messages are above" in ends[rank][1]
    if rank == 0:
        assert not nodes.lines("address")


def test_the_first_signal_of_node_0_is_the_runs_and_the_others_wait(nodes: Nodes) -> None:
    head, other = nodes.start(0, TRAINS="yes", RAY_AUTH_TOKEN="t"), nodes.start(1, RAY_AUTH_TOKEN="t")
    nodes.wait_for("address")
    for node in (other, head):  # as a launcher does that ends a job
        node.send_signal(signal.SIGTERM)
    assert [node.wait(HANG_S) for node in (head, other)] == [75, 75]
    assert "node 1: leaves when the run has ended" in other.communicate()[1]
    assert not nodes.left()


def test_a_second_signal_ends_another_node_at_once(nodes: Nodes) -> None:
    nodes.start(0, TRAINS="yes", RAY_AUTH_TOKEN="t")
    other = nodes.start(1, RAY_AUTH_TOKEN="t")
    nodes.wait_for("address")
    other.send_signal(signal.SIGTERM)
    assert other.stderr and "a second signal" in other.stderr.readline()
    other.send_signal(signal.SIGTERM)
    assert other.wait(HANG_S) == 143 and not nodes.lines("ended")


def test_one_node_starts_no_cluster(nodes: Nodes) -> None:
    [(code, _)] = nodes.run(ranks=(0,), NNODES="1")
    assert code == 0 and not nodes.lines("ray.0")
    run = f"--oger.run_dir {nodes.folder / 'run'}"
    assert nodes.call(0, "oger") == f"oger train --recipe configs/oger_paper.yaml {run}"


@pytest.mark.parametrize(
    ("said", "gpus", "engine", "engines"),
    [({"GPUS_PER_NODE": "4"}, "4", "2", "2"), ({"TENSOR_PARALLEL": "4"}, "8", "4", "2")],
)
def test_one_node_has_the_gpus_that_are_said(
    nodes: Nodes, said: dict[str, str], gpus: str, engine: str, engines: str
) -> None:
    """The recipe's engines have 2; a node is taken to have 8."""
    [(code, shown)] = nodes.run(ranks=(0,), NNODES="1", READS=sys.executable, **said)
    assert code == 0 and not nodes.lines("ray.0"), shown
    words = nodes.call(0, "oger").split()
    wanted = {"oger.run_dir": str(nodes.folder / "run"), "actor.num_nodes": "1", "actor.num_gpus_per_node": gpus}
    wanted |= {"vllm.tensor_parallel_size": engine, "vllm.num_engines": engines}
    assert {name: words[words.index(f"--{name}") + 1] for name in wanted} == wanted


def test_one_node_with_gpus_that_do_not_fit_starts_nothing(nodes: Nodes) -> None:
    [(code, shown)] = nodes.run(ranks=(0,), NNODES="1", GPUS_PER_NODE="1", READS=sys.executable)
    assert code == 1 and "engines of 2 GPUs do not fit the job's 1" in shown and not nodes.lines("calls.0")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"NODE_RANK": "2"}, "NODE_RANK is 2; the 2 nodes are 0 to 1"),
        ({"NNODES": "two"}, "NNODES is two, not a number of nodes"),
        ({"MASTER_ADDR": "", "HEAD_ADDRESS": ""}, "MASTER_ADDR, the address of node 0, is not set"),
        ({"TENSOR_PARALLEL": "3", "READS": sys.executable}, "engines of 3 GPUs do not fit the job's 16"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    nodes: Nodes, variables: dict[str, str], reason: str
) -> None:
    [(code, shown)] = nodes.run(ranks=(0,), **variables)
    assert code == 1 and reason in shown and not nodes.lines("ray.0")


def test_the_script_wants_a_recipe(nodes: Nodes) -> None:
    [(code, shown)] = nodes.run("--train.seed", "3", ranks=(0,))
    assert code == 2 and shown.startswith("usage: NODE_RANK=0")


def test_a_recipes_flags_spread_it_over_the_nodes(nodes: Nodes) -> None:
    """machine_flags.py itself reads the recipe."""
    nodes.run(NNODES="2", GPUS_PER_NODE="4", READS=sys.executable)
    words = nodes.call(0, "oger").split()
    wanted = {"vllm.tensor_parallel_size": "2", "vllm.num_engines": "4"}
    wanted |= {f"{role}.num_nodes": "2" for role in ("actor", "ref", "critic")}
    wanted |= {f"{role}.num_gpus_per_node": "4" for role in ("actor", "ref", "critic")}
    assert {name: words[words.index(f"--{name}") + 1] for name in wanted} == wanted
