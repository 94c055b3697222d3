/* Calls that a signal handler has left by a jump, or that ended with their process: what becomes of the connection. It writes
   down what happened, which is the same with the library and without. */
#include "two_ends.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/user.h>

static sigjmp_buf out;

static void leave(int number) {
    (void)number;
    siglongjmp(out, 1);
}

static void set_handler(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    need(sigaction(number, &action, NULL) == 0, "sigaction");
}

/* Memory that is not there: every access is a fault. */
static void *nowhere(void) {
    return mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Leaves a call that sleeps, on whatever connection, by a jump out of a handler. */
static void leave_by_jump(int fd, const char *call) {
    struct itimerval soon = {.it_value.tv_usec = 100000};
    static char bytes[65536];
    set_handler(SIGALRM, leave);
    if (sigsetjmp(out, 1) == 0) {
        setitimer(ITIMER_REAL, &soon, NULL);
        if (is(call, "send")) {
            for (;;) {
                need(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0, "a send");
            }
        }
        recv(fd, bytes, sizeof bytes, 0);
        need(0, "a receive of nothing has ended");
    }
}

/* Mappings as large as a connection's memory. */
static int count_segments(void) {
    unsigned long from, to;
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL) {
        count += sscanf(line, "%lx-%lx", &from, &to) == 2 && to - from > 4 << 20 && strstr(line, "memfd:bywire") != NULL;
    }
    fclose(maps);
    return count;
}

static void act_hear_the_end(void) {
    static char bytes[65536];
    ssize_t found;
    await_by(start);
    while ((found = recv(client, bytes, sizeof bytes, 0)) > 0) {
    }
    printf("%s\n", found == 0 ? "the end" : strerror(errno));
    signal_by(told);
}

/* Closes the server's end, and waits for its peer, which waits for the end. */
static void close_and_join(void) {
    close(server);
    signal_by(start);
    join();
}

/* The server's end has been closed: its peer hears that. */
static void be_heard(void) {
    struct pollfd file = {told[0], POLLIN, 0};
    signal_by(start);
    printf("%s\n", poll(&file, 1, 20000) == 1 ? "it is heard" : "it is not heard");
}

/* Closes a socket: its peer hears the end while this program goes on. */
static void close_and_be_heard(void) {
    close(server);
    be_heard();
    printf("%d mappings\n", count_segments());
    join();
}

/* A socket is closed behind a call that was left: its peer hears the end while this program goes on. */
static void closed(const char *call) {
    meet(act_hear_the_end);
    leave_by_jump(server, call);
    close_and_be_heard();
}

/* The same by another thread, while the one that has jumped waits for other things. */
static void *close_it(void *argument) {
    close(server);
    return argument;
}

static void closed_elsewhere(void) {
    meet(act_hear_the_end);
    leave_by_jump(server, "recv");
    run_in_thread(close_it, NULL);
    be_heard();
    join();
}

/* The same, while that one makes no call at all. */
static void *close_and_listen(void *argument) {
    close(server);
    be_heard();
    return argument;
}

static void closed_meanwhile(void) {
    meet(act_hear_the_end);
    leave_by_jump(server, "recv");
    run_in_thread(close_and_listen, NULL);
    join();
}

/* A call that was left before the connection was carried keeps it from nothing. */
static void leave_and_answer(int fd) {
    leave_by_jump(fd, "recv");
    signal_by(start);
    answer(fd);
}

static void wait_and_talk(int fd) {
    await_by(start);
    talk(fd);
}

static void early(void) {
    warm_client = wait_and_talk;
    warm_server = leave_and_answer;
    meet(act_hear_the_end);
    printf("it was talked about\n");
    close_and_join();
}

/* A filter that allows everything is not held up by calls that were left. */
static void filtered(void) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    meet(act_hear_the_end);
    leave_by_jump(server, "recv");
    start_thread(watch_stalls, NULL);
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    long before_ms = now_ms();
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "a filter");
    long took_ms = now_ms() - before_ms;
    /* The watcher wakes up as well. */
    usleep(50000);
    printf("%s\n", took_ms - stalled_ms < 1500 ? "at once" : "it has waited");
    close_and_join();
}

/* The client alone sends, until that leaves the kernel: the other way does not. */
static void hear_one_way(int fd) {
    char byte = 0;
    while (byte != 'q') {
        need(recv(fd, &byte, 1, 0) == 1, "a word");
    }
}

