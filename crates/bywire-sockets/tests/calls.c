/* Single calls, as the kernel answers them: one thing for each name. It writes down the results, which are the same with the
   library and without. */
#include "two_ends.h"

#include <linux/bpf.h>
#include <linux/filter.h>
#include <limits.h>

/* Lengths and addresses that a compiler would refuse if it knew them. */
static volatile size_t longest = SIZE_MAX, half_of_all = SSIZE_MAX;
static volatile int less = -1;
static void *volatile low = (void *)8, *volatile nowhere = NULL;

/* A listener, and two ends of a connection in this process. `client` has no delay. */
static int listener = -1;

static struct sockaddr_in address;

static void listen_here(void) {
    listener = listening_socket(&address);
}

static void connect_here(void) {
    client = connected_socket(&address, 0);
    server = accepted_socket(listener, 0);
    set_no_delay(client);
    set_no_delay(server);
}

/* Some words both ways. Each is waited for, whatever the options do. */
static void exchange(int rounds) {
    int ends[2] = {client, server};
    while (rounds-- > 0) {
        for (int from = 0; from < 2; from++) {
            struct pollfd other = {ends[1 - from], POLLIN, 0};
            char word[64] = "", back[64];
            need(send(ends[from], word, sizeof word, 0) == sizeof word, "a word");
            need(poll(&other, 1, 40000) == 1, "its arrival");
            need(recv(ends[1 - from], back, sizeof back, MSG_WAITALL) == sizeof back, "its other end");
        }
    }
}

static void exchange_twelve(int fd) {
    (void)fd;
    exchange(12);
}

static void talk_here(void) {
    exchange_until_carried(client, exchange_twelve);
}

static void close_ends(void) {
    close(client), close(server);
}

/* Options that a connection has from its listener. */
static void *send_late(void *argument) {
    usleep(100000);
    need(send(client, "5678", 4, 0) == 4, "the rest");
    return argument;
}

static void *send_very_late(void *argument) {
    usleep(1500000);
    return send_late(argument);
}

static int receive_with_control(void) {
    char bytes[4];
    union {
        struct cmsghdr header;
        char bytes[256];
    } control;
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    need(recvmsg(server, &message, 0) == sizeof bytes, "a message");
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
        int value;
        memcpy(&value, CMSG_DATA(header), sizeof value);
        printf("level %d, type %d", header->cmsg_level, header->cmsg_type);
        printf(header->cmsg_level == IPPROTO_TCP ? ": %d\n" : "\n", value);
    }
    return message.msg_controllen > 0;
}

/* The kernel stamps what arrives a moment after somebody has asked for it. */
static void receive_with_stamp(void) {
    time_t started = time(NULL);
    do {
        need(time(NULL) - started < 40, "it is never stamped");
        need(send(client, "1234", 4, 0) == 4, "bytes");
    } while (!receive_with_control());
}

static void filter(int fd) {
    struct sock_filter all[] = {{BPF_RET | BPF_K, 0, 0, 0xFFFFFFFF}};
    struct sock_fprog program = {1, all};
    need(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0, "a filter");
}

/* A filter that cannot be read back. Not everybody may load one. */
static void filter_by_extended_code(int fd) {
    struct bpf_insn all[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0x7FFFFFFF}, {.code = BPF_JMP | BPF_EXIT}};
    union bpf_attr load = {
        .prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2, .insns = (__u64)all, .license = (__u64) "GPL"};
    int program = syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
    if (program >= 0) {
        need(setsockopt(fd, SOL_SOCKET, SO_ATTACH_BPF, &program, sizeof program) == 0, "a filter");
        close(program);
    } else {
        filter(fd);
    }
}

/* `struct tcp_zerocopy_receive` of linux/tcp.h, which the C library's header has in part. */
struct pages {
    __u64 address;
    __u32 length, skip, waiting;
    __s32 error;
    __u64 buffer;
    __s32 copied;
    __u32 flags;
};

