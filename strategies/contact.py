"""Contact: how the server reaches its clients, which may go silent, leave and come back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedio.config import Experiment
from fedio.errors import RunError
from fedio.protocol import ProfileClaims
from strategies.roster import ask_profiles, gather, profile_in
from strategies.transport import POLL_S, Post

logger = logging.getLogger(__name__)


class Contact:
    """The clients of a run, through Flower's grid: a client is asked by its partition-id.

    One that owes an answer is not asked again before it has given it. By the wall clock, nodes may
    also leave, and come back under another id, when they are asked who they are.

    Attributes:
        post: through which all is sent.
    """

    def __init__(self, grid: Grid, experiment: Experiment) -> None:
        """Wait for all clients.

        Raises:
            RunError: some are missing, or do not answer as they should.
        """
        self.post = Post(grid)
        self._digest = experiment.digest
        self._timeout_s = experiment.rounds.roster_timeout_s
        clients = experiment.data.clients
        roster = gather(self.post, clients, self._timeout_s, self._digest)
        self._leaves = experiment.engine.clock == "wall"
        self._roster = roster
        self._clients = clients
        self._met = set(roster.nodes.values())
        self._client_of = {node: client for client, node in roster.nodes.items()}
        self._asked: dict[str, int] = {}

    @property
    def profiles(self) -> Sequence[ProfileClaims]:
        """What the clients said of themselves before the first round."""
        return list(self._roster.profiles.values())

    def owes(self, client: int) -> bool:
        """Tell whether a client has still to answer what it was asked last."""
        return self._roster.nodes[client] in self.post.silent

    def nodes(self, clients: Iterable[int]) -> list[int]:
        """Return the node of each client."""
        return [self._roster.nodes[int(client)] for client in clients]

    def exchange(self, messages: Sequence[Message], timeout_s: float | None) -> list[Message]:
        """Send messages and return the replies that come in time."""
        replies = []
        self._asked = {}
        answers = self.post.exchange(messages, timeout_s)
        for message, reply in zip(messages, answers, strict=True):
            if reply is not None:
                client = self._client_of[message.metadata.dst_node_id]
                self._asked[reply.metadata.reply_to_message_id] = client
                replies.append(reply)
        return replies

    def client_of(self, reply: Message) -> int:
        """Return which client was asked for a reply of the last exchange."""
        return self._asked[reply.metadata.reply_to_message_id]

    def by_client(self, replies: Iterable[Message]) -> dict[int, Message]:
        """Return replies of the last exchange by the partition that was asked."""
        return {self.client_of(reply): reply for reply in replies}

    def took_s(self, client: int) -> float:
        """Return the wall-clock seconds that the last answer of a client took to come."""
        return self.post.took_s.get(self._roster.nodes[client], float("nan"))

    def reachable(self) -> tuple[np.ndarray, list[ProfileClaims]]:
        """Return who can be asked now, bool [clients], and what those say who came back.

        If nobody can, it waits for the first.

        Raises:
            RunError: nobody comes.
        """
        deadline, returned = time.monotonic() + self._timeout_s, list[ProfileClaims]()
        while True:
            present = self.post.nodes() if self._leaves else self._met
            returned += self._welcome(present - self._met)
            silent = self.post.silent
            reachable = np.zeros(self._clients, dtype=np.bool_)
            for client, node in self._roster.nodes.items():
                reachable[client] = node in present and node not in silent
            if reachable.any():
                return reachable, returned
            if time.monotonic() >= deadline:
                raise RunError(
                    f"no client has answered or come back within {self._timeout_s:g} s; see what "
                    "became of the devices"
                )
            self.post.look_for_late()
            time.sleep(POLL_S)

    def _welcome(self, nodes: set[int]) -> list[ProfileClaims]:
        """Ask nodes that are new who they are, and go by what they say from now on."""
        self._met |= nodes
        replies = ask_profiles(self.post, nodes, self._timeout_s, self._digest) if nodes else {}
        welcome = []
        for node, profile in _profiles(replies).items():
            if not 0 <= profile.partition < self._clients:
                logger.warning("node %d is partition %d, which is nobody", node, profile.partition)
                continue
            logger.warning("client %d has come back as another node", profile.partition)
            self._roster.nodes[profile.partition] = node
            self._client_of[node] = profile.partition
            welcome.append(profile)
        return welcome


def _profiles(replies: Mapping[int, Message | None]) -> dict[int, ProfileClaims]:
    """Return the profiles in replies, by node; those that have none are left out."""
    found = {}
    for node, reply in replies.items():
        try:
            found[node] = profile_in(reply, node)
        except RunError as error:
            logger.warning("a node that came is left out: %s", str(error).partition("\n")[0])
    return found
