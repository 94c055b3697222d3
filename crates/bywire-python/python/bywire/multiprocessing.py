"""Connections with the interface of `multiprocessing.connection`, over Bywire.

A program changes one import::

    from bywire.multiprocessing import Client, Listener, Pipe

Everything else of the standard module (`Process`, `Queue`, `Pool` and so on) is here under the same name, unchanged.

A connection begins as a kernel's socket pair, which can be inherited and handed to other processes as usual. Each end opens a
port when it is used for the first time. The two ports then connect to each other, and what is sent from then on crosses shared
memory. A connection whose ends cannot reach each other's ports, such as ends on two machines, stays a socket.

Both ends have to be connections of this module. A connection that was used belongs to its process: after a fork use it in the
parent or in the child that used it first, and hand over only those that were not used.
"""

import io
import itertools
import multiprocessing as _standard
import multiprocessing.connection as _plain
import os
import pickle
import select
import struct
import threading
import time
from collections import deque
from multiprocessing import AuthenticationError, BufferTooShort, ProcessError, TimeoutError
from multiprocessing.reduction import ForkingPickler

from ._bywire import FRAGMENT_BYTES, Port
from ._errors import Disconnected, Error, NoBlock, TimedOut

__all__ = ["Client", "Connection", "Listener", "Pipe", "wait"]


def __getattr__(name):
    return getattr(_standard, name)


# Frames over the socket, before the ports are connected.
_ADDRESS, _SWITCH, _DATA = b"A", b"S", b"D"
# Messages between the ports.
_SHORT, _PARTS, _ARRAY = 0, 1, 2
# Messages that a thread takes off the socket before it sends.
_AHEAD_MAX = 64
# Buffers of an object that cross beside its pickle, without a copy. Shorter ones are part of it.
_PARTS_MAX = 500
# Arrays sent by reference: the smallest block, and blocks of each size.
_BLOCK_BYTES_MIN = 1 << 16
_BLOCKS = 8


def _machine():
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip()


