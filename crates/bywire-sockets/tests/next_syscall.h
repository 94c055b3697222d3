/* For a program that stands in the place of the C library's syscall: what it was called with, and the call itself. */
#ifndef NEXT_SYSCALL_H
#define NEXT_SYSCALL_H

#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>

/* Six words of the arguments behind NUMBER. */
#define TAKE_WORDS(words, number) \
    long words[6]; \
    do { \
        va_list list; \
        va_start(list, number); \
        for (int at = 0; at < 6; at++) \
            words[at] = va_arg(list, long); \
        va_end(list); \
    } while (0)

static long next_syscall(long number, const long words[6]) {
    typedef long call(long, long, long, long, long, long, long);
    call *next = (call *)dlsym(RTLD_NEXT, "syscall");
    return next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

#endif
