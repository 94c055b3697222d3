/* What programs do with threads, children and libraries, one thing for each name. Ends with 0 if all of it went well. */
#include "loopback.h"

__attribute__((unused)) static int client, server;

/* Both ends in this process. */
static inline void connect_ends(void) {
    struct sockaddr_in address;
    int listener = listening_socket(&address);
    client = connected_socket(&address, 0);
    server = accepted_socket(listener, 0);
    need(close(listener) == 0, "close");
    set_no_delay(client);
    set_no_delay(server);
}

/* Calls as a library makes them. */
struct calls {
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*recv)(int, void *, size_t, int);
    ssize_t (*write)(int, const void *, size_t);
    ssize_t (*read)(int, void *, size_t);
    int (*poll)(struct pollfd *, nfds_t, int);
    int (*close)(int);
};

#ifdef INLINE
/* A call by the program's own instruction, with a constant number, as rustix makes it. */
__attribute__((used)) static ssize_t send_inline(int fd, const void *bytes, size_t length, int flags) {
    long result;
    CALL_INLINE(result, SYS_sendto, fd, bytes, length, flags, 0, 0);
    return result;
}
#define SEND send_inline
#else
#define SEND send
#endif

#ifdef RING
/* A ring is entered by the program's own instruction, as a statically linked liburing does it. */
__attribute__((used)) static long enter_inline(int ring, unsigned count, unsigned wanted, unsigned flags) {
    long result;
    CALL_INLINE(result, SYS_io_uring_enter, ring, count, wanted, flags, 0, 0);
    return result;
}
#endif

#ifdef PLUGIN
/* A library that keeps the addresses of functions, and calls others. */
extern ssize_t __send(int, const void *, size_t, int), __read(int, void *, size_t);

static ssize_t send_here(int fd, const void *bytes, size_t length, int flags) {
    return send(fd, bytes, length, flags);
}

static ssize_t receive_here(int fd, void *bytes, size_t length, int flags) {
    return recv(fd, bytes, length, flags);
}

static ssize_t write_here(int fd, const void *bytes, size_t length) {
    return write(fd, bytes, length);
}

static ssize_t read_here(int fd, void *bytes, size_t length) {
    return read(fd, bytes, length);
}

static int poll_here(struct pollfd *files, nfds_t count, int timeout_ms) {
    return poll(files, count, timeout_ms);
}

static int close_here(int fd) {
    return close(fd);
}

const struct calls plugin_calls[] = {
    {SEND, recv, write, read, poll, close},
    {send_here, receive_here, write_here, read_here, poll_here, close_here},
    {__send, recv, write, __read, poll, close},
};

#ifdef REGISTERED
/* It tells the program by itself what it has, as some plug-ins do, and has made a connection before. */
extern const struct calls *registered;
extern int made[2];

__attribute__((constructor)) static void register_calls(void) {
    char byte = 'x';
    connect_ends();
    for (int round = 0; round < 20; round++) {
        need(send(client, &byte, 1, 0) == 1 && recv(server, &byte, 1, 0) == 1, "the constructor's bytes");
    }
    made[0] = client;
    made[1] = server;
    registered = plugin_calls;
}
#endif
#elif defined(LOADED)
/* A library whose beginning waits for a thread that calls what has not been called before. */
static void *call(void *argument) {
    struct timeval now = {0, 0};
    select(0, NULL, NULL, NULL, &now);
    close(dup(0));
    return argument;
}

__attribute__((constructor)) static void begin(void) {
    run_in_thread(call, NULL);
}
#else

static int passage[2];
/* What a plug-in has registered, and both ends of a connection that it has made. */
const struct calls *registered;
int made[2];

static void talk(int rounds) {
    char byte = 'x';
    while (rounds-- > 0) {
        need(send(client, &byte, 1, 0) == 1 && recv(server, &byte, 1, 0) == 1, "there");
        need(send(server, &byte, 1, 0) == 1 && recv(client, &byte, 1, 0) == 1, "back");
    }
}

static void talk_sixteen(int fd) {
    (void)fd;
    talk(16);
}

/* So many rounds, and more until the connection is carried. */
static void talk_until_carried(int rounds) {
    talk(rounds);
    exchange_until_carried(client, talk_sixteen);
}

static void nothing(int number) {
    (void)number;
}

static void *set_handlers(void *argument) {
    struct sigaction action = {.sa_handler = nothing};
    for (;;) {
        sigaction(SIGUSR1, &action, NULL);
    }
    return argument;
}

