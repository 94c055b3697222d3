"""The client of `echo.py`. The address of a server is its first argument."""

import sys

import bywire

with bywire.Port() as port:
    server = port.connect(sys.argv[1] if len(sys.argv) > 1 else "localhost/echo")
    for data in (b"hello", bytes(5_000)):
        server.send(data)
        print(len(server.receive(timeout=5)), "bytes back")
