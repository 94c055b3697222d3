/* A payment of bytes that were returned to the kernel is late: once the kernel has had no room, the next one comes after it
 * has ended the connection. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "next_syscall.h"

/* The pairing service is talked to over a Unix socket. */
static int is_tcp(int fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_INET;
}

long syscall(long number, ...) {
    static int was_full;
    TAKE_WORDS(words, number);
    if (number == SYS_sendmsg && was_full && is_tcp(words[0])) {
        typedef int call(struct pollfd *, nfds_t, int);
        struct pollfd file = {.fd = words[0]};
        ((call *)dlsym(RTLD_NEXT, "poll"))(&file, 1, 20000);
    }
    long result = next_syscall(number, words);
    if (number == SYS_sendmsg && result < 0 && is_tcp(words[0]))
        was_full = 1;
    return result;
}
