"""Arrays of numpy between two processes, by `bywire.multiprocessing`: by value and by reference."""

import numpy

from bywire.multiprocessing import Pipe, Process


def work(connection):
    with connection:
        array = connection.recv()
        connection.send(array.sum())
        # Filled where the parent reads it: no byte is copied.
        squares = connection.empty(array.shape, array.dtype)
        numpy.square(array, out=squares)
        connection.send_array(squares)
        connection.recv()


if __name__ == "__main__":
    parent, child = Pipe()
    worker = Process(target=work, args=(child,))
    worker.start()
    child.close()
    with parent:
        parent.send(numpy.arange(100_000.0))
        print("sum:", parent.recv())
        print("last square:", parent.recv()[-1])
        parent.send("done")
        worker.join()
