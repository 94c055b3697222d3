"""Runs a test in a process of its own and notes what became of it, for the programs beside this file."""
import os
import signal
import subprocess
import threading

TEST_S = 60
NOTING = threading.Lock()


def run(command, **where):
    """The exit status of a command and its output. The output is absent if the command did not end in time."""
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, **where)
    try:
        said, _ = running.communicate(timeout=TEST_S)
    except subprocess.TimeoutExpired:
        said = None
    finally:
        # A test that is over may have left others, which are nobody's.
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        running.wait()
    return running.returncode, said


def note(path, name, outcome, status, said):
    """Appends an outcome to a file, and prints the output of a test that failed."""
    with NOTING:
        with open(path, "a") as file:
            file.write(f"{outcome} {name}\n")
        if outcome == "failed":
            output = "not at an end" if said is None else said.decode(errors="replace")
            print(f"--- {name}: {status}\n{output}", flush=True)