static void talk_one_way(int fd) {
    char before[16], after[16];
    time_t started = time(NULL);
    for (int round = 0; has_library(); round++) {
        count_kernels(fd, before);
        for (int word = 0; word < 24; word++) {
            need(send(fd, "x", 1, 0) == 1, "a word");
        }
        usleep(1000);
        count_kernels(fd, after);
        if (memcmp(before, after, 8) == 0) {
            break;
        }
        need(time(NULL) - started < 40, "it is never carried");
    }
    need(send(fd, "q", 1, 0) == 1, "the last word");
}

static char bytes[1000];

static void act_two_pieces(void) {
    await_by(start);
    memset(bytes, 'a', sizeof bytes);
    need(send(client, bytes, sizeof bytes, 0) == sizeof bytes, "a first piece");
    signal_by(told);
    await_by(start);
    memset(bytes, 'b', sizeof bytes);
    need(send(client, bytes, 10, 0) == 10, "a second piece");
    signal_by(told);
    await_by(start);
}

static void act_three_pieces(void) {
    static char bytes[1000];
    await_by(start);
    for (int piece = 0; piece < 3; piece++) {
        memset(bytes, 'a' + piece, sizeof bytes);
        need(send(client, bytes, sizeof bytes, 0) == sizeof bytes, "a piece");
    }
    signal_by(told);
    await_by(start);
}

/* A receive much further down the stack than the one that was left, which slept in the kernel. */
__attribute__((noinline)) static void receive_deep(int depth) {
    volatile char room[65536];
    char all[3000];
    room[0] = (char)depth;
    if (depth > 0) {
        receive_deep(depth - 1);
    } else {
        ssize_t found = recv(server, all, sizeof all, MSG_WAITALL);
        printf("%zd %c %c\n", found, all[0], all[2999]);
    }
    room[1] = room[0];
}

static void deeper(void) {
    warm_client = hear_one_way;
    warm_server = talk_one_way;
    meet(act_three_pieces);
    leave_by_jump(server, "recv");
    signal_by(start);
    await_by(told);
    receive_deep(4);
    signal_by(start);
    close(server);
    join();
}

/* Its state by the kernel's account: the first byte of `struct tcp_info`. */
static int is_closed(int fd) {
    char state[256] = {0};
    socklen_t length = sizeof state;
    need(getsockopt(fd, IPPROTO_TCP, TCP_INFO, state, &length) == 0, "a state");
    return state[0] == 7;
}

