# SPDX-License-Identifier: GPL-2.0
"""For the *_cases.py: the way into a network namespace, and cases run one by one as lines of TAP, without a plan."""

import ctypes
import os
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)


class Skip(Exception):
    """The case cannot be run here."""


def enter(name):
    """Goes into a network namespace, that of the machine for none."""
    fd = os.open(f"/run/netns/{name}" if name else "/proc/1/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(fd, 0):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)


def line_of(error):
    """Where it was raised. Nothing here may outlive the case: its sockets would stay open."""
    at = error.__traceback__
    while at.tb_next:
        at = at.tb_next
    return at.tb_lineno


def run(names, prefixes, after=lambda: None):
    """Runs the functions among names that begin so, those of SMC_CASES if that is set, in the order in which they are
    written; after runs behind each that was not skipped. Returns the exit status. With a third argument of the program
    it prints how many there are, and runs none.
    """
    wanted = os.environ.get("SMC_CASES", "").split()
    cases = [case for name, case in list(names.items())
             if name.startswith(prefixes) and (not wanted or name in wanted)]
    if len(sys.argv) > 3:
        print(len(cases))
        return 0
    failed = 0
    for number, case in enumerate(cases, 1):
        began = time.monotonic()
        try:
            case()
            after()
            print("ok", number, case.__name__, flush=True)
        except Skip as why:
            print("ok", number, case.__name__, "# SKIP", why, flush=True)
        except Exception as error:  # pylint: disable=broad-except
            failed = 1
            print(f"# line {line_of(error)}: {type(error).__name__}: {error}")
            print("not ok", number, case.__name__, flush=True)
            after()
        if "SMC_TIMES" in os.environ:
            print(f"# {time.monotonic() - began:.1f} s", flush=True)
    return failed