class Connection:
    """One end of a connection. It has the methods of `multiprocessing.connection.Connection`, and `empty` and `send_array`."""

    def __init__(self, plain):
        self._plain = plain
        self._readable = plain.readable
        self._writable = plain.writable
        # A pipe of one direction stays a socket: its reader could not answer.
        self._is_socket = not (plain.readable and plain.writable)
        # Held while the ports are being connected, never while a thread waits.
        self._lock = threading.RLock()
        # Held while something is sent over the socket: nothing follows the frame that says so.
        self._send_lock = threading.Lock()
        # Threads that wait for the socket and the port. They take every step then.
        self._waiting = 0
        self._port = None
        self._token = None
        # The other end, once it is connected and is what messages are sent to.
        self._out = None
        # The other end, once everything that came over the socket has been read.
        self._in = None
        self._candidate = None
        self._proved = False
        self._may_switch = False
        # Messages that were taken before the program asked for them, each as a list of parts.
        self._ahead = deque()
        self._watch = None
        self._heaps = {}
        self._blocks = {}

    # The way from the socket to the port.

    def _start(self):
        """Opens this end's port, and tells the other end its address."""
        self._port = Port()
        self._token = os.urandom(16)
        try:
            self._send_frame(_ADDRESS + self._token + _machine() + b"/" + self._port.name.encode())
        except OSError:
            pass  # The other end has left. What it sent before is still to be read.

    def _advance(self):
        """Takes the next steps towards a connection of the ports, without waiting."""
        self._check_open()
        if self._is_socket:
            return
        if self._port is None:
            self._start()
        self._port.pump()
        if self._out is None:
            try:
                self._greet()
            except Error:
                self._candidate = None  # The connection stays a socket.

    def _greet(self):
        if self._candidate is not None:
            if not self._proved and not self._may_switch and self._port.is_established(self._candidate):
                self._candidate.send(self._theirs, timeout=1)
                self._proved = True
            return
        message = self._port.try_receive() if self._in is None else None
        if message is not None and bytes(message.data) == self._token:
            self._switch(message.peer)

    def _switch(self, peer):
        """Sends by the port from now on, or from the end of what is being sent over the socket."""
        self._candidate = peer
        self._may_switch = True
        if self._send_lock.acquire(blocking=False):
            try:
                self._switch_sending()
            except OSError:
                pass  # The other end has left. What it sent is still to be read.
            finally:
                self._send_lock.release()

    def _switch_sending(self):
        if self._may_switch and self._out is None:
            self._send_frame(_SWITCH)
            self._out = self._candidate

    def _send_frame(self, frame):
        try:
            self._plain.send_bytes(frame)
        except ConnectionResetError as error:
            raise BrokenPipeError(str(error)) from None

    def _read_frame(self):
        """Takes a frame off the socket, if there is one. Returns whether there was."""
        if self._in is not None or not self._plain.poll(0):
            return False
        try:
            frame = self._plain.recv_bytes()
        except ConnectionResetError:
            # The other end has closed with frames unread, which may have been none of the program's.
            raise EOFError from None
        kind = frame[:1]
        if kind == _DATA:
            self._ahead.append([frame[1:]])
        elif kind == _ADDRESS:
            self._theirs = frame[1:17]
            machine, _, name = frame[17:].rpartition(b"/")
            # One of both calls.
            if machine == _machine() and self._token < self._theirs:
                try:
                    self._candidate = self._port.start_connect("localhost/" + name.decode())
                except Error:
                    pass  # It cannot be reached, so the connection stays a socket.
        elif kind == _SWITCH and self._candidate is not None:
            self._in = self._candidate
            self._switch(self._candidate)
        return True

    def _look(self):
        """Before messages are sent: takes what has come over the socket, and the next steps towards a connection of the ports."""
        with self._lock:
            if self._waiting:
                return
            self._advance()
            try:
                while self._readable and len(self._ahead) < _AHEAD_MAX and self._read_frame():
                    pass
            except EOFError:
                pass  # Sends fail from here on, and receives end.

    # Sending.

    def _send_over_socket(self, parts):
        if len(parts) == 1:
            self._send_frame(_DATA + b"\0" + bytes(parts[0]))
        else:
            lengths = struct.pack(f"<I{len(parts)}Q", len(parts), *(len(part) for part in parts))
            self._send_frame(b"".join((_DATA, b"\1", lengths, *parts)))

    def _send_parts(self, parts):
        """Sends one message in parts, of which the first is not empty."""
        if self._out is None:
            self._look()
            with self._send_lock:
                self._switch_sending()
                if self._out is None:
                    self._send_over_socket(parts)
                    return
        peer = self._out
        try:
            first = parts[0]
            if len(parts) == 1 and len(first) < FRAGMENT_BYTES:
                peer.send(b"\0" + bytes(first))
                return
            head = struct.pack(f"<BI{len(parts)}Q", _PARTS, len(parts), *(len(part) for part in parts))
            if len(head) + len(first) <= FRAGMENT_BYTES:
                # A short pickle crosses with the head.
                head, parts = head + bytes(first), parts[1:]
            peer.send(head)
            for transfer in [peer.start_send(part) for part in parts]:
                transfer.wait()
        except Disconnected as error:
            raise BrokenPipeError(str(error)) from None

    def send(self, obj):
        """Sends an object by its pickle. Large buffers, such as those of numpy's arrays, cross beside it without a copy."""
        self._check_writable()
        buffers = []

        def beside(buffer):
            # Returns whether the buffer is to be a part of the pickle.
            if len(buffers) == _PARTS_MAX or buffer.raw().nbytes <= FRAGMENT_BYTES:
                return True
            buffers.append(buffer.raw())
            return False

        file = io.BytesIO()
        ForkingPickler(file, 5, True, beside).dump(obj)
        try:
            # Not `getbuffer`, which crashes the collector of Python 3.12.0 and 3.12.1 when an exception keeps this frame.
            self._send_parts([file.getvalue(), *buffers])
        finally:
            for view in buffers:
                try:
                    view.release()
                except BufferError:
                    pass  # An interrupt has left its transfer under way.
        if self._watch is not None:
            self._rearm()

    def send_bytes(self, buf, offset=0, size=None):
        """Sends the bytes of an object that has the buffer protocol."""
        if self._out is not None and type(buf) is bytes and offset == 0 and size is None and len(buf) < FRAGMENT_BYTES:
            try:
                self._out.send(b"\0" + buf)
            except Disconnected as error:
                raise BrokenPipeError(str(error)) from None
        else:
            self._check_writable()
            view = memoryview(buf).cast("B")
            if offset < 0:
                raise ValueError("offset is negative")
            if len(view) < offset:
                raise ValueError("buffer length < offset")
            if size is None:
                size = len(view) - offset
            elif size < 0:
                raise ValueError("size is negative")
            elif offset + size > len(view):
                raise ValueError("buffer length < offset + size")
            self._send_parts([view[offset : offset + size]])
        if self._watch is not None:
            self._rearm()

    # Receiving.

    def _take(self, timeout):
        """The parts of the next message. Raises `TimedOut`, and `EOFError` at the end."""
        if self._in is None or self._ahead:
            self._wait_for_frame(timeout)
            if self._ahead:
                return self._ahead.popleft()
            # The time left matters little: the ports were connected meanwhile.
        try:
            return self._parts_of(self._in, self._in.receive(timeout))
        except Disconnected:
            raise EOFError from None

    @staticmethod
    def _parts_of(peer, message):
        data = message.data
        kind = data[0]
        if kind == _SHORT:
            return [data]
        if kind == _ARRAY:
            return [data, peer.receive().data]
        count = struct.unpack_from("<I", data, 1)[0]
        lengths = struct.unpack_from(f"<{count}Q", data, 5)
        parts = [data]
        first = data[5 + 8 * count :]
        if first:
            parts.append(first)
            lengths = lengths[1:]
        for length in lengths:
            parts.append(peer.receive().data if length else b"")
        return parts

    def _wait_for_frame(self, timeout):
        """Waits until a message has come over the socket, or until nothing more comes there."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._ahead:
                    return
                self._advance()
                while not self._ahead and self._read_frame():
                    pass
                if self._ahead or self._in is not None:
                    return
                if not self._is_socket and not self._port.arm():
                    continue
                self._waiting += 1
            try:
                self._sleep(end)
            finally:
                with self._lock:
                    self._waiting -= 1

    def _sleep(self, end):
        """Waits until the socket or the port may have something."""
        rest = None if end is None else end - time.monotonic()
        if rest is not None and rest <= 0:
            raise TimedOut("no message came within the timeout")
        poller = select.poll()
        poller.register(self._plain.fileno(), select.POLLIN)
        if not self._is_socket:
            poller.register(self._port.fileno(), select.POLLIN)
        poller.poll(None if rest is None else rest * 1000)

    def recv(self):
        """Receives an object."""
        self._check_readable()
        parts = self._take(None)
        if self._watch is not None:
            self._rearm()
        return self._object(parts)

    @staticmethod
    def _object(parts):
        head = parts[0]
        if head[0] == _ARRAY:
            import numpy

            kind, shape, order = pickle.loads(memoryview(head)[1:])
            return numpy.frombuffer(parts[1], kind).reshape(shape, order=order)
        if len(parts) == 1:
            if head[0] == _SHORT:
                return pickle.loads(memoryview(head)[1:])
            parts = _split(head)
        # Buffers that may be written, as their owners could.
        buffers = [bytearray(part) if type(part) is bytes else part for part in parts[2:]]
        return pickle.loads(parts[1], buffers=buffers)

    def recv_bytes(self, maxlength=None):
        """Receives the bytes of one message."""
        if self._in is not None and self._watch is None and maxlength is None and not self._ahead:
            # The usual case, without the calls of the others.
            try:
                message = self._in.receive()
                data = message.data
                if data[0] == _SHORT:
                    return data[1:]
                return bytes(self._bytes(self._parts_of(self._in, message)))
            except Disconnected:
                raise EOFError from None
        self._check_readable()
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")
        data = self._bytes(self._take(None))
        if self._watch is not None:
            self._rearm()
        if maxlength is not None and len(data) > maxlength:
            self.close()
            raise OSError("bad message length")
        return bytes(data)

    @staticmethod
    def _bytes(parts):
        head = parts[0]
        if head[0] == _SHORT:
            return head[1:]
        if len(parts) == 1:
            parts = _split(head)
        if len(parts) != 2 or head[0] == _ARRAY:
            raise OSError("the message is an object with buffers: take it by recv")
        return parts[1]

    def recv_bytes_into(self, buf, offset=0):
        """Receives the bytes of one message into writable memory. Returns their number."""
        self._check_readable()
        view = memoryview(buf).cast("B")
        if offset < 0:
            raise ValueError("negative offset")
        if offset > len(view):
            raise ValueError("offset too large")
        data = self._bytes(self._take(None))
        if self._watch is not None:
            self._rearm()
        if len(data) > len(view) - offset:
            raise BufferTooShort(bytes(data))
        view[offset : offset + len(data)] = data
        return len(data)

    def poll(self, timeout=0.0):
        """Returns whether there is something to receive, an end included."""
        self._check_readable()
        if self._ahead:
            return True
        try:
            self._ahead.appendleft(self._take(timeout if timeout is None else max(timeout, 0.0)))
        except TimedOut:
            return False
        except EOFError:
            return True
        finally:
            if self._watch is not None:
                self._rearm()
        return True

    # Arrays by reference.

    def empty(self, shape, dtype=float, order="C"):
        """A new array of numpy in memory that the other end can read: `send_array` sends it without a copy.

        Waits until the other end has used the connection, and until it has dropped one of the arrays that it has received, if
        it holds eight of this size.
        """
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise ValueError("an array of objects cannot be sent by reference: use send")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        length = int(numpy.prod(shape, dtype=numpy.int64)) * kind.itemsize
        block = self._block(length)
        array = numpy.frombuffer(block.data, kind, length // kind.itemsize if kind.itemsize else 0)
        array = array.reshape(shape, order=order)
        # Blocks of arrays that were dropped are forgotten when their memory is used again.
        self._blocks[array.ctypes.data] = block
        return array

    def _block(self, length):
        self._connect_ports()
        size = max(_BLOCK_BYTES_MIN, 1 << max(length - 1, 1).bit_length())
        heap = self._heaps.get(size)
        if heap is None:
            heap = self._heaps[size] = self._out.heap(size, _BLOCKS)
        try:
            return heap.block(0)
        except NoBlock:
            pass
        # Those that `empty` has made and that no array uses any more.
        self._forget_unused()
        return heap.block()

    def _forget_unused(self):
        for address in [address for address, block in self._blocks.items() if not block.is_used]:
            del self._blocks[address]

    def _connect_ports(self):
        """Waits until the ports are connected."""
        self._check_writable()
        if self._is_socket:
            raise OSError("a pipe of one direction sends no arrays by reference: use Pipe()")
        end = time.monotonic() + 10
        while self._out is None:
            self._look()
            with self._send_lock:
                self._switch_sending()
            if self._out is None:
                if time.monotonic() > end:
                    raise OSError("the other end cannot read this process's memory, or has not used the connection yet")
                time.sleep(0.001)

    def send_array(self, array):
        """Sends an array of numpy by reference. The other end receives it by `recv`, reads it in place, and cannot write to it.

        An array of `empty` is not copied, and cannot be written to afterwards. Others are copied once.
        """
        import numpy

        self._check_writable()
        self._connect_ports()
        array = numpy.asarray(array)
        if array.nbytes == 0:
            return self.send(array)
        address = array.ctypes.data
        block = self._blocks.pop(address, None)
        order = "C" if array.flags.c_contiguous else "F"
        if block is None or not (array.flags.c_contiguous or array.flags.f_contiguous):
            source, order = array, "C"
            array = self.empty(source.shape, source.dtype)
            array[...] = source
            block = self._blocks.pop(array.ctypes.data)
        array.flags.writeable = False
        head = bytes((_ARRAY,)) + pickle.dumps((array.dtype, array.shape, order), 5)
        try:
            self._out.send(head)
            self._out.send_lent(block, array.nbytes, force=True)
        except Disconnected as error:
            raise BrokenPipeError(str(error)) from None

    # The descriptor.

    def fileno(self):
        """A descriptor that is readable when there is something to receive, for `wait`, `select` and the like."""
        self._check_open()
        if self._is_socket:
            return self._plain.fileno()
        if self._watch is None:
            with self._lock:
                self._advance()
                self._watch = _Watch(self._plain.fileno(), self._port.fileno())
                self._rearm()
        return self._watch.fileno()

    def _rearm(self):
        """Makes the descriptor report what comes from now on, and what was taken ahead."""
        if self._watch is None:
            return
        with self._lock:
            if self._waiting:
                return
            try:
                while not self._ahead:
                    if self._in is None:
                        self._advance()
                        while not self._ahead and self._read_frame():
                            pass
                        if self._ahead:
                            break
                    else:
                        self._watch.forget_socket()
                        message = self._in.try_receive()
                        if message is not None:
                            self._ahead.append(self._parts_of(self._in, message))
                            break
                    if self._port.arm():
                        break
                self._watch.set(bool(self._ahead))
            except (Error, EOFError, OSError):
                # The end is something to receive as well.
                self._watch.set(True)

    # The rest of a connection.

    def _check_open(self):
        if self._plain.closed:
            raise OSError("handle is closed")

    def _check_readable(self):
        self._check_open()
        if not self._readable:
            raise OSError("connection is write-only")

    def _check_writable(self):
        self._check_open()
        if not self._writable:
            raise OSError("connection is read-only")

    @property
    def closed(self):
        """Whether this end was closed."""
        return self._plain.closed

    @property
    def readable(self):
        """Whether this end receives."""
        return self._readable

    @property
    def writable(self):
        """Whether this end sends."""
        return self._writable

    def close(self):
        """Closes this end."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._port is not None:
            try:
                self._port.close()
            except Error:
                pass  # It belongs to the parent process.
        self._plain.close()
        self._out = self._in = None

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    def __reduce__(self):
        if self._port is not None:
            raise pickle.PicklingError(
                "a connection that was used belongs to its process: hand it over before its first use"
            )
        return Connection, (self._plain,)

    def __repr__(self):
        state = "closed" if self.closed else "memory" if self._out is not None else "socket"
        return f"<bywire.multiprocessing.Connection, {state}>"


