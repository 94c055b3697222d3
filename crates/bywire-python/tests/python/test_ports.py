"""Ports of Python: messages, errors, waits, threads, forks, regions and lending."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
import unittest

import bywire
from pump import pumping


def connected_pair(**options):
    """Two connected ports of this thread, and each one's peer."""
    server, client = bywire.Port(**options), bywire.Port(**options)
    peer = client.start_connect(server.address)
    end = time.monotonic() + 30
    other = None
    established = False
    while time.monotonic() < end and not (other and established):
        event = server.poll()
        if isinstance(event, bywire.Connected):
            other = event.peer
        established = established or client.is_established(peer)
    return server, client, other, peer


class sending:
    """Sends a long message by a thread: both ends have to call their ports until it is across."""

    def __init__(self, peer, data):
        self.thread = threading.Thread(target=lambda: peer.send(data, timeout=30))

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.thread.join()


class Pair(unittest.TestCase):
    options = {}

    def setUp(self):
        self.server, self.client, self.to_client, self.to_server = connected_pair(**self.options)

    def tearDown(self):
        self.server.close()
        self.client.close()


class Messages(Pair):
    def test_messages_of_every_kind_of_memory_arrive(self):
        for data in (b"", b"x", b"hello", bytearray(b"bytearray"), memoryview(b"view"), bytes(range(256)) * 16):
            self.to_server.send(data)
            message = self.server.receive(timeout=30)
            self.assertEqual(bytes(message), bytes(data))
            self.assertEqual(len(message), len(data))
            self.assertEqual(message.peer, self.to_client)
            self.assertIsInstance(message.data, bytes)

    def test_long_messages_arrive_in_a_bytearray(self):
        for length in (4097, 65536, 1_000_000, 10_000_000):
            data = os.urandom(length)
            with sending(self.to_server, data):
                message = self.server.receive(timeout=30)
            self.assertIsInstance(message.data, bytearray)
            self.assertEqual(message.data, data)

    def test_a_posted_buffer_takes_a_long_message(self):
        memory = bytearray(100_000)
        self.server.post(memory)
        with self.assertRaises(ValueError):
            self.server.post(memory)
        transfer = self.to_server.start_send(b"a" * 50_000)
        self.assertIn("under way", repr(transfer))
        with pumping(self.client):
            message = self.server.receive(timeout=30)
        self.assertEqual(message.data, b"a" * 50_000)
        self.assertEqual(memory[:50_000], b"a" * 50_000)
        self.assertEqual(memory[50_000:], bytes(50_000))
        transfer.wait(30)
        self.assertTrue(transfer.is_done)

    def test_read_only_memory_cannot_be_posted(self):
        with self.assertRaises(BufferError):
            self.server.post(b"read-only" * 1000)
        with self.assertRaises(TypeError):
            self.to_server.send("a text")
        with self.assertRaises(BufferError):
            self.to_server.send(memoryview(bytes(100))[::2])

    def test_priorities_and_datagrams_are_reported(self):
        self.to_server.send(b"low")
        self.to_server.send(b"high", priority=bywire.HIGH)
        found = {}
        for _ in range(2):
            message = self.server.receive(30)
            found[bytes(message)] = message.priority
        self.assertEqual(found, {b"low": bywire.LOW, b"high": bywire.HIGH})
        self.assertTrue(self.to_server.send_datagram(b"datagram"))
        self.assertTrue(self.server.receive(30).is_datagram)
        with self.assertRaises(ValueError):
            self.to_server.send(b"", priority=2)

    def test_many_messages_arrive_in_order(self):
        def send():
            for number in range(20_000):
                self.to_server.send(number.to_bytes(4, "little") * (1 + number % 40))

        sender = threading.Thread(target=send)
        sender.start()
        for number in range(20_000):
            self.assertEqual(self.server.receive(30).data[:4], number.to_bytes(4, "little"))
        sender.join()

    def test_a_full_ring_is_an_error_at_the_timeout(self):
        with self.assertRaises(bywire.Full) as raised:
            for _ in range(1_000_000):
                self.to_server.send(b"x" * 1000, timeout=0.01)
        self.assertIn("no room", str(raised.exception))
        self.assertFalse(self.to_server.try_send(b"x" * 1000))
        # Each message that was accepted arrives.
        self.assertEqual(len(self.server.receive(30)), 1000)

    def test_a_confirmed_message_was_taken(self):
        sender = threading.Thread(target=lambda: self.to_server.send(b"certain", delivered=True))
        sender.start()
        self.assertEqual(self.server.receive(30).data, b"certain")
        while sender.is_alive():
            self.server.poll()
        sender.join()