/* A receive by the call that maps pages. */
static void receive_pages(void) {
    char bytes[8] = "";
    struct pages receive = {.buffer = (__u64)bytes, .copied = sizeof bytes};
    socklen_t length = sizeof receive;
    void *pages = mmap(NULL, 4096, PROT_READ, MAP_SHARED, server, 0);
    need(pages != MAP_FAILED, "pages");
    receive.address = (__u64)pages, receive.length = 4096;
    SAY(getsockopt(server, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &receive, &length));
    printf("%u mapped, %d copied: %.4s\n", receive.length, receive.copied, bytes);
    munmap(pages, 4096);
}

static void *send_much(void *argument) {
    static char bytes[1 << 20];
    need(send(server, bytes, sizeof bytes, 0) == sizeof bytes, "many bytes");
    return argument;
}

/* A second's worth of bytes. */
static void send_paced(void) {
    static char bytes[1 << 20];
    long before_ms = now_ms();
    pthread_t thread = start_thread(send_much, NULL);
    need(recv(client, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "all of them");
    join_thread(thread);
    printf("%s\n", now_ms() - before_ms > 200 ? "not all at once" : "at once");
}

/* Options that are numbers. */
static const struct number_option {
    const char *name;
    int level, number, value;
} number_options[] = {
    {"low", SOL_SOCKET, SO_RCVLOWAT, 8},
    {"low_late", SOL_SOCKET, SO_RCVLOWAT, 12},
    {"stamp", SOL_SOCKET, SO_TIMESTAMP, 1},
    {"stamp_ns", SOL_SOCKET, SO_TIMESTAMPNS, 1},
    {"new_stamp", SOL_SOCKET, 63, 1},
    {"new_stamp_ns", SOL_SOCKET, 64, 1},
    {"stamping", SOL_SOCKET, SO_TIMESTAMPING, 1 << 3 | 1 << 4},
    {"waiting", IPPROTO_TCP, TCP_INQ, 1},
    {"pace", SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 20},
    {"delay", IPPROTO_TCP, 37, 1000},
    {"clamp", IPPROTO_TCP, TCP_WINDOW_CLAMP, 4096},
    {},
};

/* One option, on the listener or on a connection that is in use. `is_late`: bytes wait meanwhile. */
static void option(const char *name, int is_late) {
    listen_here();
    if (is_late) {
        connect_here();
        talk_here();
        need(send(client, "12345678", 8, 0) == 8, "bytes");
    }
    int fd = is_late ? server : listener;
    if (is(name, "filter")) {
        filter(fd);
    } else if (is(name, "extended")) {
        filter_by_extended_code(fd);
    } else if (!is(name, "pages")) {
        const struct number_option *option = number_options;
        while (option->name != NULL && !is(name, option->name)) {
            option++;
        }
        need(option->name != NULL, "an option");
        set_option(fd, option->level, option->number, option->value);
    }
    if (!is_late) {
        connect_here();
        if (is(name, "waiting")) {
            talk_here();
        } else {
            exchange(40);
        }
        need(send(client, "1234", 4, 0) == 4, "bytes");
    }
    if (strstr(name, "low") == name) {
        struct pollfd file = {server, POLLIN, 0};
        SAY(poll(&file, 1, 50));
        pthread_t thread = start_thread(send_late, NULL);
        SAY(poll(&file, 1, 5000));
        join_thread(thread);
    } else if (is(name, "pages")) {
        await_events(server, POLLIN, "bytes");
        receive_pages();
    } else if (is(name, "pace")) {
        send_paced();
    } else if (strstr(name, "stamp") != NULL) {
        receive_with_stamp();
    } else {
        printf("%d\n", receive_with_control());
    }
    close_ends();
}

#ifdef CLOCK
/* A clock that stands still, as the program's own. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){1000000, 0};
    return 0;
}
#endif

static void act_be_killed(void) {
    for (;;) {
        pause();
    }
}

/* Calls that end by the time that passes. The program's own clock may not show it. */
static void times(void) {
    char byte;
    static char bytes[1 << 20];
    struct timeval some = {0, 300000};
    int set;
    struct epoll_event event = {.events = EPOLLIN};
    alarm(30);
    listen_here();
    connect_here();
    talk_here();
    struct pollfd file = {server, POLLIN, 0};
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    SAY(recv(server, &byte, 1, 0));
    SAY(setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &some, sizeof some));
    while (send(client, bytes, sizeof bytes, 0) > 0) {
    }
    printf("then %s\n", strerror(errno));
    while (recv(server, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    SAY(poll(&file, 1, 100));
    need((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "a set");
    SAY(epoll_wait(set, &event, 1, 100));
    close_ends();
    meet(act_be_killed);
    kill(peer, SIGKILL);
    byte = 1;
    need(recv(server, &byte, 1, 0) <= 0, "an end");
    printf("a killed peer is noticed\n");
}

static void send_here(const char *text) {
    ssize_t length = strlen(text);
    need(send(client, text, length, 0) == length, "bytes");
    await_events(server, POLLIN, "their arrival");
}

static void *send_in_pieces(void *argument) {
    for (int piece = 0; piece < 3; piece++) {
        usleep(30000);
        need(send(client, "12345678", 8, 0) == 8, "a piece");
    }
    if (argument != NULL) {
        shutdown(client, SHUT_WR);
    }
    return NULL;
}

static void *interrupt(void *argument) {
    usleep(100000);
    pthread_kill(*(pthread_t *)argument, SIGUSR1);
    return NULL;
}

static void do_nothing(int signal) {
    (void)signal;
}

static void heed_signals(void) {
    struct sigaction action = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
}

/* Peeks that wait for all: pieces come, an end comes, a signal comes, the time passes, nobody waits. */
static void peeks(void) {
    char bytes[64] = "", *none = NULL;
    pthread_t self = pthread_self();
    struct timeval some = {0, 100000}, never = {0, 0};
    heed_signals();
    pthread_t thread = start_thread(send_in_pieces, NULL);
    SAY(recv(server, bytes, 24, MSG_PEEK | MSG_WAITALL));
    join_thread(thread);
    printf("%.24s\n", bytes);
    SAY(recv(server, bytes, 32, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
    thread = start_thread(interrupt, &self);
    SAY(recv(server, bytes, 32, MSG_PEEK | MSG_WAITALL));
    join_thread(thread);
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    SAY(recv(server, bytes, 32, MSG_PEEK | MSG_WAITALL));
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never));
    SAY(recv(server, none, 20, MSG_PEEK | MSG_WAITALL | MSG_TRUNC));
    SAY(recv(server, bytes, 20, MSG_WAITALL));
    thread = start_thread(send_in_pieces, &self);
    SAY(recv(server, bytes, 32, MSG_PEEK | MSG_WAITALL));
    join_thread(thread);
    SAY(recv(server, bytes, 64, 0));
    SAY(recv(server, bytes, 64, MSG_PEEK | MSG_WAITALL));
}

/* Times that are none: calls never wait, or are refused. */
static void no_times(void) {
    static char bytes[1 << 20];
    char byte;
    struct timeval negative = {-1, 0}, none = {0, 0}, wrong = {0, -1};
    struct timespec late = {0, 1000000000}, before = {-1, 0}, soon = {0, 50000000};
    struct iovec parts[3] = {{bytes, 2}, {bytes + 2, 2}, {bytes + 4, 2}};
    struct mmsghdr messages[3] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1}}};
    struct pollfd file = {server, POLLIN, 0};
    struct epoll_event event;
    fd_set files;
    int set = epoll_create1(0);
    FD_ZERO(&files);
    FD_SET(server, &files);
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &wrong, sizeof wrong));
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &negative, sizeof negative));
    SAY(recv(server, &byte, 1, 0));
    SAY(recv(server, &byte, 1, MSG_WAITALL));
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    SAY(setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &negative, sizeof negative));
    while (send(client, bytes, sizeof bytes, 0) > 0) {
    }
    printf("then %s\n", strerror(errno));
    usleep(50000);
    while (recv(server, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
        usleep(1000);
    }
    SAY(setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none));
    SAY(recvmmsg(server, messages, 3, 0, &late));
    SAY(recvmmsg(server, messages, 3, 0, &before));
    SAY(recvmmsg(server, messages, 3, 0, low));
    SAY(ppoll(&file, 1, &late, NULL));
    SAY(ppoll(&file, 1, &before, NULL));
    SAY(select(server + 1, &files, NULL, NULL, &negative));
    SAY(select(server + 1, &files, NULL, NULL, &wrong));
    SAY(pselect(server + 1, &files, NULL, NULL, &late, NULL));
    SAY(epoll_pwait2(set, &event, 1, &late, NULL));
    send_here("1234");
    SAY(recvmmsg(server, messages, 2, 0, &soon));
    printf("%u %u %d\n", messages[0].msg_len, messages[1].msg_len, soon.tv_sec == 0 && soon.tv_nsec > 0 && soon.tv_nsec < 50000000);
    send_here("1234");
    SAY(recvmmsg(server, messages, 3, MSG_WAITFORONE, NULL));
    /* The time is looked at behind each message. */
    soon.tv_nsec = 0;
    send_here("1234");
    SAY(recvmmsg(server, messages, 2, 0, &soon));
    SAY(recv(server, bytes, 10, 0));
    close(set);
}

