/* Two processes with an end of a carried connection each, for programs that do the same with the library and without. */
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

extern char **environ;

__attribute__((unused)) static void need(int is_well, const char *what) {
    if (!is_well) {
        perror(what);
        _exit(1);
    }
}

static int client, server, start[2], told[2];
static pid_t peer;

/* The kernel's own account of what was sent and received: the places in `struct tcp_info` of linux/tcp.h. */
__attribute__((unused)) static void count_kernels(int fd, char moved[16]) {
    char bytes[256] = {0};
    socklen_t length = sizeof bytes;
    need(getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes, &length) == 0 && length >= 208, "the kernel's account");
    memcpy(moved, bytes + 200, 8);
    memcpy(moved + 8, bytes + 128, 8);
}

/* Bytes of one way, by their places: what is lost, doubled or misplaced does not go unseen. */
static char byte_at(size_t place) {
    return (char)(place * 31 + place / 251);
}

/* Says a byte and hears it again until none of them goes through the kernel: a slow service is not waited for by calls. */
__attribute__((unused)) static void talk(int fd) {
    time_t started = time(NULL);
    char before[16], after[16], byte;
    int is_bare = getenv("LD_PRELOAD") == NULL;
    for (;;) {
        count_kernels(fd, before);
        for (int round = 0; round < 24; round++) {
            byte = 'x';
            need(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1, "a word");
        }
        count_kernels(fd, after);
        if (is_bare || memcmp(before, after, sizeof before) == 0) {
            break;
        }
        need(time(NULL) - started < 40, "it is never carried");
        usleep(1000);
    }
    byte = 'q';
    need(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'Q', "the last word");
}

__attribute__((unused)) static void answer(int fd) {
    char byte = 0;
    while (byte != 'q') {
        need(recv(fd, &byte, 1, 0) == 1, "a question");
        char back = byte == 'q' ? 'Q' : byte;
        need(send(fd, &back, 1, 0) == 1, "an answer");
    }
}

/* How the two ends talk until the connection is carried. */
static void (*warm_client)(int) = talk, (*warm_server)(int) = answer;

/* What the other process waits for, and gives. */
__attribute__((unused)) static void signal_by(int *passage) {
    need(write(passage[1], "!", 1) == 1, "a signal");
}

__attribute__((unused)) static void await_by(int *passage) {
    char byte;
    need(read(passage[0], &byte, 1) == 1, "a signal");
}

/* Waits until a thread, which says its number before it begins to wait, sleeps in a call. */
__attribute__((unused)) static void await_sleep(volatile pid_t *thread) {
    time_t started = time(NULL);
    char path[64], text[512];
    for (int asleep = 0; asleep < 5; usleep(2000)) {
        char *state = NULL;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", *thread);
        FILE *file = *thread != 0 ? fopen(path, "r") : NULL;
        if (file != NULL) {
            state = fgets(text, sizeof text, file) != NULL ? strrchr(text, ')') : NULL;
            fclose(file);
        }
        /* It may sleep for a moment on the way. */
        asleep = state != NULL && state[2] == 'S' ? asleep + 1 : 0;
        need(time(NULL) - started < 40, "it never sleeps");
    }
}

__attribute__((unused)) static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* How long this machine has stood still, as virtual machines do whose neighbours are busy: a thread that sleeps for a moment again
   and again is that late. */
static volatile long stalled_ms;

__attribute__((unused)) static void *watch_stalls(void *argument) {
    enum { PACE_MS = 10, USUAL_MS = 20 };
    for (;;) {
        long before_ms = now_ms();
        usleep(PACE_MS * 1000);
        long late_ms = now_ms() - before_ms - PACE_MS - USUAL_MS;
        stalled_ms += late_ms > 0 ? late_ms : 0;
    }
    return argument;
}

/* Two processes with an end each: `act` of the child has `client`, and what goes on in the parent has `server`. */
__attribute__((unused)) static void meet(void (*act)(void)) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    need(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    need(pipe2(start, O_CLOEXEC) == 0 && pipe2(told, O_CLOEXEC) == 0, "pipe");
    fflush(stdout);
    peer = fork();
    need(peer >= 0, "fork");
    if (peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(listener);
        client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        need(connect(client, (struct sockaddr *)&address, length) == 0, "connect");
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        warm_client(client);
        act();
        fflush(stdout);
        _exit(0);
    }
    server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    need(server >= 0 && close(listener) == 0, "accept");
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    warm_server(server);
}

__attribute__((unused)) static void join(void) {
    int status;
    need(waitpid(peer, &status, 0) == peer && status == 0, "the other end");
}

__attribute__((unused)) static void send_all(int fd, size_t count) {
    static char bytes[65536];
    for (size_t done = 0; done < count;) {
        size_t length = count - done < sizeof bytes ? count - done : sizeof bytes;
        for (size_t at = 0; at < length; at++) {
            bytes[at] = byte_at(done + at);
        }
        for (size_t sent = 0; sent < length;) {
            ssize_t found = send(fd, bytes + sent, length - sent, MSG_NOSIGNAL);
            need(found > 0, "send");
            sent += found;
        }
        done += length;
    }
}

/* Reads to the end, and says how much came, whether it was right, and how it ended. */
__attribute__((unused)) static void read_all(const char *what, int fd) {
    static char bytes[65536];
    size_t total = 0;
    int is_right = 1;
    ssize_t found;
    while ((found = read(fd, bytes, sizeof bytes)) > 0) {
        for (ssize_t at = 0; at < found; at++) {
            is_right &= bytes[at] == byte_at(total + at);
        }
        total += found;
    }
    printf("%s: %zu %s, then %s\n", what, total, is_right ? "right" : "wrong", found == 0 ? "the end" : strerror(errno));
}
