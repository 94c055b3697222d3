"""Runs tests of Rust programs, each in a process of its own, and notes what becomes of them: `rust_outcomes.py FILE
PROGRAM... [-- TEST...]`.

A PROGRAM is a file that `cargo test --no-run` has built, behind the folder that it runs in and a colon. A line of FILE is an
outcome and a test's name, which begins with the name of its program.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import outcomes  # noqa: E402

FILE, *WORDS = sys.argv[1:]
END = WORDS.index("--") if "--" in WORDS else len(WORDS)
PROGRAMS = [word.split(":", 1) for word in WORDS[:END]]
WANTED = set(WORDS[END + 1:])
AT_ONCE = 2


def tests_of(folder, program):
    """Its tests with their names here, of which the hash of the file is no part."""
    listed = subprocess.run([program, "--list", "--format=terse"], cwd=folder, capture_output=True, text=True, check=True)
    own = re.sub("-[0-9a-f]{16}$", "", pathlib.Path(program).name)
    names = (line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test"))
    return [(folder, program, name, f"{own}.{name}") for name in names]


def run(test):
    folder, program, name, noted = test
    status, said = outcomes.run([program, "--exact", name, "--test-threads=1"], cwd=folder)
    if status or said is None:
        outcome = "failed"
    else:
        outcome = "skipped" if b" 1 ignored;" in said else "passed"
    outcomes.note(FILE, noted, outcome, status, said)


FILE = os.path.abspath(FILE)
TESTS = [test for program in PROGRAMS for test in tests_of(*program)]
with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    list(pool.map(run, [test for test in TESTS if not WANTED or test[3] in WANTED]))
