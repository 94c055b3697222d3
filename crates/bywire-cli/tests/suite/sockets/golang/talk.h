/* Calls of the C library on a connection with an echo server. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int meet(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? fd : -1;
}

/* Returns whether all bytes came back. */
static int talk(int fd, int rounds) {
    char due[777], got[777];
    for (int round = 0; round < rounds; round++) {
        memset(due, 'a' + round % 26, sizeof due);
        if (send(fd, due, sizeof due, 0) != sizeof due || recv(fd, got, sizeof got, MSG_WAITALL) != sizeof got ||
            memcmp(due, got, sizeof due) != 0) {
            return 0;
        }
        /* The service that pairs the two ends needs a moment. */
        usleep(round % 16 == 0 ? 10000 : 0);
    }
    return 1;
}
