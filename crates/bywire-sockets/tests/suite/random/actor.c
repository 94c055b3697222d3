/* Does what it is told, one call for each request, and answers what the call gave. Orders and answers go through packet
 * sockets at FIRST_CHANNEL and on, by raw system calls, so that no library stands between. An actor is a thread; each
 * has a channel of its own, which all processes inherit. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
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
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The same numbers as in channel.rs. */
enum { FIRST_CHANNEL = 400, CHANNELS = 14, MAILBOX = 420, BUFFER_BYTES = 1 << 18 };

struct request {
    int32_t operation, fd, way, flags, to, milliseconds;
    uint64_t size, position;
};

struct reply {
    int64_t result;
    int32_t error;
    /* A byte was not the one that was sent. */
    uint32_t is_wrong;
    uint64_t more, detail;
};

enum operation {
    LISTEN, CONNECT, ACCEPT, SEND, RECEIVE, SEND_ALL, RECEIVE_ALL, FILL, POLL, NEW_SET, CONTROL, WAIT, DUPLICATE,
    CLOSE, PASS, TAKE, FORK, EXEC, SPAWN, THREAD, SHUTDOWN, HANDLE, HANDLED, LOOK, SET, SETTLE, SETTLE_END, LIMIT,
    SANDBOX, EXIT, REAP, MOVED, RUN, ADOPT, SETTLE_SHUT, ATTACH,
};

static char *buffers[CHANNELS];
static volatile sig_atomic_t handled;
extern char **environ;

static long raw(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

static uint8_t byte_at(uint64_t position) { return (uint8_t)((position * 0x9E3779B97F4A7C15u) >> 56); }

static void write_pattern(char *bytes, uint64_t position, size_t size) {
    for (size_t at = 0; at < size; at++) bytes[at] = (char)byte_at(position + at);
}

static int is_pattern(const char *bytes, uint64_t position, size_t size) {
    for (size_t at = 0; at < size; at++)
        if ((uint8_t)bytes[at] != byte_at(position + at)) return 0;
    return 1;
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void rest(void) {
    struct timespec time = {0, 200000};
    raw(SYS_nanosleep, (long)&time, 0, 0, 0);
}

static void answer(int channel, struct reply reply) {
    while (raw(SYS_write, FIRST_CHANNEL + channel, (long)&reply, sizeof reply, 0) == -EINTR) {}
}

static void serve(int channel);

static void say_hello(int channel) {
    struct reply hello = {.result = raw(SYS_gettid, 0, 0, 0, 0), .more = (uint64_t)raw(SYS_getpid, 0, 0, 0, 0)};
    answer(channel, hello);
}

/* Bounds of what a connection buffers; 0: none. Those of a listener are its connections'. */
static void bound_buffers(int fd, const struct request *order) {
    int sends = (int)order->size, receives = (int)order->position;
    if (sends != 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sends, sizeof sends);
    if (receives != 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receives, sizeof receives);
}

/* Ways to connect, the same numbers as in model.rs. */
enum { BY_TCP, BY_PATH, BY_ABSTRACT_NAME };

union address {
    struct sockaddr any;
    struct sockaddr_in tcp;
    struct sockaddr_un local;
};

/* The address with this number: a port, or the number in a name. */
static socklen_t name_address(union address *address, int way, int number) {
    char *name = address->local.sun_path + (way == BY_ABSTRACT_NAME);
    memset(address, 0, sizeof *address);
    if (way == BY_TCP) {
        address->tcp.sin_family = AF_INET;
        address->tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address->tcp.sin_port = htons((uint16_t)number);
        return sizeof address->tcp;
    }
    address->local.sun_family = AF_UNIX;
    return (socklen_t)(name - (char *)address) + (socklen_t)snprintf(name, 32, "bywire-random-%d", number);
}

static long make_connection(const struct request *order, struct reply *reply) {
    int one = 1, fd = -1, is_tcp = order->way == BY_TCP;
    /* Processes of both runs listen in one directory. */
    int number = order->operation == CONNECT ? order->to : is_tcp ? 0 : getpid() * 8 + order->to;
    union address address;
    socklen_t length = name_address(&address, order->way, number);
    switch (order->operation) {
    case LISTEN:
        fd = socket(address.any.sa_family, SOCK_STREAM, 0);
        bound_buffers(fd, order);
        if (bind(fd, &address.any, length) != 0 || listen(fd, 4) != 0) return -1;
        if (is_tcp) getsockname(fd, &address.any, &length);
        reply->more = is_tcp ? ntohs(address.tcp.sin_port) : (uint64_t)number;
        return fd;
    case CONNECT:
        fd = socket(address.any.sa_family, SOCK_STREAM, 0);
        bound_buffers(fd, order);
        if (connect(fd, &address.any, length) != 0) return -1;
        if (order->way == BY_PATH) unlink(address.local.sun_path);
        break;
    default:
        fd = accept(order->fd, NULL, NULL);
        bound_buffers(fd, order);
    }
    if (is_tcp) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_INQ, &one, sizeof one);
    }
    return fd;
}

