/* A question to the kernel that takes a second, from when it is told. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

static volatile int is_told;

void slow_from_now(void) {
    is_told = 1;
}

int ioctl(int fd, unsigned long request, ...) {
    typedef int call(int, unsigned long, void *);
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (is_told && request == FIONREAD)
        usleep(1000000);
    return ((call *)dlsym(RTLD_NEXT, "ioctl"))(fd, request, argument);
}
