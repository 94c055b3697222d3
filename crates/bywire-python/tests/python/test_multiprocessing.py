"""`bywire.multiprocessing`, against the behaviour of the module that it replaces."""

import multiprocessing
import os
import pickle
import sys
import threading
import time
import unittest

from bywire import multiprocessing as ours

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


def echo(connection):
    with connection:
        while True:
            try:
                connection.send(connection.recv())
            except EOFError:
                return


def echo_bytes(connection):
    with connection:
        while True:
            try:
                connection.send_bytes(connection.recv_bytes())
            except EOFError:
                return


def send_and_end(connection, objects):
    for found in objects:
        connection.send(found)


def is_in_memory(connection):
    return "memory" in repr(connection)


def run_in_child(target, other_end, end, *arguments):
    # As with the standard module, an end that a child inherits keeps the connection open.
    if other_end is not None:
        other_end.close()
    target(end, *arguments)


class child:
    """A process that has the other end of a pipe."""

    def __init__(self, target, *arguments, context=FORK):
        self.parent, end = ours.Pipe()
        self.process = context.Process(
            target=run_in_child, args=(target, self.parent if context is FORK else None, end, *arguments)
        )
        self.process.start()
        end.close()

    def __enter__(self):
        return self.parent

    def __exit__(self, *_):
        self.parent.close()
        self.process.join(30)
        assert self.process.exitcode == 0, self.process.exitcode


class Connections(unittest.TestCase):
    def test_objects_go_there_and_back_by_fork_and_by_spawn(self):
        objects = [None, 1, "text", [1, {2: (3,)}], b"", b"x" * 4094, b"x" * 4095, b"x" * 4096, bytearray(3_000_000)]
        for context in (FORK, SPAWN):
            with child(echo, context=context) as connection:
                for _ in range(20):
                    for found in objects:
                        connection.send(found)
                        self.assertEqual(connection.recv(), found)
                self.assertTrue(is_in_memory(connection))

    def test_bytes_go_there_and_back(self):
        with child(echo_bytes) as connection:
            for length in [*range(0, 60), 4093, 4094, 4095, 4096, 4097, 100_000, 5_000_000] * 2:
                data = os.urandom(length)
                connection.send_bytes(data)
                found = connection.recv_bytes()
                self.assertEqual(found, data)
                self.assertIsInstance(found, bytes)
            connection.send_bytes(bytearray(b"0123456789"), 2, 5)
            self.assertEqual(connection.recv_bytes(), b"23456")
            connection.send_bytes(b"0123456789", 7)
            self.assertEqual(connection.recv_bytes(100), b"789")
            for arguments in ((b"1", -1), (b"1", 2), (b"1", 0, -1), (b"1", 0, 2)):
                with self.assertRaises(ValueError):
                    connection.send_bytes(*arguments)

    def test_bytes_are_received_into_memory(self):
        with child(echo_bytes) as connection:
            for length in (10, 50_000):
                for _ in range(20):
                    connection.send_bytes(b"x" * length)
                    memory = bytearray(length + 2)
                    self.assertEqual(connection.recv_bytes_into(memory, 1), length)
                    self.assertEqual(memory, b"\0" + b"x" * length + b"\0")
                connection.send_bytes(b"x" * length)
                with self.assertRaises(multiprocessing.BufferTooShort) as raised:
                    connection.recv_bytes_into(bytearray(length - 1))
                self.assertEqual(raised.exception.args[0], b"x" * length)

    def test_a_message_beyond_the_maximum_closes_the_connection(self):
        with child(echo_bytes) as connection:
            connection.send_bytes(b"x" * 100)
            with self.assertRaises(OSError):
                connection.recv_bytes(99)
            self.assertTrue(connection.closed)
            with self.assertRaises(OSError):
                connection.send_bytes(b"")

    def test_an_end_that_closes_with_frames_unread_ends_the_connection_in_order(self):
        for _ in range(50):
            first, second = ours.Pipe()
            second.send_bytes(b"unread")
            first.close()
            with self.assertRaises(EOFError):
                second.recv_bytes()
            with self.assertRaises(BrokenPipeError):
                second.send_bytes(b"")
            first, second = ours.Pipe()
            second.send_bytes(b"unread")
            first.close()
            with self.assertRaises(BrokenPipeError):
                second.send_bytes(b"")

    def test_both_ends_work_in_one_process(self):
        first, second = ours.Pipe()
        for round in range(200):
            first.send(round)
            first.send_bytes(b"bytes")
            self.assertTrue(second.poll())
            self.assertEqual(second.recv(), round)
            self.assertEqual(second.recv_bytes(), b"bytes")
            self.assertFalse(second.poll())
            second.send([round])
            self.assertEqual(first.recv(), [round])
        self.assertTrue(is_in_memory(first) and is_in_memory(second))
        second.send("last")
        second.close()
        self.assertEqual(first.recv(), "last")
        self.assertTrue(first.poll())
        with self.assertRaises(EOFError):
            first.recv()
        with self.assertRaises(BrokenPipeError):
            first.send(1)
        first.close()
        with self.assertRaises(OSError):
            first.recv()

    def test_what_a_child_sent_before_its_end_arrives(self):
        objects = [1, "two", bytes(3000), list(range(1000))]
        with child(send_and_end, objects) as connection:
            time.sleep(0.3)
            self.assertEqual([connection.recv() for _ in objects], objects)
            with self.assertRaises(EOFError):
                connection.recv()

    def test_a_pipe_of_one_direction(self):
        reader, writer = ours.Pipe(duplex=False)
        self.assertTrue(reader.readable and not reader.writable)
        for _ in range(3):
            writer.send(b"x" * 5000)
            self.assertEqual(reader.recv(), b"x" * 5000)
        with self.assertRaises(OSError):
            reader.send(1)
        with self.assertRaises(OSError):
            writer.recv()
        writer.close()
        with self.assertRaises(EOFError):
            reader.recv()

    def test_poll_waits_for_its_timeout(self):
        with child(echo) as connection:
            began = time.monotonic()
            self.assertFalse(connection.poll(0.1))
            self.assertGreaterEqual(time.monotonic() - began, 0.1)
            connection.send(1)
            self.assertTrue(connection.poll(30))
            self.assertTrue(connection.poll())
            self.assertEqual(connection.recv(), 1)

    def test_wait_finds_those_that_are_ready(self):
        children = [child(echo) for _ in range(3)]
        ends = [entered.__enter__() for entered in children]
        try:
            self.assertEqual(ours.wait(ends, 0.05), [])
            for _ in range(50):
                for end in ends:
                    end.send("x")
                    self.assertEqual(ours.wait(ends, 30), [end])
                    self.assertEqual(end.recv(), "x")
                    self.assertEqual(ours.wait(ends, 0), [])
            ends[0].send(1)
            ends[2].send(2)
            found = []
            while len(found) < 2:
                for end in ours.wait(ends, 30):
                    found.append(end.recv())
            self.assertEqual(sorted(found), [1, 2])
        finally:
            for entered in children:
                entered.__exit__()

    def test_a_connection_that_was_used_belongs_to_its_process(self):
        with child(echo) as connection:
            connection.send(1)
            connection.recv()
            with self.assertRaises(pickle.PicklingError):
                multiprocessing.reduction.ForkingPickler.dumps(connection)

    def test_a_thread_sends_while_another_one_receives(self):
        with child(echo) as connection:
            found = []

            def receive():
                for _ in range(2000):
                    found.append(connection.recv())

            receiver = threading.Thread(target=receive)
            receiver.start()
            for number in range(2000):
                connection.send(number)
            receiver.join(60)
            self.assertEqual(found, list(range(2000)))

    def test_listeners_and_clients_prove_their_key(self):
        def serve(listener):
            with listener.accept() as connection:
                for _ in range(20):
                    connection.send(connection.recv())

        for family in ("AF_UNIX", "AF_INET"):
            with ours.Listener(None, family, authkey=b"key") as listener:
                server = threading.Thread(target=serve, args=(listener,))
                server.start()
                with ours.Client(listener.address, authkey=b"key") as client:
                    for number in range(20):
                        client.send({"number": number})
                        self.assertEqual(client.recv(), {"number": number})
                    self.assertTrue(is_in_memory(client))
                server.join(30)

                def refuse():
                    try:
                        listener.accept()
                    except multiprocessing.AuthenticationError:
                        pass

                server = threading.Thread(target=refuse)
                server.start()
                with self.assertRaises(multiprocessing.AuthenticationError):
                    ours.Client(listener.address, authkey=b"another one")
                server.join(30)

    def test_the_rest_of_the_standard_module_is_there(self):
        self.assertIs(ours.Process, multiprocessing.Process)
        self.assertIs(ours.Queue.__func__, multiprocessing.Queue.__func__)
        with self.assertRaises(AttributeError):
            ours.nothing_of_this_name