class _Watch:
    """One descriptor for a socket, a port, and messages that were taken ahead."""

    def __init__(self, socket, port):
        self.epoll = select.epoll()
        self.socket = socket
        self.epoll.register(socket, select.EPOLLIN)
        self.epoll.register(port, select.EPOLLIN)
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.epoll.register(self.read_end, select.EPOLLIN)
        self.is_set = False

    def fileno(self):
        return self.epoll.fileno()

    def forget_socket(self):
        if self.socket is not None:
            self.epoll.unregister(self.socket)
            self.socket = None

    def set(self, is_set):
        if is_set and not self.is_set:
            os.write(self.write_end, b"\0")
        elif self.is_set and not is_set:
            os.read(self.read_end, 1)
        self.is_set = is_set

    def close(self):
        self.epoll.close()
        os.close(self.read_end)
        os.close(self.write_end)


def _split(data):
    """The parts of a message that came as one, over the socket. The first is its head, as in `_parts_of`."""
    view = memoryview(data)
    count = struct.unpack_from("<I", data, 1)[0]
    lengths = struct.unpack_from(f"<{count}Q", data, 5)
    start = 5 + 8 * count
    ends = list(itertools.accumulate(lengths, initial=start))
    return [view[:start]] + [bytearray(view[begin:end]) for begin, end in zip(ends, ends[1:])]


