"""Runs a module as `python -m` does, and notes what becomes of every test: `outcomes.py FILE MODULE [ARGUMENT]...`.

A line of FILE is an outcome and a test's name. It knows tests of `unittest`, by whatever runs them, and of pytest. With
NOTE_STARTS in the environment a test of `unittest` has a line "started" first, which tells the one that stands still.
"""
import os
import runpy
import sys
import unittest

FILE = os.path.abspath(sys.argv[1])


def note(outcome, name):
    with open(FILE, "a") as file:
        file.write(f"{outcome} {name}\n".replace("\0", ""))


def watched(method, outcome):
    def noting(result, test, *rest):
        note(outcome, test.id())
        return method(result, test, *rest)

    return noting


class Plugin:
    """pytest's: a test has failed if any part of it has."""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            note("failed", report.nodeid)
        elif report.skipped:
            note("skipped", report.nodeid)
        elif report.when == "call":
            note("passed", report.nodeid)


OUTCOMES = {
    "addSuccess": "passed", "addFailure": "failed", "addError": "failed", "addSkip": "skipped",
    "addExpectedFailure": "skipped", "addUnexpectedSuccess": "failed",
}

sys.argv[:2] = []
if sys.argv[0] == "pytest":
    import pytest

    sys.exit(pytest.main(sys.argv[1:], plugins=[Plugin()]))
add_part = unittest.TestResult.addSubTest


def add_noted_part(result, test, part, error):
    if error is not None:
        note("failed", test.id())
    return add_part(result, test, part, error)


unittest.TestResult.addSubTest = add_noted_part
for name, outcome in OUTCOMES.items():
    setattr(unittest.TestResult, name, watched(getattr(unittest.TestResult, name), outcome))
if os.environ.get("NOTE_STARTS"):
    unittest.TestResult.startTest = watched(unittest.TestResult.startTest, "started")
sys.path[0] = os.getcwd()
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
