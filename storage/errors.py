"""What can go wrong in storage, as types."""

from __future__ import annotations


class StorageError(Exception):
    """Any failure of this package; its message is one line that says what to do."""


class NotAllowed(StorageError):  # noqa: N818 - reads as what happened
    """The request is refused before anything changes: a bad path, a closed or forked handle."""


class StoreFull(StorageError):  # noqa: N818 - reads as what happened
    """The store cannot take more, though the budget says that it should (map or disk full).

    Attributes:
        need_bytes: how much has to leave before it could.
    """

    def __init__(self, message: str, need_bytes: int = 0) -> None:
        super().__init__(message)
        self.need_bytes = need_bytes


class NoVictim(StorageError):  # noqa: N818 - reads as what happened
    """Nothing may be evicted: everything is pinned, or the policy offers no victim."""


class CorruptCache(StorageError):  # noqa: N818 - reads as what happened
    """Stored data or a saved index does not read back as written."""


class OriginError(StorageError):
    """A sample cannot be read from its origin."""


class StallError(OriginError):
    """What was to be read ahead has not come in the time allowed."""


class NoBuffer(StorageError):  # noqa: N818 - reads as what happened
    """No buffer is to be had: none came back in time, or the pool is closed."""


class TraceError(StorageError):
    """A trace cannot be read or written; the message names the file and what is wrong."""
