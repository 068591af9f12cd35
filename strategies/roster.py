"""The roster: which of Flower's nodes is which client.

Node ids are random, new in each run and in no order; a client is its partition-id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fedio.errors import RunError
from fedio.protocol import (
    CLAIMS,
    CONFIG,
    DIGEST,
    PROFILE,
    ProfileClaims,
    ProtocolError,
    from_record,
)
from strategies.transport import POLL_S, Post, last_line


@dataclass(frozen=True, slots=True)
class Roster:
    """The node of each client, and what each client said of itself, by partition-id."""

    nodes: dict[int, int]
    profiles: dict[int, ProfileClaims]


def gather(post: Post, clients: int, timeout_s: float, digest: str = "") -> Roster:
    """Wait for the nodes of all clients and ask each for its profile.

    Args:
        post: through which they are asked.
        clients: how many clients the experiment has.
        timeout_s: wall-clock seconds to wait, both for the nodes and for their answers.
        digest: the experiment's; devices of another one say so.

    Raises:
        RunError: nodes are missing at the deadline, or do not answer as they should.
    """
    deadline = time.monotonic() + timeout_s
    while len(nodes := post.nodes()) < clients:
        if time.monotonic() >= deadline:
            raise RunError(
                f"only {len(nodes)} of {clients} nodes connected within {timeout_s:g} s; "
                "start the missing SuperNodes or lower data.clients"
            )
        time.sleep(POLL_S)
    roster = Roster({}, {})
    for node, reply in ask_profiles(post, nodes, timeout_s, digest).items():
        claims = profile_in(reply, node)
        if claims.partition in roster.nodes:
            raise RunError(f"two nodes say that they are partition {claims.partition}")
        roster.nodes[claims.partition] = node
        roster.profiles[claims.partition] = claims
    missing = sorted(set(range(clients)) - roster.nodes.keys())
    if missing:
        raise RunError(f"no node has partition-id {', '.join(map(str, missing[:5]))}")
    return roster


def ask_profiles(
    post: Post, nodes: Iterable[int], timeout_s: float, digest: str
) -> dict[int, Message | None]:
    """Return what each node says when it is asked for its profile."""
    asked = sorted(nodes)
    messages = [
        Message(RecordDict({CONFIG: ConfigRecord({DIGEST: digest})}), node, PROFILE)
        for node in asked
    ]
    return dict(zip(asked, post.exchange(messages, timeout_s), strict=True))


def profile_in(reply: Message | None, node: int) -> ProfileClaims:
    """Return the profile in a node's reply.

    Raises:
        RunError: there is none.
    """
    if reply is None:
        raise RunError(f"node {node} did not answer the profile query in time")
    if reply.has_error():
        reason = reply.error.reason or ""
        said = f"node {node} failed at the profile query: {last_line(reason)}"
        raise RunError(said if reason == last_line(reason) else f"{said}\n{reason}")
    try:
        return from_record(ProfileClaims, reply.content.get(CLAIMS))
    except ProtocolError as error:
        raise RunError(f"node {node} sent an invalid profile: {error}") from error
