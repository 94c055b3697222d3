"""Ports under asyncio: the loop watches a port's descriptor while a task waits for the port."""

import asyncio
import weakref

from ._bywire import Port
from ._errors import Closed, ConnectTimedOut, Error, Full, NoToken


# Messages that a task takes without a turn of its loop.
_IN_A_ROW = 64


class _Watch:
    """The tasks of one loop that wait for one port."""

    def __init__(self, port, loop):
        # Weak, so that a port that nobody uses any more is closed.
        self.port = weakref.ref(port)
        self.loop = loop
        self.descriptor = port.fileno()
        self.waiting = []
        self.is_registered = False
        self.in_a_row = 0

    def ring(self):
        """The descriptor is readable."""
        port = self.port()
        try:
            if port is not None:
                port._woke()
        except Error:
            pass  # The tasks find the error again, and raise it.
        if not self.wake():
            # The descriptor stays readable while a connection waits, which nobody is to answer now.
            self.stop()

    def wake(self):
        """Wakes the tasks that wait: each looks for itself. Returns whether there are some."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        return bool(waiting)

    def stop(self):
        if self.is_registered:
            self.is_registered = False
            self.loop.remove_reader(self.descriptor)

    async def sleep(self):
        if not self.is_registered:
            self.is_registered = True
            self.loop.add_reader(self.descriptor, self.ring)
        future = self.loop.create_future()
        self.waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self.waiting:
                self.waiting.remove(future)
            if not self.waiting:
                self.stop()
            raise


_watches = weakref.WeakKeyDictionary()


def _watch(port):
    loop = asyncio.get_running_loop()
    watch = _watches.get(port)
    if watch is None or watch.loop is not loop:
        watch = _watches[port] = _Watch(port, loop)
    return watch


def _is_idle(loop):
    """Returns whether no other callback of the loop is ready. Only then a task may spin."""
    ready = getattr(loop, "_ready", None)
    return ready is not None and not ready


async def _until(port, look):
    """Waits until `look` returns something other than None."""
    watch = _watch(port)
    while True:
        found = look()
        if found is not None:
            return found
        # `arm` returns false if something has come between the look and the sleep.
        if port.arm():
            await watch.sleep()
        else:
            # It may be for another task, which has armed before.
            watch.wake()
            # A descriptor that is ready for long must not keep other tasks from running.
            await asyncio.sleep(0)


async def receive_async(self):
    """The next message of anybody, as `receive` returns it.

    A task that waits spins first, as `receive` does, if no other callback of the loop is ready. ``Port(spin=0)`` forbids it.
    """
    loop = asyncio.get_running_loop()
    watch = _watch(self)
    watch.in_a_row += 1
    if watch.in_a_row < _IN_A_ROW:
        message = self.try_receive(spin=_is_idle(loop))
        if message is not None:
            return message
    else:
        # Other tasks and descriptors have their turn, however fast messages come.
        await asyncio.sleep(0)
    watch.in_a_row = 0
    return await _until(self, self.try_receive)


async def send_async(self, peer, data, *, priority=0):
    """Sends a message to a peer of this port. Waits for room, and until the memory may be used again."""
    if memoryview(data).nbytes <= 4096:
        if not peer.try_send(data, priority=priority):
            await _until(self, lambda: peer.try_send(data, priority=priority) or None)
        return
    transfer = await start_async(self, peer.start_send, data, priority=priority)
    await finish_async(self, transfer)


async def start_async(self, start, *arguments, **options):
    """Starts a transfer by a method such as `peer.start_put`. Waits for a token."""
    def attempt():
        try:
            return start(*arguments, timeout=0, **options)
        except (Full, NoToken):
            return None

    return await _until(self, attempt)


async def finish_async(self, transfer):
    """Waits until a transfer is done. Raises its error if it failed."""
    await _until(self, lambda: transfer.is_done or None)
    transfer.wait(0)


async def connect_async(self, address, timeout=10.0):
    """Connects to `node/port`, as `connect` does."""
    peer = self.start_connect(address)
    try:
        await asyncio.wait_for(_until(self, lambda: self.is_established(peer) or None), timeout)
    except asyncio.TimeoutError:
        peer.disconnect()
        raise ConnectTimedOut("no answer in time: the other end may be stopped, or it does not poll") from None
    except asyncio.CancelledError:
        peer.disconnect()
        raise
    return peer


def _iterate(self):
    return self


async def _next(self):
    if self.closed:
        raise StopAsyncIteration
    try:
        return await receive_async(self)
    except Closed:
        raise StopAsyncIteration from None


_close = Port.close


def close(self):
    """Closes the port. Its peers see that it was closed. Does nothing the second time."""
    watch = _watches.pop(self, None)
    if watch is not None:
        watch.stop()
    _close(self)
    if watch is not None and not watch.loop.is_closed():
        # Tasks that wait find the port closed.
        watch.loop.call_soon_threadsafe(watch.wake)


def _exit(self, *_exception):
    close(self)


for _method in (receive_async, send_async, start_async, finish_async, connect_async, close):
    _method.__qualname__ = f"Port.{_method.__name__}"
    setattr(Port, _method.__name__, _method)
Port.__aiter__ = _iterate
Port.__anext__ = _next
Port.__exit__ = _exit