/* A time that is longer than any number of nanoseconds. */
static void long_times(void) {
    struct timeval longest_time = {LONG_MAX / 1000000, LONG_MAX % 1000000};
    char bytes[4];
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &longest_time, sizeof longest_time));
    pthread_t thread = start_thread(send_very_late, NULL);
    SAY(recv(server, bytes, sizeof bytes, 0));
    join_thread(thread);
}

/* Words from the server alone. */
static void send_back(int fd) {
    char word[64] = "";
    for (int round = 0; round < 12; round++) {
        need(send(fd, word, sizeof word, 0) == sizeof word, "a word");
        await_events(client, POLLIN, "its arrival");
        need(recv(client, word, sizeof word, MSG_WAITALL) == sizeof word, "its other end");
    }
}

/* The kernel holds the last byte back that goes through it, in the direction that leaves it last. */
static void hold_back(void) {
    connect_here();
    exchange_until_carried(server, send_back);
    set_option(client, IPPROTO_TCP, TCP_CORK, 1);
    SAY(send(client, "x", 1, 0));
}

static void *interrupt_and_push(void *argument) {
    usleep(50000);
    pthread_kill(*(pthread_t *)argument, SIGUSR1);
    usleep(50000);
    set_option(client, IPPROTO_TCP, TCP_CORK, 0);
    return NULL;
}

