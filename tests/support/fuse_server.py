"""A file system that passes everything on to a folder, as a careless network mount does. Speaks to the kernel itself.

    python fuse_server.py SOURCE POINT --hides SECONDS --loses-first N --loses-replies SHARE --seed N --log FILE \
        --orders FILE

What one mount changes, another mount of the same folder sees late: names, also the absence of one, are cached by
the kernel for `--hides` seconds, sizes, times and listings by this program as well. Changes made through the same
mount are seen at once. The first renames, or a share of all, are carried out and answered with an error, as when a
reply is lost on the way: ENOENT, as the second try of a client gets it, or EIO. Each lost reply is a line in the log.
inotify reports only what was done through the same mount.

A file ORDERS with `N forget 1` has the server forget before the rename after the next N which things it told the kernel
of, as one does that takes over from another: what is open answers ESTALE, and paths lead to the same files again. With
`N away 1` that rename is carried out, and it and the next question for a name are answered with EIO. Other orders are
for as many links, unlinks or rmdirs as the last number says, after the next N: `link-lost` and `link-again` carry it
out and answer EIO, or EEXIST, as the second try of a client gets it; `unlink-refused` and `rmdir-refused` do nothing
and answer EIO. With `--no-flags` a rename that must replace nothing is unknown, as to NFS.

One process per mount. A killed one leaves a mount that answers ENOTCONN, a stopped one a mount that hangs.
The structures are those of <linux/fuse.h>, version 7.31.
"""

import argparse
import ctypes
import errno
import os
import random
import resource
import stat
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

REQUEST = struct.Struct("<IIQQIIIHH")
ANSWER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
VALIDITY = struct.Struct("<QII")
OPENED = struct.Struct("<QIi")
NAME_IN_FOLDER = struct.Struct("<QQII")
TRANSFER = struct.Struct("<QQIIQII")
CHANGE = struct.Struct("<IIQQQQQQIIIIIIII")

VERSION = (7, 31)
ASYNC_READ, ATOMIC_O_TRUNC, BIG_WRITES, AUTO_INVAL_DATA = 1 << 0, 1 << 3, 1 << 5, 1 << 12
WRITE_BYTES_MAX = 128 * 1024
BUFFER_BYTES = WRITE_BYTES_MAX + 64 * 1024
ROOT = 1
#: Bits of `CHANGE`: what is to be changed.
MODE, UID, GID, SIZE, ATIME, MTIME, HANDLE, ATIME_NOW, MTIME_NOW = (1 << bit for bit in range(9))
#: The system's own flags of mount(2).
MS_NOSUID, MS_NODEV = 2, 4


class Caller(NamedTuple):
    """Who asks."""

    uid: int
    gid: int


@dataclass(slots=True)
class Node:
    """A file or folder that the kernel knows: held open, so that it is the same one whatever its name becomes."""

    fd: int
    key: tuple[int, int]
    lookups: int = 0
    seen: os.stat_result | None = None
    seen_until: float = 0.0
    listed: "list[tuple[str, int, int]] | None" = None
    listed_until: float = 0.0

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self.fd}"


#: The orders for each kind of request.
ORDERS = {
    "rename": ("forget", "away"),
    "link": ("link-lost", "link-again"),
    "unlink": ("unlink-refused",),
    "rmdir": ("rmdir-refused",),
}


@dataclass(slots=True)
class Faults:
    """How this mount misbehaves."""

    hides_s: float
    loses_first: int
    loses: float
    chance: random.Random
    log: Path
    orders: Path
    no_flags: bool = False
    lost: int = 0
    is_away: bool = False

    def order(self, kind: str) -> str:
        """What is ordered for this request; empty for nothing."""
        try:
            after, word, times = self.orders.read_text().split()
        except FileNotFoundError:
            return ""
        if word not in ORDERS[kind]:
            return ""
        if int(after):
            self.orders.write_text(f"{int(after) - 1} {word} {times}")
            return ""
        if int(times) > 1:
            self.orders.write_text(f"0 {word} {int(times) - 1}")
        else:
            self.orders.unlink()
        return word

    def lost_reply(self) -> int:
        """The error that stands for a lost reply; 0 where it arrives."""
        if self.lost >= self.loses_first and self.chance.random() >= self.loses:
            return 0
        self.lost += 1
        number = self.chance.choice((errno.ENOENT, errno.EIO))
        with self.log.open("a") as log:
            log.write(f"{errno.errorcode[number]}\n")
        return number


