/* A process that is killed right behind a call by which bytes of TCP come or go, from when it is told. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    typedef long call(long, long, long, long, long, long, long);
    __builtin_va_list list;
    __builtin_va_start(list, number);
    long words[6];
    for (int at = 0; at < 6; at++)
        words[at] = __builtin_va_arg(list, long);
    __builtin_va_end(list);
    call *next = (call *)dlsym(RTLD_NEXT, "syscall");
    long result = next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
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