/* Receives while bytes are on their way through the kernel. */
static void under_way(void) {
    char bytes[4];
    pthread_t self = pthread_self();
    struct timeval some = {0, 50000};
    heed_signals();
    alarm(100);
    listen_here();
    hold_back();
    SAY(recv(server, bytes, sizeof bytes, MSG_DONTWAIT));
    SAY(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
    SAY(recv(server, bytes, sizeof bytes, 0));
    set_option(client, IPPROTO_TCP, TCP_CORK, 0);
    SAY(recv(server, bytes, sizeof bytes, 0));
    close_ends();
    hold_back();
    pthread_t thread = start_thread(interrupt_and_push, &self);
    SAY(recv(server, bytes, sizeof bytes, 0));
    join_thread(thread);
    close_ends();
}

/* A connection has the time of its listener, which says that calls never wait. */
static void inherit_no_time(void) {
    struct timeval negative = {-1, 0};
    char byte;
    alarm(60);
    listen_here();
    SAY(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &negative, sizeof negative));
    connect_here();
    talk_here();
    SAY(recv(server, &byte, 1, 0));
    close_ends();
}

/* Lengths and numbers of parts that are too large, and what they come with. */
static void lengths(void) {
    static char bytes[1 << 16];
    static struct iovec many[1025];
    char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(edge + 4096, 4096);
    struct iovec negative[2] = {{bytes, 1}, {bytes, SIZE_MAX}}, half[3] = {{bytes, 2}, {bytes, SSIZE_MAX}, {bytes, SSIZE_MAX}},
                 large[3] = {{bytes, 2}, {bytes + 2, 1L << 30}, {bytes + 2, 1L << 30}}, one = {bytes, SSIZE_MAX};
    struct msghdr message = {.msg_iov = many, .msg_iovlen = 1025, .msg_controllen = 0, .msg_flags = 0x1234};
    for (int index = 0; index < 1025; index++) {
        many[index] = (struct iovec){bytes, 1};
    }
    send_here("0123456789abcdefghijklmnopqrstuvwxyz");
    SAY(read(server, bytes, longest));
    SAY(read(server, bytes, half_of_all));
    SAY(write(client, bytes, longest));
    SAY(write(client, bytes, half_of_all));
    SAY(readv(server, negative, 2));
    SAY(readv(server, half, 3));
    SAY(writev(client, negative, 2));
    SAY(writev(client, half, 3));
    SAY(readv(server, many, 1025));
    SAY(readv(server, many, less));
    SAY(writev(client, many, 1025));
    SAY(preadv2(server, many, 1025, -1, 0));
    SAY(pwritev2(client, many, 1025, -1, 0));
    SAY(recvmsg(server, &message, 0));
    printf("%x\n", message.msg_flags);
    SAY(sendmsg(client, &message, 0));
    message.msg_iov = half, message.msg_iovlen = 3;
    SAY(recvmsg(server, &message, 0));
    SAY(sendmsg(client, &message, 0));
    message.msg_iov = many, message.msg_iovlen = 2, message.msg_namelen = -1;
    SAY(recvmsg(server, &message, 0));
    SAY(sendmsg(client, &message, 0));
    message.msg_namelen = 0;
    SAY(recvmsg(server, &message, MSG_DONTWAIT | 1 << 31));
    SAY(recv(server, bytes, longest, MSG_PEEK));
    SAY(recvfrom(server, bytes, half_of_all, MSG_PEEK, NULL, NULL));
    SAY(readv(server, &one, 1));
    send_here("0123456789");
    SAY(readv(server, large, 3));
    printf("%.10s\n", bytes);
    int file = memfd_create("a file", 0);
    off_t before = -1;
    need(write(file, "file", 4) == 4, "a file");
    SAY(sendfile(client, file, NULL, longest));
    SAY(sendfile(client, file, &before, 4));
    SAY(lseek(file, 0, SEEK_SET));
    SAY(sendfile(client, file, NULL, half_of_all));
    SAY(recv(server, bytes, 4, MSG_WAITALL));
    close(file);
    /* It ends before the first byte that cannot be read. */
    memcpy(edge + 4086, "edge bytes", 10);
    ssize_t sent = send(client, edge + 4086, longest, 0);
    printf("%s\n", sent < 0 ? strerror(errno) : sent <= 10 ? "a part" : "more than there is");
    while (sent > 0 && recv(server, bytes, sent, MSG_WAITALL) < sent) {
    }
    SAY(send(client, low, longest, 0));
    SAY(recv(server, bytes, 10, MSG_DONTWAIT));
}

