"""An echo server of a kind by its name, or clients that check every byte that comes back."""
import ctypes
import hashlib
import os
import socket
import socketserver
import sys
import threading
import time


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while part := self.request.recv(50_000):
            self.request.sendall(part)


class Lines(socketserver.StreamRequestHandler):
    """Answers each line by its digest, through the files that the handler makes of its socket."""

    def handle(self):
        for line in self.rfile:
            self.wfile.write(hashlib.md5(line).hexdigest().encode() + b"\n")


def serve(kind, handler):
    class Server(getattr(socketserver, kind)):
        daemon_threads = True
        request_queue_size = 50

    with Server(("127.0.0.1", 0), handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever(poll_interval=0.05)


def echo(port, seed):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for turn in range(60):
            due = os.urandom(1 + turn * 7919 * seed % 70_000)
            sender = threading.Thread(target=peer.sendall, args=(due,))
            sender.start()
            got = bytearray()
            while len(got) < len(due):
                part = peer.recv(65_536)
                assert part, "an early end"
                got += part
            sender.join()
            assert got == due, "other bytes came back"
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b"", "bytes after the end"


def foreign(port, seed):
    """Calls the C library's functions, which it looks up by the library's handle, in turns with the socket's own."""
    library = ctypes.CDLL("libc.so.6", use_errno=True)
    library.send.restype = library.recv.restype = ctypes.c_ssize_t
    with socket.create_connection(("127.0.0.1", port)) as peer:
        room = ctypes.create_string_buffer(4000)
        for turn in range(400):
            due = os.urandom(1 + turn * 7919 * seed % 4000)
            if turn % 2:
                peer.sendall(due)
            else:
                sent = library.send(peer.fileno(), due, ctypes.c_size_t(len(due)), 0)
                assert sent == len(due), f"{sent} of {len(due)} bytes were sent"
            got = bytearray()
            while len(got) < len(due):
                if turn % 3:
                    part = peer.recv(4000)
                else:
                    received = library.recv(peer.fileno(), room, ctypes.c_size_t(4000), 0)
                    part = room.raw[: max(received, 0)]
                assert part, "an early end"
                got += part
            assert got == due, "other bytes came back"
            if turn % 16 == 0:
                # The service that pairs the two ends needs a moment.
                time.sleep(0.01)


def lines(port, seed):
    with socket.create_connection(("127.0.0.1", port)) as peer, peer.makefile("rwb") as file:
        for turn in range(200):
            line = os.urandom(1 + turn * 31 * seed % 4000).hex().encode() + b"\n"
            file.write(line)
            file.flush()
            assert file.readline().strip() == hashlib.md5(line).hexdigest().encode(), "another answer"


def talk(port, work):
    wrong = []

    def one(seed):
        try:
            work(port, seed)
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(1, 7)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(wrong or "fine")


if sys.argv[1] == "serve":
    serve(sys.argv[2], {"echo": Echo, "lines": Lines}[sys.argv[3]])
else:
    talk(int(sys.argv[2]), {"echo": echo, "lines": lines, "foreign": foreign}[sys.argv[3]])
