/* A process that is killed right behind a call by which bytes of TCP come or go, from when it is told, or right
 * before one that ends what it sends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include "next_syscall.h"

static volatile int is_told, is_told_of_ends;

void killed_from_now(void) {
    is_told = 1;
}

void killed_before_an_end(void) {
    is_told_of_ends = 1;
}

int shutdown(int fd, int how) {
    typedef int call(int, int);
    if (is_told_of_ends)
        kill(getpid(), SIGKILL);
    return ((call *)dlsym(RTLD_NEXT, "shutdown"))(fd, how);
}

/* The pairing service is talked to over a Unix socket. */
static int is_tcp(int fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_INET;
}

long syscall(long number, ...) {
    TAKE_WORDS(words, number);
    long result = next_syscall(number, words);
    if (is_told && number == SYS_sendmsg && result > 0 && is_tcp(words[0]))
        kill(getpid(), SIGKILL);
    return result;
}

ssize_t recv(int fd, void *bytes, size_t size, int flags) {
    typedef ssize_t call(int, void *, size_t, int);
    ssize_t result = ((call *)dlsym(RTLD_NEXT, "recv"))(fd, bytes, size, flags);
    if (is_told && result > 0 && is_tcp(fd))
        kill(getpid(), SIGKILL);
    return result;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    typedef ssize_t call(int, struct msghdr *, int);
    ssize_t result = ((call *)dlsym(RTLD_NEXT, "recvmsg"))(fd, message, flags);
    if (is_told && result > 0 && is_tcp(fd))
        kill(getpid(), SIGKILL);
    return result;
}
