/* A machine without memory for rings, from when it is told. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

static volatile int is_over;

void memory_ends(void) {
    is_over = 1;
}

int madvise(void *start, size_t length, int advice) {
    typedef int call(void *, size_t, int);
    if (is_over && advice == MADV_POPULATE_WRITE) {
        errno = ENOMEM;
        return -1;
    }
    return ((call *)dlsym(RTLD_NEXT, "madvise"))(start, length, advice);
}
