/* A program that forbids itself calls of the kernel while it has connections, one way for each name. Every call but those
 * that it makes itself, by the names that it uses, ends it. Ends with 0 if all of it went well. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void need(int is_well, const char *what) {
    if (!is_well) {
        char said[200];
        int length = snprintf(said, sizeof said, "%s: error %d\n", what, errno);
        (void)!write(2, said, length);
        /* The one that strict mode has, and the one that filters here have. */
        syscall(SYS_exit, 1);
        _exit(1);
    }
}

/* A filter that lets some calls through, and answers all others with `otherwise`. */
static struct sock_filter lines[64];
static struct sock_fprog filter = {0, lines};

static void line(unsigned short code, unsigned char yes, unsigned char no, unsigned value) {
    lines[filter.len++] = (struct sock_filter){code, yes, no, value};
}

static void let_through(const int *calls, int count, unsigned otherwise) {
    filter.len = 0;
    line(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    for (int index = 0; index < count; index++) {
        line(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, calls[index]);
        line(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    }
    line(BPF_RET | BPF_K, 0, 0, otherwise);
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new rights");
}

#define LET_THROUGH(otherwise, ...) \
    do { \
        static const int calls[] = {__VA_ARGS__}; \
        let_through(calls, sizeof calls / sizeof *calls, otherwise); \
    } while (0)

/* The peer is this program as another process, which gives back what it gets, and when it was told to end says how much. */
static int peer = -1;

static int connected(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int one = 1, end = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(end, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    need(setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "at once");
    return end;
}

static void say(int end, const char *bytes, size_t length) {
    need(write(end, bytes, length) == (ssize_t)length, "write");
}

static void hear(int end, const char *bytes, size_t length) {
    char heard[4096];
    for (size_t done = 0; done < length;) {
        ssize_t received = read(end, heard + done, length - done);
        need(received > 0, "read");
        done += received;
    }
    need(memcmp(heard, bytes, length) == 0, "what was said");
}

static unsigned long kernel_bytes(int end) {
    /* `tcpi_bytes_sent` in `struct tcp_info` of linux/tcp.h, which does not go with the C library's header. */
    unsigned long words[32] = {0};
    socklen_t length = sizeof words;
    need(getsockopt(end, IPPROTO_TCP, TCP_INFO, words, &length) == 0 && length > 200, "its account");
    return words[25];
}

/* Talks until the kernel is given no more bytes; without the library, it always is. */
static void carry(int end) {
    if (!getenv("LD_PRELOAD")) {
        return;
    }
    for (int round = 0; round < 20000; round++) {
        unsigned long before = kernel_bytes(end);
        for (int word = 0; word < 20; word++) {
            say(end, "word", 4);
            hear(end, "word", 4);
        }
        if (kernel_bytes(end) == before) {
            return;
        }
        usleep(1000);
    }
    need(0, "it is never carried");
}

static void talk(int end, int words) {
    char word[64];
    for (int index = 0; index < words; index++) {
        memset(word, 'a' + index % 26, sizeof word);
        say(end, word, sizeof word);
        hear(end, word, sizeof word);
    }
}

static void filter_by_prctl(void) {
    /* A question whether there are filters at all closes nothing. */
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT, "the question");
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0, "prctl");
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void end_quietly(void) {
    /* As programs end: with all that libraries do then. */
    exit(0);
}

/* Strict: read, write, exit, and the return of handlers. */
static void strict(void) {
    carry(peer);
    signal(SIGALRM, on_alarm);
    say(peer, "unread", 6);
    alarm(1);
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0, "prctl");
    hear(peer, "unread", 6);
    while (!alarms) {
        talk(peer, 1);
    }
    talk(peer, 100);
    syscall(SYS_exit, 0);
}

static void by_prctl(unsigned otherwise) {
    carry(peer);
    LET_THROUGH(otherwise, SYS_read, SYS_write, SYS_exit_group);
    say(peer, "unread", 6);
    filter_by_prctl();
    hear(peer, "unread", 6);
    talk(peer, 1000);
    end_quietly();
}

/* As libseccomp does. */
static void by_syscall(void) {
    carry(peer);
    LET_THROUGH(SECCOMP_RET_KILL_PROCESS, SYS_recvfrom, SYS_sendto, SYS_close, SYS_exit_group);
    need(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == -1, "the question");
    need(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0, "seccomp");
    char heard[64];
    need(send(peer, "word", 4, 0) == 4 && recv(peer, heard, 4, MSG_WAITALL) == 4, "a word");
    need(close(peer) == 0, "close");
    end_quietly();
}

/* More is outstanding than the kernel takes at once, both ways. */
static void full(void) {
    static char bytes[3 << 20], heard[3 << 20];
    carry(peer);
    for (size_t index = 0; index < sizeof bytes; index++) {
        bytes[index] = index * 31 >> 8;
    }
    say(peer, bytes, sizeof bytes);
    usleep(200000);
    LET_THROUGH(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_exit_group);
    filter_by_prctl();
    for (size_t done = 0; done < sizeof heard;) {
        ssize_t received = read(peer, heard + done, sizeof heard - done);
        need(received > 0, "read");
        done += received;
    }
    need(memcmp(bytes, heard, sizeof bytes) == 0, "what was said");
    end_quietly();
}

/* What waits for many descriptors goes on, and hears of nothing that the program has not put there. */
static void waits(void) {
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.u64 = 42}}, found[4];
    need(epoll_ctl(set, EPOLL_CTL_ADD, peer, &event) == 0, "a registration");
    carry(peer);
    need(epoll_wait(set, found, 4, 0) == 0, "nothing");
    LET_THROUGH(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_epoll_wait, SYS_poll, SYS_pselect6, SYS_exit_group);
    filter_by_prctl();
    for (int round = 0; round < 100; round++) {
        fd_set readable;
        struct pollfd file = {peer, POLLIN, 0};
        say(peer, "word", 4);
        need(epoll_wait(set, found, 4, -1) == 1 && found[0].data.u64 == 42 && found[0].events == EPOLLIN, "an event");
        need(poll(&file, 1, -1) == 1 && file.revents == POLLIN, "poll");
        FD_ZERO(&readable);
        FD_SET(peer, &readable);
        need(select(peer + 1, &readable, NULL, NULL, NULL) == 1, "select");
        hear(peer, "word", 4);
        need(epoll_wait(set, found, 4, 0) == 0, "nothing");
    }
    end_quietly();
}