/* Children set handlers that were forked while another thread did. */
static void handlers(void) {
    struct sigaction action = {.sa_handler = nothing};
    start_thread(set_handlers, NULL);
    for (int round = 0; round < 300; round++) {
        pid_t child = fork();
        if (child == 0) {
            sigaction(SIGUSR2, &action, NULL);
            _exit(0);
        }
        need(waitpid(child, NULL, 0) == child, "a child");
    }
}

static volatile long handled;

static void open_and_close(int number) {
    int kept = errno;
    (void)number;
    close(socket(AF_INET, SOCK_STREAM, 0));
    handled++;
    errno = kept;
}

/* A handler makes and closes sockets wherever a fork is. */
static void forks(const char *rounds) {
    struct sigaction action = {.sa_handler = open_and_close, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM};
    struct itimerspec every = {{0, 137000}, {0, 137000}};
    timer_t timer;
    need(sigaction(SIGVTALRM, &action, NULL) == 0, "sigaction");
    for (int index = 0; index < 300; index++) {
        socket(AF_INET, SOCK_STREAM, 0);
    }
    need(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
    timer_settime(timer, 0, &every, NULL);
    for (int round = 0; round < atoi(rounds); round++) {
        pid_t child = fork();
        if (child == 0) {
            _exit(0);
        }
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    need(handled > 0, "a signal");
}

static void *wait_for_both(void *argument) {
    fd_set set;
    struct timeval while_us = {0, 1000};
    struct pollfd file = {client, POLLIN, 0};
    FD_ZERO(&set);
    FD_SET(client, &set);
    need(select(client + 1, &set, NULL, NULL, &while_us) == 0, "select");
    need(poll(&file, 1, 1) == 0, "poll");
    return argument;
}

/* A thread with as little stack as threads can have. */
static void stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    connect_ends();
    talk_until_carried(40);
    pthread_attr_init(&attributes);
    need(pthread_attr_setstacksize(&attributes, SMALLEST_STACK) == 0, "a small stack");
    need(pthread_create(&thread, &attributes, wait_for_both, NULL) == 0, "a thread");
    pthread_join(thread, NULL);
}

static void load(const char *path) {
    need(dlopen(path, RTLD_NOW) != NULL, "dlopen");
}

static void *read_passage(void *argument) {
    char byte;
    (void)!read(passage[0], &byte, 1);
    return argument;
}

static void *poll_passage(void *argument) {
    struct pollfd files[2] = {{passage[0], POLLIN, 0}, {client, POLLIN, 0}};
    poll(files, 2, -1);
    return argument;
}

static void *wait_for_set(void *argument) {
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, client, &event);
    epoll_wait(set, &event, 1, -1);
    return argument;
}

static void *receive(void *argument) {
    char byte;
    recv(client, &byte, 1, 0);
    return argument;
}

/* Threads are cancelled where they sleep, before the connection is carried and afterwards. */
static void cancel(void) {
    void *(*const sleeps[])(void *) = {read_passage, poll_passage, wait_for_set, receive};
    connect_ends();
    need(pipe(passage) == 0, "pipe");
    for (int turn = 0; turn < 2; turn++) {
        for (unsigned index = 0; index < sizeof sleeps / sizeof *sleeps; index++) {
            void *result;
            pthread_t thread = start_thread(sleeps[index], NULL);
            usleep(20000);
            need(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "cancel");
            need(result == PTHREAD_CANCELED, "it is cancelled");
        }
        talk_until_carried(100);
    }
}

static volatile int is_over;

static void *fork_and_stay(void *argument) {
    while (!is_over) {
        char byte;
        pid_t child = fork();
        if (child == 0) {
            close(passage[1]);
            (void)!read(passage[0], &byte, 1);
            _exit(0);
        }
        usleep(200);
    }
    return argument;
}

/* A program is started by vfork while another thread forks children that stay until all of it is over. */
static void vforks(void) {
    need(pipe2(passage, O_CLOEXEC) == 0, "pipe");
    pthread_t thread = start_thread(fork_and_stay, NULL);
    for (int round = 0; round < 150; round++) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        await_child(child);
    }
    is_over = 1;
    join_thread(thread);
}

/* What a child in its parent's memory does that has no variables of a thread, as the C library keeps them: Chromium's gives up
 * its files so. `errno` is all that it may write, in front of where the C library believes its thread to be. */
