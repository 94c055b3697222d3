/* Single calls, as the kernel answers them: one thing for each name. It writes down the results, which are the same with the
   library and without. */
#include "two_ends.h"

#include <linux/bpf.h>
#include <linux/filter.h>

#define SAY(what) (errno = 0, number = (long)(what), printf("%s = %ld %s\n", #what, number, number < 0 ? strerror(errno) : ""))

static long number;

/* A listener, and two ends of a connection in this process. `client` has no delay. */
static int listener = -1;

static void listen_here(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 8) == 0, "listen");
}

static void connect_here(void) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int one = 1;
    getsockname(listener, (struct sockaddr *)&address, &length);
    client = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(client, (struct sockaddr *)&address, length) == 0, "connect");
    server = accept(listener, NULL, NULL);
    need(server >= 0, "accept");
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Some words both ways. Each is waited for, whatever the options do. */
static void exchange(int rounds) {
    int ends[2] = {client, server};
    while (rounds-- > 0) {
        for (int from = 0; from < 2; from++) {
            char word[64] = "", back[64];
            need(send(ends[from], word, sizeof word, 0) == sizeof word, "a word");
            need(recv(ends[1 - from], back, sizeof back, MSG_WAITALL) == sizeof back, "its other end");
        }
    }
}

/* Talks until nothing goes through the kernel. */
static void talk_here(void) {
    time_t started = time(NULL);
    char before[16], after[16];
    do {
        count_kernels(client, before);
        exchange(12);
        count_kernels(client, after);
        need(time(NULL) - started < 40, "it is never carried");
    } while (getenv("LD_PRELOAD") != NULL && memcmp(before, after, sizeof before) != 0);
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

static void set(int fd, int level, int name, int value) {
    need(setsockopt(fd, level, name, &value, sizeof value) == 0, "setsockopt");
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

/* One option, on the listener or on a connection that is in use. `is_late`: bytes wait meanwhile. */
static void option(const char *name, int is_late) {
    listen_here();
    if (is_late) {
        connect_here();
        talk_here();
        need(send(client, "12345678", 8, 0) == 8, "bytes");
    }
    int fd = is_late ? server : listener;
    int is_low = strcmp(name, "low") == 0;
    if (is_low) {
        set(fd, SOL_SOCKET, SO_RCVLOWAT, is_late ? 12 : 8);
    } else if (strcmp(name, "stamp") == 0) {
        set(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    } else if (strcmp(name, "stamp_ns") == 0) {
        set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    } else if (strcmp(name, "new_stamp") == 0) {
        set(fd, SOL_SOCKET, 63, 1);
    } else if (strcmp(name, "new_stamp_ns") == 0) {
        set(fd, SOL_SOCKET, 64, 1);
    } else if (strcmp(name, "stamping") == 0) {
        set(fd, SOL_SOCKET, SO_TIMESTAMPING, 1 << 3 | 1 << 4);
    } else if (strcmp(name, "waiting") == 0) {
        set(fd, IPPROTO_TCP, TCP_INQ, 1);
    } else if (strcmp(name, "filter") == 0) {
        filter(fd);
    } else if (strcmp(name, "extended") == 0) {
        filter_by_extended_code(fd);
    } else if (strcmp(name, "pages") != 0) {
        need(0, "an option");
    }
    if (!is_late) {
        connect_here();
        exchange(40);
        need(send(client, "1234", 4, 0) == 4, "bytes");
    }
    if (is_low) {
        pthread_t thread;
        struct pollfd file = {server, POLLIN, 0};
        SAY(poll(&file, 1, 50));
        pthread_create(&thread, NULL, send_late, NULL);
        SAY(poll(&file, 1, 5000));
        pthread_join(thread, NULL);
    } else if (strcmp(name, "pages") == 0) {
        struct pollfd file = {server, POLLIN, 0};
        need(poll(&file, 1, 5000) == 1, "bytes");
        receive_pages();
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

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    if (strcmp(name, "inherited") == 0 && count > 2) {
        option(words[2], 0);
    } else if (strcmp(name, "changed") == 0 && count > 2) {
        option(words[2], 1);
    } else if (strcmp(name, "times") == 0) {
        times();
    } else {
        return 2;
    }
    fflush(stdout);
    return 0;
}
