"""Landlock: a program of its own that gives up the right to write elsewhere, and then becomes another one.

    python -I -S landlock.py NETWORK WRITE_COUNT WRITE ... PROGRAM ARGUMENT ...

It runs alone and loads nothing of Watchbill. The kernel keeps the promise for the program and for everything that it
starts: files are created, changed and removed only below the WRITE paths, devices in /dev excepted. With NETWORK `none`
no TCP connection is made or taken, where the kernel is new enough (6.7). Files can be read as before. Where something
of this cannot be promised, nothing is run: exit code 126.
"""

import ctypes
import os
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same number on every machine
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38
WRITE_FILE, TRUNCATE, REFER = 1 << 1, 1 << 14, 1 << 13
#: Removing, and making of whatever kind.
CHANGES = sum(1 << bit for bit in range(4, 13))
TCP_BIND, TCP_CONNECT = 1, 2
SCOPED_ABSTRACT_SOCKETS, SCOPED_SIGNALS = 1, 2
#: Versions of the interface from which on the kernel knows these.
KNOWS_REFER, KNOWS_TRUNCATE, KNOWS_TCP, KNOWS_SCOPES = 2, 3, 4, 6
CANNOT_RUN = 126


def version() -> int:
    """The kernel's version of the interface; 0 where it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION)))


def restrict(writable: list[str], *, has_network: bool) -> None:
    """Give the rights up. Raises OSError where the kernel cannot promise it."""
    known = version()
    if not known or (not has_network and known < KNOWS_TCP):
        raise OSError(f"this kernel has version {known} of landlock, and that is too old")
    handled = WRITE_FILE | CHANGES
    handled |= REFER if known >= KNOWS_REFER else 0
    handled |= TRUNCATE if known >= KNOWS_TRUNCATE else 0
    tcp = 0 if has_network else TCP_BIND | TCP_CONNECT
    scopes = SCOPED_ABSTRACT_SOCKETS | SCOPED_SIGNALS if known >= KNOWS_SCOPES else 0
    words = [handled, tcp, scopes][: 3 if known >= KNOWS_SCOPES else 2 if known >= KNOWS_TCP else 1]
    ruleset = call(
        CREATE_RULESET, b"".join(word.to_bytes(8, sys.byteorder) for word in words), 8 * len(words), 0
    )
    contents = handled & (WRITE_FILE | TRUNCATE)
    for path in writable:
        allow(ruleset, path, handled if os.path.isdir(path) else contents)
    allow(ruleset, "/dev", contents)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder, signed=True)
    call(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0)
    os.close(descriptor)


def call(number: int, *arguments: int | bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(number, *arguments))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def main(arguments: list[str]) -> None:
    """Restrict this process and become the program."""
    count = int(arguments[1])
    writable, program = arguments[2 : 2 + count], arguments[2 + count :]
    try:
        restrict(writable, has_network=arguments[0] != "none")
        os.execvp(program[0], program)
    except OSError as error:
        print(f"the sandbox could not be made: {error}", file=sys.stderr, flush=True)
        os._exit(CANNOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
