/* A writer that is killed while it changes over: right behind the last piece that it gives to the kernel, which the library
   does by the call's number. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include "next_syscall.h"

long syscall(long number, ...)
{
    TAKE_WORDS(words, number);
    long result = next_syscall(number, words);
    int domain = 0;
    socklen_t size = sizeof domain;
    /* The pairing service is talked to over a Unix socket. */
    if (number == SYS_sendmsg && !getsockopt(words[0], SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_INET)
        kill(getpid(), SIGKILL);
    return result;
}