static int file_of(const char *bytes, size_t size) {
    int file = memfd_create("sent", MFD_CLOEXEC);
    if (file >= 0 && (write(file, bytes, size) != (ssize_t)size || lseek(file, 0, SEEK_SET) != 0)) {
        close(file);
        return -1;
    }
    return file;
}

static long send_file(int fd, const char *bytes, size_t size) {
    int file = file_of(bytes, size);
    long sent = sendfile(fd, file, NULL, size);
    int error = errno;
    close(file);
    errno = error;
    return sent;
}

static long send_once(int fd, int way, int flags, char *bytes, size_t size) {
    struct iovec parts[2] = {{bytes, size / 3}, {bytes + size / 3, size - size / 3}};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}};
    flags |= MSG_NOSIGNAL;
    switch (way) {
    case 0: return send(fd, bytes, size, flags);
    case 1: return write(fd, bytes, size);
    case 2: return writev(fd, parts, 2);
    case 3: return sendmsg(fd, &message.msg_hdr, flags);
    case 4: return sendto(fd, bytes, size, flags, NULL, 0);
    case 5: return sendmmsg(fd, &message, 1, flags) == 1 ? (long)message.msg_len : -1;
    case 6: return send_file(fd, bytes, size);
    case 7: return syscall(SYS_write, fd, bytes, size);
    case 8: return syscall(SYS_sendto, fd, bytes, size, flags, NULL, 0);
    case 9: return pwritev2(fd, parts, 2, -1, 0);
    default: return syscall(SYS_sendmmsg, fd, &message, 1, flags) == 1 ? (long)message.msg_len : -1;
    }
}

/* A message of TCP says what is left behind it, and one of a Unix stream may have a descriptor, if there is room for that. */
struct control {
    _Alignas(struct cmsghdr) char bytes[64];
};

/* A number of this kind that has come with a message, plus one. 0: none. */
static uint64_t number_in(const struct msghdr *message, int level) {
    int number = -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    if (header != NULL && header->cmsg_level == level) memcpy(&number, CMSG_DATA(header), sizeof number);
    return (uint64_t)number + 1;
}

static long receive_with(int fd, int way, int flags, char *bytes, size_t size, struct reply *reply) {
    struct iovec parts[2] = {{bytes, size / 3}, {bytes + size / 3, size - size / 3}};
    struct control control;
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
    struct mmsghdr message = {.msg_hdr = header};
    long received = way == 3   ? recvmsg(fd, &message.msg_hdr, flags)
                    : way == 5 ? recvmmsg(fd, &message, 1, flags, NULL)
                               : syscall(SYS_recvmmsg, fd, &message, 1, flags, NULL);
    if (received < 0) return -1;
    reply->more = number_in(&message.msg_hdr, IPPROTO_TCP);
    reply->detail = number_in(&message.msg_hdr, SOL_SOCKET);
    return way == 3 ? received : (long)message.msg_len;
}

static long receive_once(int fd, int way, int flags, char *bytes, size_t size) {
    struct iovec parts[2] = {{bytes, size / 3}, {bytes + size / 3, size - size / 3}};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}};
    switch (way) {
    case 0: return recv(fd, bytes, size, flags);
    case 1: return read(fd, bytes, size);
    case 2: return readv(fd, parts, 2);
    case 3: return recvmsg(fd, &message.msg_hdr, flags);
    case 4: return recvfrom(fd, bytes, size, flags, NULL, NULL);
    case 5: return recvmmsg(fd, &message, 1, flags, NULL) == 1 ? (long)message.msg_len : -1;
    case 6: return syscall(SYS_read, fd, bytes, size);
    case 7: return syscall(SYS_recvfrom, fd, bytes, size, flags, NULL, NULL);
    case 8: return preadv2(fd, parts, 2, -1, 0);
    default: return syscall(SYS_recvmmsg, fd, &message, 1, flags, NULL) == 1 ? (long)message.msg_len : -1;
    }
}