class Errors(unittest.TestCase):
    def test_errors_are_sentences_of_a_hierarchy(self):
        with bywire.Port() as port:
            with self.assertRaises(bywire.NoPort) as raised:
                port.connect("localhost/nobody-has-this-name")
            self.assertIn("start the other end first", str(raised.exception))
            self.assertIsInstance(raised.exception, bywire.ConnectError)
            self.assertIsInstance(raised.exception, ConnectionError)
            with self.assertRaises(bywire.BadAddress):
                port.connect("a/b/c")
            with self.assertRaises(bywire.BadOption):
                bywire.Port("a name with blanks")
            with self.assertRaises(bywire.BadOption):
                bywire.Port(send_tokens=0)
            with self.assertRaises(TypeError):
                bywire.Port(colour="red")
            with bywire.Port("python-twice"):
                with self.assertRaises(bywire.InUse):
                    bywire.Port("python-twice")
            with self.assertRaises(ConnectionError):
                port.connect(port.address)
        with self.assertRaises(bywire.Closed):
            port.receive()
        self.assertTrue(port.closed)
        self.assertEqual(list(port), [])

    def test_timeouts_are_timeout_errors(self):
        with bywire.Port() as port:
            began = time.monotonic()
            with self.assertRaises(TimeoutError):
                port.receive(timeout=0.05)
            self.assertGreaterEqual(time.monotonic() - began, 0.05)
            self.assertIsNone(port.wait(0.01))
            self.assertIsNone(port.poll())
            for wrong in (-1, float("nan")):
                with self.assertRaises(ValueError):
                    port.receive(timeout=wrong)

    def test_every_exception_of_the_package_has_a_documentation(self):
        for name in bywire.__all__:
            self.assertTrue(getattr(bywire, name).__doc__, name)

    def test_stubs_name_everything_that_is_there(self):
        stub = os.path.join(os.path.dirname(bywire.__file__), "__init__.pyi")
        with open(stub, encoding="utf-8") as file:
            text = file.read()
        for owner in (bywire.Port, bywire.Peer, bywire.Message, bywire.Region, bywire.Heap, bywire.Block, bywire.Transfer):
            for name in vars(owner):
                if not name.startswith("_"):
                    self.assertIn(f"def {name}(", text, owner)
                    self.assertTrue(getattr(owner, name).__doc__, f"{owner} {name}")
        for name in bywire.__all__:
            self.assertIn(name, text)


class Endings(Pair):
    def test_a_peer_that_leaves_ends_a_wait(self):
        self.to_client.send(b"last words")
        self.server.close()
        self.assertEqual(self.to_server.receive(30).data, b"last words")
        with self.assertRaises(bywire.Disconnected) as raised:
            self.to_server.receive(30)
        self.assertIn("closed its port", str(raised.exception))
        with self.assertRaises(bywire.Disconnected):
            self.to_server.receive(30)
        with self.assertRaises(bywire.Disconnected):
            self.to_server.send(b"too late")
        self.assertFalse(self.to_server.is_connected)

    def test_a_server_goes_on_when_a_client_leaves(self):
        self.to_server.send(b"one")
        self.client.close()
        self.assertEqual(self.server.receive(30).data, b"one")
        with self.assertRaises(bywire.TimedOut):
            self.server.receive(0.1)

    def test_events_tell_who_came_and_left(self):
        self.client.close()
        event = self.server.wait(30)
        self.assertIsInstance(event, bywire.Disconnection)
        self.assertEqual(event.peer, self.to_client)
        self.assertIn("closed its port", event.reason)

    def test_messages_of_others_are_kept(self):
        with bywire.Port() as third:
            to_server = third.start_connect(self.server.address)
            while not third.is_established(to_server):
                self.server.pump()
            to_server.send(b"from the third")
            self.to_server.send(b"from the second")
            self.assertEqual(self.to_client.receive(30).data, b"from the second")
            self.assertEqual(self.server.receive(30).data, b"from the third")

    def test_a_peer_describes_itself(self):
        self.assertEqual(self.to_server.pid, os.getpid())
        self.assertEqual(self.to_server.uid, os.getuid())
        self.assertIsNone(self.to_server.user)
        self.assertTrue(self.to_server.address.endswith("/" + self.server.name))
        self.assertEqual(self.server.peers(), [self.to_client])
        self.assertEqual(self.to_server.message_bytes_max, 1 << 30)
        self.assertEqual(len({self.to_client, self.server.peers()[0]}), 1)


