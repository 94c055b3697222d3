// A client that calls the C library's functions through JNA and checks every byte that comes back. Its argument is the
// server's port.
import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.NativeLong;
import java.util.Arrays;
import java.util.Random;

class ForeignEcho {
    public interface C extends Library {
        int socket(int family, int kind, int protocol);

        int connect(int fd, byte[] address, int length);

        NativeLong send(int fd, byte[] bytes, NativeLong length, int flags);

        NativeLong recv(int fd, byte[] bytes, NativeLong length, int flags);

        int close(int fd);
    }

    public static void main(String[] arguments) throws Exception {
        C c = Native.load("c", C.class);
        int port = Integer.parseInt(arguments[0]);
        byte[] address = {2, 0, (byte) (port >> 8), (byte) port, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
        for (int seed = 0; seed < 4; seed++) {
            Random random = new Random(seed);
            int fd = c.socket(2, 1, 0);
            need(c.connect(fd, address, address.length) == 0, "connect");
            for (int turn = 0; turn < 400; turn++) {
                byte[] due = new byte[1 + random.nextInt(3999)];
                random.nextBytes(due);
                need(c.send(fd, due, new NativeLong(due.length), 0).intValue() == due.length, "send");
                byte[] got = new byte[0];
                while (got.length < due.length) {
                    byte[] room = new byte[4000];
                    int length = c.recv(fd, room, new NativeLong(room.length), 0).intValue();
                    need(length > 0, "an early end");
                    got = Arrays.copyOf(got, got.length + length);
                    System.arraycopy(room, 0, got, got.length - length, length);
                }
                need(Arrays.equals(due, got), "other bytes came back");
            }
            c.close(fd);
        }
        System.out.println("fine");
    }

    static void need(boolean isWell, String what) throws Exception {
        if (!isWell) {
            throw new Exception(what);
        }
    }
}
