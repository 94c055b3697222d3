"""A thread for a port whose program does something else."""

import threading
import time


class pumping:
    """Has a thread take what arrives at a port, and move its transfers on."""

    def __init__(self, port):
        self.port = port
        self.ended = False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ended:
            self.port.pump()
            time.sleep(0.0005)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
