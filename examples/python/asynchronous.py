"""A server and its client as two tasks of one asyncio loop, each with a port of its own."""

import asyncio

import bywire


async def serve(port):
    async for message in port:
        await port.send_async(message.peer, message.data)


async def main():
    with bywire.Port() as server, bywire.Port() as client:
        serving = asyncio.create_task(serve(server))
        peer = await client.connect_async(server.address)
        for data in (b"hello", bytes(1_000_000)):
            await client.send_async(peer, data)
            answer = await client.receive_async()
            print(len(answer), "bytes back")
        serving.cancel()


asyncio.run(main())
