"""For `conformance/suites`: whole MPI programs of Debian, with what of their output has to be the same over everything that
carries their messages, and two nodes of a fabric on one machine.
"""
import atexit
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

HPCC = """HPLinpack benchmark input file
Small problems
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
1000         Ns
1            # of NBs
80           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
{rows}            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0            Number of additional problem sizes for PTRANS
1200         values of N
0            number of additional blocking sizes for PTRANS
40           values of NB
"""
# A melt, and a melted salt whose long-range forces are of transforms of the whole box.
LAMMPS = """units lj
atom_style charge
lattice fcc 0.8442
region box block 0 10 0 10 0 10
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 25
run 250
clear
units lj
atom_style charge
lattice sc 0.5
region box block 0 12 0 12 0 12
create_box 2 box
create_atoms 1 box
set group all type/ratio 2 0.5 4711
set type 1 charge 1.0
set type 2 charge -1.0
mass * 1.0
velocity all create 1.0 87287
pair_style lj/cut/coul/long 2.5
pair_coeff * * 1.0 1.0
kspace_style pppm 1.0e-4
timestep 0.002
fix 1 all nve
thermo 10
run 100
"""
# What Open MPI uses between machines by itself, in clear.
OVER_TCP = "--oversubscribe --mca pml ob1 --mca btl_tcp_if_include eth0".split()


class Nodes:
    """Two nodes of an encrypted fabric, each in a network namespace, until this process ends."""

    def __init__(self, command):
        self.command, self.place = command, pathlib.Path(tempfile.mkdtemp())
        self.names = [f"bywire-{os.getpid()}-{name}" for name in "ab"]
        self.services = []
        atexit.register(self.down)
        for name in self.names:
            self.ip("netns", "add", name)
        here, there = self.names
        self.ip("link", "add", "name", "eth0", "netns", here, "type", "veth", "peer", "name", "eth0", "netns", there)
        keys = []
        for number, name in enumerate(self.names):
            inside = ["-n", name]
            self.ip(*inside, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                self.ip(*inside, "link", "set", link, "up")
            for directory in (self.runtime(number), self.configuration(number)):
                directory.mkdir(parents=True)
            self.bywire(number, "init", "ab"[number], "--address", self.address(number))
            keys.append(self.bywire(number, "key").split()[-1])
        # A launcher gives up where the cable is not in yet, which takes up to a second.
        while any(" DOWN " in self.said(["ip", "-n", name, "-br", "link", "show", "eth0"]) for name in self.names):
            time.sleep(0.05)
        self.bywire(0, "node", "add", "b", "--address", self.address(1), "--key", keys[1])
        shutil.copy(self.configuration(0) / "fabric.toml", self.configuration(1) / "fabric.toml")
        for number in (0, 1):
            self.services.append(subprocess.Popen(self.words(number, "up"), env=self.environment(number),
                                                  stdout=subprocess.PIPE, text=True))
            self.services[number].stdout.readline()
        self.agent = self.place / "agent"
        # MPICH has an option before the host. What it starts there has the launcher's variables, processes that ranks spawn as
        # well, and finds the service of that node in the same directory.
        enter = (f"hostname {self.names[1]} && mount --bind {self.runtime(1)} {self.runtime(0)} && "
                 f"exec nsenter --net=/run/netns/{self.names[1]} sh -c \"$1\"")
        self.agent.write_text("#!/bin/sh\n[ \"$1\" != -x ] || shift\nshift\n"
                              f"exec unshare --mount --uts sh -c '{enter}' agent \"$*\"\n")
        self.agent.chmod(0o700)

    def address(self, number):
        return f"10.78.9.{number + 1}"

    def runtime(self, number):
        return self.place / "ab"[number] / "run"

    def configuration(self, number):
        return self.place / "ab"[number] / "etc"

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True)

    def environment(self, number):
        return dict(os.environ, BYWIRE_RUNTIME_DIR=str(self.runtime(number)))

    def words(self, number, *words):
        inside = ["nsenter", f"--net=/run/netns/{self.names[number]}"]
        return [*inside, str(self.command), *words, "--config", str(self.configuration(number))]

    def bywire(self, number, *words):
        return self.said(self.words(number, *words), self.environment(number))

    def said(self, command, environment=None):
        return subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout

    def launch(self, launcher, names):
        """A launcher whose ranks are on both nodes by turns, and have these variables there as well."""
        hosts = ",".join(f"{self.address(number)}:16" for number in (0, 1))
        # Neither node knows that it shares its cores: each would bind its first rank to the same one, and let ranks spin on it.
        words = ["nsenter", f"--net=/run/netns/{self.names[0]}", str(launcher), "--host", hosts, "--map-by", "node",
                 "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "plm_rsh_agent", str(self.agent), "--mca",
                 "oob_tcp_if_include", "eth0"]
        return words + [word for name in names for word in ("-x", name)]

    def launch_mpich(self, launcher):
        """The same for MPICH, which takes all variables to both."""
        here, there = (self.address(number) for number in (0, 1))
        return ["nsenter", f"--net=/run/netns/{self.names[0]}", str(launcher), "-hosts", f"{here}:1,{there}:1", "-localhost", here,
                "-iface", "eth0", "-launcher", "ssh", "-launcher-exec", str(self.agent)]

    def down(self):
        for service in self.services:
            service.terminate()
            service.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.place, ignore_errors=True)


