/* Loaded into an emulated program: qemu passes on the first four bytes of what the kernel answers about a socket. This asks for the rest
   piece by piece, which emulator.c answers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

enum { PIECE = 4, MEMORY = 55 };

int getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
    int (*next)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    int is_long = (level == IPPROTO_TCP && name == TCP_INFO) || (level == SOL_SOCKET && name == MEMORY);
    if (!is_long) return next(fd, level, name, value, length);
    socklen_t got = 0;
    while (got < *length) {
        char piece[PIECE];
        socklen_t size = PIECE, rest = *length - got;
        if (next(fd, level, name | (got / PIECE + 1) << 16, piece, &size) != 0) {
            if (got == 0) return -1;
            break;
        }
        size = rest < PIECE ? rest : PIECE;
        memcpy((char *)value + got, piece, size);
        got += size;
    }
    *length = got;
    return 0;
}

/* qemu keeps two signals of the machine for itself, and moves the numbers of a program's own by as many. A program that marks a file by
   one of the last two has it marked by the same one in the machine's numbers. */
int fcntl(int fd, int command, ...) {
    enum { MOVED = 2 };
    va_list list;
    va_start(list, command);
    long argument = va_arg(list, long);
    va_end(list);
    int (*next)(int, int, long) = (int (*)(int, int, long))dlsym(RTLD_NEXT, "fcntl");
    int result = next(fd, command, command == F_SETSIG ? argument - MOVED : argument);
    return command == F_GETSIG && result > 0 ? result + MOVED : result;
}
