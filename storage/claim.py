"""The claim on a cache folder: of all processes, at most one may write there."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from storage.errors import NotAllowed

CLAIM_FILE = "writer"

# struct flock of 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_REFUSED = (errno.EACCES, errno.EAGAIN)
_CLOSED = -1


class Claim:
    """This process's right to change what lies in a folder; one object a process and folder.

    It is a record lock on a file of its own: it ends with the process, however that ends, and a
    forked child does not inherit it. Closing any descriptor of the file ends it too, so nothing
    else may open that file. A descriptor is open only as long as something is held.

    Attributes:
        held: whether this process may write.
    """

    __slots__ = ("_descriptor", "_folder", "held")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = _CLOSED
        self.held = False

    def take(self) -> None:
        """Claim the folder, unless it is claimed already.

        Raises:
            NotAllowed: another process has the claim, or keeps writers away.
            OSError: the file cannot be made or written.
        """
        if not self.held:
            self._lock(os.O_RDWR | os.O_CREAT, fcntl.F_WRLCK)
            self.held = True

    def keep_writers_away(self) -> None:
        """Let no process take the claim, and do not take it either.

        For readers in a folder that they cannot write: the LMDB of a writer does not see them.
        Where nobody ever claimed the folder there is nothing to lock, and no writer.

        Raises:
            NotAllowed: another process has the claim.
            OSError: the file cannot be read.
        """
        if self._descriptor == _CLOSED and self.known():
            self._lock(os.O_RDONLY, fcntl.F_RDLCK)

    def give_up(self) -> None:
        """Hold nothing any more."""
        self.held = False
        if self._descriptor != _CLOSED:
            os.close(self._descriptor)
            self._descriptor = _CLOSED

    def known(self) -> bool:
        """Whether the folder was ever claimed, so that it holds a cache."""
        return (self._folder / CLAIM_FILE).exists()

    def held_elsewhere(self) -> bool:
        """Whether another process may write."""
        if self._descriptor != _CLOSED or not self.known():
            return False
        descriptor = os.open(self._folder / CLAIM_FILE, os.O_RDONLY)
        try:
            return _conflict(descriptor, fcntl.F_RDLCK)[0] == fcntl.F_WRLCK
        finally:
            os.close(descriptor)

    def _lock(self, flags: int, kind: int) -> None:
        descriptor = os.open(self._folder / CLAIM_FILE, flags, 0o666)
        exclusive = kind == fcntl.F_WRLCK
        try:
            operation = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            fcntl.lockf(descriptor, operation | fcntl.LOCK_NB)
        except OSError as error:
            found, process = _conflict(descriptor, kind)
            os.close(descriptor)
            if error.errno not in _REFUSED:
                raise
            raise NotAllowed(self._refusal(found, process)) from error
        self._descriptor = descriptor

    def _refusal(self, found: int, process: int) -> str:
        who = f"process {process}" if process > 0 else "another process"
        if found == fcntl.F_RDLCK:
            return f"the cache in {self._folder} is being read by {who}, which cannot lock it: wait"
        return (
            f"the cache in {self._folder} is being written by {who}: "
            "only one may; open it here with read_only=True or wait"
        )


def _conflict(descriptor: int, kind: int) -> tuple[int, int]:
    """What is in the way of a lock of this kind, F_UNLCK for nothing, and whose it is.

    The process is 0 or less where the system cannot name it, as from inside a container.
    """
    asked = _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
    found, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return found, process
