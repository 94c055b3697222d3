/* Code that the programs of these tests share: conditions, both ends of a connection over loopback, threads and children, the kernel's
   account of a connection, and actions by their names. */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "architecture.h"

extern char **environ;

static inline void need(int is_well, const char *what) {
    if (!is_well) {
        perror(what);
        _exit(1);
    }
}

static inline int is(const char *word, const char *other) {
    return strcmp(word, other) == 0;
}

/* A socket with a free port, and its address. Nobody listens there yet. */
static inline int bound_socket(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    need(bind(fd, (struct sockaddr *)address, length) == 0, "bind");
    getsockname(fd, (struct sockaddr *)address, &length);
    return fd;
}

static inline int listening_socket(struct sockaddr_in *address) {
    int listener = bound_socket(address);
    need(listen(listener, 64) == 0, "listen");
    return listener;
}

/* The two ends of connections. With `SOCK_CLOEXEC` they close when the program becomes another one. */
static inline int connected_socket(const struct sockaddr_in *address, int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    need(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0, "connect");
    return fd;
}

static inline int accepted_socket(int listener, int flags) {
    int fd = flags != 0 ? accept4(listener, NULL, NULL, flags) : accept(listener, NULL, NULL);
    need(fd >= 0, "accept");
    return fd;
}

static inline void set_option(int fd, int level, int name, int value) {
    need(setsockopt(fd, level, name, &value, sizeof value) == 0, "setsockopt");
}

static inline void set_no_delay(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

/* Waits until something of `events` has come. Returns all that has. */
static inline short await_events(int fd, short events, const char *what) {
    struct pollfd file = {fd, events, 0};
    need(poll(&file, 1, 20000) == 1, what);
    return file.revents;
}

static inline pthread_t start_thread(void *(*work)(void *), void *argument) {
    pthread_t thread;
    need(pthread_create(&thread, NULL, work, argument) == 0, "a thread");
    return thread;
}

static inline void join_thread(pthread_t thread) {
    need(pthread_join(thread, NULL) == 0, "a thread's end");
}

static inline void run_in_thread(void *(*work)(void *), void *argument) {
    join_thread(start_thread(work, argument));
}

/* A child that does not write again what this program has written. */
static inline pid_t fork_flushed(void) {
    fflush(stdout);
    pid_t child = fork();
    need(child >= 0, "fork");
    return child;
}

/* Waits for a child, which has to succeed. */
static inline void await_child(pid_t child) {
    int status;
    need(waitpid(child, &status, 0) == child && status == 0, "a child");
}

/* The kernel's own account of what was sent and received: the places in `struct tcp_info` of linux/tcp.h. */
static inline void count_kernels(int fd, char moved[16]) {
    char bytes[256] = {0};
    socklen_t length = sizeof bytes;
    need(getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes, &length) == 0 && length >= 208, "the kernel's account");
    memcpy(moved, bytes + 200, 8);
    memcpy(moved + 8, bytes + 128, 8);
}

/* Whether this program was started with the library: an emulated one has other libraries loaded, too. */
static inline int has_library(void) {
    return getenv("BYWIRE_SOCKETS_SERVICE") != NULL;
}

/* Repeats an exchange until nothing of it goes through the kernel: a slow service is not waited for by calls. Without the library
   one exchange suffices. */
static inline void exchange_until_carried(int fd, void (*exchange)(int)) {
    time_t started = time(NULL);
    char before[16], after[16];
    for (;;) {
        count_kernels(fd, before);
        exchange(fd);
        count_kernels(fd, after);
        if (!has_library() || memcmp(before, after, sizeof before) == 0) {
            return;
        }
        need(time(NULL) - started < 40, "it is never carried");
        usleep(1000);
    }
}

/* Makes a call, and says its result. */
#define SAY(call) (errno = 0, say_result(#call, (long)(call)))

static inline void say_result(const char *call, long result) {
    printf("%s = %ld %s\n", call, result, result < 0 ? strerror(errno) : "");
}

/* An action of a program, by the name that its first word has. It takes as many further words as its function. */
struct action {
    const char *name;
    void (*none)(void);
    void (*one)(const char *);
    void (*two)(const char *, const char *);
    void (*three)(const char *, const char *, const char *);
};

/* Does the action that is named. Returns the status of the program: 2 if there is no such action, or if it lacks words. */
static inline int perform(const struct action *actions, int count, char **words) {
    const struct action *action = actions;
    while (action->name != NULL && (count < 2 || !is(words[1], action->name))) {
        action++;
    }
    if (action->none != NULL) {
        action->none();
    } else if (action->one != NULL && count > 2) {
        action->one(words[2]);
    } else if (action->two != NULL && count > 3) {
        action->two(words[2], words[3]);
    } else if (action->three != NULL && count > 4) {
        action->three(words[2], words[3], words[4]);
    } else {
        return 2;
    }
    fflush(stdout);
    return 0;
}

#endif