/* Signals come again and again, so that one comes while the call sleeps. */
static void alarms(int milliseconds) {
    struct itimerval time = {{0, milliseconds * 1000}, {0, milliseconds * 1000}};
    setitimer(ITIMER_REAL, &time, NULL);
}

static long move_once(const struct request *order, struct reply *reply, char *bytes) {
    size_t size = order->size;
    long moved;
    if (order->operation == SEND) {
        write_pattern(bytes, order->position, size);
        return send_once(order->fd, order->way, order->flags, bytes, size);
    }
    if (order->milliseconds > 0) alarms(order->milliseconds);
    moved = order->to != 0 && (order->way == 3 || order->way == 5 || order->way == 9)
                ? receive_with(order->fd, order->way, order->flags, bytes, size, reply)
                : receive_once(order->fd, order->way, order->flags, bytes, size);
    if (order->milliseconds > 0) {
        int error = errno;
        alarms(0);
        errno = error;
    }
    reply->is_wrong = moved > 0 && !(order->flags & MSG_TRUNC) && !is_pattern(bytes, order->position, (size_t)moved);
    return moved;
}

static int poll_for(int fd, short events, int milliseconds) {
    struct pollfd file = {fd, events, 0};
    return poll(&file, 1, milliseconds) == 1 ? file.revents : 0;
}

/* Goes on until all is moved, or the stream ends; waits where the descriptor does not. */
static long move_all(const struct request *order, struct reply *reply, char *bytes) {
    int sends = order->operation != RECEIVE_ALL;
    int flags = order->operation == FILL ? MSG_DONTWAIT : 0;
    uint64_t done = 0;
    int full = 0;
    errno = 0;
    while (done < order->size) {
        size_t size = order->size - done < BUFFER_BYTES ? (size_t)(order->size - done) : BUFFER_BYTES;
        long moved;
        if (order->to > 0 && size > (size_t)order->to) size = (size_t)order->to;
        if (sends) write_pattern(bytes, order->position + done, size);
        moved = sends ? send_once(order->fd, order->way, flags, bytes, size)
                      : receive_once(order->fd, order->way, flags, bytes, size);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0 && errno == EAGAIN && flags && ++full < 4) {
            /* What is under way makes room. */
            poll_for(-1, 0, 2);
            continue;
        }
        if (moved < 0 && errno == EAGAIN && !flags) {
            poll_for(order->fd, sends ? POLLOUT : POLLIN, 1000);
            continue;
        }
        if (moved <= 0) {
            if (moved == 0) errno = 0;
            break;
        }
        if (!sends && !is_pattern(bytes, order->position + done, (size_t)moved)) reply->is_wrong = 1;
        done += (uint64_t)moved;
        errno = full = 0;
    }
    reply->more = (uint64_t)errno;
    return (long)done;
}

static long poll_one(const struct request *order, struct reply *reply) {
    struct pollfd file = {order->fd, (short)order->flags, 0};
    struct timespec time = {order->milliseconds / 1000, order->milliseconds % 1000 * 1000000L};
    struct timeval value = {order->milliseconds / 1000, order->milliseconds % 1000 * 1000L};
    int waits = order->milliseconds < 0;
    fd_set sets[3];
    long status;
    if (order->way < 2) {
        status = order->way == 0 ? poll(&file, 1, order->milliseconds) : ppoll(&file, 1, waits ? NULL : &time, NULL);
        reply->more = (uint64_t)(unsigned short)file.revents;
        return status;
    }
    for (int at = 0; at < 3; at++) FD_ZERO(&sets[at]);
    if (order->flags & POLLIN) FD_SET(order->fd, &sets[0]);
    if (order->flags & POLLOUT) FD_SET(order->fd, &sets[1]);
    FD_SET(order->fd, &sets[2]);
    status = order->way == 2
                 ? select(order->fd + 1, &sets[0], &sets[1], &sets[2], waits ? NULL : &value)
                 : pselect(order->fd + 1, &sets[0], &sets[1], &sets[2], waits ? NULL : &time, NULL);
    for (int at = 0; at < 3 && status > 0; at++) reply->more |= (uint64_t)(FD_ISSET(order->fd, &sets[at]) != 0) << at;
    return status;
}