/* What a call is given lies in pages that the library has not seen before: it does not ask the kernel for them. */
static void *fresh_page(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(page != MAP_FAILED, "a page");
    return page;
}

static void fresh(void) {
    int ends[2], set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.u64 = 42}}, found[4];
    need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair");
    need(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0, "a registration");
    struct pollfd *polled = fresh_page(), *polled_with_mask = fresh_page();
    fd_set *selected = fresh_page(), *selected_with_mask = fresh_page();
    struct timespec *of_poll = fresh_page(), *of_select = fresh_page(), *of_set = fresh_page();
    struct timeval *of_plain_select = fresh_page();
    struct msghdr *message = fresh_page();
    struct mmsghdr *several = fresh_page();
    struct iovec *parts = fresh_page();
    struct sockaddr *nobody = fresh_page();
    carry(peer);
    LET_THROUGH(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_poll, SYS_ppoll, SYS_pselect6, 441 /* epoll_pwait2 */, SYS_sendmsg,
                SYS_sendmmsg, SYS_connect, SYS_exit_group);
    filter_by_prctl();
    parts->iov_base = "word";
    parts->iov_len = 4;
    message->msg_iov = several->msg_hdr.msg_iov = parts;
    message->msg_iovlen = several->msg_hdr.msg_iovlen = 1;
    need(sendmsg(ends[0], message, 0) == 4, "sendmsg");
    need(sendmmsg(ends[0], several, 1, 0) == 1 && several->msg_len == 4, "sendmmsg");
    nobody->sa_family = AF_INET;
    need(connect(ends[0], nobody, sizeof *nobody) == -1, "connect");
    *polled = *polled_with_mask = (struct pollfd){ends[1], POLLIN, 0};
    of_poll->tv_sec = of_select->tv_sec = of_set->tv_sec = of_plain_select->tv_sec = 10;
    need(poll(polled, 1, -1) == 1, "poll");
    need(ppoll(polled_with_mask, 1, of_poll, NULL) == 1, "ppoll");
    FD_SET(ends[1], selected);
    FD_SET(ends[1], selected_with_mask);
    need(select(ends[1] + 1, selected, NULL, NULL, of_plain_select) == 1, "select");
    need(pselect(ends[1] + 1, selected_with_mask, NULL, NULL, of_select, NULL) == 1, "pselect");
    need(epoll_pwait2(set, found, 4, of_set, NULL) == 1 && found[0].data.u64 == 42, "an event");
    hear(ends[1], "wordword", 8);
    talk(peer, 10);
    end_quietly();
}

/* Handlers that were set before are the program's own, and children are as quiet as their parents. */
static void children(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    carry(peer);
    sigaction(SIGUSR1, &action, NULL);
    LET_THROUGH(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_clone, SYS_set_robust_list, SYS_wait4, SYS_vfork,
                SYS_rt_sigreturn, SYS_kill, SYS_getpid, SYS_gettid, SYS_tgkill, SYS_exit_group, SYS_rt_sigprocmask, SYS_rseq);
    pid_t own = getpid();
    filter_by_prctl();
    kill(own, SIGUSR1);
    need(alarms == 1, "a handler");
    int status;
    pid_t child = fork();
    if (child == 0) {
        talk(peer, 10);
        exit(0);
    }
    need(waitpid(child, &status, 0) == child && status == 0, "the child");
    child = vfork();
    if (child == 0) {
        _exit(7);
    }
    need(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "the vforked child");
    talk(peer, 10);
    end_quietly();
}

