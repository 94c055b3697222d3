/* An event loop of each kind, which gives every byte back, and clients that check each: `loops KIND THREADS`. KIND is
 * level, edge, once, once-edge, or uring and liburing: the set is then changed through io_uring where that is there, as
 * libuv does; in the second case liburing makes the ring. With a third word the clients go on until nothing of theirs goes
 * through the kernel any more, before they send most of their bytes. Prints "ring" where there is one, and "absent" without liburing. Ends with 0 if all went well, and with 3 if most bytes went through the kernel. */
#include "loopback.h"

#include <linux/io_uring.h>
#include <stdatomic.h>

enum { CLIENTS = 6, ROUNDS = 400, LONGEST = 20000, LAST = 8 << 20, HELD = 64 << 10 };

/* One end of a connection, or the listener. */
struct end {
    int fd, is_out;
    size_t start, length;
    pthread_mutex_t lock;
    atomic_int is_served;
    char held[HELD];
};

static int set, is_edge, is_once, is_awaited, ring = -1;
static unsigned *tail, *mask, *slots, *done_head, *done_tail;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *results;
static unsigned results_mask;
static struct end listener;
static struct sockaddr_in address;

static int setup_by_liburing(struct io_uring_params *given) {
    int (*setup)(unsigned, struct io_uring_params *) = NULL;
    if (dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL)) setup = dlsym(RTLD_DEFAULT, "io_uring_setup");
    if (!setup) {
        puts("absent");
        fflush(stdout);
        errno = ENOSYS;
        return -1;
    }
    int made = setup(64, given);
    errno = made < 0 ? -made : 0;
    return made;
}

/* A ring, as libuv makes one; none where it is refused. */
static void make_ring(int by_liburing) {
    struct io_uring_params given = {0};
    ring = by_liburing ? setup_by_liburing(&given) : syscall(SYS_io_uring_setup, 64, &given);
    if (ring < 0) {
        need(errno == EPERM || errno == ENOSYS, "io_uring_setup");
        return;
    }
    puts("ring");
    fflush(stdout);
    size_t length = given.cq_off.cqes + given.cq_entries * sizeof *results;
    char *rings = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    need(rings != MAP_FAILED, "its rings");
    length = given.sq_entries * sizeof *entries;
    entries = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    need(entries != MAP_FAILED, "its entries");
    tail = (unsigned *)(rings + given.sq_off.tail), mask = (unsigned *)(rings + given.sq_off.ring_mask);
    slots = (unsigned *)(rings + given.sq_off.array);
    done_head = (unsigned *)(rings + given.cq_off.head), done_tail = (unsigned *)(rings + given.cq_off.tail);
    results = (struct io_uring_cqe *)(rings + given.cq_off.cqes);
    results_mask = *(unsigned *)(rings + given.cq_off.ring_mask);
}