/* Two processes share an end that has ended both ways before anything of it was received. */
static void act_receive_ended(void) {
    static char all[21000];
    time_t started = time(NULL);
    pid_t child = fork();
    if (child == 0) {
        pause();
    }
    signal_by(told);
    await_by(start);
    shutdown(client, SHUT_WR);
    while (!is_closed(client)) {
        need(time(NULL) - started < 40, "it never ends");
        usleep(1000);
    }
    ssize_t found = recv(client, all, 1000, MSG_WAITALL), more = recv(client, all + 1000, 20000, MSG_WAITALL);
    printf("%zd and %zd: %c %c %c\n", found, more, all[999], all[1000], all[20999]);
    printf("%zd\n", recv(client, all, 1, 0));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void ended_both_ways(void) {
    static char piece[20000];
    int room = 4608;
    warm_client = talk_one_way;
    warm_server = hear_one_way;
    meet(act_receive_ended);
    await_by(told);
    memset(piece, 'a', sizeof piece);
    need(send(server, piece, 1000, 0) == 1000, "a first piece");
    /* The kernel has no room for what comes by memory. */
    setsockopt(server, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    memset(piece, 'b', sizeof piece);
    need(send(server, piece, sizeof piece, 0) == sizeof piece, "a second piece");
    shutdown(server, SHUT_WR);
    signal_by(start);
    join();
    close(server);
}

/* Waits until the only thread of this process sleeps in a receive of the kernel's. */
static void await_receiver(pid_t process) {
    char path[64], text[64];
    time_t begun = time(NULL);
    snprintf(path, sizeof path, "/proc/%d/syscall", process);
    for (long number = -1; number != SYS_recvfrom && number != SYS_recvmsg; usleep(1000)) {
        FILE *file = fopen(path, "r");
        number = file != NULL && fgets(text, sizeof text, file) != NULL ? strtol(text, NULL, 10) : -1;
        if (file != NULL) {
            fclose(file);
        }
        need(time(NULL) - begun < 40, "it never sleeps in a receive");
    }
}

/* A process that shares the connection is killed as it receives: what it took is lost, and what follows is not. */
static void taken(const char *when) {
    int is_late = is(when, "late"), passage[2];
    warm_client = hear_one_way;
    warm_server = talk_one_way;
    meet(act_two_pieces);
    need(pipe2(passage, O_CLOEXEC) == 0, "pipe");
    pid_t child = fork_flushed();
    if (child == 0) {
        void (*from_now)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "killed_from_now");
        if (is_late) {
            await_by(passage);
        }
        if (from_now != NULL) {
            from_now();
        }
        recv(server, bytes, sizeof bytes, 0);
        need(from_now == NULL, "it was not killed");
        kill(getpid(), SIGKILL);
    }
    if (!is_late) {
        await_receiver(child);
    }
    signal_by(start);
    await_by(told);
    if (is_late) {
        signal_by(start);
        await_by(told);
        signal_by(passage);
    }
    int status;
    need(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a kill");
    if (!is_late) {
        signal_by(start);
        await_by(told);
    }
    struct pollfd file = {server, POLLIN, 0};
    printf("%d\n", poll(&file, 1, 10000));
    ssize_t found = recv(server, bytes, sizeof bytes, MSG_DONTWAIT);
    printf("%zd %c\n", found, found > 0 ? bytes[0] : '-');
    signal_by(start);
    found = recv(server, bytes, sizeof bytes, 0);
    printf("%zd\n", found);
    close(server);
    join();
}

static void act_nothing(void) {
}

/* A peer that takes its time to end is slept for. */
static void lingering(void) {
    struct rusage before, after;
    char byte;
    meet(act_nothing);
    getrusage(RUSAGE_THREAD, &before);
    printf("%zd\n", recv(server, &byte, 1, 0));
    getrusage(RUSAGE_THREAD, &after);
    long wakes = after.ru_nvcsw - before.ru_nvcsw;
    printf("%s\n", wakes < 200 ? "it has slept" : "it was awake again and again");
    close(server);
    join();
}

static volatile int handled;

static void note(int number) {
    (void)number;
    handled++;
}

static void *echo_one(void *argument) {
    char byte;
    need(recv(server, &byte, 1, 0) == 1 && send(server, &byte, 1, 0) == 1, "another thread");
    return argument;
}

/* A peer that sends ten bytes, and then one which has to come back. */
static void act_say_and_echo(void) {
    char byte;
    need(send(client, "0123456789", 10, 0) == 10, "a word");
    signal_by(told);
    await_by(start);
    need(send(client, "x", 1, 0) == 1 && recv(client, &byte, 1, 0) == 1 && byte == 'x', "an echo");
    act_hear_the_end();
}

/* Meets a peer, and jumps out of faults from then on. */
static void meet_and_leave_faults(void) {
    meet(act_say_and_echo);
    await_by(told);
    set_handler(SIGSEGV, leave);
}

/* A buffer that is not there: a handler of the fault jumps out of the middle of the copy, and the program goes on. */
static void faulty(const char *call) {
    char *none = nowhere(), ten[10];
    meet_and_leave_faults();
    set_handler(SIGUSR1, note);
    if (sigsetjmp(out, 1) == 0) {
        ssize_t found = is(call, "recv") ? recv(server, none, 10, 0) : send(server, none, 10, 0);
        need(found == -1 && errno == EFAULT, "an error");
    }
    raise(SIGUSR1);
    raise(SIGUSR1);
    printf("%d signals\n", handled);
    printf("%zd bytes\n", recv(server, ten, sizeof ten, 0));
    signal_by(start);
    run_in_thread(echo_one, NULL);
    close_and_join();
}

static char *repaired;
static int sends_fault;

/* Makes the page usable that is missing, and sends a signal of another kind for each of the first two. With the first one comes
   the signal of a fault that is none: nothing ever blocks it. */
static void repair(int number, siginfo_t *information, void *context) {
    static int pages;
    char *page = (char *)((size_t)information->si_addr & ~(size_t)4095);
    (void)number, (void)context;
    need(page >= repaired && mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0, "mprotect");
    if (pages < 2) {
        raise(pages == 0 ? SIGUSR1 : SIGUSR2);
    }
    if (pages == 0 && sends_fault) {
        raise(SIGFPE);
    }
    pages++;
}

/* A buffer of which two pages are missing: signals that come while they are repaired are handled, and later faults are. */
static void faulty_twice(const char *way) {
    sends_fault = is(way, "sent");
    struct sigaction action = {.sa_sigaction = repair, .sa_flags = SA_SIGINFO};
    sigset_t blocked;
    repaired = nowhere();
    char *bytes = repaired + 4096 - 5;
    meet(act_say_and_echo);
    await_by(told);
    sigaction(SIGSEGV, &action, NULL);
    set_handler(SIGUSR1, note);
    set_handler(SIGUSR2, note);
    set_handler(SIGFPE, note);
    ssize_t found = recv(server, bytes, 10, 0);
    if (found < 0 && errno == EFAULT) {
        bytes[0] = bytes[9] = 0;
        found = recv(server, bytes, 10, 0);
    }
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    printf("%zd bytes, %d signals\n", found, handled);
    printf("%d %d %d\n", sigismember(&blocked, SIGSEGV), sigismember(&blocked, SIGUSR1), sigismember(&blocked, SIGTERM));
    printf("%d\n", sigismember(&blocked, SIGFPE));
    bytes[8192] = 1;
    printf("%d\n", bytes[8192]);
    signal_by(start);
    echo_one(NULL);
    close_and_join();
}

static void *receive_and_echo(void *argument) {
    char ten[10];
    printf("%zd bytes\n", recv(server, ten, sizeof ten, 0));
    signal_by(start);
    return echo_one(argument);
}

/* The same, and the thread that has jumped makes no call at all. */
static void faulty_meanwhile(void) {
    char *none = nowhere();
    meet_and_leave_faults();
    if (sigsetjmp(out, 1) == 0) {
        ssize_t found = recv(server, none, 10, 0);
        need(found == -1 && errno == EFAULT, "an error");
    }
    run_in_thread(receive_and_echo, NULL);
    close_and_join();
}

static int set;

static void *wait_and_echo(void *argument) {
    struct epoll_event event = {0};
    char ten[10];
    printf("%d event\n", epoll_wait(set, &event, 1, 20000));
    printf("%zd bytes\n", recv(server, ten, sizeof ten, 0));
    signal_by(start);
    return echo_one(argument);
}

/* A wait for a set has nowhere to put its events: a handler of the fault jumps out of it, and other threads use the set. */
static void faulty_wait(void) {
    struct epoll_event event = {.events = EPOLLIN};
    void *none = nowhere();
    meet_and_leave_faults();
    set = epoll_create1(EPOLL_CLOEXEC);
    need(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
    set_handler(SIGUSR1, note);
    if (sigsetjmp(out, 1) == 0) {
        int found = epoll_wait(set, none, 4, -1);
        need(found == -1 && errno == EFAULT, "an error");
    }
    raise(SIGUSR1);
    printf("%d signal\n", handled);
    run_in_thread(wait_and_echo, NULL);
    close_and_join();
}

static void *handle_and_raise(void *argument) {
    struct sigaction action = {.sa_handler = note}, before;
    need(sigaction(SIGUSR1, &action, &before) == 0 && sigaction(SIGUSR2, NULL, &before) == 0, "sigaction");
    printf("%d\n", before.sa_handler == note);
    raise(SIGUSR1);
    raise(SIGUSR2);
    printf("%d signals\n", handled);
    return argument;
}

/* Structures of `sigaction` are nowhere: a handler of the fault jumps out of it, and other threads set handlers. */
static void faulty_handlers(void) {
    struct sigaction action = {.sa_handler = note};
    void *volatile none = nowhere();
    meet_and_leave_faults();
    if (sigsetjmp(out, 1) == 0) {
        sigaction(SIGUSR2, none, NULL);
        need(0, "a structure that is nowhere was read");
    }
    if (sigsetjmp(out, 1) == 0) {
        sigaction(SIGUSR2, &action, none);
        need(0, "a structure that is nowhere was written");
    }
    run_in_thread(handle_and_raise, NULL);
    receive_and_echo(NULL);
    close_and_join();
}

/* The registers of x86-64 tell, and its instruction for a stop. */
#ifdef __x86_64__
/* What the only thread of a process is in the middle of, which stands still: a call of the kernel's that sleeps. */
static int is_in_sleep(pid_t process) {
    long number = ptrace(PTRACE_PEEKUSER, process, offsetof(struct user_regs_struct, orig_rax), 0);
    long result = ptrace(PTRACE_PEEKUSER, process, offsetof(struct user_regs_struct, rax), 0);
    int is_receive = number == SYS_recvfrom || number == SYS_futex || number == 449 /* futex_waitv */;
    /* The kernel's own error numbers of a call that it begins again. */
    return is_receive && result <= -512 && result >= -516;
}

static int next_stop(pid_t process) {
    int status;
    need(waitpid(process, &status, __WALL) == process && WIFSTOPPED(status), "a stop");
    return WSTOPSIG(status);
}

/* Lets it run, with a signal perhaps, until something stops it: by which signal. */
static int run_on(pid_t process, int how, int number) {
    need(ptrace(how, process, 0, number) == 0, "ptrace");
    return next_stop(process);
}

/* What it says by stopping. */
enum { RECEIVES = SIGURG, BEGINS = SIGTRAP, IS_OVER = SIGWINCH };

/* Has it leave a receive that sleeps, and sends it a signal so many instructions behind the beginning of what it does next, so many
   more in each round, until it does all of that. */
static void step(pid_t process, int *traced, int more) {
    need(ptrace(PTRACE_SEIZE, process, 0, 0) == 0, "ptrace");
    signal_by(traced);
    for (int count = 0, stopped = next_stop(process);; count += more) {
        /* The library has put it aside, and sends it again. */
        while (stopped == SIGUSR2) {
            stopped = run_on(process, PTRACE_CONT, SIGUSR2);
        }
        if (stopped == IS_OVER) {
            _exit(ptrace(PTRACE_DETACH, process, 0, 0) != 0);
        }
        need(stopped == RECEIVES, "a receive");
        do {
            need(ptrace(PTRACE_CONT, process, 0, 0) == 0, "ptrace");
            usleep(200);
            need(ptrace(PTRACE_INTERRUPT, process, 0, 0) == 0 && next_stop(process) > 0, "a stop");
        } while (!is_in_sleep(process));
        need(syscall(SYS_tgkill, process, process, SIGUSR1) == 0, "a signal");
        need(run_on(process, PTRACE_CONT, 0) == SIGUSR1 && run_on(process, PTRACE_CONT, SIGUSR1) == BEGINS, "a beginning");
        stopped = SIGTRAP;
        for (int at = 0; at < count && stopped == SIGTRAP; at++) {
            stopped = run_on(process, PTRACE_SINGLESTEP, 0);
        }
        stopped = stopped == SIGTRAP ? run_on(process, PTRACE_CONT, SIGUSR2) : stopped;
    }
}

static void *unseen[5];
static jmp_buf back;

/* By a jump of the compiler's, which calls nothing. */
static void leave_unseen(int number) {
    (void)number;
    __builtin_longjmp(unseen, 1);
}

__attribute__((noinline)) static void leave_receive(void) {
    char byte;
    if (__builtin_setjmp(unseen) == 0) {
        recv(server, &byte, 1, 0);
        need(0, "a receive of nothing has ended");
    }
}

/* A jump gives back what a receive had taken, and a handler that comes in the middle of that jumps further: at whatever
   instruction, nothing is left. */
static void stepped(const char *more) {
    struct sigaction unmasked = {.sa_handler = leave_unseen, .sa_flags = SA_NODEFER};
    static volatile int is_over;
    pid_t self = getpid();
    int ready[2], traced[2];
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(sched_getcpu(), &core);
    /* A step is then a switch, and no message between cores. Only slower without. */
    sched_setaffinity(0, sizeof core, &core);
    need(pipe2(ready, O_CLOEXEC) == 0 && pipe2(traced, O_CLOEXEC) == 0, "pipe");
    /* Before there is a connection. */
    pid_t tracer = fork();
    if (tracer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        await_by(ready);
        step(self, traced, atoi(more));
    }
    prctl(PR_SET_PTRACER, tracer);
    meet(act_hear_the_end);
    signal_by(ready);
    await_by(traced);
    sigaction(SIGUSR1, &unmasked, NULL);
    set_handler(SIGUSR2, leave);
    /* By its first jump it is bound, and so is a call to it in the library. */
    if (setjmp(back) == 0) {
        longjmp(back, 1);
    }
    while (!is_over) {
        raise(RECEIVES);
        leave_receive();
        if (sigsetjmp(out, 1) == 0) {
            if (setjmp(back) == 0) {
                __asm__ volatile("int3");
                longjmp(back, 1);
            }
            is_over = 1;
        }
    }
    raise(IS_OVER);
    await_child(tracer);
    close_and_be_heard();
}
#endif

static const struct action actions[] = {
    {"closed", .one = closed},
    {"closed_elsewhere", .none = closed_elsewhere},
    {"closed_meanwhile", .none = closed_meanwhile},
    {"deeper", .none = deeper},
    {"early", .none = early},
    {"ended_both_ways", .none = ended_both_ways},
    {"faulty", .one = faulty},
    {"faulty_handlers", .none = faulty_handlers},
    {"faulty_meanwhile", .none = faulty_meanwhile},
    {"faulty_twice", .one = faulty_twice},
    {"faulty_wait", .none = faulty_wait},
    {"filtered", .none = filtered},
    {"lingering", .none = lingering},
#ifdef __x86_64__
    {"stepped", .one = stepped},
#endif
    {"taken", .one = taken},
    {},
};

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    return perform(actions, count, words);
}
