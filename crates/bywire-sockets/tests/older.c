/* A kernel of Linux 5.3: what later ones have added fails as there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include "next_syscall.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

static long fail(int number) {
    errno = number;
    return -1;
}

int memfd_create(const char *name, unsigned flags) {
    const unsigned known = MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB;
    return flags & ~known ? fail(EINVAL) : ((int (*)(const char *, unsigned))dlsym(RTLD_NEXT, "memfd_create"))(name, flags);
}

int madvise(void *start, size_t length, int advice) {
    typedef int call(void *, size_t, int);
    return advice == MADV_POPULATE_WRITE ? fail(EINVAL) : ((call *)dlsym(RTLD_NEXT, "madvise"))(start, length, advice);
}

int close_range(unsigned first, unsigned last, int flags) {
    (void)first, (void)last, (void)flags;
    return fail(ENOSYS);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
    typedef int call(int, int, int, void *, socklen_t *);
    int is_later = level == SOL_SOCKET && name == SO_BUF_LOCK;
    return is_later ? fail(ENOPROTOOPT) : ((call *)dlsym(RTLD_NEXT, "getsockopt"))(fd, level, name, value, length);
}

long syscall(long number, ...) {
    TAKE_WORDS(words, number);
    return number == SYS_futex_waitv || number == SYS_epoll_pwait2 ? fail(ENOSYS) : next_syscall(number, words);
}
