"""Clients of services: the first argument is the protocol, the second one the port of this machine."""

import http.client
import socket
import struct
import sys
import time


def connect(port):
    return socket.create_connection(("127.0.0.1", port))


def receive(connection, count):
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise EOFError(f"the service closed the connection after {found!r}")
        found += piece
    return found


def get(port):
    """Gets a page again and again over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(60):
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        time.sleep(0.01)


def memcached(port):
    connection = connect(port)
    for _ in range(2000):
        connection.sendall(b"set key 0 0 1\r\nx\r\n")
        assert receive(connection, 8) == b"STORED\r\n"


def fastcgi(port):
    """Runs /tmp/page.php, which prints `page`, by a server of PHP."""

    def record(kind, content):
        return struct.pack(">BBHHBB", 1, kind, 1, len(content), 0, 0) + content

    def pair(name, value):
        return bytes([len(name), len(value)]) + name + value

    connection = connect(port)
    given = pair(b"SCRIPT_FILENAME", b"/tmp/page.php") + pair(b"REQUEST_METHOD", b"GET")
    # The second byte keeps the connection.
    begin = record(1, struct.pack(">HB5x", 1, 1))
    for _ in range(40):
        connection.sendall(begin + record(4, given) + record(4, b"") + record(5, b""))
        output, kind = b"", 0
        while kind != 3:
            header = receive(connection, 8)
            kind, length, padding = header[1], *struct.unpack(">HB", header[4:7])
            content = receive(connection, length + padding)[:length]
            output += content if kind == 6 else b""
        assert output.endswith(b"page"), output
        time.sleep(0.01)


def amqp(port):
    """Declares a queue of RabbitMQ again and again."""
    connection = connect(port)

    def short(text):
        return bytes([len(text)]) + text

    def long(text):
        return struct.pack(">I", len(text)) + text

    def send(channel, method, arguments):
        content = struct.pack(">HH", *method) + arguments
        connection.sendall(struct.pack(">BHI", 1, channel, len(content)) + content + b"\xce")

    def expect(method):
        while True:
            kind, _, length = struct.unpack(">BHI", receive(connection, 7))
            content = receive(connection, length + 1)
            # The kind 8 is a sign of life.
            if kind != 8:
                assert struct.unpack(">HH", content[:4]) == method, content
                return

    connection.sendall(b"AMQP\0\0\x09\x01")
    expect((10, 10))
    send(0, (10, 11), long(b"") + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US"))
    expect((10, 30))
    send(0, (10, 31), struct.pack(">HIH", 2047, 131072, 0))
    send(0, (10, 40), short(b"/") + short(b"") + b"\0")
    expect((10, 41))
    send(1, (20, 10), short(b""))
    expect((20, 11))
    for _ in range(200):
        send(1, (50, 10), struct.pack(">H", 0) + short(b"queue") + b"\0" + long(b""))
        expect((50, 11))
    send(0, (10, 50), struct.pack(">H", 200) + short(b"") + struct.pack(">HH", 0, 0))
    expect((10, 51))


CLIENTS = {"http": get, "memcached": memcached, "fastcgi": fastcgi, "amqp": amqp}
CLIENTS[sys.argv[1]](int(sys.argv[2]))
