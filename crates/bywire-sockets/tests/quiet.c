/* A server with many connections of which one is busy, until nobody looks at the others any more. Then something happens to one
 * of these: `quiet ACTION MODE`. MODE is level, edge, room (edge-triggered, for bytes and for room) or once. */
#include "two_ends.h"

enum { ENDS = 24, ROUNDS = 150, SUBJECT = 3, SHORT_MS = 30, LONG_MS = 20000 };

static int set, ends[ENDS], commands[2];
static unsigned wanted;

/* An order for the peer: one byte for the work, one for the connection, and a count. */
struct command {
    char work, at;
    size_t count;
};

static void obey(struct command given) {
    static char bytes[1 << 16];
    int fd = ends[(int)given.at];
    switch (given.work) {
    case 'p': need(send(fd, "p", 1, 0) == 1, "a byte"); break;
    case 'w': need(shutdown(fd, SHUT_WR) == 0, "an end"); break;
    case 'c': need(close(fd) == 0, "a close"); break;
    case 'k': raise(SIGKILL); break;
    case 'r':
        for (size_t left = given.count; left > 0;) {
            ssize_t found = recv(fd, bytes, left < sizeof bytes ? left : sizeof bytes, 0);
            need(found > 0, "what was sent");
            left -= found;
        }
        break;
    default: _exit(0);
    }
}

static void run_peer(const struct sockaddr_in *address) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int at = 0; at < ENDS; at++) {
        ends[at] = connected_socket(address, SOCK_CLOEXEC);
        set_no_delay(ends[at]);
        talk(ends[at]);
    }
    for (struct command given;;) {
        need(read(commands[0], &given, sizeof given) == sizeof given, "a command");
        obey(given);
        signal_by(told);
    }
}

static void have(char work, int at, size_t count) {
    struct command given = {work, (char)at, count};
    need(write(commands[1], &given, sizeof given) == sizeof given, "a command");
    if (work != 'k') {
        await_by(told);
    }
}

static void watch(int operation, int at, unsigned events) {
    struct epoll_event event = {.events = events, .data.u32 = at};
    need(epoll_ctl(set, operation, ends[at], &event) == 0, "epoll_ctl");
}

static void say_events(int from, int timeout_ms) {
    struct epoll_event found[ENDS];
    int count = epoll_wait(from, found, ENDS, timeout_ms);
    printf("%d:", count);
    for (int at = 0; at < count; at++) {
        printf(" %u=%x", found[at].data.u32, found[at].events);
    }
    puts("");
}

static void take(int at) {
    char bytes[64];
    ssize_t found = recv(ends[at], bytes, sizeof bytes, MSG_DONTWAIT);
    printf("%d: %zd\n", at, found);
}

/* One connection is busy until nobody looks at the others. */
static void hush(void) {
    struct epoll_event found[ENDS];
    while (wanted & EPOLLOUT && epoll_wait(set, found, ENDS, 0) > 0) {
    }
    for (int round = 0; round < ROUNDS; round++) {
        char byte;
        have('p', 0, 0);
        need(epoll_wait(set, found, ENDS, LONG_MS) == 1 && found[0].data.u32 == 0, "the busy one alone");
        need(recv(ends[0], &byte, 1, 0) == 1, "its byte");
        if (wanted & EPOLLONESHOT) {
            watch(EPOLL_CTL_MOD, 0, wanted);
        }
    }
    unsigned *ever = dlsym(RTLD_DEFAULT, "bywire_quiet_registrations");
    need(!has_library() || (ever != NULL && *ever > 0), "some are quiet");
}

static void begin(const char *mode) {
    wanted = is(mode, "level") ? EPOLLIN
        : is(mode, "edge")     ? EPOLLIN | EPOLLRDHUP | EPOLLET
        : is(mode, "room")     ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
                               : EPOLLIN | EPOLLONESHOT;
    struct sockaddr_in address;
    int listener = listening_socket(&address);
    need(pipe2(commands, O_CLOEXEC) == 0 && pipe2(told, O_CLOEXEC) == 0, "pipe");
    peer = fork_flushed();
    if (peer == 0) {
        close(listener);
        run_peer(&address);
    }
    set = epoll_create1(EPOLL_CLOEXEC);
    for (int at = 0; at < ENDS; at++) {
        ends[at] = accepted_socket(listener, SOCK_CLOEXEC);
        set_no_delay(ends[at]);
        answer(ends[at]);
        watch(EPOLL_CTL_ADD, at, wanted);
    }
    hush();
}

static void finish(void) {
    struct command given = {'e', 0, 0};
    need(write(commands[1], &given, sizeof given) == sizeof given, "a command");
    join();
}

/* Bytes come for one, and for several in an order. */
static void bytes(const char *mode) {
    begin(mode);
    have('p', SUBJECT, 0);
    say_events(set, LONG_MS);
    take(SUBJECT);
    say_events(set, 0);
    const int several[] = {5, SUBJECT, 9, 1};
    watch(EPOLL_CTL_MOD, SUBJECT, wanted);
    hush();
    for (int at = 0; at < 4; at++) {
        have('p', several[at], 0);
    }
    say_events(set, LONG_MS);
    for (int at = 0; at < 4; at++) {
        take(several[at]);
    }
    say_events(set, 0);
    finish();
}

/* The peer ends its direction of one, and closes another. */
static void ends_of_peer(const char *mode) {
    begin(mode);
    have('w', SUBJECT, 0);
    say_events(set, LONG_MS);
    take(SUBJECT);
    watch(EPOLL_CTL_DEL, SUBJECT, 0);
    have('c', 5, 0);
    say_events(set, LONG_MS);
    take(5);
    finish();
}