static int give_up(void *argument) {
    (void)argument;
    syscall(SYS_chroot, "/nowhere/at/all");
    (void)!chroot("/nowhere/at/all");
    syscall(SYS_setgid, getgid());
    syscall(SYS_setuid, getuid());
    (void)!chdir("/");
    _exit(7);
}

static void bare(void) {
    enum { BYTES = 1 << 16 };
    char *stack = malloc(BYTES), *thread = calloc(1, BYTES);
    connect_ends();
    talk_until_carried(60);
    need(stack != NULL && thread != NULL, "memory");
    pid_t child = clone(give_up, stack + BYTES, CLONE_VM | CLONE_VFORK | CLONE_SETTLS | SIGCHLD, NULL, NULL, thread + BYTES / 2);
    int status;
    need(child > 0 && waitpid(child, &status, 0) == child, "a child without variables of a thread");
    need(WIFEXITED(status) && WEXITSTATUS(status) == 7, "its end");
    talk_until_carried(60);
    free(stack);
    free(thread);
}

/* A connection goes on in a program that a list of arguments names. */
static void lists(const char *way) {
    const char text[] = "a word and another";
    char *environment[] = {"WORD=another", NULL}, heard[sizeof text] = {0};
    const char *words = "printf '%s %s' \"$9\" \"$WORD\"; exec cat";
    connect_ends();
    talk_until_carried(60);
    pid_t child = fork();
    if (child == 0) {
        dup2(server, 0);
        dup2(server, 1);
        close(server);
        close(client);
        setenv("WORD", "another", 1);
        if (*way == 'e') {
            execle("/bin/sh", "sh", "-c", words, "0", "1", "2", "3", "4", "5", "6", "7", "8", "a word and", NULL,
                   environment);
        } else if (*way == 'p') {
            execlp("sh", "sh", "-c", words, "0", "1", "2", "3", "4", "5", "6", "7", "8", "a word and", NULL);
        } else {
            execl("/bin/sh", "sh", "-c", words, "0", "1", "2", "3", "4", "5", "6", "7", "8", "a word and", NULL);
        }
        _exit(1);
    }
    close(server);
    need(recv(client, heard, sizeof text - 1, MSG_WAITALL) == sizeof text - 1, "the program's word");
    need(strcmp(heard, text) == 0, heard);
    need(send(client, "echo", 4, 0) == 4 && recv(client, heard, 4, MSG_WAITALL) == 4, "an echo");
    need(memcmp(heard, "echo", 4) == 0, heard);
    shutdown(client, SHUT_WR);
    need(waitpid(child, NULL, 0) == child, "the program");
}

/* What a child has had that is no more is let go of by the last one that closes it. */
static void children(void) {
    connect_ends();
    talk_until_carried(100);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    await_child(child);
    child = fork();
    if (child == 0) {
        raise(SIGKILL);
    }
    need(waitpid(child, NULL, 0) == child, "a killed child");
    close(client);
    close(server);
    puts("\nsaid closed");
    fflush(stdout);
    pause();
}

/* Two ends that are carried, with the library. */
static void carry(void) {
    alarm(60);
    connect_ends();
    exchange_until_carried(client, talk_sixteen);
}

/* This program's calls at one end meet others at the other end. */
static void meet(const struct calls *calls) {
    char byte = 'x', heard[3] = "";
    int ends[2];
    for (int round = 0; round < 50; round++) {
        struct pollfd file = {server, POLLIN, 0};
        need(send(client, &byte, 1, 0) == 1, "send");
        need(calls->poll(&file, 1, 20000) == 1 && calls->recv(server, &byte, 1, 0) == 1, "its recv");
        need(calls->send(server, &byte, 1, 0) == 1 && recv(client, &byte, 1, 0) == 1, "its send");
        need(write(client, &byte, 1) == 1 && calls->read(server, &byte, 1) == 1, "its read");
        need(calls->write(server, &byte, 1) == 1 && read(client, &byte, 1) == 1, "its write");
    }
    need(pipe(ends) == 0, "pipe");
    need(calls->close(server) == 0 && recv(client, &byte, 1, 0) == 0 && close(client) == 0, "its close");
    /* The number of the connection is a pipe's from here on, for the calls of both. */
    need(dup2(ends[1], server) == server, "dup2");
    need(calls->write(server, "p", 1) == 1 && write(server, "o", 1) == 1, "bytes for the pipe");
    ssize_t length = read(ends[0], heard, 2);
    printf("the pipe has %zd bytes: %s\n", length, heard);
    need(length == 2 && is(heard, "po"), "the bytes of both");
    need(calls->close(server) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0, "the pipe's close");
}

