"""Bywire: messages between processes of one machine through shared memory, and between machines, encrypted.

A program opens a `Port`, connects it to another port by its address, and sends and receives messages::

    import bywire

    with bywire.Port() as port:
        server = port.connect("localhost/echo")
        server.send(b"hello")
        print(server.receive(timeout=5).data)

The server is a port with a name::

    with bywire.Port("echo") as port:
        for message in port:
            message.peer.send(message.data)

`async for message in port` does the same under asyncio. `bywire.multiprocessing` has the interface of
`multiprocessing.connection`.

Threads may share a port; their calls take turns. A child made by `os.fork` does not inherit ports: each call raises
`Forked` there, and the child opens ports of its own.
"""

from ._bywire import (
    FRAGMENT_BYTES,
    NOTE_BYTES_MAX,
    Block,
    Connected,
    Disconnection,
    Heap,
    Message,
    Notification,
    Peer,
    Port,
    Region,
    Transfer,
    __version__,
)
from . import _asyncio as _asyncio  # Adds the methods for asyncio to `Port`.
from ._errors import (
    BadAddress,
    BadKey,
    BadOption,
    Closed,
    ConnectError,
    ConnectTimedOut,
    Disconnected,
    Error,
    Forked,
    Full,
    InUse,
    LendError,
    NoBlock,
    NoFabric,
    NoPort,
    NoRight,
    NotAdmitted,
    NoToken,
    OpenError,
    OutOfRange,
    Overflow,
    SendError,
    TimedOut,
    TooLong,
    TransferError,
    Unreachable,
)

LOW = 0
"""The priority of the bulk of messages."""

HIGH = 1
"""The priority of messages that must not wait behind the bulk."""

__all__ = [name for name in dir() if not name.startswith("_")]
