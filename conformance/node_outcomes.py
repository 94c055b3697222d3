"""Runs Node's own tests, each in a process of its own, and notes what becomes of them: `node_outcomes.py FILE NODE TEST...`.

A line of FILE is an outcome and a test's name, which is its path below the directory that this runs in.
"""
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading

FILE, NODE, *TESTS = sys.argv[1:]
FILE = os.path.abspath(FILE)
TEST_S = 60
AT_ONCE = 2
NOTING = threading.Lock()
# Ports and a directory for temporary files follow from a test's number.
NUMBERS = list(range(AT_ONCE))


def run(name):
    with open(name, errors="replace") as source:
        flags = re.search(r"^// Flags: (.*)$", source.read(), re.M)
    with NOTING:
        number = NUMBERS.pop()
    command = [NODE, *(flags[1].split() if flags else []), name]
    environment = dict(os.environ, TEST_THREAD_ID=str(number), TEST_SERIAL_ID=str(number))
    test = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, start_new_session=True)
    try:
        said, _ = test.communicate(timeout=TEST_S)
        outcome = "failed" if test.returncode else "skipped" if said.startswith(b"1..0 # Skipped") else "passed"
    except subprocess.TimeoutExpired:
        said, outcome = b"", "failed"
    finally:
        # A test that is over may have left others, which are nobody's.
        try:
            os.killpg(test.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        test.wait()
    with NOTING:
        NUMBERS.append(number)
        with open(FILE, "a") as file:
            file.write(f"{outcome} {name}\n")
        if outcome == "failed":
            print(f"--- {name}: {test.returncode}\n{said.decode(errors='replace')}", flush=True)


# Some of Node's own have to be alone.
for directory, at_once in (("parallel", AT_ONCE), ("sequential", 1)):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, [name for name in TESTS if name.startswith(directory)]))
