"""Bywire beside what programs in Python use today, in one run: `python3 examples/python/compare.py`.

Each row has a process of its own as its other end. The rows take turns in blocks, so what disturbs the machine meanwhile disturbs
all of them. A figure is the median over the blocks. numpy and pyzmq are measured if they are installed. `--quick` measures little.
With `--pinned` the two ends of every row have a core each. Otherwise the kernel decides.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

import bywire
import bywire.multiprocessing

try:
    import numpy
except ImportError:
    numpy = None
try:
    import zmq
except ImportError:
    zmq = None

QUICK = "--quick" in sys.argv
PINNED = "--pinned" in sys.argv and len(os.sched_getaffinity(0)) > 1
CORES = sorted(os.sched_getaffinity(0))
BLOCKS = 3 if QUICK else 15
ROUND_TRIPS = 200 if QUICK else 3000
ARRAYS = 20 if QUICK else 200
ARRAY_BYTES = 1 << 20
DATA = b"8 bytes!"
FORK = multiprocessing.get_context("fork")


def start(work):
    def serve():
        if PINNED:
            os.sched_setaffinity(0, CORES[1:2])
        try:
            work()
        except (EOFError, OSError, bywire.Error):
            pass  # The comparison is complete.

    process = FORK.Process(target=serve, daemon=True)
    process.start()


class Row:
    """A way to exchange data. `measure` returns the seconds of a block."""

    def __init__(self, name, unit, count, measure):
        self.name, self.unit, self.count, self.measure = name, unit, count, measure
        self.seconds = []

    def figure(self):
        seconds = statistics.median(self.seconds) / self.count
        return seconds / 2 * 1e6 if self.unit == "us" else ARRAY_BYTES / seconds / 1e9

    def spread(self):
        values = sorted(seconds / self.count for seconds in self.seconds)
        low, high = values[len(values) // 4], values[-1 - len(values) // 4]
        if self.unit == "us":
            return f"{low / 2 * 1e6:.2f} to {high / 2 * 1e6:.2f}"
        return f"{ARRAY_BYTES / high / 1e9:.2f} to {ARRAY_BYTES / low / 1e9:.2f}"


def timed(exchange, count):
    def measure():
        for _ in range(max(count // 10, 5)):
            exchange()
        began = time.perf_counter()
        for _ in range(count):
            exchange()
        return time.perf_counter() - began

    return measure


# 8 bytes, there and back.


def connection_row(name, pipe):
    parent, child = pipe()

    def work():
        parent.close()
        while True:
            child.send_bytes(child.recv_bytes())

    start(work)
    child.close()

    def exchange():
        parent.send_bytes(DATA)
        parent.recv_bytes()

    return Row(name, "us", ROUND_TRIPS, timed(exchange, ROUND_TRIPS))


def port_row(directory):
    def work():
        with bywire.Port("compare", runtime_directory=directory) as port:
            for message in port:
                message.peer.send(message.data)

    start(work)
    port = bywire.Port(runtime_directory=directory)
    peer = connect(port, "localhost/compare")

    def exchange():
        peer.send(DATA)
        peer.receive()

    return Row("bywire.Port", "us", ROUND_TRIPS, timed(exchange, ROUND_TRIPS))


def connect(port, address):
    for _ in range(500):
        try:
            return port.connect(address)
        except bywire.NoPort:
            time.sleep(0.01)
    raise SystemExit("the other end has not come")


def zmq_pair(path, work):
    def child():
        socket = zmq.Context().socket(zmq.PAIR)
        socket.connect("ipc://" + path)
        work(socket)

    start(child)
    socket = zmq.Context().socket(zmq.PAIR)
    socket.bind("ipc://" + path)
    return socket


def zmq_row(directory):
    def work(socket):
        while True:
            socket.send(socket.recv())

    socket = zmq_pair(os.path.join(directory, "zmq-small"), work)

    def exchange():
        socket.send(DATA)
        socket.recv()

    return Row("pyzmq over ipc", "us", ROUND_TRIPS, timed(exchange, ROUND_TRIPS))


# 8 bytes, there and back, between two loops of asyncio.


def asynchronous_row(name, prepare, exchange):
    loop = asyncio.new_event_loop()
    state = loop.run_until_complete(prepare())

    async def block():
        for _ in range(100):
            await exchange(state)
        began = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            await exchange(state)
        return time.perf_counter() - began

    return Row(name, "us", ROUND_TRIPS, lambda: loop.run_until_complete(block()))


def streams_row(directory):
    path = os.path.join(directory, "streams")

    def work():
        async def echo(reader, writer):
            while True:
                writer.write(await reader.readexactly(8))
                await writer.drain()

        async def main():
            server = await asyncio.start_unix_server(echo, path)
            await server.serve_forever()

        asyncio.run(main())

    start(work)

    async def prepare():
        while not os.path.exists(path):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        return await asyncio.open_unix_connection(path)

    async def exchange(streams):
        reader, writer = streams
        writer.write(DATA)
        await writer.drain()
        await reader.readexactly(8)

    return asynchronous_row("asyncio streams over a Unix socket", prepare, exchange)


def asynchronous_port_row(directory, name, spin):
    def work():
        async def main():
            with bywire.Port(name, runtime_directory=directory, spin=spin) as port:
                async for message in port:
                    await port.send_async(message.peer, message.data)

        asyncio.run(main())

    start(work)

    async def prepare():
        port = bywire.Port(runtime_directory=directory, spin=spin)
        for _ in range(500):
            try:
                return port, await port.connect_async("localhost/" + name)
            except bywire.NoPort:
                await asyncio.sleep(0.01)
        raise SystemExit("the other end has not come")

    async def exchange(state):
        port, peer = state
        await port.send_async(peer, DATA)
        await port.receive_async()

    row = "bywire under asyncio" if spin else "bywire under asyncio, without spinning"
    return asynchronous_row(row, prepare, exchange)


# Arrays of 1 MiB, one way. Each is written before it is sent, and read where it arrives.


def arrays_row(name, send, wait):
    array = numpy.zeros(ARRAY_BYTES // 8)

    def measure():
        began = time.perf_counter()
        for number in range(ARRAYS):
            send(array, number)
        wait()
        return time.perf_counter() - began

    return Row(name, "GB/s", ARRAYS, measure)


def take(receive, acknowledge):
    """The other end: reads each array, and acknowledges the last one of a block."""
    while True:
        for number in range(ARRAYS):
            array = receive()
            assert array[0] == number and array.sum() == number * (ARRAY_BYTES // 8)
            del array
        acknowledge()


def connection_arrays_row(name, pipe, by_reference=False):
    parent, child = pipe()

    def work():
        parent.close()
        take(child.recv, lambda: child.send_bytes(b""))

    start(work)
    child.close()

    def send(array, number):
        if by_reference:
            array = parent.empty(array.shape, array.dtype)
        array.fill(number)
        if by_reference:
            parent.send_array(array)
        else:
            parent.send(array)

    return arrays_row(name, send, parent.recv_bytes)


def zmq_arrays_row(directory):
    def work(socket):
        def receive():
            return numpy.frombuffer(socket.recv(copy=False))

        take(receive, lambda: socket.send(b""))

    socket = zmq_pair(os.path.join(directory, "zmq-large"), work)

    def send(array, number):
        # A message that is on its way must not change, so each is a new array.
        array = numpy.full_like(array, number)
        socket.send(array, copy=False)

    return arrays_row("pyzmq over ipc", send, socket.recv)


def run(title, rows, baseline):
    for row in rows:
        row.measure()  # The ends meet, and memory is touched.
    for _ in range(BLOCKS):
        for row in rows:
            row.seconds.append(row.measure())
    unit = rows[0].unit
    base = next(row.figure() for row in rows if row.name == baseline) if baseline else None
    print(f"\n{title}")
    for row in rows:
        ratio = f"{row.figure() / base:8.2f} x" if base else ""
        print(f"  {row.name:42} {row.figure():8.2f} {unit:5} ({row.spread()}) {ratio}", flush=True)


def main():
    if PINNED:
        os.sched_setaffinity(0, CORES[:1])
    with tempfile.TemporaryDirectory() as directory:
        os.environ["BYWIRE_RUNTIME_DIR"] = directory
        print(f"medians of {BLOCKS} blocks, half of them between the figures in brackets; {os.cpu_count()} cores")
        pipe = "multiprocessing.Pipe"
        rows = [
            connection_row(pipe, multiprocessing.Pipe),
            connection_row("bywire.multiprocessing.Pipe", bywire.multiprocessing.Pipe),
            port_row(directory),
        ]
        if zmq:
            rows.append(zmq_row(directory))
        else:
            print("not run: pyzmq is not installed")
        run("half of a round trip of 8 bytes", rows, pipe)

        streams = "asyncio streams over a Unix socket"
        rows = [
            streams_row(directory),
            asynchronous_port_row(directory, "spinning", 50e-6),
            asynchronous_port_row(directory, "sleeping", 0.0),
        ]
        run("half of a round trip of 8 bytes between two asyncio loops", rows, streams)

        if not numpy:
            print("not run: numpy is not installed")
            return
        rows = [
            connection_arrays_row(pipe, multiprocessing.Pipe),
            connection_arrays_row("bywire.multiprocessing.Pipe", bywire.multiprocessing.Pipe),
            connection_arrays_row("the same, by reference", bywire.multiprocessing.Pipe, by_reference=True),
        ]
        if zmq:
            rows.append(zmq_arrays_row(directory))
        run("arrays of 1 MiB, one way", rows, "pyzmq over ipc" if zmq else pipe)


if __name__ == "__main__":
    main()
