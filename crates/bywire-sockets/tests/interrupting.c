/* A signal that comes in the last moment before a sleep in memory: once a handler is set for SIGUSR1. */
#define _GNU_SOURCE
#include <signal.h>
#include "next_syscall.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

long syscall(long number, ...)
{
    TAKE_WORDS(words, number);
    static int has_come;
    struct sigaction action;
    if (number == SYS_futex_waitv && !has_come && !sigaction(SIGUSR1, NULL, &action) && action.sa_handler != SIG_DFL) {
        has_come = 1;
        raise(SIGUSR1);
    }
    return next_syscall(number, words);
}