/* What is ready may be told by one of several calls, and in any order: the sum is the same. */
static long wait_for_events(const struct request *order, struct reply *reply) {
    struct epoll_event events[16], all[16];
    int count = 0, milliseconds = order->milliseconds;
    for (int round = 0; round < 10; round++, milliseconds = 0) {
        int status = order->way == 0 ? epoll_wait(order->fd, events, 16, milliseconds)
                                     : epoll_pwait(order->fd, events, 16, milliseconds, NULL);
        if (status <= 0) {
            if (round == 0) return status;
            break;
        }
        for (int at = 0, place; at < status; at++) {
            for (place = 0; place < count && all[place].data.u64 != events[at].data.u64; place++) {}
            if (place == count) all[count++] = (struct epoll_event){0, events[at].data};
            all[place].events |= events[at].events;
        }
    }
    for (int at = 0; at < count; at++) {
        reply->more ^= (all[at].data.u64 << 32 | all[at].events) * 0x9E3779B97F4A7C15u;
        reply->detail |= all[at].events;
    }
    return count;
}

static long duplicate(const struct request *order) {
    switch (order->way) {
    case 0: return dup(order->fd);
    case 1: return dup2(order->fd, order->to);
    case 2: return dup3(order->fd, order->to, order->flags);
    case 3: return fcntl(order->fd, F_DUPFD, order->to);
    case 4: return fcntl(order->fd, F_DUPFD_CLOEXEC, order->to);
    default: return syscall(SYS_fcntl, order->fd, F_DUPFD, order->to);
    }
}

static long close_one(const struct request *order) {
    switch (order->way) {
    case 0: return close(order->fd);
    case 1: return close_range((unsigned)order->fd, (unsigned)order->fd, 0);
    default: return syscall(SYS_close, order->fd);
    }
}

/* Sends bytes with one descriptor. */
static long send_with(int fd, char *bytes, size_t size, int passed) {
    struct control control;
    struct iovec part = {bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof passed)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof passed);
    memcpy(CMSG_DATA(header), &passed, sizeof passed);
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* One descriptor through the mailbox, which everybody has. */
static long pass(const struct request *order) {
    struct reply found = {0};
    char byte = 0;
    if (order->operation == PASS) return send_with(MAILBOX, &byte, 1, order->fd);
    return receive_with(MAILBOX + 1, 3, order->flags, &byte, 1, &found) == 1 ? (long)found.detail - 1 : -1;
}

/* One descriptor in the middle of a stream. */
static long attach(const struct request *order, char *bytes) {
    write_pattern(bytes, order->position, order->size);
    return send_with(order->fd, bytes, order->size, order->to);
}

static char *words[] = {"actor", NULL, NULL};
static char channel_word[12];

/* This very program once more, as the actor of another channel. */
static char **words_of(int channel) {
    snprintf(channel_word, sizeof channel_word, "%d", channel);
    words[1] = channel_word;
    return words;
}

static long fork_actor(const struct request *order) {
    pid_t child = order->way == 1 ? vfork() : order->way == 2 ? _Fork() : fork();
    if (child != 0) return child;
    if (order->way == 1) {
        execv("/proc/self/exe", words);
        _exit(127);
    }
    say_hello(order->to);
    serve(order->to);
    _exit(0);
}

static long spawn_actor(const struct request *order) {
    posix_spawn_file_actions_t actions;
    pid_t child = -1;
    int status;
    posix_spawn_file_actions_init(&actions);
    if (order->flags & 1) posix_spawn_file_actions_adddup2(&actions, order->fd, order->way);
    if (order->flags & 2) posix_spawn_file_actions_addclose(&actions, order->fd);
    status = posix_spawn(&child, "/proc/self/exe", &actions, NULL, words_of(order->to), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (status == 0) return child;
    errno = status;
    return -1;
}

static void *serve_in_thread(void *argument) {
    say_hello((int)(intptr_t)argument);
    serve((int)(intptr_t)argument);
    return NULL;
}

static long start_thread(const struct request *order) {
    pthread_attr_t attributes;
    pthread_t thread;
    int status;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (order->way == 1) pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN);
    status = pthread_create(&thread, &attributes, serve_in_thread, (void *)(intptr_t)order->to);
    pthread_attr_destroy(&attributes);
    errno = status;
    return status == 0 ? 0 : -1;
}

static void handle(int signal) { handled += signal == SIGUSR1; }

static void handle_with_more(int signal, siginfo_t *about, void *context) {
    /* A handler that was set with SA_SIGINFO gets what it asked for. */
    if (about == NULL || about->si_signo != signal || context == NULL) _exit(99);
    handled += signal == SIGUSR1;
}