class Program:
    """A program of Debian that uses Open MPI. What its tests are is told by its output: a test has the name of a value that has
    to be the same with whatever carries the messages, or of a check of its own.
    """

    timeout_s = 300

    def __init__(self, package, programs, values, figures=None, files=None, ranks=(2, 4), pairs=3, without=()):
        self.package, self.ranks, self.files = package, ranks, files or {}
        # Parts that are left out.
        self.without = without
        # How often each is run on both sides, in turns.
        self.pairs = pairs
        # What is run, by its name: the words of each command.
        self.programs = programs
        self.values, self.figures = values, figures or (lambda outputs: {})

    def parts(self):
        parts = [f"{ranks}.{name}" if len(self.programs) > 1 else str(ranks) for ranks in self.ranks for name in self.programs]
        return [part for part in parts if part not in self.without]

    def narrowed(self, part):
        return [one for one in self.parts() if one.startswith(f"{part}.")] or [part]

    def installed(self):
        told = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", self.package], capture_output=True, text=True, check=False)
        return told.stdout.strip() if told.returncode == 0 else None

    def version(self):
        return f"{self.package} {self.installed()}"

    def missing(self):
        is_there = shutil.which("mpirun") and self.installed()
        return None if is_there else f"apt-get install openmpi-bin {self.package}"

    def run(self, part, place, launch, environment):
        """Values of one run, and how long it took. `launch` is a launcher with its options, but for the number of ranks."""
        ranks, _, name = part.partition(".")
        name = name or next(iter(self.programs))
        outputs = []
        if self.package.startswith("scalapack"):
            for file in pathlib.Path("/usr/share/scalapack").glob("*.dat"):
                shutil.copy(file, place)
        for file, text in self.files.items():
            (place / file).write_text(text.format(rows=int(ranks) // 2))
        begin = time.monotonic()
        for words in self.programs[name]:
            command = ["timeout", "-k", "5", str(self.timeout_s), *launch, "-n", ranks, *words]
            with open(place / "said", "ab") as said:
                told = subprocess.run(command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=said, text=True, errors="replace", check=False)
            outputs.append(told.stdout)
            outputs[-1] += "" if told.returncode == 0 else "\nended badly\n"
        seconds = time.monotonic() - begin
        # NetPIPE prints its checks as errors.
        outputs.append((place / "said").read_text(errors="replace"))
        outputs += [file.read_text(errors="replace") for file in sorted([*place.glob("*.out"), *place.glob("*outf.txt")])]
        values = {}
        for name in self.values("\n".join(outputs)):
            values[name] = "failed" if re.search("FAIL|ended badly", name) else "passed"
        return values, {"s": seconds, **self.figures(outputs)}


def lines_of(pattern, without=None):
    """Lines that match, without what differs from run to run."""
    def found(output):
        lines = (" ".join(line.split()) for line in output.splitlines() if re.search(pattern, line) or line == "ended badly")
        return [re.sub(without, "", line) if without else line for line in lines]
    return found


def without_times(output):
    """Lines of ScaLAPACK's tests: what was tested and whether it passed, without the columns of times and rates."""
    lines = (line.split() for line in output.splitlines() if re.search("PASSED|FAILED|ended badly|tests completed", line))
    return [" ".join(word for word in line if not re.fullmatch(r"-?\d*\.\d+(E[-+]\d+)?", word)) for line in lines]


def netpipe_figures(outputs):
    """Half the round trip of the shortest message, and the rate of the longest one."""
    rows = [row.split() for row in outputs[-1].splitlines() if len(row.split()) == 3]
    return {"half-RTT, µs": float(rows[0][2]) * 1e6, "Mbit/s": float(rows[-1][1])} if rows else {}


def number_behind(pattern, name):
    def found(outputs):
        numbers = [float(number) for number in re.findall(pattern, "\n".join(outputs))]
        return {name: sum(numbers)} if numbers else {}
    return found


SCALAPACK = pathlib.Path("/usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests")
# Those of them that read their input from the directory that they run in.
SCALAPACK_TESTS = sorted(path.name for path in SCALAPACK.glob("x*") if not path.name.endswith("btest"))
# With four ranks they stand still at times, whatever carries their messages: vader, TCP, libfabric's `tcp` or Bywire. Their ranks take
# different branches of PDPORFS and PSPORFS (docs/notebook/conformance.md has the counts).
STAND_STILL = ["4.xdllt", "4.xsllt"]
JOBS = {
    "netpipe": Program("netpipe-openmpi", {"": [["NPopenmpi", "-i", "-n", "20", "-u", "4194304", "-o", "/dev/null"],
                                                ["NPopenmpi", "-n", "100", "-p", "0", "-u", "1048576", "-o", "netpipe.out"]]},
                       lines_of("Integrity check", r"^\d+: | \d+ times"), netpipe_figures, ranks=[2]),
    "hpcc": Program("hpcc", {"": [["hpcc"]]}, lines_of(r"\)= .*(PASSED|FAILED)|^(Success|[A-Za-z_]*(Err|[Rr]esid|[RXB]norm|Anorm)[A-Za-z0-9_]*)="),
                    number_behind(r"(?m)^HPL_Tflops=([-+0-9.e]+)", "HPL, Tflop/s"), {"hpccinf.txt": HPCC}),
    "scalapack": Program("scalapack-mpi-test", {name: [[str(SCALAPACK / name)]] for name in SCALAPACK_TESTS}, without_times, pairs=1,
                         without=STAND_STILL),
    "lammps": Program("lammps", {"": [["lmp", "-in", "lammps.in"]]}, lines_of(r"^ *\d+( +-?[\d.]+(e[-+]\d+)?){3,} *$|^ERROR"),
                      number_behind(r"Loop time of ([\d.]+)", "loop, s"), {"lammps.in": LAMMPS}),
}