/* Becomes another program, behind a filter that kills for some calls. */
static void become(char *role, char *port, const int *calls, int count) {
    filter.len = 0;
    line(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    for (int index = 0; index < count; index++) {
        line(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, calls[index]);
        line(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
    }
    line(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new rights");
    filter_by_prctl();
    char *words[] = {"sandbox", role, port, NULL};
    execv("/proc/self/exe", words);
    need(0, "execv");
}

/* What the library calls, and this program does not. */
static const int not_ours[] = {SYS_memfd_create, SYS_eventfd2, SYS_mkdir, SYS_fallocate, SYS_ftruncate, SYS_getppid, SYS_madvise,
                               SYS_epoll_create1, SYS_gettid, SYS_sendmsg, SYS_recvmsg, 449 /* futex_waitv */};

/* The filter is for all threads, of which two sleep in calls that only the library would wake them from. */
static int other, sleeping[2];

static void *receive(void *argument) {
    char heard[8];
    say(sleeping[1], "!", 1);
    need(read(*(int *)argument, heard, sizeof heard) == 4, "what another thread was told");
    say(*(int *)argument, "done", 4);
    return NULL;
}

static void *wait_for_both(void *argument) {
    struct pollfd files[2] = {{peer, POLLPRI, 0}, {*(int *)argument, POLLIN, 0}};
    char heard[8];
    say(sleeping[1], "!", 1);
    need(poll(files, 2, -1) == 1 && files[1].revents == POLLIN, "poll");
    need(read(*(int *)argument, heard, 4) == 4, "what another thread was told");
    say(*(int *)argument, "done", 4);
    return NULL;
}

static void threads(int port) {
    int third;
    char word[4];
    pthread_t receiver, poller;
    other = connected(port);
    third = connected(port);
    carry(peer);
    carry(other);
    carry(third);
    need(pipe(sleeping) == 0, "a pipe");
    need(pthread_create(&receiver, NULL, receive, &other) == 0, "a thread");
    need(pthread_create(&poller, NULL, wait_for_both, &third) == 0, "a thread");
    need(read(sleeping[0], word, 1) == 1 && read(sleeping[0], word, 1) == 1, "both");
    usleep(100000);
    LET_THROUGH(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_poll, SYS_exit_group, SYS_exit, SYS_futex, SYS_madvise,
                SYS_munmap, SYS_rt_sigprocmask);
    need(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0, "seccomp");
    say(other, "word", 4);
    say(third, "word", 4);
    need(pthread_join(receiver, NULL) == 0 && pthread_join(poller, NULL) == 0, "the threads' ends");
    talk(peer, 100);
    end_quietly();
}

/* Gives back what it gets, each connection by a thread. */
static void *give_back(void *argument) {
    static __thread char bytes[65536];
    int end = (int)(long)argument;
    ssize_t received;
    while ((received = read(end, bytes, sizeof bytes)) > 0) {
        for (ssize_t done = 0; done < received;) {
            ssize_t sent = write(end, bytes + done, received - done);
            if (sent <= 0) {
                return NULL;
            }
            done += sent;
        }
    }
    close(end);
    return NULL;
}

static void serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    need(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 10) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("said %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        int end = accept(listener, NULL, NULL);
        need(end >= 0, "accept");
        setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        need(pthread_create(&thread, NULL, give_back, (void *)(long)end) == 0, "a thread");
    }
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    int port = count > 2 ? atoi(words[2]) : 0;
    signal(SIGPIPE, SIG_IGN);
    if (port) {
        peer = connected(port);
    }
    if (strcmp(name, "serve") == 0) {
        serve();
    } else if (strcmp(name, "strict") == 0) {
        strict();
    } else if (strcmp(name, "kill") == 0) {
        by_prctl(SECCOMP_RET_KILL_PROCESS);
    } else if (strcmp(name, "refuse") == 0) {
        by_prctl(SECCOMP_RET_ERRNO | EPERM);
    } else if (strcmp(name, "syscall") == 0) {
        by_syscall();
    } else if (strcmp(name, "full") == 0) {
        full();
    } else if (strcmp(name, "waits") == 0) {
        waits();
    } else if (strcmp(name, "fresh") == 0) {
        fresh();
    } else if (strcmp(name, "children") == 0) {
        children();
    } else if (strcmp(name, "behind") == 0) {
        become("born", words[2], not_ours, sizeof not_ours / sizeof *not_ours);
    } else if (strcmp(name, "born") == 0) {
        talk(peer, 1000);
        end_quietly();
    } else if (strcmp(name, "tolerated") == 0) {
        become("carried", words[2], NULL, 0);
    } else if (strcmp(name, "carried") == 0) {
        carry(peer);
        end_quietly();
    } else if (strcmp(name, "threads") == 0) {
        threads(port);
    }
    return 2;
}
