"""JSON documents over the sockets between a process and those that run code of others for it."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("!Q")


def send_message(connection: socket.socket, message: Any) -> None:
    """Send one JSON document. It is ASCII, so that every text survives, broken Unicode included."""
    body = json.dumps(message).encode("ascii")
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_message(connection: socket.socket, deadline: float | None = None, largest: int | None = None) -> Any:
    """Receive the next JSON document. Raises EOFError when the other side is gone, TimeoutError at the deadline (of
    time.monotonic) or by the socket's own timeout, ValueError for more than the largest number of bytes or no JSON."""
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))
    if largest is not None and length > largest:
        raise ValueError(f"{length} bytes are more than {largest}")
    return json.loads(_receive(connection, length, deadline))


def ask(connection: socket.socket, number: int, message: Sequence[Any], deadline: float, largest: int) -> Any:
    """Send a message with its number to `answer_all` and return the reply. Raises OSError and what receive_message
    raises, and ValueError, KeyError or TypeError for a reply without this number: who wrote it cannot be told."""
    connection.settimeout(seconds_until(deadline))  # of sending as a whole
    send_message(connection, [number, *message])
    reply = receive_message(connection, deadline, largest)
    if reply["number"] != number:
        raise ValueError("it is the reply to another message")
    return reply


def answer_all(connection: socket.socket, answer: Callable[..., Mapping[str, Any]]) -> None:
    """Answer one message after the other until the other side hangs up."""
    me = os.getpid()
    while True:
        try:
            number, *message = receive_message(connection)
        except (EOFError, OSError):
            return
        reply = answer(*message)
        if os.getpid() != me:  # a child that was forked in `answer` came back from it, too
            os._exit(0)
        send_message(connection, {"number": number, **reply})


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
    """Return a timeout for a socket, which has to be above 0. Raises TimeoutError when no time is left."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