static long set_handler(const struct request *order) {
    struct sigaction action = {.sa_flags = order->flags & ~SA_ONSTACK};
    static __thread char *stack;
    if (order->flags & SA_ONSTACK) {
        stack_t place = {.ss_size = (size_t)SIGSTKSZ * 4};
        if (stack == NULL) stack = malloc(place.ss_size);
        place.ss_sp = stack;
        if (sigaltstack(&place, NULL) != 0) return -1;
        action.sa_flags |= SA_ONSTACK;
    }
    if (order->flags & SA_SIGINFO) action.sa_sigaction = handle_with_more;
    else action.sa_handler = handle;
    return sigaction(order->way, &action, NULL);
}

static long look(const struct request *order, struct reply *reply) {
    int value = 0;
    long status;
    socklen_t length = sizeof value;
    switch (order->way) {
    case 0: status = ioctl(order->fd, FIONREAD, &value); break;
    case 1: status = getsockopt(order->fd, SOL_SOCKET, SO_ERROR, &value, &length); break;
    case 2: status = value = fcntl(order->fd, F_GETFL); break;
    case 3: status = value = fcntl(order->fd, F_GETFD); break;
    case 4: {
        struct linger linger = {7, 7};
        length = sizeof linger;
        status = getsockopt(order->fd, SOL_SOCKET, SO_LINGER, &linger, &length);
        value = linger.l_onoff << 8 | linger.l_linger;
        break;
    }
    default: {
        union address address;
        length = sizeof address;
        status = getpeername(order->fd, &address.any, &length);
        value = status == 0 ? address.any.sa_family : 0;
    }
    }
    reply->more = (uint64_t)value;
    return status;
}

static long set(const struct request *order) {
    int value = order->flags;
    struct timeval time = {0, order->milliseconds * 1000L};
    struct linger linger = {order->flags, 0};
    switch (order->way) {
    case 0: return fcntl(order->fd, F_SETFL, value ? O_NONBLOCK : 0);
    case 1: return ioctl(order->fd, FIONBIO, &value);
    case 2: return setsockopt(order->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    case 3: return setsockopt(order->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    case 4: return fcntl(order->fd, F_SETFD, value ? FD_CLOEXEC : 0);
    case 5: return ioctl(order->fd, value ? FIOCLEX : FIONCLEX);
    default: return syscall(SYS_fcntl, order->fd, F_SETFL, value ? O_NONBLOCK : 0);
    }
}

/* Has the peer's kernel acknowledged the end of what was sent, if that is on its way? */
static int is_shut(int fd) {
    struct tcp_info found;
    socklen_t length = sizeof found;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &found, &length) != 0) return 1;
    return found.tcpi_state != TCP_FIN_WAIT1 && found.tcpi_state != TCP_CLOSING && found.tcpi_state != TCP_LAST_ACK;
}

/* What the peer has done takes its time even within one machine: bytes, or the end that `flags` tell. */
static long settle(const struct request *order) {
    uint64_t end = now_ms() + (uint64_t)order->milliseconds;
    for (;;) {
        int queued = 0;
        if (order->operation == SETTLE) {
            if (ioctl(order->fd, FIONREAD, &queued) != 0) return -1;
            if ((uint64_t)queued >= order->size) return queued;
        } else if (order->operation == SETTLE_SHUT) {
            if (is_shut(order->fd)) return 0;
        } else if (poll_for(order->fd, (short)order->flags, 0) & order->flags) {
            return 0;
        }
        if (now_ms() > end) return order->operation == SETTLE ? queued : -2;
        rest();
    }
}

static long limit(const struct request *order) {
    int kind = order->way == 0 ? RLIMIT_NOFILE : RLIMIT_FSIZE;
    struct rlimit limit;
    getrlimit(kind, &limit);
    limit.rlim_cur = order->size;
    return setrlimit(kind, &limit);
}