/* A library that finds the C library's functions before any others, or has a C library of its own. */
static void plug_in(const char *how, const char *path) {
    int mode = (is(how, "lazy") ? RTLD_LAZY : RTLD_NOW) | RTLD_DEEPBIND;
    int is_apart = is(how, "apart"), is_tcp = is_apart || is(how, "inline");
    carry();
    void *library = is_apart ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, mode);
    need(library != NULL, dlerror());
    const struct calls *calls = registered != NULL ? registered : dlsym(library, "plugin_calls");
    for (int way = 0; way < 3; way++) {
        meet(&calls[way]);
        if (is_tcp) {
            connect_ends();
        } else {
            carry();
        }
    }
    if (registered != NULL) {
        client = made[0];
        server = made[1];
        meet(calls);
    }
    need(dlclose(library) == 0, "dlclose");
}

#ifdef FLAGS
/* Changes whether calls on a socket block, by instructions of its own. */
static void set_nonblocking(int is_by_ioctl, int fd, int value) {
    long result;
    if (is_by_ioctl) {
        CALL_INLINE(result, SYS_ioctl, fd, FIONBIO, &value, 0, 0, 0);
    } else {
        CALL_INLINE(result, SYS_fcntl, fd, F_SETFL, value ? O_RDWR | O_NONBLOCK : O_RDWR, 0, 0, 0);
    }
    need(result == 0, "flags");
}

static void *send_later(void *argument) {
    usleep(50000);
    need(send(server, "x", 1, 0) == 1, "send");
    return argument;
}

/* Blocking and non-blocking calls take turns, and nothing but the kernel knows when. */
static void flags(void) {
    char bytes[65536] = {0};
    carry();
    for (int turn = 0; turn < 8; turn++) {
        ssize_t moved;
        size_t sent = 0;
        set_nonblocking(turn % 2, client, 1);
        need(recv(client, bytes, 1, 0) == -1 && errno == EAGAIN, "nothing to receive");
        while ((moved = send(client, bytes, sizeof bytes, 0)) > 0) {
            sent += moved;
        }
        need(moved == -1 && errno == EAGAIN, "no room");
        while (sent > 0) {
            moved = recv(server, bytes, sizeof bytes, 0);
            need(moved > 0, "what was sent");
            sent -= moved;
        }
        set_nonblocking(turn / 2 % 2, client, 0);
        pthread_t thread = start_thread(send_later, NULL);
        need(recv(client, bytes, 1, 0) == 1 && *bytes == 'x', "a byte that comes later");
        join_thread(thread);
    }
}
#endif

/* Calls by the addresses that the C library's handle gives. */
static void look_up(const char *how) {
    void *library = is(how, "default") ? RTLD_DEFAULT : dlopen("libc.so.6", RTLD_NOW);
    struct calls calls;
    void **place = (void **)&calls;
    const char *names[] = {"send", "recv", "write", "read", "poll", "close"};
    for (int at = 0; at < 6; at++) {
        int is_versioned = is(how, "versioned");
        place[at] = is_versioned ? dlvsym(library, names[at], FIRST_VERSION) : dlsym(library, names[at]);
        need(place[at] != NULL, names[at]);
    }
    need(dlsym(library, "no_such_function") == NULL && strstr(dlerror(), "no_such_function") != NULL, "an error");
    need(dlsym(library, "getpid") == (void *)getpid, "a function that is not hooked");
    carry();
    meet(&calls);
}

static void talk_over_tcp(void) {
    connect_ends();
    talk(100);
}

static const struct action actions[] = {
    {"bare", .none = bare},
    {"cancel", .none = cancel},
    {"carry", .none = carry},
    {"children", .none = children},
#ifdef FLAGS
    {"flags", .none = flags},
#endif
    {"forks", .one = forks},
    {"handlers", .none = handlers},
    {"lists", .one = lists},
    {"load", .one = load},
    {"plugin", .two = plug_in},
    {"stack", .none = stack},
    {"symbols", .one = look_up},
    {"talk", .none = talk_over_tcp},
    {"vforks", .none = vforks},
    {},
};

int main(int count, char **words) {
    return perform(actions, count, words);
}
#endif
