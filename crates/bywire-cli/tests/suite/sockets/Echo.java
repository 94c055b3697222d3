// An echo server by channels and a selector, or clients by blocking streams that check every byte that comes back.
import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;

class Echo {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 0) {
            serve();
        }
        AtomicInteger wrong = new AtomicInteger();
        Thread[] threads = new Thread[6];
        for (int seed = 0; seed < threads.length; seed++) {
            int own = seed;
            threads[seed] = new Thread(() -> {
                try {
                    talk(Integer.parseInt(arguments[0]), own);
                } catch (Exception error) {
                    error.printStackTrace();
                    wrong.incrementAndGet();
                }
            });
            threads[seed].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(wrong.get() == 0 ? "fine" : "wrong");
    }

    static void talk(int port, int seed) throws Exception {
        Random random = new Random(seed);
        try (Socket peer = new Socket("127.0.0.1", port)) {
            peer.setTcpNoDelay(true);
            OutputStream output = peer.getOutputStream();
            DataInputStream input = new DataInputStream(peer.getInputStream());
            for (int round = 0; round < 60; round++) {
                byte[] due = new byte[1 + random.nextInt(60000)];
                random.nextBytes(due);
                output.write(due);
                byte[] got = new byte[due.length];
                input.readFully(got);
                if (!Arrays.equals(due, got)) {
                    throw new Exception("other bytes came back");
                }
            }
            peer.shutdownOutput();
            if (input.read() != -1) {
                throw new Exception("bytes after the end");
            }
        }
    }

    static void serve() throws Exception {
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        System.out.println(((InetSocketAddress) listener.getLocalAddress()).getPort());
        Selector selector = Selector.open();
        listener.configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel peer = listener.accept();
                    peer.configureBlocking(false).register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(65536));
                    continue;
                }
                echo(key);
            }
            selector.selectedKeys().clear();
        }
    }

    /// Reads while nothing waits to be written, and writes while something does.
    static void echo(SelectionKey key) throws Exception {
        SocketChannel peer = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        try {
            if (key.isReadable() && peer.read(buffer) < 0) {
                peer.close();
                return;
            }
            buffer.flip();
            peer.write(buffer);
            boolean isAllGone = !buffer.hasRemaining();
            buffer.compact();
            key.interestOps(isAllGone ? SelectionKey.OP_READ : SelectionKey.OP_WRITE);
        } catch (java.io.IOException gone) {
            peer.close();
        }
    }
}
