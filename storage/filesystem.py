"""Whether a folder may hold a cache file."""

from __future__ import annotations

from pathlib import Path

from storage.errors import NotAllowed

NETWORK_FILE_SYSTEMS = frozenset({
    "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "glusterfs", "gpfs", "lustre",
    "nfs", "nfs4", "ncpfs", "smb3", "smbfs",
})  # fmt: skip
CACHE_FILES = ("data.mdb", "lock.mdb", "index", "writer")
_MOUNTS = Path("/proc/self/mountinfo")


def prepare_folder(path: Path) -> None:
    """Make the folder of a cache.

    Raises:
        NotAllowed: it is a file, cannot be made or written, or lies on a network file system,
            where neither the locks nor the memory map of LMDB can be relied on.
    """
    if path.exists() and not path.is_dir():
        raise NotAllowed(f"{path} is a file: name a folder for the cache")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotAllowed(f"cannot make the cache folder {path}: {error.strerror}") from error
    for name in CACHE_FILES:
        file = path / name
        if (file.exists() or file.is_symlink()) and not file.is_file():
            raise NotAllowed(f"{file} is no plain file: name another folder")
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise NotAllowed(f"{path} is on {kind}: put the cache on a local disk")


def file_system(path: Path, mounts: str | None = None) -> str:
    """The type of file system that holds a path; "" where the system does not say.

    `mounts` has the form of /proc/self/mountinfo (proc_pid_mountinfo(5)), which is read when it is
    not given.
    """
    if mounts is None:
        if not _MOUNTS.exists():
            return ""
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    path = path.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split(" ")[4].replace("\\040", " "))
        # Of two mounts on one point the later one hides the earlier.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split(" ")[0]
    return kind