/* Newer architectures have only the successor. */
#ifdef SYS_poll
#define ALLOW_POLL ALLOW(poll),
#else
#define ALLOW_POLL
#endif
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* From here on this process makes no calls but those that its orders need. */
static long sandbox(const struct request *order) {
    unsigned otherwise = order->way == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(readv), ALLOW(writev), ALLOW(recvfrom), ALLOW(sendto), ALLOW(recvmsg),
        ALLOW(sendmsg), ALLOW_POLL ALLOW(ppoll), ALLOW(close), ALLOW(shutdown), ALLOW(ioctl), ALLOW(futex),
        ALLOW(nanosleep), ALLOW(clock_gettime), ALLOW(rt_sigreturn), ALLOW(rt_sigprocmask), ALLOW(exit),
        ALLOW(exit_group), ALLOW(restart_syscall),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return order->flags == 0 ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                             : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static long end(const struct request *order) {
    switch (order->way) {
    case 0: exit(3);
    case 1: _exit(4);
    case 2: pthread_exit(NULL);
    case 3: quick_exit(5);
    case 4: syscall(SYS_exit_group, 6); break;
    default: raise(SIGKILL);
    }
    return -1;
}

/* One child, or all of them that are there. */
static long reap(const struct request *order, struct reply *reply) {
    int status = 0;
    if (order->to > 0) {
        long found = waitpid(order->to, &status, 0);
        reply->more = (uint64_t)status;
        return found == order->to ? 0 : -1;
    }
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
    return 0;
}

/* How many bytes have gone through the kernel, and which ways have not: by its own account. For a Unix socket, which counts
 * none, the memory of what nobody has read yet. */
static long moved(const struct request *order, struct reply *reply) {
    struct { struct tcp_info old; uint64_t more[20]; } found;
    uint32_t memory[SK_MEMINFO_VARS];
    socklen_t length = sizeof found, memory_length = sizeof memory;
    long status;
    if (order->way != BY_TCP) {
        status = getsockopt(order->fd, SOL_SOCKET, SO_MEMINFO, memory, &memory_length);
        return status == 0 ? (long)memory[SK_MEMINFO_WMEM_ALLOC] : -1;
    }
    status = getsockopt(order->fd, IPPROTO_TCP, TCP_INFO, &found, &length);
    memcpy(&reply->result, (char *)&found + 200, 8);
    memcpy(&reply->more, (char *)&found + 128, 8);
    return status == 0 ? reply->result : -1;
}

static long control(const struct request *order) {
    struct epoll_event event = {.events = (uint32_t)order->flags, .data.u64 = (uint64_t)order->fd};
    return epoll_ctl(order->to, order->way, order->fd, &event);
}

static long perform(const struct request *order, struct reply *reply, char *bytes) {
    switch (order->operation) {
    case LISTEN: case CONNECT: case ACCEPT: return make_connection(order, reply);
    case SEND: case RECEIVE: return move_once(order, reply, bytes);
    case SEND_ALL: case RECEIVE_ALL: case FILL: return move_all(order, reply, bytes);
    case POLL: return poll_one(order, reply);
    case NEW_SET: return epoll_create1(order->flags);
    case CONTROL: return control(order);
    case WAIT: return wait_for_events(order, reply);
    case DUPLICATE: return duplicate(order);
    case CLOSE: return close_one(order);
    case PASS: case TAKE: return pass(order);
    case ATTACH: return attach(order, bytes);
    case FORK: return fork_actor(order);
    case EXEC: return execv("/proc/self/exe", words_of(order->to));
    case SPAWN: return spawn_actor(order);
    case THREAD: return start_thread(order);
    case SHUTDOWN: return shutdown(order->fd, order->way);
    case HANDLE: return set_handler(order);
    case HANDLED: return handled;
    case LOOK: return look(order, reply);
    case SET: return set(order);
    case SETTLE: case SETTLE_END: case SETTLE_SHUT: return settle(order);
    case LIMIT: return limit(order);
    case SANDBOX: return sandbox(order);
    case EXIT: return end(order);
    case REAP: return reap(order, reply);
    case MOVED: return moved(order, reply);
    case RUN: return order->way == 0 ? system("true") : pclose(popen("true", "r"));
    case ADOPT: return prctl(PR_SET_CHILD_SUBREAPER, 1);
    default: errno = ENOSYS; return -1;
    }
}

static void serve(int channel) {
    struct request order;
    if (buffers[channel] == NULL)
        buffers[channel] = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (;;) {
        struct reply reply = {0};
        long got = raw(SYS_read, FIRST_CHANNEL + channel, (long)&order, sizeof order, 0);
        if (got == -EINTR) continue;
        if (got != sizeof order) return;
        errno = 0;
        if (order.operation == FORK && order.way == 1) words_of(order.to);
        reply.result = perform(&order, &reply, buffers[channel]);
        reply.error = reply.result < 0 ? errno : 0;
        answer(channel, reply);
    }
}

int main(int count, char **arguments) {
    int channel = count > 1 ? atoi(arguments[1]) : 0;
    say_hello(channel);
    serve(channel);
    return 0;
}
