"""One LMDB file in one process: checked, suspended, and claimed before it is written."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import lmdb

from storage.claim import Claim
from storage.errors import CorruptCache, NotAllowed
from storage.forks import held_here
from storage.lmdb_handle import (
    DATA_FILE,
    LOCK_FILE,
    alone_in,
    make_empty,
    open_checked,
    open_lmdb,
    remove,
    typed_errors,
    writable,
)
from storage.open_limit import OpenLimit, tick

# Global, because descriptors are the process's.
_limit = OpenLimit()

_never_closed: list[lmdb.Environment] = []
"""In a forked child: what a thread of the parent was using, which LMDB would wait for."""


class Environment:
    """One LMDB file, shared by every handle on it in this process; see `acquire`.

    Of many, those used longest ago are suspended: LMDB is closed, and opened again on the next use.
    Before a fork all are, since a child can neither use nor give back what its parent has opened.

    Attributes:
        path: the folder, without links.
        map_bytes: how large the file may become; see `file_bytes`.
        page_bytes: the size of its pages.
        read_only: nothing is written.
        lock: held by whoever uses anything here but `path`, and for as long as a transaction takes.
        contents: what lies in the file as far as this process knows; None when it has to look.
        owner: what this process keeps about the file beside its contents; None when nothing yet.
        references: how many handles there are.
        values_checked: `check_values` has seen the file since it was opened; set by who lets it.
        changed_outside: how often another process was found to have changed the file.
        claimed: this process is the one that writes; while suspended, it will be once more.
        last_use: the number of the last use, among those of all environments.
    """

    __slots__ = (
        "_claim", "_file", "_handle", "_lost", "_mark", "_transaction",
        "changed_outside", "claimed", "contents", "last_use", "lock", "map_bytes", "owner",
        "page_bytes", "path", "read_only", "references", "values_checked",
    )  # fmt: skip

    def __init__(self, path: Path, map_bytes: int, page_bytes: int, *, read_only: bool) -> None:
        self.path = path
        self.map_bytes = map_bytes
        self.page_bytes = page_bytes
        self.read_only = read_only
        self.lock = threading.RLock()
        self.contents: object = None
        self.owner: object = None
        self.values_checked = False
        self.references = 0
        self.changed_outside = 0
        self.claimed = False
        self.last_use = 0
        self._handle: lmdb.Environment | None = None
        self._claim = Claim(path)
        self._lost = False
        # The last transaction that this process knows of, the look of the suspended file, and the
        # inode of the open one.
        self._transaction: int | None = None
        self._mark: tuple[int, ...] = ()
        self._file: tuple[int, ...] = ()

    @property
    def handle(self) -> lmdb.Environment:
        """LMDB's environment, not to be kept beyond a use of `lock`.

        Raises:
            CorruptCache: it was suspended, and the file has been damaged since.
            NotAllowed: it was suspended, and another process has been writing since.
        """
        self.last_use = tick()
        handle = self._handle
        if handle is None:
            return self._resume()
        return handle

    @property
    def file_bytes(self) -> int:
        """How large the file is; one that was made with a larger `map_bytes` is used as it is."""
        return (self.path / DATA_FILE).stat().st_size

    def reader(self) -> lmdb.Transaction:
        """Begin a read transaction, with buffers."""
        try:
            return self.handle.begin(buffers=True)
        except lmdb.ReadersFullError:
            # Some of them may have died.
            self.handle.reader_check()
        except lmdb.MapResizedError:
            # Another process has let the file become larger.
            self._lay_down()
        return self.handle.begin(buffers=True)

    def claim(self) -> None:
        """Become the one process that writes; what another one has written is noticed first.

        Raises:
            NotAllowed: another process is writing, or this is read-only.
        """
        if self._claim.held:
            return
        self._take_claim()
        try:
            self._look_around()
        except BaseException:
            self.release_claim()
            raise

    def release_claim(self) -> None:
        """Let other processes write."""
        if self._claim.held and self._handle is not None:
            self._transaction = _last_transaction(self._handle)
        self.claimed = False
        self._claim.give_up()

    def refresh(self) -> None:
        """Forget `contents` if another process has changed the file."""
        if not self._claim.held:
            self._look_around()

    def recreate(self, map_bytes: int | None = None, page_bytes: int | None = None) -> None:
        """Throw the data away and open an empty file, which this process has claimed.

        Args:
            map_bytes: how large it may become, if not as before.
            page_bytes: the size of its pages, if not as before.

        Raises:
            NotAllowed: another process is writing, or this is read-only.
        """
        self._take_claim()
        self._close()
        self.contents = None
        self._transaction = None
        self.map_bytes = map_bytes or self.map_bytes
        self.page_bytes = page_bytes or self.page_bytes
        with typed_errors(self.path), alone_in(self.path):
            remove(self.path)
        self._resume()

    def resize(self, map_bytes: int) -> None:
        """Let the file become so large, or no larger; it stays larger where it is already."""
        self._lay_down()
        self.map_bytes = map_bytes
        self._resume()

    def compact(self) -> None:
        """Put a copy without unused pages in the place of the file, whole or not at all.

        Raises:
            NotAllowed: another process is writing, or this is read-only.
            StoreFull: the disk has no room for both; the file stays as it is.
        """
        self.claim()
        handle = self.handle
        data = self.path / DATA_FILE
        fresh = data.with_name(f"{DATA_FILE}.new")
        with typed_errors(self.path), alone_in(self.path):
            try:
                with fresh.open("wb") as file:
                    handle.copyfd(file.fileno(), compact=True)
                    os.fsync(file.fileno())
                self._close()
                # The lock file belongs to the old data, which another process may be reading.
                (self.path / LOCK_FILE).unlink(missing_ok=True)
                fresh.replace(data)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
        self._transaction = None
        self._resume()

    def open_or_recreate(self) -> str:
        """Open the file for `acquire`, or throw it away when it is damaged.

        Returns:
            What was wrong with it; "": nothing.

        Raises:
            CorruptCache: it is damaged, and this is read-only.
            NotAllowed: it cannot be opened, or no cache has made it.
        """
        try:
            self._resume()
        except CorruptCache as error:
            if self.read_only:
                raise
            gone = not (self.path / DATA_FILE).exists()
            if not gone and not self._claim.known():
                raise NotAllowed(f"{error}, and no cache made it: name another folder") from error
            return self._recreate_if_damaged() or (str(error) if gone else "")
        return ""

    def suspend(self) -> None:
        """Close LMDB until the next use, and give the claim up until then."""
        self._lay_down()
        self._claim.give_up()

    def before_fork(self) -> None:
        """Close LMDB until the next use; the claim stays with the parent."""
        self._lay_down()

    def after_fork(self, *, untouched: bool) -> None:
        """Know and hold nothing, in a forked child; see `Forkable`."""
        self.contents = self.owner = self._transaction = None
        self._mark = ()
        self.claimed = False
        self._claim.give_up()
        _limit.forget()
        if not untouched and not held_here(self.lock):
            # The same lock, since others may have kept it.
            self.lock._at_fork_reinit()  # type: ignore[attr-defined] # noqa: SLF001
        if self._handle is not None:
            _never_closed.append(self._handle)
            self._handle = None
            self._lost = True

    def close(self) -> None:
        """Hold nothing any more; `release` calls this."""
        self._close()
        self.claimed = False
        self._claim.give_up()
        self.owner = None

    def _resume(self) -> lmdb.Environment:
        """Open LMDB, if it is not open."""
        with self.lock:
            if self._handle is None:
                self.last_use = tick()
                _limit.enter(self)
                try:
                    self._handle = _limit.with_room(self._open)
                except BaseException:
                    _limit.leave(self)
                    if not self.claimed:
                        self._claim.give_up()
                    raise
            return self._handle

    def _open(self) -> lmdb.Environment:
        if self._lost:
            raise NotAllowed(
                f"the cache in {self.path} was in use while this process was forked: "
                "fork when it is not, or spawn"
            )
        known = self._transaction
        form = (self.path, self.map_bytes, self.page_bytes)
        with typed_errors(self.path, read_only=self.read_only), alone_in(self.path):
            if self.claimed:
                self._claim.take()
            elif self.read_only and not writable(self.path):
                self._claim.keep_writers_away()
            if not self.read_only:
                # What `compact` leaves when it is killed.
                (self.path / f"{DATA_FILE}.new").unlink(missing_ok=True)
            look = _look(self.path / DATA_FILE)
            unchanged = look == self._mark
            if known is not None and not unchanged:
                self._changed()
            if look == ():
                self._make(lost=known is not None)
            if known is not None and unchanged:
                handle = open_lmdb(*form, read_only=self.read_only)
            else:
                written = self._claim.held_elsewhere()
                handle = open_checked(*form, read_only=self.read_only, written=written)
                self.values_checked = False
            self._file = _look(self.path / DATA_FILE)[:1]
        self._compare(handle)
        return handle

    def _make(self, *, lost: bool) -> None:
        if lost:
            raise CorruptCache(f"{self.path / DATA_FILE} is gone")
        if self.read_only:
            raise NotAllowed(f"there is no cache in {self.path}")
        self._claim.take()
        make_empty(self.path, self.map_bytes, self.page_bytes)
        if not self.claimed:
            self._claim.give_up()

    def _recreate_if_damaged(self) -> str:
        """Look again with the claim: what is being written may look damaged, or be whole now."""
        claimed = self.claimed
        self._take_claim()
        try:
            self._resume()
        except CorruptCache as error:
            self.recreate()
            return str(error)
        finally:
            if not claimed:
                self.release_claim()
        return ""

    def _take_claim(self) -> None:
        if self.read_only:
            raise NotAllowed(f"the cache in {self.path} is open read-only: nothing can be written")

        def take() -> None:
            with typed_errors(self.path):
                self._claim.take()

        _limit.with_room(take)
        self.claimed = True

    def _lay_down(self) -> None:
        if self._handle is not None:
            if self._claim.held:
                self._transaction = _last_transaction(self._handle)
            self._close()
            self._mark = _look(self.path / DATA_FILE)

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
            _limit.leave(self)

    def _look_around(self) -> None:
        """Notice what another process has done to the open file."""
        handle = self.handle
        look = _look(self.path / DATA_FILE)
        if look[:1] != self._file:
            # There is a new file in its place.
            self._close()
            self._changed()
            handle = self._resume()
        elif look[1] > handle.info()["map_size"]:
            # It is larger than it may be here.
            self._lay_down()
            handle = self._resume()
        self._compare(handle)

    def _compare(self, handle: lmdb.Environment) -> None:
        last = _last_transaction(handle)
        if self._transaction not in {None, last}:
            self._changed()
        self._transaction = last

    def _changed(self) -> None:
        self.contents = self._transaction = None
        self.changed_outside += 1


def _last_transaction(handle: lmdb.Environment) -> int:
    number: int = handle.info()["last_txnid"]
    return number


def _look(data: Path) -> tuple[int, ...]:
    """What changes with a file; (): there is none, or an empty one."""
    try:
        found = data.stat()
    except FileNotFoundError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else ()
