/* Two processes with an end of a carried connection each, for programs that do the same with the library and without. */
#include "loopback.h"

static int client, server, start[2], told[2];
static pid_t peer;

/* Bytes of one way, by their places: what is lost, doubled or misplaced does not go unseen. */
static char byte_at(size_t place) {
    return (char)(place * 31 + place / 251);
}

/* Says bytes, and hears each again. */
static inline void echo_words(int fd) {
    for (int round = 0; round < 24; round++) {
        char byte = 'x';
        need(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1, "a word");
    }
}

/* Talks with a peer that answers, until the connection is carried. */
static inline void talk(int fd) {
    char byte = 'q';
    exchange_until_carried(fd, echo_words);
    need(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'Q', "the last word");
}

static inline void answer(int fd) {
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
static inline void signal_by(int *passage) {
    need(write(passage[1], "!", 1) == 1, "a signal");
}

static inline void await_by(int *passage) {
    char byte;
    need(read(passage[0], &byte, 1) == 1, "a signal");
}

/* Waits until a thread, which says its number before it begins to wait, sleeps in a call. */
static inline void await_sleep(volatile pid_t *thread) {
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

static inline long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* How long this machine has stood still, as virtual machines do whose neighbours are busy: a thread that sleeps for a moment again
   and again is that late. */
static volatile long stalled_ms;

static inline void *watch_stalls(void *argument) {
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
static inline void meet(void (*act)(void)) {
    struct sockaddr_in address;
    int listener = listening_socket(&address);
    need(pipe2(start, O_CLOEXEC) == 0 && pipe2(told, O_CLOEXEC) == 0, "pipe");
    peer = fork_flushed();
    if (peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(listener);
        client = connected_socket(&address, SOCK_CLOEXEC);
        set_no_delay(client);
        warm_client(client);
        act();
        fflush(stdout);
        _exit(0);
    }
    server = accepted_socket(listener, SOCK_CLOEXEC);
    need(close(listener) == 0, "close");
    set_no_delay(server);
    warm_server(server);
}

/* Waits for the other process, which has to succeed. */
static inline void join(void) {
    await_child(peer);
}

/* Receives a byte, and says how that ended. */
static inline void say_end(int fd) {
    char byte;
    ssize_t found = recv(fd, &byte, 1, 0);
    printf("%zd %s\n", found, found < 0 ? strerror(errno) : "the end");
}

static inline void send_all(int fd, size_t count) {
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
static inline void read_all(const char *what, int fd) {
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
