"""The exceptions of Bywire. Each one's text is a sentence that says what happened and what to do."""


class Error(Exception):
    """The base of every exception of this package."""


class Closed(Error):
    """The port was closed."""


class Forked(Error):
    """The port belongs to the parent process. A child opens ports of its own."""


class TimedOut(Error, TimeoutError):
    """Nothing came within the timeout of a call."""


class Overflow(Error):
    """More messages wait than a port keeps while a call waits for another one."""


class OpenError(Error):
    """A port could not be opened."""


class InUse(OpenError):
    """Another process has a port of this name."""


class BadOption(OpenError, ValueError):
    """An option, or the name of a port, is out of its range."""


class ConnectError(Error, ConnectionError):
    """No connection came about."""


class BadAddress(ConnectError, ValueError):
    """A text is not an address of the form ``node/port``."""


class NoPort(ConnectError):
    """No such port is open."""


class NotAdmitted(ConnectError):
    """The port does not admit this user."""


class ConnectTimedOut(ConnectError, TimedOut):
    """The other end did not answer in time. It answers when it calls its port."""


class Unreachable(ConnectError):
    """The other machine does not answer."""


class NoFabric(OpenError, ConnectError):
    """This machine's node cannot be used, or does not know the other one."""


class SendError(Error):
    """A message was not sent, or a transfer was not started."""


class Full(SendError):
    """There is no room towards the peer: it does not read."""


class NoToken(SendError):
    """As many transfers are under way as the port allows."""


class TooLong(SendError, ValueError):
    """The message is longer than the call or the target takes."""


class Disconnected(SendError, ConnectionError):
    """The peer has left, or the connection was ended."""


class TransferError(Error):
    """A message, a put or a get failed under way."""


class BadKey(TransferError):
    """The key names no region, or one that was revoked."""


class NoRight(TransferError):
    """The region does not grant this right."""


class OutOfRange(TransferError):
    """The range exceeds the region."""


class LendError(Error):
    """Memory could not be lent."""


class NoBlock(LendError):
    """Every block of the heap is lent."""
