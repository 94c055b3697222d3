"""Runs Node's own tests, each in a process of its own, and notes what becomes of them: `node_outcomes.py FILE NODE TEST...`.

A line of FILE is an outcome and a test's name, which is its path below the directory that this runs in.
"""
import concurrent.futures
import os
import re
import sys
import threading

sys.dont_write_bytecode = True
import outcomes  # noqa: E402

FILE, NODE, *TESTS = sys.argv[1:]
FILE = os.path.abspath(FILE)
AT_ONCE = 2
TAKING = threading.Lock()
# Ports and a directory for temporary files follow from a test's number.
NUMBERS = list(range(AT_ONCE))


def run(name):
    with open(name, errors="replace") as source:
        flags = re.search(r"^// Flags: (.*)$", source.read(), re.M)
    with TAKING:
        number = NUMBERS.pop()
    command = [NODE, *(flags[1].split() if flags else []), name]
    environment = dict(os.environ, TEST_THREAD_ID=str(number), TEST_SERIAL_ID=str(number))
    status, said = outcomes.run(command, env=environment)
    if status or said is None:
        outcome = "failed"
    else:
        outcome = "skipped" if said.startswith(b"1..0 # Skipped") else "passed"
    with TAKING:
        NUMBERS.append(number)
    outcomes.note(FILE, name, outcome, status, said)


# Some of Node's own have to be alone.
for directory, at_once in (("parallel", AT_ONCE), ("sequential", 1)):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, [name for name in TESTS if name.startswith(directory)]))
