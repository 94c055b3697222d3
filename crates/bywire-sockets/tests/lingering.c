/* A program that takes its time between the library's last word and its end. */
#define _GNU_SOURCE
#include <unistd.h>
#include "next_syscall.h"

long syscall(long number, ...) {
    TAKE_WORDS(words, number);
    if (number == SYS_exit_group)
        usleep(1500000);
    return next_syscall(number, words);
}
