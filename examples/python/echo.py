"""An echo server, and the first message in Python: `python3 examples/python/echo.py`, and `ask.py` in another terminal."""

import bywire

with bywire.Port("echo") as port:
    print("serving", port.address, flush=True)
    for message in port:
        # A client that does not read its answers for a second does not hold up the others.
        try:
            message.peer.send(message.data, timeout=1)
        except bywire.SendError as error:
            print("a client was left without an answer:", error, flush=True)
            message.peer.disconnect()