def echo_array(connection):
    with connection:
        while True:
            try:
                array = connection.recv()
            except EOFError:
                return
            connection.send_array(array * 2)
            del array


class Arrays(unittest.TestCase):
    def setUp(self):
        try:
            import numpy
        except ImportError:
            print("not run: numpy is not installed", file=sys.stderr)
            self.skipTest("not run: numpy is not installed")
        self.numpy = numpy

    def test_arrays_arrive_by_value_and_may_be_written(self):
        numpy = self.numpy
        arrays = [
            numpy.arange(10),
            numpy.arange(100_000.0).reshape(100, 1000),
            numpy.asfortranarray(numpy.random.rand(300, 200)),
            numpy.zeros((0, 3)),
            numpy.arange(100_000)[::2],
        ]
        with child(echo) as connection:
            for _ in range(3):
                connection.send({"arrays": arrays})
                for sent, found in zip(arrays, connection.recv()["arrays"]):
                    self.assertTrue(numpy.array_equal(sent, found))
                    self.assertEqual(sent.dtype, found.dtype)
                    if found.size:
                        found.reshape(-1)[0] = 1

    def test_arrays_by_reference(self):
        numpy = self.numpy
        with child(echo_array) as connection:
            connection.send_array(numpy.arange(3))
            self.assertTrue(numpy.array_equal(connection.recv(), [0, 2, 4]))
            for round in range(30):
                array = connection.empty((100, 200), "f4")
                array[...] = round
                connection.send_array(array)
                with self.assertRaises(ValueError):
                    array[0, 0] = 1
                found = connection.recv()
                self.assertEqual(found.shape, (100, 200))
                self.assertTrue((found == 2 * round).all())
                self.assertFalse(found.flags.writeable)
            connection.send_array(numpy.asfortranarray(numpy.arange(6).reshape(2, 3)))
            self.assertTrue(numpy.array_equal(connection.recv(), numpy.arange(6).reshape(2, 3) * 2))
            connection.send_array(numpy.zeros((0, 3)))
            self.assertEqual(connection.recv().shape, (0, 3))
            with self.assertRaises(ValueError):
                connection.empty(3, object)


if __name__ == "__main__":
    unittest.main()
