"""The roster: which of Flower's nodes is which client.

Node ids are random, new in each run and in no order; a client is its partition-id.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedio.errors import RunError
from fedio.protocol import CLAIMS, PROFILE, ProfileClaims, ProtocolError, from_record
from strategies.transport import POLL_S, exchange, last_line


@dataclass(frozen=True, slots=True)
class Roster:
    """The node of each client, and what each client said of itself, by partition-id."""

    nodes: dict[int, int]
    profiles: dict[int, ProfileClaims]


def gather(grid: Grid, clients: int, timeout_s: float) -> Roster:
    """Wait for the nodes of all clients and ask each for its profile.

    Args:
        grid: Flower's grid.
        clients: how many clients the experiment has.
        timeout_s: wall-clock seconds to wait, both for the nodes and for their answers.

    Raises:
        RunError: nodes are missing at the deadline, or do not answer as they should.
    """
    deadline = time.monotonic() + timeout_s
    while len(nodes := set(grid.get_node_ids())) < clients:
        if time.monotonic() >= deadline:
            raise RunError(
                f"only {len(nodes)} of {clients} nodes connected within {timeout_s:g} s; "
                "start the missing SuperNodes or lower data.clients"
            )
        time.sleep(POLL_S)
    messages = [Message(RecordDict(), node, PROFILE) for node in sorted(nodes)]
    replies = exchange(grid, messages, timeout_s)
    by_partition: dict[int, int] = {}
    profiles: dict[int, ProfileClaims] = {}
    for message, reply in zip(messages, replies, strict=True):
        node = message.metadata.dst_node_id
        claims = _profile(node, reply)
        if claims.partition in by_partition:
            raise RunError(f"two nodes say that they are partition {claims.partition}")
        by_partition[claims.partition] = node
        profiles[claims.partition] = claims
    missing = sorted(set(range(clients)) - by_partition.keys())
    if missing:
        raise RunError(f"no node has partition-id {', '.join(map(str, missing[:5]))}")
    return Roster(by_partition, profiles)


def _profile(node: int, reply: Message | None) -> ProfileClaims:
    if reply is None:
        raise RunError(f"node {node} did not answer the profile query in time")
    if reply.has_error():
        reason = reply.error.reason
        raise RunError(f"node {node} failed at the profile query: {last_line(reason)}\n{reason}")
    try:
        return from_record(ProfileClaims, reply.content.get(CLAIMS))
    except ProtocolError as error:
        raise RunError(f"node {node} sent an invalid profile: {error}") from error
