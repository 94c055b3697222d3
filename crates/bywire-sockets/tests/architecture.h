/* What differs from one architecture to another: system calls by instructions of a program's own, and their numbers. */
#ifndef ARCHITECTURE_H
#define ARCHITECTURE_H

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)

/* The first version of the C library for this architecture, which all old functions have. */
#define FIRST_VERSION "GLIBC_2.2.5"
/* The smallest stack that the C library makes. */
#define SMALLEST_STACK 16384

/* A call with a constant number, by the instruction itself. */
#define CALL_INLINE(result, number, first, second, third, fourth, fifth, sixth) \
    do { \
        register long r10 __asm__("r10") = (long)(fourth), r8 __asm__("r8") = (long)(fifth), r9 __asm__("r9") = (long)(sixth); \
        __asm__ volatile("syscall" \
                         : "=a"(result) \
                         : "a"(number), "D"((long)(first)), "S"((long)(second)), "d"((long)(third)), "r"(r10), "r"(r8), "r"(r9) \
                         : "rcx", "r11", "memory"); \
    } while (0)

#define FORK_BY_NUMBER() syscall(SYS_fork)

#elif defined(__aarch64__)

#define FIRST_VERSION "GLIBC_2.17"
#define SMALLEST_STACK 131072

#define CALL_INLINE(result, number, first, second, third, fourth, fifth, sixth) \
    do { \
        register long x8 __asm__("x8") = (number), x0 __asm__("x0") = (long)(first), x1 __asm__("x1") = (long)(second); \
        register long x2 __asm__("x2") = (long)(third), x3 __asm__("x3") = (long)(fourth), x4 __asm__("x4") = (long)(fifth); \
        register long x5 __asm__("x5") = (long)(sixth); \
        __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory"); \
        (result) = x0; \
    } while (0)

/* There is no number for it alone. */
#define FORK_BY_NUMBER() syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)

#else
#error "these tests know x86-64 and aarch64 only"
#endif

#endif
