"""Every private name of Flower that fedio touches, behind a check of Flower's version.

Flower has no public way to run its apps without Ray or a SuperLink. Its messages can only be made
when the process has a task identity, and a message gets its id from the grid that sends it.
"""

from __future__ import annotations

from importlib import metadata

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedio.errors import RunError

TESTED = "1.42"


def check_version() -> None:
    """Check that Flower is of the release whose internals this file knows.

    Raises:
        RunError: it is another.
    """
    found = metadata.version("flwr")
    if not found.startswith(f"{TESTED}."):
        raise RunError(
            f"flwr {found} is installed; this fedio needs {TESTED}: pip install flwr=={TESTED}.*"
        )


def assume_identity(run_id: int, node_id: int) -> None:
    """Let this process make messages as `node_id` of the run."""
    check_version()
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = 0


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message the id that its reply will refer to."""
    message.metadata.__dict__["_message_id"] = message_id