/* Addresses, control data and flags of messages. */
static void messages(void) {
    char bytes[16] = "", control[64];
    struct sockaddr_in name;
    socklen_t length = sizeof name, negative = -1;
    struct iovec part = {bytes, 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr list[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ssize_t found;
#define RECEIVE(data, bytes_of_data, address, flags)                                                                                   \
    (message.msg_control = data, message.msg_controllen = bytes_of_data, message.msg_name = address,                                   \
     message.msg_namelen = sizeof name, message.msg_flags = 0x1234, found = recvmsg(server, &message, flags),                         \
     printf("%zd %s: %d %zu %x\n", found, found < 0 ? strerror(errno) : "", message.msg_namelen, message.msg_controllen,             \
            message.msg_flags))
    RECEIVE(control, sizeof control, &name, MSG_DONTWAIT);
    send_here("0123456789abcdef0123456789abcdef");
    RECEIVE(control, sizeof control, &name, 0);
    RECEIVE(control, sizeof control, NULL, MSG_CMSG_CLOEXEC);
    RECEIVE(nowhere, 64, &name, MSG_PEEK);
    RECEIVE(NULL, 0, NULL, MSG_TRUNC);
    RECEIVE(control, sizeof control, &name, MSG_ERRQUEUE);
    RECEIVE(control, sizeof control, &name, MSG_OOB);
    SAY(recvfrom(server, bytes, 2, 0, (void *)&name, &length));
    printf("%u\n", length);
    SAY(recvfrom(server, bytes, 2, 0, (void *)&name, NULL));
    SAY(recvfrom(server, bytes, 2, 0, (void *)&name, &negative));
    SAY(recvfrom(server, bytes, 2, 0, NULL, NULL));
    SAY(recvmsg(server, low, 0));
    SAY(sendmsg(client, low, 0));
    SAY(recvmmsg(server, low, 1, 0, NULL));
    SAY(sendmmsg(client, low, 1, 0));
    SAY(readv(server, low, 1));
    SAY(writev(client, low, 1));
    SAY(poll(low, 1, 0));
    SAY(select(server + 1, low, NULL, NULL, NULL));
    SAY(ioctl(server, FIONREAD, low));
    SAY(recvmmsg(server, list, 0, 0, NULL));
    list[1].msg_hdr.msg_iov = low;
    SAY(recvmmsg(server, list, 2, 0, NULL));
    SAY(sendto(client, bytes, 4, 0, (void *)&name, sizeof name));
    SAY(sendto(client, bytes, 4, 0, (void *)&name, 0));
    SAY(sendto(client, bytes, 4, 0, (void *)&name, 1000));
    SAY(sendto(client, bytes, 4, 0, (void *)&name, -1));
    SAY(sendto(client, bytes, 4, 0, low, sizeof name));
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_name = low, .msg_namelen = sizeof name};
    SAY(sendmsg(client, &message, 0));
    message.msg_name = &name, message.msg_namelen = 1000;
    SAY(sendmsg(client, &message, 0));
    while (recv(server, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
}

/* Receives and sends of no bytes, and what waits. */
static void nothing(void) {
    char bytes[16] = "";
    struct iovec none[2] = {{bytes, 0}, {NULL, 0}};
    struct msghdr message = {.msg_iov = none, .msg_iovlen = 2}, bare = {0};
    int waiting = -1;
    for (int turn = 0; turn < 2; turn++) {
        SAY(read(server, NULL, 0));
        SAY(readv(server, none, 2));
        SAY(readv(server, none, 0));
        SAY(recv(server, NULL, 0, MSG_DONTWAIT));
        SAY(recv(server, NULL, 0, MSG_DONTWAIT | MSG_WAITALL | MSG_PEEK));
        SAY(recvmsg(server, &message, MSG_DONTWAIT));
        SAY(recvmsg(server, &bare, MSG_DONTWAIT));
        SAY(write(client, NULL, 0));
        SAY(send(client, NULL, 0, 0));
        SAY(sendmsg(client, &bare, 0));
        SAY(writev(client, none, 2));
        SAY(ioctl(server, FIONREAD, &waiting));
        printf("%d\n", waiting);
        if (turn == 0) {
            send_here("0123456789");
        }
    }
    struct iovec missing[2] = {{bytes, 2}, {NULL, 2}}, first[2] = {{NULL, 2}, {bytes, 2}};
    SAY(read(server, nowhere, 3));
    SAY(recv(server, nowhere, 3, MSG_PEEK));
    SAY(readv(server, first, 2));
    SAY(write(client, nowhere, 3));
    SAY(writev(client, first, 2));
    SAY(writev(client, missing, 2));
    SAY(recv(server, NULL, 3, MSG_TRUNC));
    SAY(recv(server, NULL, 3, MSG_TRUNC | MSG_PEEK));
    SAY(recv(server, bytes, 16, MSG_WAITALL | MSG_DONTWAIT));
    SAY(recv(server, bytes, 16, MSG_ERRQUEUE));
    SAY(recv(server, bytes, 16, MSG_OOB));
    SAY(shutdown(client, SHUT_WR));
    SAY(send(client, NULL, 0, MSG_NOSIGNAL));
    SAY(send(client, bytes, 1, MSG_NOSIGNAL));
    SAY(recv(server, NULL, 0, 0));
    SAY(recv(server, bytes, 16, 0));
    SAY(recvmmsg(server, (struct mmsghdr[]){{.msg_hdr = message}}, 1, 0, NULL));
}

#ifndef TCP_CM_INQ
#define TCP_CM_INQ TCP_INQ
#endif

/* Waits until this many bytes wait. */
static void await_bytes(int expected) {
    time_t started = time(NULL);
    for (int waiting = -1; waiting != expected; need(time(NULL) - started < 40, "bytes")) {
        need(ioctl(server, FIONREAD, &waiting) == 0, "FIONREAD");
    }
}

/* Receives a message with this much room for control data, and says what came. */
static void receive_left(size_t size, size_t room, int flags) {
    char bytes[64] = "";
    union {
        struct cmsghdr header;
        char bytes[64];
    } control;
    memset(&control, 0xEE, sizeof control);
    struct iovec part = {bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room > 0 ? &control : NULL, .msg_controllen = room};
    ssize_t found = recvmsg(server, &message, flags | MSG_DONTWAIT);
    printf("%zu with %zu: %zd %s, %zu of control, flags %x,", size, room, found, found < 0 ? strerror(errno) : bytes,
           message.msg_controllen, message.msg_flags);
    for (size_t at = 0; at < 28; at++) {
        printf(" %02x", (unsigned char)control.bytes[at]);
    }
    printf("\n");
}

/* The bytes that are left behind a message, while the connection leaves the kernel, in memory, and at its end. */
static void left(void) {
    static const size_t rooms[] = {64, 24, 20, 64, 18, 16, 8, 64, 0, 32}, sizes[] = {7, 3, 13, 20, 1};
    char bytes[64] = "abcdefghijklmnopqrstuvwxyz";
    struct linger at_once = {1, 0};
    struct iovec parts[2] = {{bytes, 3}, {bytes + 3, 64}};
    char control[2][64];
    struct mmsghdr both[2];
    int waiting = 0;
    alarm(60);
    for (int way = 0; way < 2; way++) {
        listen_here();
        set_option(listener, IPPROTO_TCP, TCP_INQ, 1);
        connect_here();
        close(listener);
        SAY(getsockopt(server, IPPROTO_TCP, TCP_INQ, &waiting, &(socklen_t){sizeof waiting}));
        printf("%d\n", waiting);
        waiting = 0;
        for (size_t round = 0; round < 60; round++) {
            size_t size = sizes[round % 5];
            need(send(client, bytes, 10, 0) == 10, "bytes");
            await_bytes(waiting + 10);
            if (round % 7 == 0) {
                receive_left(size, 64, MSG_PEEK);
            }
            receive_left(size, rooms[round % 10], round % 11 == 10 ? MSG_TRUNC : 0);
            waiting += 10 - (int)(size < (size_t)waiting + 10 ? size : (size_t)waiting + 10);
            /* The other direction leaves the kernel, too. */
            need(send(server, bytes, 1, 0) == 1 && recv(client, bytes + 32, 1, 0) == 1, "a byte back");
        }
        while (recv(server, bytes + 32, 32, MSG_DONTWAIT) > 0) {
        }
        talk_here();
        send_here("0123456789");
        await_bytes(10);
        for (int at = 0; at < 2; at++) {
            both[at].msg_hdr = (struct msghdr){
                .msg_iov = parts + at, .msg_iovlen = 1, .msg_control = control[at], .msg_controllen = sizeof control[at]};
        }
        SAY(recvmmsg(server, both, 2, MSG_DONTWAIT, NULL));
        for (int at = 0; at < 2; at++) {
            struct cmsghdr *header = CMSG_FIRSTHDR(&both[at].msg_hdr);
            need(header != NULL && header->cmsg_type == TCP_CM_INQ, "what is left");
            printf("%u, then %d\n", both[at].msg_len, *(int *)CMSG_DATA(header));
        }
        receive_left(8, 64, 0);
        receive_left(8, 64, MSG_ERRQUEUE);
        SAY(setsockopt(server, IPPROTO_TCP, TCP_INQ, &(int){2}, sizeof(int)));
        set_option(server, IPPROTO_TCP, TCP_INQ, 0);
        send_here("0123456789");
        receive_left(2, 64, 0);
        set_option(server, IPPROTO_TCP, TCP_INQ, 1);
        receive_left(2, 64, 0);
        if (way == 0) {
            shutdown(client, SHUT_WR);
        } else {
            setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            close(client);
        }
        await_events(server, POLLRDHUP, "an end");
        for (int turn = 0; turn < 6; turn++) {
            receive_left(turn == 3 ? 0 : 2, 64, turn % 2 == 1 ? 0 : MSG_PEEK);
            receive_left(turn == 3 ? 0 : 2, 64, 0);
        }
        close_ends();
    }
}

/* Waits by the numbers of their calls: the kernel checks the length of a mask, and stores the time that is left. */
static void waits_by_number(void) {
    struct pollfd file = {server, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    struct timespec *fixed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fd_set files;
    sigset_t none;
    struct {
        const sigset_t *mask;
        size_t length;
    } right = {&none, 8}, wrong = {&none, 128};
    int set = epoll_create1(0);
    sigemptyset(&none);
    epoll_ctl(set, EPOLL_CTL_ADD, server, &event);
    for (int turn = 0; turn < 2; turn++) {
        struct timespec polled = {0, 100000000}, selected = polled, set_aside = polled, zero = {0, 0};
        *fixed = polled;
        mprotect(fixed, 4096, PROT_READ);
        FD_ZERO(&files);
        FD_SET(server, &files);
        SAY(syscall(SYS_ppoll, &file, 1, &polled, &none, 8));
        SAY(polled.tv_nsec > 0 && polled.tv_nsec < 100000000);
        SAY(syscall(SYS_pselect6, server + 1, &files, NULL, NULL, &selected, &right));
        SAY(selected.tv_nsec > 0 && selected.tv_nsec < 100000000);
        SAY(syscall(SYS_epoll_pwait2, set, &event, 1, &set_aside, &none, 8));
        SAY(set_aside.tv_nsec);
        SAY(syscall(SYS_ppoll, &file, 1, fixed, NULL, 0));
        SAY(syscall(SYS_ppoll, &file, 1, &zero, &none, 128));
        SAY(syscall(SYS_pselect6, server + 1, &files, NULL, NULL, &zero, &wrong));
        SAY(syscall(SYS_pselect6, server + 1, &files, NULL, NULL, &zero, low));
        SAY(syscall(SYS_epoll_pwait, set, &event, 1, 0, &none, 128));
        SAY(syscall(SYS_epoll_pwait2, set, &event, 1, &zero, &none, 128));
        mprotect(fixed, 4096, PROT_READ | PROT_WRITE);
        if (turn == 0) {
            send_here("bytes");
        }
    }
    munmap(fixed, 4096);
    close(set);
}

static void inherited(const char *option_name) {
    option(option_name, 0);
}

static void changed(const char *option_name) {
    option(is(option_name, "low") ? "low_late" : option_name, 1);
}

/* Actions on two carried ends. */
static const struct action on_ends[] = {
    {"lengths", .none = lengths},
    {"long_times", .none = long_times},
    {"messages", .none = messages},
    {"no_times", .none = no_times},
    {"nothing", .none = nothing},
    {"peeks", .none = peeks},
    {"waits", .none = waits_by_number},
    {},
};

static void call_on_ends(const char *name) {
    alarm(60);
    listen_here();
    connect_here();
    talk_here();
    char *words[] = {NULL, (char *)name};
    need(perform(on_ends, 2, words) == 0, name);
    close_ends();
}

static const struct action actions[] = {
    {"changed", .one = changed},
    {"inherit_no_time", .none = inherit_no_time},
    {"inherited", .one = inherited},
    {"left", .none = left},
    {"on_ends", .one = call_on_ends},
    {"times", .none = times},
    {"under_way", .none = under_way},
    {},
};

int main(int count, char **words) {
    return perform(actions, count, words);
}
