/* A writer that is killed while it changes over: right behind the last piece that it gives to the kernel, which the library
   does by the call's number. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

long syscall(long number, ...)
{
    typedef long call(long, long, long, long, long, long, long);
    __builtin_va_list list;
    __builtin_va_start(list, number);
    long words[6];
    for (int at = 0; at < 6; at++)
        words[at] = __builtin_va_arg(list, long);
    __builtin_va_end(list);
    call *next = (call *)dlsym(RTLD_NEXT, "syscall");
    long result = next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    int domain = 0;
    socklen_t size = sizeof domain;
    /* The pairing service is talked to over a Unix socket. */
    if (number == SYS_sendmsg && !getsockopt(words[0], SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_INET)
        kill(getpid(), SIGKILL);
    return result;
}