@dataclass
class FileSystem:
    """Answers the requests of the kernel, one after the other."""

    source: Path
    faults: Faults
    nodes: dict[int, Node] = field(default_factory=dict)
    by_key: dict[tuple[int, int], int] = field(default_factory=dict)
    listings: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    last: int = ROOT

    def __post_init__(self) -> None:
        fd = os.open(self.source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(fd)
        self.nodes[ROOT] = Node(fd, _key(status), lookups=1)
        self.by_key[self.nodes[ROOT].key] = ROOT
        self.handlers: dict[int, Callable[[int, bytes, Caller], bytes | None]] = {
            1: self.look_up, 2: self.forget, 3: self.get_attributes, 4: self.change, 5: self.read_link,
            6: self.make_link, 8: self.make_file, 9: self.make_folder, 10: self.unlink, 11: self.remove_folder,
            12: self.rename, 13: self.link, 14: self.open, 15: self.read, 16: self.write, 17: self.statistics,
            18: self.release, 20: self.sync, 25: self.flush, 26: self.begin, 27: self.open_folder,
            28: self.read_folder, 29: self.release_folder, 30: self.sync_folder, 35: self.create,
            42: self.forget_many, 43: self.allocate, 45: self.rename_with_flags,
        }  # fmt: skip

    # ------------------------------------------------------------ the connection

    def serve(self, device: int) -> None:
        """Answer until the mount is gone."""
        while True:
            try:
                request = os.read(device, BUFFER_BYTES)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ENOTCONN):
                    return
                if error.errno in (errno.ENOENT, errno.EINTR):  # taken back
                    continue
                raise
            if not request:
                return
            _, kind, unique, node, uid, gid, _, _, _ = REQUEST.unpack_from(request)
            number, answer = self._answer(kind, node, request[REQUEST.size :], Caller(uid, gid))
            if answer is None:
                continue
            try:
                os.write(device, ANSWER.pack(ANSWER.size + len(answer), -number, unique) + answer)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):  # nobody waits for it any more
                    raise

    def _answer(self, kind: int, node: int, data: bytes, caller: Caller) -> tuple[int, bytes | None]:
        handler = self.handlers.get(kind)
        if handler is None:
            return errno.ENOSYS, None if kind == 36 else b""  # an interrupt has no answer
        try:
            return 0, handler(node, data, caller)
        except OSError as error:
            return error.errno or errno.EIO, b""
        except KeyError:
            return errno.ESTALE, b""

    def begin(self, node: int, data: bytes, caller: Caller) -> bytes:
        readahead = struct.unpack_from("<I", data, 8)[0]
        flags = ASYNC_READ | ATOMIC_O_TRUNC | BIG_WRITES | AUTO_INVAL_DATA
        return struct.pack(
            "<IIIIHHIIHHI28x", *VERSION, readahead, flags, 16, 12, WRITE_BYTES_MAX, 1, 32, 0, 0
        )

    # ------------------------------------------------------------ nodes

    def look_up(self, node: int, data: bytes, caller: Caller) -> bytes:
        if self.faults.is_away:
            self.faults.is_away = False
            raise OSError(errno.EIO, "away")
        try:
            return self._entry(node, _name(data))
        except FileNotFoundError:
            seconds, nanos = _split(self.faults.hides_s)
            return ENTRY.pack(0, 0, seconds, 0, nanos, 0) + bytes(ATTRIBUTES.size)  # not there, for a while

    def forget(self, node: int, data: bytes, caller: Caller) -> None:
        self._forget(node, struct.unpack_from("<Q", data)[0])

    def forget_many(self, node: int, data: bytes, caller: Caller) -> None:
        count = struct.unpack_from("<I", data)[0]
        for each, lookups in struct.iter_unpack("<QQ", data[8 : 8 + 16 * count]):
            self._forget(each, lookups)

    def _forget(self, number: int, lookups: int) -> None:
        node = self.nodes.get(number)
        if node is None or number == ROOT:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            del self.nodes[number], self.by_key[node.key]
            os.close(node.fd)

    def _forget_all(self) -> None:
        for number in set(self.nodes) - {ROOT}:
            node = self.nodes.pop(number)
            del self.by_key[node.key]
            os.close(node.fd)

    def _entry(self, parent: int, name: str) -> bytes:
        """A name in a folder, which the kernel knows from now on."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.nodes[parent].fd)
        status = os.fstat(fd)
        key = _key(status)
        number = self.by_key.get(key)
        if number is None:
            self.last += 1
            number = self.last
            self.nodes[number] = Node(fd, key)
            self.by_key[key] = number
        else:
            os.close(fd)
        self.nodes[number].lookups += 1
        seconds, nanos = _split(self.faults.hides_s)
        return ENTRY.pack(number, 0, seconds, seconds, nanos, nanos) + _attributes(
            self._seen(self.nodes[number])
        )

    # ------------------------------------------------------------ attributes

    def get_attributes(self, node: int, data: bytes, caller: Caller) -> bytes:
        seconds, nanos = _split(self.faults.hides_s)
        return VALIDITY.pack(seconds, nanos, 0) + _attributes(self._seen(self.nodes[node]))

    def _seen(self, node: Node) -> os.stat_result:
        """What this mount knows of a file: what it was a while ago, or what this mount made of it."""
        if node.seen is None or time.monotonic() >= node.seen_until:
            node.seen, node.seen_until = os.stat(node.path), time.monotonic() + self.faults.hides_s
        return node.seen

    def change(self, node: int, data: bytes, caller: Caller) -> bytes:
        (what, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _) = (
            CHANGE.unpack_from(data)
        )
        path = self.nodes[node].path
        if what & MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if what & (UID | GID):
            os.chown(path, uid if what & UID else -1, gid if what & GID else -1)
        if what & SIZE:
            os.truncate(path, size)
        if what & (ATIME | MTIME):
            before, now = os.stat(path), time.time_ns()
            read = (
                now if what & ATIME_NOW else atime * 10**9 + atime_ns if what & ATIME else before.st_atime_ns
            )
            written = (
                now if what & MTIME_NOW else mtime * 10**9 + mtime_ns if what & MTIME else before.st_mtime_ns
            )
            os.utime(path, ns=(read, written))
        self.nodes[node].seen = None
        return self.get_attributes(node, b"", caller)

    def statistics(self, node: int, data: bytes, caller: Caller) -> bytes:
        found = os.statvfs(self.source)
        return struct.pack(
            "<QQQQQIIII24x", found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
            found.f_bsize, found.f_namemax, found.f_frsize, 0,
        )  # fmt: skip

    # ------------------------------------------------------------ names

    def make_folder(self, node: int, data: bytes, caller: Caller) -> bytes:
        mode, name = struct.unpack_from("<I", data)[0], _name(data[8:])
        os.mkdir(name, stat.S_IMODE(mode), dir_fd=self.nodes[node].fd)
        return self._made(node, name, caller)

    def make_file(self, node: int, data: bytes, caller: Caller) -> bytes:
        mode, rdev = struct.unpack_from("<II", data)
        name = _name(data[16:])
        os.mknod(name, mode, rdev, dir_fd=self.nodes[node].fd)
        return self._made(node, name, caller)

    def make_link(self, node: int, data: bytes, caller: Caller) -> bytes:
        name, target = (os.fsdecode(each) for each in data.split(b"\0")[:2])
        os.symlink(target, name, dir_fd=self.nodes[node].fd)
        return self._made(node, name, caller)

    def read_link(self, node: int, data: bytes, caller: Caller) -> bytes:
        return os.fsencode(os.readlink("", dir_fd=self.nodes[node].fd))

    def link(self, node: int, data: bytes, caller: Caller) -> bytes:
        old, name = struct.unpack_from("<Q", data)[0], _name(data[8:])
        os.link(self.nodes[old].path, name, dst_dir_fd=self.nodes[node].fd, follow_symlinks=True)
        order = self.faults.order("link")
        if order:
            raise OSError(errno.EIO if order == "link-lost" else errno.EEXIST, "the reply was lost")
        self.nodes[old].seen = None
        self._changed(node)
        return self._entry(node, name)

    def unlink(self, node: int, data: bytes, caller: Caller) -> bytes:
        self._obey("unlink")
        os.unlink(_name(data), dir_fd=self.nodes[node].fd)
        self._changed(node)
        return b""

    def remove_folder(self, node: int, data: bytes, caller: Caller) -> bytes:
        self._obey("rmdir")
        os.rmdir(_name(data), dir_fd=self.nodes[node].fd)
        self._changed(node)
        return b""

    def _obey(self, kind: str) -> None:
        if self.faults.order(kind):
            raise OSError(errno.EIO, "refused")

    def rename(self, node: int, data: bytes, caller: Caller) -> bytes:
        return self._rename(node, struct.unpack_from("<Q", data)[0], data[8:], 0)

    def rename_with_flags(self, node: int, data: bytes, caller: Caller) -> bytes:
        target, flags = struct.unpack_from("<QI", data)
        if flags and self.faults.no_flags:
            raise OSError(errno.EINVAL, "no flags here")
        return self._rename(node, target, data[16:], flags)

    def _rename(self, node: int, target: int, names: bytes, flags: int) -> bytes:
        old, new = names.split(b"\0")[:2]
        order = self.faults.order("rename")
        if order == "forget":
            self._forget_all()
        _system("renameat2", self.nodes[node].fd, old, self.nodes[target].fd, new, flags)
        if order == "away":
            self.faults.is_away = True
            raise OSError(errno.EIO, "away")
        if number := self.faults.lost_reply():
            raise OSError(number, "the reply was lost")  # this mount does not know that anything changed
        self._changed(node)
        self._changed(target)
        return b""

    def _made(self, node: int, name: str, caller: Caller) -> bytes:
        parent = self.nodes[node]
        gid = -1 if os.stat(parent.path).st_mode & stat.S_ISGID else caller.gid
        os.chown(name, caller.uid, gid, dir_fd=parent.fd, follow_symlinks=False)
        self._changed(node)
        return self._entry(node, name)

    def _changed(self, node: int) -> None:
        self.nodes[node].listed = None

    # ------------------------------------------------------------ folders

    def open_folder(self, node: int, data: bytes, caller: Caller) -> bytes:
        found = self.nodes[node]
        handle = os.open(found.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.listings[handle] = self._listed(found)
        return OPENED.pack(handle, 0, 0)

    def _listed(self, node: Node) -> list[tuple[str, int, int]]:
        if node.listed is None or time.monotonic() >= node.listed_until:
            node.listed = _listing(node.path)
            node.listed_until = time.monotonic() + self.faults.hides_s
        return node.listed

    def read_folder(self, node: int, data: bytes, caller: Caller) -> bytes:
        handle, offset, size = TRANSFER.unpack_from(data)[:3]
        if offset == 0:  # from the beginning: POSIX promises that rewinddir sees what is there now
            self.listings[handle] = self._listed(self.nodes[node])
        parts, used = [], 0
        for at, (name, number, kind) in enumerate(self.listings[handle][offset:], start=offset + 1):
            encoded = os.fsencode(name)
            part = NAME_IN_FOLDER.pack(number, at, len(encoded), kind) + encoded
            part += bytes(-len(part) % 8)
            if used + len(part) > size:
                break
            parts.append(part)
            used += len(part)
        return b"".join(parts)

    def release_folder(self, node: int, data: bytes, caller: Caller) -> bytes:
        handle = struct.unpack_from("<Q", data)[0]
        del self.listings[handle]
        os.close(handle)
        return b""

    def sync_folder(self, node: int, data: bytes, caller: Caller) -> bytes:
        os.fsync(struct.unpack_from("<Q", data)[0])
        return b""

    # ------------------------------------------------------------ files

    def open(self, node: int, data: bytes, caller: Caller) -> bytes:
        found = self.nodes[node]
        if not os.stat(found.path).st_nlink:
            raise OSError(errno.ESTALE, "it was removed through another mount")
        flags = _flags(struct.unpack_from("<I", data)[0])
        if flags & os.O_TRUNC:
            found.seen = None
        return OPENED.pack(os.open(found.path, flags), 0, 0)

    def create(self, node: int, data: bytes, caller: Caller) -> bytes:
        flags, mode = struct.unpack_from("<II", data)
        name, parent = _name(data[16:]), self.nodes[node]
        wanted = _flags(flags) | os.O_CREAT | os.O_NOFOLLOW | (flags & os.O_EXCL)
        handle = os.open(name, wanted, stat.S_IMODE(mode), dir_fd=parent.fd)
        known = self.by_key.get(_key(os.fstat(handle)))
        if known is not None:  # made through another mount, and opened by this one all the same
            self.nodes[known].seen = None
        return self._made(node, name, caller) + OPENED.pack(handle, 0, 0)

    def read(self, node: int, data: bytes, caller: Caller) -> bytes:
        handle, offset, size = TRANSFER.unpack_from(data)[:3]
        return os.pread(handle, size, offset)

    def write(self, node: int, data: bytes, caller: Caller) -> bytes:
        handle, offset, size = TRANSFER.unpack_from(data)[:3]
        written = os.pwrite(handle, data[TRANSFER.size : TRANSFER.size + size], offset)
        self.nodes[node].seen = None
        return struct.pack("<II", written, 0)

    def flush(self, node: int, data: bytes, caller: Caller) -> bytes:
        return b""

    def sync(self, node: int, data: bytes, caller: Caller) -> bytes:
        handle, flags = struct.unpack_from("<QI", data)
        (os.fdatasync if flags & 1 else os.fsync)(handle)
        return b""

    def allocate(self, node: int, data: bytes, caller: Caller) -> bytes:
        handle, offset, length, mode = struct.unpack_from("<QQQI", data)
        if mode:
            raise OSError(errno.EOPNOTSUPP, "only plain allocation")
        os.posix_fallocate(handle, offset, length)
        self.nodes[node].seen = None
        return b""

    def release(self, node: int, data: bytes, caller: Caller) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return b""


def _name(data: bytes) -> str:
    return os.fsdecode(data.partition(b"\0")[0])


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _split(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 10**9)


def _flags(flags: int) -> int:
    """How a file is opened here: the kernel has looked at links and at who may, and puts appends in their place."""
    return flags & (os.O_ACCMODE | os.O_TRUNC) | os.O_CLOEXEC


def _attributes(status: os.stat_result) -> bytes:
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    return ATTRIBUTES.pack(
        status.st_ino, status.st_size, status.st_blocks, *(each // 10**9 for each in times),
        *(each % 10**9 for each in times), status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0,
        status.st_blksize, 0,
    )  # fmt: skip


def _listing(path: str) -> list[tuple[str, int, int]]:
    found = [(".", 0, stat.S_IFDIR >> 12), ("..", 0, stat.S_IFDIR >> 12)]
    with os.scandir(path) as entries:
        for entry in entries:
            kind = stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG
            found.append((entry.name, entry.inode(), (stat.S_IFLNK if entry.is_symlink() else kind) >> 12))
    return found


def _system(call: str, *arguments: object) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("point", type=Path)
    parser.add_argument("--hides", type=float, default=0.0)
    parser.add_argument("--loses-first", type=int, default=0)
    parser.add_argument("--loses-replies", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("--orders", type=Path, default=Path(os.devnull, "none"))
    parser.add_argument("--no-flags", action="store_true")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0)
    faults = Faults(
        given.hides,
        given.loses_first,
        given.loses_replies,
        random.Random(given.seed),
        given.log,
        given.orders,
        given.no_flags,
    )
    served = FileSystem(given.source, faults)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    point = os.fsencode(given.point.resolve())
    _system("mount", b"trial", point, b"fuse.trial", ctypes.c_ulong(MS_NOSUID | MS_NODEV), options.encode())
    served.serve(device)


if __name__ == "__main__":
    sys.exit(main())
