/* A process that is killed right behind a call by which bytes of TCP come or go, from when it is told. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include "next_syscall.h"

static volatile int is_told;

void killed_from_now(void) {
    is_told = 1;
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

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    typedef ssize_t call(int, struct msghdr *, int);
    ssize_t result = ((call *)dlsym(RTLD_NEXT, "recvmsg"))(fd, message, flags);
    if (is_told && result > 0 && is_tcp(fd))
        kill(getpid(), SIGKILL);
    return result;
}