static int control(int operation, int fd, struct epoll_event *event) {
    if (ring < 0) return epoll_ctl(set, operation, fd, event);
    unsigned at = *tail & *mask;
    memset(&entries[at], 0, sizeof entries[at]);
    entries[at].opcode = IORING_OP_EPOLL_CTL, entries[at].fd = set, entries[at].len = operation;
    entries[at].off = fd, entries[at].addr = (unsigned long)event;
    slots[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    need(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring_enter");
    need(__atomic_load_n(done_tail, __ATOMIC_ACQUIRE) != *done_head, "a result");
    int result = results[*done_head & results_mask].res;
    __atomic_store_n(done_head, *done_head + 1, __ATOMIC_RELEASE);
    return result;
}

static void want(struct end *end, int operation) {
    unsigned events = end->is_out ? EPOLLOUT : EPOLLIN;
    if (is_edge) events |= EPOLLET;
    /* By edges both are wanted from the beginning, unless each has to be asked for again. */
    if (is_edge && !is_once && end != &listener) events |= EPOLLIN | EPOLLOUT;
    if (is_once) events |= EPOLLONESHOT;
    struct epoll_event event = {.events = events, .data.ptr = end};
    need(control(operation, end->fd, &event) == 0, "epoll_ctl");
}

static void drop(struct end *end) {
    struct epoll_event none = {0};
    need(epoll_ctl(set, EPOLL_CTL_DEL, end->fd, &none) == 0, "out of the set");
    close(end->fd);
    /* Another thread may have been told of it already. */
    end->fd = -1;
}

/* 0: there is nothing more for now; 1: go on; -1: it is over. */
static int step(struct end *end) {
    if (end->start == end->length) {
        ssize_t got = read(end->fd, end->held, HELD);
        if (got <= 0) return got < 0 && errno == EAGAIN ? 0 : -1;
        end->start = 0, end->length = got;
    }
    ssize_t given = write(end->fd, end->held + end->start, end->length - end->start);
    if (given < 0 && errno != EAGAIN) return -1;
    if (given > 0) end->start += given;
    end->is_out = end->start != end->length;
    return given > 0 && !end->is_out;
}

static void serve(struct end *end) {
    if (is_once) need(atomic_exchange(&end->is_served, 1) == 0, "told twice of what was asked for once");
    pthread_mutex_lock(&end->lock);
    int was_out = end->is_out, more = end->fd < 0 ? 0 : step(end);
    while (more > 0 && is_edge) more = step(end);
    int is_gone = end->fd < 0;
    if (more < 0) drop(end);
    atomic_store(&end->is_served, 0);
    if (!is_gone && more >= 0 && (is_once || (!is_edge && end->is_out != was_out))) want(end, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&end->lock);
}

static void take_calls(void) {
    int fd;
    while ((fd = accept4(listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct end *end = calloc(1, sizeof *end);
        need(end != NULL, "memory");
        end->fd = fd;
        pthread_mutex_init(&end->lock, NULL);
        set_no_delay(fd);
        want(end, EPOLL_CTL_ADD);
    }
    if (is_once) want(&listener, EPOLL_CTL_MOD);
}

static void *loop(void *argument) {
    struct epoll_event events[4];
    for (;;) {
        int found = epoll_wait(set, events, 4, -1);
        need(found > 0 || errno == EINTR, "epoll_wait");
        for (int at = 0; at < found; at++) {
            struct end *end = events[at].data.ptr;
            if (end == &listener) take_calls();
            else serve(end);
        }
    }
    return argument;
}

static void fill(char *bytes, size_t length, unsigned *state) {
    for (size_t at = 0; at < length; at++) {
        *state = *state * 1664525 + 1013904223;
        bytes[at] = *state >> 24;
    }
}

struct parcel {
    int fd;
    const char *bytes;
    size_t length;
};

static void *give(void *argument) {
    struct parcel *parcel = argument;
    for (size_t given = 0; given < parcel->length;) {
        ssize_t sent = send(parcel->fd, parcel->bytes + given, parcel->length - given, 0);
        need(sent > 0, "send");
        given += sent;
    }
    return NULL;
}

static void get(int fd, const char *due, size_t length) {
    static _Thread_local char bytes[64 << 10];
    for (size_t got = 0; got < length;) {
        size_t room = length - got < sizeof bytes ? length - got : sizeof bytes;
        ssize_t received = recv(fd, bytes, room, 0);
        need(received > 0, "recv");
        need(memcmp(bytes, due + got, received) == 0, "other bytes came back");
        got += received;
    }
}

/* What the kernel was given to send: the place in `struct tcp_info` of linux/tcp.h. */
static unsigned long long sent_by_kernel(int fd) {
    char account[256];
    socklen_t size = sizeof account;
    unsigned long long sent = 0;
    need(getsockopt(fd, IPPROTO_TCP, TCP_INFO, account, &size) == 0 && size >= 208, "the kernel's account");
    memcpy(&sent, account + 200, 8);
    return sent;
}

static void exchange(int fd, char *bytes, size_t length, unsigned *state) {
    fill(bytes, length, state);
    struct parcel parcel = {fd, bytes, length};
    give(&parcel);
    get(fd, bytes, length);
}

/* However slow the service is on a busy machine. */
static void await_memory(int fd, char *bytes, unsigned *state) {
    enum { PAUSE_US = 1000, PAUSES = 30000, WORDS = 16 };
    for (int pause = 0; pause < PAUSES; pause++) {
        unsigned long long before = sent_by_kernel(fd);
        for (int word = 0; word < WORDS; word++) exchange(fd, bytes, 100, state);
        if (sent_by_kernel(fd) == before) return;
        usleep(PAUSE_US);
    }
}

static void *talk(void *argument) {
    unsigned state = *(unsigned *)argument;
    char *bytes = malloc(LAST);
    int fd = connected_socket(&address, SOCK_CLOEXEC);
    set_no_delay(fd);
    size_t sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        size_t length = 1 + state % (round % 8 ? 200 : LONGEST);
        exchange(fd, bytes, length, &state);
        sum += length;
    }
    if (is_awaited) await_memory(fd, bytes, &state);
    /* More than fits: the loop has to wait until it can write. */
    struct parcel parcel = {fd, bytes, LAST};
    fill(bytes, LAST, &state);
    pthread_t giver = start_thread(give, &parcel);
    usleep(100000);
    get(fd, bytes, LAST);
    join_thread(giver);
    sum += LAST;
    need(shutdown(fd, SHUT_WR) == 0 && recv(fd, bytes, 1, 0) == 0, "an end");
    unsigned long long sent = sent_by_kernel(fd);
    close(fd);
    free(bytes);
    *(unsigned *)argument = sent > sum / 2;
    return NULL;
}

int main(int count, char **words) {
    need(count == 3 || count == 4, "loops KIND THREADS [awaited]");
    is_awaited = count == 4;
    is_edge = is(words[1], "edge") || is(words[1], "once-edge");
    is_once = strncmp(words[1], "once", 4) == 0;
    set = epoll_create1(EPOLL_CLOEXEC);
    int by_liburing = is(words[1], "liburing");
    if (by_liburing || is(words[1], "uring")) make_ring(by_liburing);
    listener.fd = listening_socket(&address);
    need(fcntl(listener.fd, F_SETFL, O_NONBLOCK) == 0, "non-blocking");
    want(&listener, EPOLL_CTL_ADD);
    pthread_t clients[CLIENTS];
    for (int at = 0; at < atoi(words[2]); at++) start_thread(loop, NULL);
    unsigned seeds[CLIENTS], in_kernel = 0;
    for (int at = 0; at < CLIENTS; at++) {
        seeds[at] = at + 1;
        clients[at] = start_thread(talk, &seeds[at]);
    }
    for (int at = 0; at < CLIENTS; at++) {
        join_thread(clients[at]);
        in_kernel += seeds[at];
    }
    return in_kernel > 0 ? 3 : 0;
}
