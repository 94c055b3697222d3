/* A writer that is killed while it changes over: right behind the last piece that it gives to the kernel. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    ssize_t sent = next(fd, message, flags);
    int domain = 0;
    socklen_t size = sizeof domain;
    /* The pairing service is talked to over a Unix socket. */
    if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_INET)
        kill(getpid(), SIGKILL);
    return sent;
}
