"""The place of a SQLite file: its directory, its file system and its names."""

import os
import re
from functools import lru_cache
from pathlib import Path

from store.db.url import sqlite_url
from store.errors import Incompatible, Invalid, NotFound, ReadOnly

MOUNTS = Path("/proc/self/mounts")
"""The file in which Linux lists the mounts. A system without this file is assumed to have only local disks."""

# Types of network file systems, which are refused. SQLite's locks and the shared memory of the WAL do not work between
# hosts, or between a virtual machine and its host.
_NETWORK = frozenset(
    {"9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs"}
)
# FUSE programs that mount remote storage, which is refused too.
_NETWORK_FUSE = frozenset(
    {"ceph", "davfs", "davfs2", "gcsfuse", "glusterfs", "goofys", "grpcfuse", "juicefs", "mfs", "osxfs", "rclone"}
    | {"s3fs", "sshfs", "vmhgfs-fuse"}
)
UNFINISHED = ".partial"


def check_place(path: Path) -> None:
    """Check that a path can be the file of a store, apart from its file system.

    Raises:
        Incompatible: the file is an unfinished copy.
        Invalid: the path is a directory.
        NotFound: the directory does not exist.
    """
    if path.name.endswith(UNFINISHED):
        raise Incompatible(
            f"{path} is an unfinished copy of a store",
            "finish it: repeat the command that began it (rollbook copy, backup or restore)",
        )
    if path.is_dir():
        raise Invalid("url", f"{path} is a directory; choose a file in it: {sqlite_url(path / 'rollbook.db')}")
    if not path.parent.is_dir():
        text = f"the directory {path.parent} does not exist; make it first: mkdir -p '{path.parent}'"
        raise NotFound("directory", str(path.parent), text)


def check_file_system(path: Path) -> str:
    """Return the type of the file system that contains a path; an empty string if the system does not list the types.

    Raises:
        Incompatible: it is a network file system.
    """
    if not MOUNTS.exists():
        return ""
    point, kind = mount_of(path.resolve(), MOUNTS.read_text(errors="surrogateescape"))
    # The root of a sandbox may be on 9p. No other host uses such a file system, so it is allowed.
    is_network = kind in _NETWORK and not (kind == "9p" and point == "/")
    if is_network or kind.partition("fuse.")[2] in _NETWORK_FUSE:
        raise Incompatible(
            f"{path} is on {point}, a network file system ({kind}), on which SQLite loses data",
            "choose a file on a local disk, or use postgresql://",
        )
    return kind


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """Return the mount point and the type of the file system that contains a path.

    `mounts` is the text of `/proc/self/mounts`, and `path` must be absolute.
    """
    mount = ("/", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        # Spaces and some other characters of a mount point are written as octal numbers.
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point)
        # A later mount hides an earlier mount at the same point.
        if path.is_relative_to(point) and len(point) >= len(mount[0]):
            mount = (point, kind)
    return mount


def second_name(path: Path) -> tuple[str, str] | None:
    """Return a reason and advice if other processes may know a file by another name; None if the file has one name.

    SQLite keeps the write-ahead log beside the name by which it opened the file. With two names there are two logs, and
    commits in one of them are lost.
    """
    actual = path.resolve()
    if not actual.exists():
        return None
    if (names := actual.stat().st_nlink) > 1:
        return (
            f"the file {actual} has {names} names (hard links)",
            f"delete the other names (find / -xdev -samefile '{actual}'), or use a copy of the file",
        )
    if _is_mount_point(str(actual), MOUNTS):
        return (
            f"the file {actual} is mounted by itself (a bind mount), so it has another name elsewhere",
            "mount the directory that contains it instead of the file",
        )
    return None


def refuse_second_name(path: Path) -> None:
    """Raise `Incompatible` if other processes may know a file by another name."""
    if (second := second_name(path)) is not None:
        reason, cure = second
        text = f"{reason}, and SQLite keeps a separate write-ahead log for each name, so commits would be lost"
        raise Incompatible(text, cure)


def has_second_name(actual: str) -> bool:
    return os.stat(actual).st_nlink > 1 or _is_mount_point(actual, MOUNTS)  # noqa: PTH116 (each read calls this)


@lru_cache(maxsize=64)
def _is_mount_point(actual: str, mounts: Path) -> bool:
    return mounts.exists() and mount_of(Path(actual), mounts.read_text(errors="surrogateescape"))[0] == actual


def refuse_unwritable(path: Path) -> None:
    """Raise `ReadOnly` if this user cannot write the file or its directory."""
    if path.exists() and not os.access(path, os.W_OK):
        raise read_only_error(
            f"the file {path} is read-only for this user; make it writable, or open it with read_only=True"
        )
    if not os.access(path.parent, os.W_OK):
        raise read_only_error(
            f"the directory {path.parent} is read-only for this user, and SQLite keeps its log beside the file;"
            " make it writable, or open the store with read_only=True"
        )


def read_only_error(text: str) -> ReadOnly:
    error = ReadOnly("opening the file")
    # The default message of `ReadOnly` names the option `read_only` as the cause. Here the cause is the file.
    error.args = (text,)
    return error
