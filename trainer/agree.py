"""How ranks agree: small messages over plain sockets, beside the device's collectives.

Rank 0 listens; every other rank keeps one connection per *line* (a line is one independent sequence of exchanges: the
steps have one, checkpoints another, so that they never wait for each other). In an exchange every rank sends its
payload to rank 0, and rank 0 sends all of them, in rank order, to everybody. What follows from the payloads alone is
therefore identical on all ranks.

Why not a collective of the framework: this runs one step ahead in a thread of its own, so the device never waits for
it; it may wait for hours while a stream is idle; a rank that is gone or silent is *named*; and it is tested without
importing Paddle. Cost: one round trip, about 0.1 ms on one machine.

Payloads are bytes that both sides read as JSON or Arrow: nothing is unpickled. A connection begins with a keyed hash
of who it is, so that a stray client is turned away; the parent of the ranks hands out the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.schemas.errors import RankLost

_LENGTH = struct.Struct(">Q")
_RETRY_S = 0.05
_ACCEPT_S = 0.5
_MAX_HELLO_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where, and as whom, a rank meets the others."""

    rank: int
    ranks: int
    host: str
    port: int
    key: bytes


class Line:
    """One sequence of exchanges. Not for use by two threads at a time."""

    def __init__(self, meeting: Meeting, name: str, peers: Mapping[int, socket.socket], wait_s: float) -> None:
        self._meeting = meeting
        self._name = name
        self._peers = peers  # by rank: on rank 0 all others, elsewhere rank 0 alone
        self._wait_s = wait_s

    @property
    def rank(self) -> int:
        return self._meeting.rank

    @property
    def ranks(self) -> int:
        return self._meeting.ranks

    def exchange(self, payload: bytes) -> list[bytes]:
        """Give `payload`, get everybody's in rank order. Raises RankLost naming who is gone or silent."""
        gathered = self.gather(payload)
        if self._meeting.rank:
            return _unpack(self._receive(0))
        packed = _pack(gathered)
        for rank in self._peers:
            self._send(rank, packed)
        return gathered

    def exchange_json(self, payload: Mapping[str, Any]) -> list[dict[str, Any]]:
        """`exchange` of JSON objects."""
        return [json.loads(item) for item in self.exchange(json.dumps(payload).encode())]

    def gather(self, payload: bytes) -> list[bytes]:
        """Everybody's payload in rank order on rank 0; elsewhere an empty list, without waiting."""
        if self._meeting.rank:
            self._send(0, payload)
            return []
        received = {0: payload}
        deadline = time.monotonic() + self._wait_s
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while len(received) < self._meeting.ranks:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise self._silent(set(self._peers) - set(received))
                for key, _ in ready:
                    received[key.data] = self._receive(key.data)
                    selector.unregister(key.fileobj)
        return [received[rank] for rank in range(self._meeting.ranks)]

    def gather_json(self, payload: Mapping[str, Any]) -> list[dict[str, Any]]:
        """`gather` of JSON objects."""
        return [json.loads(item) for item in self.gather(json.dumps(payload).encode())]

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def _send(self, rank: int, payload: bytes) -> None:
        try:
            self._peers[rank].sendall(_LENGTH.pack(len(payload)) + payload)
        except TimeoutError as error:
            raise self._silent({rank}) from error
        except OSError as error:
            raise self._gone(rank) from error

    def _receive(self, rank: int) -> bytes:
        try:
            (length,) = _LENGTH.unpack(_exactly(self._peers[rank], _LENGTH.size))
            return _exactly(self._peers[rank], length)
        except TimeoutError as error:
            raise self._silent({rank}) from error
        except OSError as error:
            raise self._gone(rank) from error

    def _silent(self, ranks: set[int]) -> RankLost:
        names = ", ".join(map(str, sorted(ranks)))
        return RankLost(f"rank {names} did not answer within {self._wait_s:g} s ({self._name}): see its log")

    def _gone(self, rank: int) -> RankLost:
        return RankLost(f"rank {rank} is gone ({self._name}): see its log")