def Pipe(duplex=True):
    """A pair of connections, as `multiprocessing.Pipe` returns it."""
    first, second = _standard.Pipe(duplex)
    return Connection(first), Connection(second)


class Listener:
    """Waits for connections at an address of `multiprocessing.connection`. Both ends have to be on this machine to gain."""

    def __init__(self, address=None, family=None, backlog=1, authkey=None):
        self._listener = _plain.Listener(address, family, backlog, authkey)

    def accept(self):
        """Waits for a connection, and returns it."""
        return Connection(self._listener.accept())

    def close(self):
        """Stops to listen. Connections that were accepted stay open."""
        self._listener.close()

    @property
    def address(self):
        """The address that clients connect to."""
        return self._listener.address

    @property
    def last_accepted(self):
        """The address of the last client."""
        return self._listener.last_accepted

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()


def Client(address, family=None, authkey=None):
    """Connects to a `Listener` of this module."""
    return Connection(_plain.Client(address, family, authkey))


def wait(object_list, timeout=None):
    """The objects that are ready, of connections of this module and of what `multiprocessing.connection.wait` takes."""
    objects = list(object_list)
    end = None if timeout is None else time.monotonic() + max(timeout, 0)
    while True:
        ours = [found for found in objects if isinstance(found, Connection) and found.poll(0)]
        rest = 0 if ours else None if end is None else max(end - time.monotonic(), 0)
        ready = _plain.wait(objects, rest)
        # A connection also wakes for other reasons than a message.
        found = [
            candidate
            for candidate in ready
            if not isinstance(candidate, Connection) or candidate in ours or candidate.poll(0)
        ]
        found += [candidate for candidate in ours if candidate not in found]
        if found or (end is not None and time.monotonic() >= end):
            return found