class Limits(Pair):
    options = {"message_bytes_max": 100_000}

    def test_a_message_beyond_the_limit_is_refused_at_its_sender(self):
        with self.assertRaises(bywire.TooLong) as raised:
            self.to_server.send(bytes(100_001))
        self.assertIn("100000", str(raised.exception))


class Threads(Pair):
    def test_a_thread_sends_while_another_one_waits(self):
        found = []
        waiter = threading.Thread(target=lambda: found.append(self.client.receive(30).data))
        waiter.start()
        time.sleep(0.05)
        # The port of the waiting thread.
        self.to_server.send(b"question")
        message = self.server.receive(30)
        message.peer.send(b"answer")
        waiter.join(30)
        self.assertEqual(found, [b"answer"])

    def test_threads_that_wait_for_one_port_get_each_message_once(self):
        found, lock = [], threading.Lock()

        def take():
            while True:
                data = self.server.receive(30).data
                if data == b"end":
                    return
                with lock:
                    found.append(int(data))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(2000):
            self.to_server.send(str(number).encode(), timeout=30)
            if number % 100 == 0:
                time.sleep(0.002)
        for _ in threads:
            self.to_server.send(b"end", timeout=30)
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertEqual(sorted(found), list(range(2000)))

    def test_the_interpreter_runs_while_a_thread_waits(self):
        waiter = threading.Thread(target=lambda: self.client.wait(5))
        waiter.start()
        count = 0
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            count += 1
        self.assertGreater(count, 10_000)
        self.to_client.send(b"wake")
        waiter.join(5)

    def test_closing_ends_the_wait_of_another_thread(self):
        found = []

        def wait():
            try:
                self.client.receive()
            except bywire.Error as error:
                found.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.05)
        self.client.close()
        waiter.join(30)
        self.assertIsInstance(found[0], bywire.Closed)


class Signals(unittest.TestCase):
    def test_an_interrupt_ends_a_wait(self):
        with bywire.Port() as port:
            timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                port.receive()
            timer.join()

    def test_a_handled_signal_does_not_end_a_wait(self):
        seen = []
        before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        try:
            with bywire.Port() as port:
                timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
                timer.start()
                with self.assertRaises(bywire.TimedOut):
                    port.receive(0.3)
                timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        self.assertEqual(seen, [1])


class Forks(Pair):
    def test_a_child_does_not_inherit_ports_and_opens_its_own(self):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for call in (self.client.poll, self.client.receive, lambda: self.to_server.send(b"x"), self.client.arm):
                    try:
                        call()
                        os._exit(2)
                    except bywire.Forked as error:
                        assert "parent" in str(error)
                self.client.close()
                with bywire.Port() as own:
                    peer = own.connect(self.server.address, timeout=30)
                    peer.send(b"from the child")
                    peer.receive(30)
                code = 0
            finally:
                os._exit(code)
        message = self.server.receive(30)
        self.assertEqual(message.data, b"from the child")
        self.assertEqual(message.peer.pid, child)
        message.peer.send(b"go")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        # The parent's ports are as before.
        self.to_server.send(b"still here")
        self.assertEqual(self.server.receive(30).data, b"still here")


class Regions(Pair):
    def test_put_get_and_notes(self):
        memory = bytearray(b"0123456789")
        region = self.server.register(memory, read=True, write=True)
        with pumping(self.server):
            self.to_server.put(region.key, b"abc", offset=2, note=b"note", timeout=30)
            self.assertEqual(self.to_server.get(region.key, 5, timeout=30), b"01abc")
            target = bytearray(3)
            self.assertIs(self.to_server.get(region.key, into=target, offset=7, timeout=30), target)
            self.assertEqual(target, b"789")
            with self.assertRaises(bywire.OutOfRange):
                self.to_server.get(region.key, 11, timeout=30)
            with self.assertRaises(bywire.BadKey):
                self.to_server.get(region.key ^ 1 << 40, 1, timeout=30)
        note = self.server.notification(30)
        self.assertEqual((note.note, note.peer), (b"note", self.to_client))
        self.assertEqual(bytes(region.data), b"01abc56789")
        with self.assertRaises(BufferError):
            memory.append(1)
        region.revoke()
        memory.append(1)
        region.revoke()

    def test_rights_hold(self):
        with self.server.register(b"read-only") as readable, self.server.register(9, read=False, write=True) as writable:
            with pumping(self.server):
                self.assertEqual(self.to_server.get(readable.key, 4, timeout=30), b"read")
                with self.assertRaises(bywire.NoRight):
                    self.to_server.put(readable.key, b"x", timeout=30)
                with self.assertRaises(bywire.NoRight):
                    self.to_server.get(writable.key, 1, timeout=30)
        with self.assertRaises(BufferError):
            self.server.register(b"read-only", write=True)