def meet(
    meeting: Meeting,
    names: Sequence[str],
    *,
    connect_s: float,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Line]:
    """Connect all ranks and return one line per name. `wait_s` bounds every later wait for another rank.

    Raises RankLost naming the ranks that did not come within `connect_s`.
    """
    deadline = clock() + connect_s
    if meeting.rank:
        root = {name: _connect(meeting, name, deadline, clock) for name in names}
        peers = {(name, 0): connection for name, connection in root.items()}
    else:
        peers = _accept(meeting, names, deadline, clock)
    for connection in peers.values():
        connection.settimeout(wait_s)
    others = [0] if meeting.rank else range(1, meeting.ranks)
    return {name: Line(meeting, name, {rank: peers[name, rank] for rank in others}, wait_s) for name in names}


def _accept(
    meeting: Meeting, names: Sequence[str], deadline: float, clock: Callable[[], float]
) -> dict[tuple[str, int], socket.socket]:
    expected = {(name, rank) for name in names for rank in range(1, meeting.ranks)}
    found: dict[tuple[str, int], socket.socket] = {}
    if not expected:
        return found
    with socket.create_server((meeting.host, meeting.port), backlog=len(expected)) as server:
        server.settimeout(_ACCEPT_S)
        while set(found) != expected:
            if clock() > deadline:
                missing = ", ".join(map(str, sorted({rank for _, rank in expected - set(found)})))
                raise RankLost(f"rank {missing} did not start in time: see its log")
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            who = _greet(connection, meeting.key)
            if who in expected:
                found[who] = connection
            else:
                connection.close()
    return found


def _greet(connection: socket.socket, key: bytes) -> tuple[str, int] | None:
    """Read who is calling; None for a caller that does not have the key."""
    connection.settimeout(_ACCEPT_S)
    try:
        (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
        if length > _MAX_HELLO_BYTES:
            return None
        hello = json.loads(_exactly(connection, length))
        line, rank, proof = str(hello["line"]), int(hello["rank"]), str(hello["proof"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return (line, rank) if hmac.compare_digest(proof, _proof(key, line, rank)) else None


def _connect(meeting: Meeting, name: str, deadline: float, clock: Callable[[], float]) -> socket.socket:
    proof = _proof(meeting.key, name, meeting.rank)
    hello = json.dumps({"line": name, "rank": meeting.rank, "proof": proof}).encode()
    while True:
        try:
            connection = socket.create_connection((meeting.host, meeting.port), timeout=_ACCEPT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_LENGTH.pack(len(hello)) + hello)
        except OSError as error:
            if clock() > deadline:
                raise RankLost(
                    f"rank {meeting.rank} cannot reach rank 0 at {meeting.host}:{meeting.port}: {error}"
                ) from error
            time.sleep(_RETRY_S)  # rank 0 has not begun to listen; there is nothing to wait on yet
        else:
            return connection


def _proof(key: bytes, line: str, rank: int) -> str:
    return hmac.new(key, f"{line}/{rank}".encode(), hashlib.sha256).hexdigest()


def _exactly(connection: socket.socket, length: int) -> bytes:
    """Read `length` bytes; a connection that ends before is a ConnectionError."""
    buffer = bytearray(length)
    view = memoryview(buffer)
    while len(view):
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the connection was closed")
        view = view[count:]
    return bytes(buffer)


def _pack(payloads: Sequence[bytes]) -> bytes:
    """The lengths as one JSON line, then the payloads."""
    return json.dumps([len(payload) for payload in payloads]).encode() + b"\n" + b"".join(payloads)


def _unpack(packed: bytes) -> list[bytes]:
    head, _, body = packed.partition(b"\n")
    payloads, start = [], 0
    for length in json.loads(head):
        payloads.append(body[start : start + length])
        start += length
    return payloads
