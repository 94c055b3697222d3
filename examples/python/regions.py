"""Put, get and lending between two processes: a worker fills a part of its parent's memory, then sends a block by reference."""

import multiprocessing

import bywire


def work(address):
    with bywire.Port() as port:
        parent = port.connect(address)
        key = int.from_bytes(parent.receive(timeout=10).data, "little")
        parent.put(key, b"filled by the worker", offset=4, note=b"done")
        print("the worker reads", bytes(parent.get(key, 3)))
        heap = parent.heap(block_bytes=1 << 20, blocks=2)
        block = heap.block()
        with block.data as memory:
            memory[:4] = b"lent"
        parent.send_lent(block, 4)
        # The port stays open until the parent has read the block.
        parent.receive(timeout=10)


if __name__ == "__main__":
    with bywire.Port() as port, port.register(1024, read=True, write=True) as region:
        region.data[:3] = b"abc"
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(port.address,))
        worker.start()
        peer = port.wait(10).peer
        peer.send(region.key.to_bytes(8, "little"))
        note = port.notification(timeout=10)
        print("a note:", note.note, "the memory:", bytes(region.data[4:24]))
        with peer.receive(timeout=10) as message:
            print("in place:", bytes(message.data))
        peer.send(b"read")
        worker.join()
