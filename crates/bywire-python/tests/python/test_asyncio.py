"""Ports under asyncio."""

import asyncio
import gc
import time
import unittest
import weakref

import bywire
from pump import pumping


class Asyncio(unittest.TestCase):
    def run_pair(self, body, **options):
        """Runs a coroutine with a port, its connected peer, and the port of a server."""

        async def main():
            with bywire.Port(**options) as server, bywire.Port(**options) as client:
                # The server's port answers once one of its tasks waits.
                accepting = asyncio.create_task(server.receive_async())
                peer = await client.connect_async(server.address)
                await client.send_async(peer, b"hello")
                self.assertEqual((await accepting).data, b"hello")
                await body(server, client, peer)

        asyncio.run(asyncio.wait_for(main(), 60))

    def test_messages_are_iterated(self):
        async def body(server, client, peer):
            async def echo():
                async for message in server:
                    await server.send_async(message.peer, message.data)

            task = asyncio.create_task(echo())
            for length in (0, 5, 4096, 4097, 3_000_000):
                await client.send_async(peer, bytes(length))
                self.assertEqual(len(await client.receive_async()), length)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        for spin in (0, 50e-6):
            self.run_pair(body, spin=spin)

    def test_other_tasks_run_while_one_waits_and_while_messages_flow(self):
        async def body(server, client, peer):
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.001)
                    ticks += 1

            async def echo():
                async for message in server:
                    await server.send_async(message.peer, message.data)

            tasks = [asyncio.create_task(tick()), asyncio.create_task(echo())]
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.receive_async(), 0.2)
            self.assertGreater(ticks, 20)
            ticks = 0
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                await client.send_async(peer, b"x")
                await client.receive_async()
            self.assertGreater(ticks, 20)
            for task in tasks:
                task.cancel()

        self.run_pair(body)

    def test_an_idle_loop_uses_no_processor(self):
        async def body(server, client, peer):
            waiting = [asyncio.create_task(port.receive_async()) for port in (server, client)]
            await asyncio.sleep(0.1)
            before = time.process_time()
            await asyncio.sleep(0.5)
            self.assertLess(time.process_time() - before, 0.1)
            for task in waiting:
                task.cancel()

        self.run_pair(body)

    def test_a_full_ring_holds_back_its_sender_only(self):
        async def body(server, client, peer):
            async def flood():
                for number in range(5000):
                    await client.send_async(peer, number.to_bytes(1000, "little"))

            task = asyncio.create_task(flood())
            await asyncio.sleep(0.1)
            self.assertFalse(task.done())
            for number in range(5000):
                self.assertEqual((await server.receive_async()).data, number.to_bytes(1000, "little"))
            await task

        self.run_pair(body)

    def test_two_tasks_wait_for_one_port(self):
        async def body(server, client, peer):
            tasks = [asyncio.create_task(server.receive_async()) for _ in range(2)]
            await asyncio.sleep(0.01)
            await client.send_async(peer, b"a")
            await client.send_async(peer, b"b")
            found = {message.data for message in await asyncio.gather(*tasks)}
            self.assertEqual(found, {b"a", b"b"})

        self.run_pair(body)

    def test_a_call_that_takes_what_a_task_waits_for_wakes_it(self):
        async def body(server, client, peer):
            region = server.register(100, write=True)
            to_client = server.peers()[0]
            with pumping(server):
                for number in range(100):
                    waiting = asyncio.create_task(client.receive_async())
                    await asyncio.sleep(0)
                    self.assertTrue(to_client.try_send(str(number).encode()))
                    # This call takes the message off the port, and ends without looking again.
                    peer.put(region.key, b"abc", timeout=30)
                    self.assertEqual(int((await asyncio.wait_for(waiting, 10)).data), number)

        self.run_pair(body, spin=0)

    def test_a_thread_that_takes_what_a_task_waits_for_wakes_it(self):
        async def body(server, client, peer):
            to_client = server.peers()[0]
            with pumping(client):
                for number in range(300):
                    waiting = asyncio.create_task(client.receive_async())
                    await asyncio.sleep(0)
                    self.assertTrue(to_client.try_send(str(number).encode()))
                    self.assertEqual(int((await asyncio.wait_for(waiting, 10)).data), number)

        self.run_pair(body)

    def test_a_port_that_nobody_uses_is_closed(self):
        async def main():
            port = bywire.Port()
            waiting = asyncio.create_task(port.receive_async())
            await asyncio.sleep(0.01)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            return weakref.ref(port)

        found = asyncio.run(main())
        gc.collect()
        self.assertIsNone(found())

    def test_ends_and_errors_are_raised(self):
        async def body(server, client, peer):
            with self.assertRaises(bywire.NoPort):
                await client.connect_async("localhost/nobody-has-this-name")
            with bywire.Port() as silent:
                with self.assertRaises(bywire.ConnectTimedOut):
                    await client.connect_async(silent.address, timeout=0.05)
            waiting = asyncio.create_task(client.receive_async())
            await asyncio.sleep(0.01)
            server.close()
            with self.assertRaises(bywire.Disconnected):
                await waiting
            waiting = asyncio.create_task(client.receive_async())
            await asyncio.sleep(0.01)
            client.close()
            with self.assertRaises(bywire.Closed):
                await waiting
            self.assertEqual([message async for message in client], [])

        self.run_pair(body)

    def test_puts_are_awaited(self):
        async def body(server, client, peer):
            region = server.register(100, write=True)
            serving = asyncio.create_task(server.receive_async())
            transfer = await client.start_async(peer.start_put, region.key, b"abc")
            await client.finish_async(transfer)
            self.assertEqual(bytes(region.data[:3]), b"abc")
            transfer = await client.start_async(peer.start_put, region.key, b"abc", offset=98)
            with self.assertRaises(bywire.OutOfRange):
                await client.finish_async(transfer)
            serving.cancel()

        self.run_pair(body)


if __name__ == "__main__":
    unittest.main()
