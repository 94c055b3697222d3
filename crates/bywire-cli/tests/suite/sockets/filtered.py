"""Executes a program behind a filter as systemd's `SystemCallFilter=` installs it, by libseccomp: `filtered.py SET PROGRAM...`.

SET is one of the lists that `systemd-analyze syscall-filter` prints; any other call fails with EPERM.
"""
import ctypes
import os
import subprocess
import sys

ALLOW, EPERM = 0x7FFF0000, 0x00050000 | 1


def calls(name):
    told = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True).stdout
    for line in told.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            yield from calls(word)
        elif word and not word.startswith("#"):
            yield word


library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
library.seccomp_init.restype = ctypes.c_void_p
names = sorted(set(calls(sys.argv[1])))
context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(EPERM)))
for name in names:
    number = library.seccomp_syscall_resolve_name(name.encode())
    # Those of other processors have none here.
    if number >= 0 and library.seccomp_rule_add(context, ctypes.c_uint32(ALLOW), number, 0) != 0:
        sys.exit(f"filtered: {name} cannot be allowed")
if library.seccomp_load(context) != 0:
    sys.exit("filtered: the filter cannot be loaded")
os.execvp(sys.argv[2], sys.argv[2:])