/* The peer is killed: every connection ends. With the library that is a reset, where TCP alone may tell of an end. */
static void killed(const char *mode) {
    begin(mode);
    have('k', 0, 0);
    int status;
    need(waitpid(peer, &status, 0) == peer, "the peer");
    unsigned seen[ENDS] = {0};
    for (int left = ENDS; left > 0;) {
        struct epoll_event found[ENDS];
        int count = epoll_wait(set, found, ENDS, LONG_MS);
        need(count > 0, "an end");
        for (int at = 0; at < count; at++) {
            unsigned which = found[at].data.u32;
            left -= seen[which] == 0;
            seen[which] |= found[at].events;
            watch(EPOLL_CTL_DEL, which, 0);
        }
    }
    for (int at = 0; at < ENDS; at++) {
        printf("%d=%x\n", at, seen[at] & EPOLLIN);
    }
}

/* The program changes, removes and adds registrations. */
static void changed(const char *mode) {
    begin(mode);
    watch(EPOLL_CTL_MOD, SUBJECT, wanted | EPOLLOUT);
    say_events(set, LONG_MS);
    watch(EPOLL_CTL_MOD, SUBJECT, wanted);
    say_events(set, 0);
    hush();
    watch(EPOLL_CTL_DEL, SUBJECT, 0);
    have('p', SUBJECT, 0);
    say_events(set, SHORT_MS);
    watch(EPOLL_CTL_ADD, SUBJECT, wanted);
    say_events(set, LONG_MS);
    take(SUBJECT);
    hush();
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, ends[5], &(struct epoll_event){.events = wanted}));
    need(close(ends[5]) == 0, "a close");
    have('p', 7, 0);
    say_events(set, LONG_MS);
    finish();
}

/* Another descriptor of the socket stays, and the first one is closed. */
static void duplicated(const char *mode) {
    begin(mode);
    int other = dup(ends[SUBJECT]);
    need(close(ends[SUBJECT]) == 0, "a close");
    ends[SUBJECT] = other;
    have('p', SUBJECT, 0);
    say_events(set, LONG_MS);
    take(SUBJECT);
    have('p', SUBJECT, 0);
    say_events(set, wanted & EPOLLONESHOT ? SHORT_MS : LONG_MS);
    finish();
}

static volatile pid_t sleeper;

static void *sleep_in_set(void *argument) {
    sleeper = gettid();
    say_events(set, LONG_MS);
    return argument;
}

/* A thread sleeps in the set while news come from the peer, and by this end's own shutdown. */
static void asleep(const char *mode) {
    begin(mode);
    pthread_t thread = start_thread(sleep_in_set, NULL);
    await_sleep(&sleeper);
    have('p', SUBJECT, 0);
    join_thread(thread);
    take(SUBJECT);
    hush();
    sleeper = 0;
    thread = start_thread(sleep_in_set, NULL);
    await_sleep(&sleeper);
    need(shutdown(ends[5], SHUT_RD) == 0, "shutdown");
    join_thread(thread);
    finish();
}

static void *take_subject(void *argument) {
    take(SUBJECT);
    return argument;
}

/* Another thread takes the bytes before the set is looked at. */
static void taken(const char *mode) {
    begin(mode);
    have('p', SUBJECT, 0);
    run_in_thread(take_subject, NULL);
    say_events(set, SHORT_MS);
    have('p', SUBJECT, 0);
    say_events(set, LONG_MS);
    finish();
}

/* Another set and `poll` watch the set. */
static void watched(const char *mode) {
    begin(mode);
    have('p', SUBJECT, 0);
    printf("%x\n", (unsigned)await_events(set, POLLIN, "the set"));
    say_events(set, LONG_MS);
    take(SUBJECT);
    int outer = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 77};
    need(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0, "a set in a set");
    say_events(outer, 0);
    have('p', 5, 0);
    say_events(outer, LONG_MS);
    say_events(set, LONG_MS);
    take(5);
    say_events(outer, 0);
    finish();
}

/* A child waits for the set that it has from its parent. */
static void forked(const char *mode) {
    begin(mode);
    pid_t child = fork_flushed();
    if (child == 0) {
        have('p', SUBJECT, 0);
        say_events(set, LONG_MS);
        take(SUBJECT);
        fflush(stdout);
        _exit(0);
    }
    await_child(child);
    say_events(set, SHORT_MS);
    finish();
}

/* This end fills its ring, and the peer makes room. */
static void filled(const char *mode) {
    static char bytes[1 << 16];
    begin(mode);
    size_t sent = 0;
    for (int refused = 0; refused < 20;) {
        ssize_t found = send(ends[SUBJECT], bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        need(found > 0 || errno == EAGAIN, "send");
        refused = found > 0 ? 0 : refused + 1;
        sent += found > 0 ? found : 0;
        if (found < 0) {
            usleep(1000);
        }
    }
    have('p', 0, 0);
    struct epoll_event found[ENDS];
    need(epoll_wait(set, found, ENDS, LONG_MS) == 1, "the busy one");
    take(0);
    have('r', SUBJECT, sent);
    say_events(set, wanted & EPOLLOUT ? LONG_MS : SHORT_MS);
    finish();
}

static const struct action actions[] = {
    {"bytes", .one = bytes},
    {"ends", .one = ends_of_peer},
    {"killed", .one = killed},
    {"changed", .one = changed},
    {"duplicated", .one = duplicated},
    {"asleep", .one = asleep},
    {"taken", .one = taken},
    {"watched", .one = watched},
    {"forked", .one = forked},
    {"filled", .one = filled},
    {0},
};

int main(int count, char **words) {
    return perform(actions, count, words);
}
