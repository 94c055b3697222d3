/* Loaded into qemu itself, for emulated.c: answers an option with a number above its name by that piece of what the kernel answers,
   all pieces from one moment. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { PIECE = 4 };

int getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
    static __thread char whole[512];
    static __thread socklen_t got;
    int (*next)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    unsigned piece = (unsigned)name >> 16;
    if (piece == 0) return next(fd, level, name, value, length);
    if (piece == 1) {
        got = sizeof whole;
        if (next(fd, level, name & 0xffff, whole, &got) != 0) {
            got = 0;
            return -1;
        }
    }
    if (piece * PIECE > got) {
        errno = ERANGE;
        return -1;
    }
    memcpy(value, whole + (piece - 1) * PIECE, PIECE);
    *length = PIECE;
    return 0;
}
