/* A question to the kernel that has no answer for a while: from when it is told until it is told otherwise, or a minute. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

static volatile int is_told, is_asked;

void slow_from_now(void) {
    is_told = 1;
}

void slow_no_more(void) {
    is_told = 0;
}

int slow_is_asked(void) {
    return is_asked;
}

int ioctl(int fd, unsigned long request, ...) {
    typedef int call(int, unsigned long, void *);
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    for (int turn = 0; is_told && request == FIONREAD && turn < 60000; turn++) {
        is_asked = 1;
        usleep(1000);
    }
    return ((call *)dlsym(RTLD_NEXT, "ioctl"))(fd, request, argument);
}
