"""The nodes of a Ray cluster: which of them a run has lost, and what scripts/ray/train_oger.sh asks of them.

``python -m oger_recipe.pipeline.driver.nodes``, with the cluster's address in RAY_ADDRESS:
    joined NODES SECONDS    wait until rank-0, rank-1 and so on, NODES in all, have joined; exit 1 after SECONDS
    ended CODE              on the head: tell the other nodes how the run ended, and wait until they have left
    follow                  on another node: wait for that, and exit with the code

A client of Ray's control service does all of it: it costs half a second, where a driver costs several, and its calls
have time limits.
"""

import os
import socket
import sys
import time
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from oger_recipe.run_folder.worker_logs import ROLES

_CALL_S, _CONNECT_S, _POLL_S = 5.0, 3.0, 1.0
_LEAVE_S = 30.0  # what the other nodes may take to leave
_SILENT_S = 60.0  # of a head that does not answer: then it is gone
_ENDED = b"oger_run_ended"


def lost(job: str) -> str | None:
    """Say which nodes the job's actors ran on that are dead or do not answer; None where all of them do.

    Ray itself marks a node as dead after 15 seconds, and what fails before says nothing of it.
    """
    try:
        address = ray.get_runtime_context().gcs_address
        gone = {key.hex(): node for key, node in _nodes(GcsClient(address=address)).items() if not _answers(node)}
        actors = [each for each in ray._private.state.actors().values() if each["JobID"] == job] if gone else []
    except ray.exceptions.RayError:  # the head is gone
        return None
    named = []
    for key, node in gone.items():
        classes = sorted({each["ActorClassName"] for each in actors if each["Address"]["NodeID"] == key})
        if classes:
            roles = " and ".join(f"the {ROLES.get(name, name)}" for name in classes)
            named.append(f"node {_name(node)} of the Ray cluster died or cannot be reached; {roles} ran there")
    return "; ".join(named) or None


def _nodes(client: GcsClient) -> dict[Any, Any]:
    return dict(client.get_all_node_info(timeout=_CALL_S))


def _is_alive(node: Any) -> bool:
    return node.state == 0


def _answers(node: Any) -> bool:
    if not _is_alive(node):
        return False
    try:
        socket.create_connection((node.node_manager_address, node.node_manager_port), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _name(node: Any) -> str:
    address, host = node.node_manager_address, node.node_manager_hostname
    return f"{host} ({address})" if node.node_name == address else f"{node.node_name} ({host}, {address})"


def joined(client: GcsClient, number: int, seconds: float) -> str | None:
    """Wait for the nodes; return what to say of those that are missing, if any."""
    deadline = time.monotonic() + seconds
    wanted = [f"rank-{rank}" for rank in range(number)]
    while missing := [name for name in wanted if name not in _alive(client)]:
        if time.monotonic() > deadline:
            return f"{', '.join(missing)} of {number} nodes did not join within {seconds:g} s"
        time.sleep(_POLL_S)
    return None


def _alive(client: GcsClient) -> list[str]:
    return [node.node_name for node in _nodes(client).values() if _is_alive(node)]


def ended(client: GcsClient, code: int) -> None:
    """Tell the other nodes how the run ended, and wait until they have left."""
    client.internal_kv_put(_ENDED, str(code).encode(), True, None, timeout=_CALL_S)
    deadline = time.monotonic() + _LEAVE_S
    while len(_alive(client)) > 1 and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def follow(client: GcsClient) -> int | None:
    """Wait for the end of the run; return its exit code, None where the head is gone without a word."""
    heard = time.monotonic()
    while time.monotonic() - heard < _SILENT_S:
        try:
            if (code := client.internal_kv_get(_ENDED, None, timeout=_CALL_S)) is not None:
                return int(code)
            heard = time.monotonic()
        except ray.exceptions.RayError:
            pass
        time.sleep(_POLL_S)
    return None


def main(verb: str, *words: str) -> None:
    client = GcsClient(address=os.environ["RAY_ADDRESS"])
    if verb == "joined":
        sys.exit(joined(client, int(words[0]), float(words[1])))
    if verb == "ended":
        ended(client, int(words[0]))
        return
    code = follow(client)
    gone = f"the head at {os.environ['RAY_ADDRESS']} is gone, and has not said how the run ended"
    sys.exit(gone if code is None else code)


if __name__ == "__main__":
    main(*sys.argv[1:])
