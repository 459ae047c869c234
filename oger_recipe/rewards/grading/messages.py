"""JSON documents over the sockets between the pool and its processes."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("!Q")


def send_message(connection: socket.socket, message: Any) -> None:
    """Sends one JSON document. It is ASCII, so that every text survives, broken Unicode included."""
    body = json.dumps(message).encode("ascii")
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_message(connection: socket.socket, deadline: float | None = None, largest: int | None = None) -> Any:
    """Receives the next JSON document. Raises EOFError when the other side is gone, TimeoutError at the deadline (of
    time.monotonic) or by the socket's own timeout, ValueError for more than the largest number of bytes or no JSON."""
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))
    if largest is not None and length > largest:
        raise ValueError(f"{length} bytes are more than {largest}")
    return json.loads(_receive(connection, length, deadline))


def _receive(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            connection.settimeout(seconds_until(deadline))
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def seconds_until(deadline: float) -> float:
    """Returns a timeout for a socket, which has to be above 0. Raises TimeoutError when no time is left."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
