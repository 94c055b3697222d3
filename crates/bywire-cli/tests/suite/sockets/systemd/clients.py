"""Clients of services: the first argument is the protocol, the second one the port of this machine."""

import http.client
import sys
import time


def get(port):
    """Gets a page again and again over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(60):
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        time.sleep(0.01)


CLIENTS = {"http": get}
CLIENTS[sys.argv[1]](int(sys.argv[2]))