class Lending(Pair):
    def test_a_block_is_filled_once_and_read_in_place(self):
        heap = self.to_server.heap(100_000, 2)
        self.assertGreaterEqual(heap.block_bytes, 100_000)
        block = heap.block()
        view = block.data
        view[:5] = b"hello"
        with self.assertRaises(BufferError) as raised:
            self.to_server.send_lent(block, 5)
        self.assertIn("release", str(raised.exception))
        view.release()
        self.to_server.send_lent(block, 5)
        with self.assertRaises(BufferError):
            block.data
        with self.assertRaises(BufferError):
            self.to_server.send_lent(block, 5)
        message = self.server.receive(30)
        self.assertTrue(message.is_lent)
        self.assertEqual(bytes(message), b"hello")
        self.assertTrue(message.data.readonly)
        second = heap.block()
        with self.assertRaises(bywire.NoBlock):
            heap.block(0.05)
        # The block comes back with the last view of it.
        slice_of = message.data[:2]
        message.release()
        with self.assertRaises(bywire.NoBlock):
            heap.block(0.05)
        slice_of.release()
        self.server.pump()
        self.assertIsNotNone(heap.block(30))
        del second

    def test_a_thread_gets_a_block_that_comes_back_while_it_waits(self):
        heap = self.to_server.heap(4096, 1)
        for is_lent in (False, True):
            for pause in (0, 0.00002, 0.005) * 30:
                block = heap.block(30)
                if is_lent:
                    self.to_server.send_lent(block, 4)
                found = []
                waiter = threading.Thread(target=lambda: found.append(heap.block(30)))
                waiter.start()
                time.sleep(pause)
                if is_lent:
                    self.server.receive(30).release()
                    self.server.pump()
                else:
                    del block
                waiter.join(60)
                self.assertIsInstance(found.pop(), bywire.Block)

    def test_memory_that_was_lent_outlives_ports_and_messages(self):
        heap = self.to_server.heap(4096, 1)
        block = heap.block()
        kept = memoryview(block.data)
        kept[:4] = b"kept"
        self.to_server.send_lent(block, 4, force=True)
        data = self.server.receive(30).data
        del block, heap
        self.client.close()
        self.server.close()
        gc.collect()
        self.assertEqual((bytes(data), bytes(kept[:4])), (b"kept", b"kept"))


class Descriptors(Pair):
    def test_the_descriptor_reports_what_comes_after_arming(self):
        while not self.server.arm():
            self.server.pump()
        poller = select.poll()
        poller.register(self.server, select.POLLIN)
        self.assertEqual(poller.poll(0), [])
        self.to_server.send(b"x")
        self.assertTrue(poller.poll(30_000))
        self.assertEqual(self.server.try_receive().data, b"x")

    def test_statistics_count_sleeps_and_refusals(self):
        self.assertEqual(
            set(self.server.statistics()), {"datagrams_unsent", "datagrams_damaged", "refused", "sleeps"}
        )


class Memory(unittest.TestCase):
    def test_ports_messages_and_transfers_leave_nothing_behind(self):
        def work():
            server, client, _, peer = connected_pair()
            for _ in range(50):
                with sending(peer, bytes(200_000)):
                    server.receive(30)
            server.close()
            client.close()

        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        for _ in range(3):
            work()
        gc.collect()
        before, descriptors = resident(), len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            work()
        gc.collect()
        self.assertLess(resident() - before, 20_000_000)
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)


class Numpy(Pair):
    def setUp(self):
        try:
            import numpy
        except ImportError:
            print("not run: numpy is not installed", file=sys.stderr)
            self.skipTest("not run: numpy is not installed")
        self.numpy = numpy
        super().setUp()

    def tearDown(self):
        super().tearDown()

    def test_arrays_are_sent_and_received_without_a_further_copy(self):
        array = self.numpy.arange(50_000.0)
        with sending(self.to_server, array):
            received = self.numpy.frombuffer(self.server.receive(30).data)
        self.assertTrue((received == array).all())
        received[0] = 1
        target = self.numpy.zeros(50_000)
        self.server.post(target)
        with sending(self.to_server, array):
            self.server.receive(30)
        self.assertTrue((target == array).all())


if __name__ == "__main__":
    unittest.main()
