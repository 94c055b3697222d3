/* What becomes of bytes and ends when sockets are handed on, given back and closed: one thing for each name. It writes down
   what happened, which is the same with the library and without. */
#include "two_ends.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <sched.h>
#include <utmp.h>

static size_t amount = 10240;

static void send_and_close(void) {
    send_all(client, amount);
    close(client);
    signal_by(told);
}

static void send_and_shut(void) {
    send_all(client, amount);
    shutdown(client, SHUT_WR);
    signal_by(told);
    read_all("the answer", client);
}

/* This program as another one, whose standard input is a connection; what it says goes to ours. */
static const char *self;

static pid_t spawn_reader(const char *role, int fd, int is_copied) {
    posix_spawn_file_actions_t actions;
    char *words[] = {(char *)self, (char *)role, NULL};
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    if (is_copied) {
        posix_spawn_file_actions_adddup2(&actions, fd, 0);
    } else {
        need(dup2(fd, 0) == 0, "dup2");
    }
    fflush(stdout);
    need(posix_spawn(&child, self, &actions, NULL, words, environ) == 0, "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

/* How a socket is handed to somebody who does not know the library. */
static void hand_on(const char *way) {
    if (is(way, "spawn")) {
        await_child(spawn_reader("reader", server, 1));
    } else if (is(way, "inherit")) {
        await_child(spawn_reader("reader", server, 0));
        close(0);
    } else if (is(way, "exec")) {
        pid_t child = fork_flushed();
        if (child == 0) {
            dup2(server, 0);
            execl(self, self, "reader", NULL);
            _exit(1);
        }
        await_child(child);
    } else if (is(way, "fork")) {
        pid_t child = fork_flushed();
        if (child == 0) {
            read_all("in the child", server);
            fflush(stdout);
            _exit(0);
        }
        await_child(child);
    } else {
        int ends[2];
        char byte = 0, control[CMSG_SPACE(sizeof(int))];
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &server, sizeof server);
        need(sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1, "pass");
        int copy;
        memcpy(&copy, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof copy);
        read_all("the copy", copy);
        close(copy);
    }
}

/* The other end has sent, and finished or gone, before anything was read. */
static void ended(const char *how, const char *way, const char *bytes) {
    amount = strtoul(bytes, NULL, 10);
    meet(is(how, "closed") ? send_and_close : send_and_shut);
    await_by(told);
    hand_on(way);
    close(server);
    join();
}

/* A sender with a child that has no descriptor of its connection any more: it becomes another program, or closes it. */
static int helper_closes;

static void act_helped(void) {
    send_all(client, 1000);
    pid_t child = fork();
    if (child == 0 && helper_closes) {
        _exit(close(client) != 0);
    }
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    await_child(child);
    signal_by(told);
    await_by(start);
}

/* What it sent has not been read when its peer hands its end on, and it is killed. */
static void helped(const char *way) {
    helper_closes = is(way, "close");
    meet(act_helped);
    await_by(told);
    pid_t reader = spawn_reader("reader", server, 1);
    close(server);
    kill(peer, SIGKILL);
    await_child(reader);
    waitpid(peer, NULL, 0);
}

/* A half-closed end has a child that ends; then it is killed, and its peer, which it can tell nothing more, goes on sending. */
static void act_outlive_child(void) {
    send_all(client, 1000);
    shutdown(client, SHUT_WR);
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    await_child(child);
    signal_by(told);
    await_by(start);
}

static void outlived(void) {
    static char bytes[65536];
    meet(act_outlive_child);
    await_by(told);
    read_all("before the kill", server);
    kill(peer, SIGKILL);
    waitpid(peer, NULL, 0);
    while (send(server, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) {
    }
    printf("a send ends with %s\n", errno == EPIPE || errno == ECONNRESET ? "a reset" : strerror(errno));
}

static int leash[2];

/* A helper goes on that has no descriptor of the connection, and its parent ends in order. */
static void act_survived(void) {
    send_all(client, 1000);
    pid_t child = vfork();
    if (child == 0) {
        dup2(leash[0], 0);
        execl("/bin/cat", "cat", NULL);
        _exit(1);
    }
    need(child > 0, "a helper");
}

static void survived(void) {
    need(pipe2(leash, O_CLOEXEC) == 0, "pipe");
    meet(act_survived);
    join();
    read_all("behind its end", server);
    close(server);
}

/* Becomes another program, which has no descriptor of the connection: of which nothing more was to come, or much is to be read. */
static void become_another(void) {
    signal_by(told);
    dup2(leash[0], 0);
    execl("/bin/cat", "cat", NULL);
    _exit(1);
}

static void act_half(void) {
    shutdown(client, SHUT_WR);
    become_another();
}

static void act_much(void) {
    send_all(client, 3000000);
    become_another();
}

static void become(const char *how) {
    struct pollfd file = {0};
    char byte;
    need(pipe2(leash, O_CLOEXEC) == 0, "pipe");
    meet(is(how, "half") ? act_half : act_much);
    await_by(told);
    /* Its descriptors are closed by then. */
    for (char path[64], name[8] = ""; strcmp(name, "cat\n") != 0; usleep(1000)) {
        snprintf(path, sizeof path, "/proc/%d/comm", peer);
        FILE *comm = fopen(path, "r");
        need(comm != NULL && fgets(name, sizeof name, comm) != NULL, "a name");
        fclose(comm);
    }
    if (is(how, "half")) {
        need(recv(server, &byte, 1, 0) == 0, "an end");
        need(send(server, "x", 1, MSG_NOSIGNAL) == 1, "a word");
        file.fd = server;
        printf("%d: %x\n", poll(&file, 1, 20000), file.revents);
    } else {
        await_child(spawn_reader("reader", server, 1));
    }
    close(server);
    close(leash[0]), close(leash[1]);
    join();
}

/* Connections of one program with another, each carried, with a word in each that nobody has read. */
enum { PASSED = 12 };

static void act_many(void) {
    static int ends[PASSED];
    struct sockaddr_in address;
    need(read(start[0], &address, sizeof address) == sizeof address, "an address");
    for (int index = 0; index < PASSED; index++) {
        ends[index] = connected_socket(&address, 0);
        set_no_delay(ends[index]);
        talk(ends[index]);
        need(send(ends[index], "unread", 6, 0) == 6, "a word");
    }
    signal_by(told);
    await_by(start);
}

/* Many descriptors go in one message, whose other ends stand still: they are waited for together. */
static void passed(void) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(PASSED * sizeof(int))];
    } control = {0};
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct sockaddr_in address;
    int ends[2], accepted[PASSED], listener = listening_socket(&address);
    meet(act_many);
    need(write(start[1], &address, sizeof address) == sizeof address, "an address");
    for (int index = 0; index < PASSED; index++) {
        accepted[index] = accepted_socket(listener, 0);
        set_no_delay(accepted[index]);
        answer(accepted[index]);
    }
    await_by(told);
    struct cmsghdr *header = &control.header;
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof accepted);
    memcpy(CMSG_DATA(header), accepted, sizeof accepted);
    need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair");
    long before_ms = now_ms();
    need(sendmsg(ends[0], &message, 0) == 1, "pass");
    printf("%s\n", now_ms() - before_ms < PASSED / 2 * 1000 ? "at once" : "one after another");
    signal_by(start);
    close(server);
    join();
}

static void act_say_the_last(void) {
    char byte;
    await_by(start);
    need(send(client, "x", 1, 0) == 1 && shutdown(client, SHUT_WR) == 0, "the last word");
    signal_by(told);
    need(recv(client, &byte, 1, 0) == 1, "an answer");
}

/* A registration outlives its number, which is another file's by then: what becomes of that one is none of its news. */
static void renumbered(void) {
    int ends[2], set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN | EPOLLRDHUP, {.u64 = 42}}, found[4];
    char byte;
    meet(act_say_the_last);
    need(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "a registration");
    need(epoll_wait(set, found, 4, 0) == 0, "nothing");
    int copy = dup(server);
    need(copy >= 0 && close(server) == 0, "a copy");
    need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair");
    /* One of them may have the number already. */
    int other = ends[0] == server ? ends[1] : ends[0];
    if (ends[0] != server && ends[1] != server) {
        need(dup2(ends[1], server) == server && close(ends[1]) == 0, "the number");
    }
    need(close(other) == 0, "the stranger's end");
    signal_by(start);
    await_by(told);
    /* The end comes after the word, and nothing tells when: both are awaited. */
    for (int round = 0; round < 3; round++) {
        do {
            need(epoll_wait(set, found, 4, 10000) == 1 && found[0].data.u64 == 42, "an event");
        } while (!(found[0].events & EPOLLRDHUP));
        printf("events %#x\n", found[0].events);
    }
    need(recv(copy, &byte, 1, 0) == 1 && recv(copy, &byte, 1, 0) == 0, "the last word, and the end");
    need(send(copy, "y", 1, 0) == 1, "an answer");
    join();
}

/* A program that answers on what it was started with, where the socket itself is closed by exec. */
static void act_echoed(void) {
    char heard[6] = {0};
    await_by(start);
    for (int round = 0; round < 3; round++) {
        need(send(client, "hello", 5, 0) == 5, "a word");
        ssize_t found = recv(client, heard, 5, MSG_WAITALL);
        printf("%zd %s\n", found, found < 0 ? strerror(errno) : heard);
    }
    shutdown(client, SHUT_WR);
    read_all("then", client);
}

static void echoed(void) {
    meet(act_echoed);
    posix_spawn_file_actions_t actions;
    char *words[] = {"cat", NULL};
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, server, 0);
    posix_spawn_file_actions_adddup2(&actions, server, 1);
    need(posix_spawnp(&child, "cat", &actions, NULL, words, environ) == 0, "posix_spawnp");
    close(server);
    signal_by(start);
    await_child(child);
    join();
}

/* What a server sent before it looked at the client's signal, and what it hears. */
static void fill(int fd, size_t *sent) {
    static char bytes[65536];
    for (;;) {
        for (size_t at = 0; at < sizeof bytes; at++) {
            bytes[at] = byte_at(*sent + at);
        }
        ssize_t found = send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (found <= 0) {
            need(errno == EAGAIN, "fill");
            return;
        }
        *sent += found;
    }
}

/* Hands its end on to a program that says when it has it, and reads when it is told to; and closes its own. */
static void act_slow_reader(void) {
    int room = 65536;
    setsockopt(client, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    await_by(start);
    fcntl(client, F_SETFD, 0);
    pid_t child = fork();
    if (child == 0) {
        char number[16], other[16], result[16];
        snprintf(number, sizeof number, "%d", fcntl(start[0], F_DUPFD, 3));
        snprintf(other, sizeof other, "%d", client);
        snprintf(result, sizeof result, "%d", fcntl(told[1], F_DUPFD, 3));
        execl(self, self, "waiting", number, other, result, NULL);
        _exit(1);
    }
    close(client);
    await_child(child);
}

static int payment[2];

/* A process of the same family, which is killed where it is told to by a function of `killed.c`, while it waits for `events`. Without
   the library it is killed at once. */
static pid_t fork_payer(const char *function, short events) {
    need(pipe2(payment, O_CLOEXEC) == 0, "pipe");
    pid_t payer = fork_flushed();
    if (payer == 0) {
        struct pollfd file = {server, events, 0};
        void (*from_now)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, function);
        await_by(payment);
        if (from_now != NULL) {
            from_now();
            for (int turn = 0; turn < 3000; turn++) {
                poll(&file, 1, 10);
            }
            printf("it was not killed\n");
            fflush(stdout);
        }
        kill(getpid(), SIGKILL);
    }
    return payer;
}

/* Fills the connection with a slow reader. From then on the kernel has room for a part of what was sent. Returns how much that was. */
static size_t meet_slow_reader(void) {
    int room = 65536;
    size_t sent = 0;
    meet(act_slow_reader);
    fill(server, &sent);
    setsockopt(server, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    return sent;
}

/* Ends when the reader has ended, and says whether it has read all of it. How much that was differs from run to run. */
static void join_slow_reader(size_t sent) {
    char number[32] = {0};
    join();
    need(read(told[0], number, sizeof number) > 0, "a sum");
    printf("%s\n", strtoul(number, NULL, 10) == sent ? "all of it" : number);
}

/* One that is killed when all is paid, before the kernel is told the end behind it. */
static void shut_by_killed(void) {
    size_t sent = meet_slow_reader();
    pid_t payer = fork_payer("killed_before_an_end", 0);
    signal_by(start);
    await_by(told);
    shutdown(server, SHUT_WR);
    signal_by(start);
    signal_by(payment);
    waitpid(payer, NULL, 0);
    struct pollfd result = {told[0], POLLIN, 0};
    printf("%d\n", poll(&result, 1, 30000));
    close(server);
    join_slow_reader(sent);
}

/* A reader with hardly any room has the rest given back to it, while its sender goes on with other things. */
static void owing(const char *way) {
    size_t sent = meet_slow_reader();
    printf("%s\n", sent > 60000 ? "filled" : "hardly anything was sent");
    pid_t payer = is(way, "killed") ? fork_payer("killed_from_now", POLLIN) : 0;
    signal_by(start);
    await_by(told);
    if (payer > 0) {
        signal_by(payment);
        waitpid(payer, NULL, 0);
    }
    /* The other end has asked for it by now. Whoever waits a little now and then has to go on. */
    struct pollfd file = {server, POLLIN, 0};
    long started_ms = now_ms(), longest_ms = 0;
    int set = epoll_create1(0), kind = is(way, "epoll");
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, server, &event);
    for (int turn = 0; turn < 40; turn++) {
        long before_ms = now_ms();
        need((kind ? epoll_wait(set, &event, 1, 10) : poll(&file, 1, 10)) == 0, "nothing is to be heard");
        fill(server, &sent);
        long taken_ms = now_ms() - before_ms;
        longest_ms = taken_ms > longest_ms ? taken_ms : longest_ms;
    }
    /* Of 10 ms each, forty times. */
    printf("%s\n", longest_ms < 5000 && now_ms() - started_ms < 20000 ? "it went on" : "it stood still");
    /* From here on it is read. */
    signal_by(start);
    if (is(way, "recv")) {
        char byte;
        shutdown(server, SHUT_WR);
        printf("%zd\n", recv(server, &byte, 1, 0));
    } else if (is(way, "send") || is(way, "killed")) {
        int waits = fcntl(server, F_GETFL);
        fcntl(server, F_SETFL, waits & ~O_NONBLOCK);
        char byte = byte_at(sent);
        printf("%zd\n", send(server, &byte, 1, 0));
        sent++;
    } else if (is(way, "elsewhere")) {
        /* Only what the reader says at the end is waited for; which comes when all was read but the end. */
        shutdown(server, SHUT_WR);
        struct pollfd result = {told[0], POLLIN, 0};
        printf("%d\n", poll(&result, 1, 30000));
    } else if (is(way, "close")) {
        /* Whatever is left by then. */
        close(server);
    } else {
        event.events = EPOLLOUT | EPOLLET;
        epoll_ctl(set, EPOLL_CTL_MOD, server, &event);
        file.events = POLLOUT;
        for (int is_sent = 0; !is_sent;) {
            char byte = byte_at(sent);
            need((kind ? epoll_wait(set, &event, 1, 30000) : poll(&file, 1, 30000)) == 1, "room at last");
            is_sent = send(server, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
            need(is_sent || errno == EAGAIN, "a last byte");
        }
        sent++;
    }
    if (!is(way, "close")) {
        close(server);
    }
    join_slow_reader(sent);
}

/* As `reader`, when it is told to, and it tells how much it was. */
static void wait_and_read(const char *passage_word, const char *fd_word, const char *result_word) {
    int passage = atoi(passage_word), fd = atoi(fd_word), result = atoi(result_word);
    static char bytes[65536];
    size_t total = 0;
    int is_right = 1;
    ssize_t found;
    char byte;
    /* What was to be asked for before it has this has been asked for. */
    need(write(result, "!", 1) == 1, "a signal");
    need(read(passage, &byte, 1) == 1, "a signal");
    while ((found = read(fd, bytes, sizeof bytes)) > 0) {
        for (ssize_t at = 0; at < found; at++) {
            is_right &= bytes[at] == byte_at(total + at);
        }
        total += found;
    }
    dprintf(result, "%zu %s", is_right ? total : 0, found == 0 ? "the end" : strerror(errno));
}

static const char *way_of_act;

/* A program that ends in one of the ways in which programs end. */
static void act_exit(void) {
    need(send(client, "hello", 5, 0) == 5, "a word");
    if (is(way_of_act, "quick_exit")) {
        quick_exit(0);
    } else if (is(way_of_act, "exit_group")) {
        syscall(SYS_exit_group, 0);
    } else if (is(way_of_act, "exit_thread")) {
        syscall(SYS_exit, 0);
    } else if (is(way_of_act, "_exit")) {
        _exit(0);
    } else if (is(way_of_act, "exec")) {
        execl("/bin/true", "true", NULL);
    } else if (is(way_of_act, "exec_by_number")) {
        char *words[] = {"true", NULL};
        syscall(SYS_execve, "/bin/true", words, environ);
    }
    exit(0);
}

static void exits(const char *way) {
    char bytes[16];
    way_of_act = way;
    meet(act_exit);
    ssize_t found = recv(server, bytes, sizeof bytes, 0);
    printf("%zd\n", found);
    say_end(server);
    join();
}

static void act_late(void) {
    await_by(start);
    need(send(client, "x", 1, 0) == 1, "a late byte");
    say_end(client);
}

static volatile pid_t receiver;

static void *receive_one(void *argument) {
    char byte = 0;
    receiver = syscall(SYS_gettid);
    ssize_t found = recv(server, &byte, 1, 0);
    printf("%zd %c %s\n", found, byte ? byte : '-', found < 0 ? strerror(errno) : "");
    return argument;
}

/* The socket is closed while another thread receives from it; its number is given to something else. */
static void closed_meanwhile(const char *way) {
    meet(act_late);
    pthread_t thread = start_thread(receive_one, NULL);
    await_sleep(&receiver);
    if (is(way, "dup2")) {
        need(dup2(start[0], server) == server, "dup2");
    } else {
        close(server);
        need(dup2(start[0], server) == server, "the number");
    }
    usleep(300000);
    signal_by(start);
    join_thread(thread);
    join();
}

static void act_echo(void) {
    char bytes[256];
    ssize_t found;
    while ((found = recv(client, bytes, sizeof bytes, 0)) > 0) {
        need(send(client, bytes, found, MSG_NOSIGNAL) == found, "an echo");
    }
    printf("%s\n", found == 0 ? "the end" : strerror(errno));
}

/* Calls by other names and by their numbers. */
static void others(void) {
    char bytes[64] = "0123456789", heard[64];
    struct iovec part = {bytes, 10}, into = {heard, 10};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    int one = 1, zero = 0;
    meet(act_echo);
    struct pollfd file = {server, POLLIN, 0};
    SAY(pwritev2(server, &part, 1, -1, 0));
    SAY(preadv2(server, &into, 1, -1, 0));
    SAY(preadv2(server, &into, 1, -1, RWF_NOWAIT));
    SAY(preadv2(server, &into, 1, 0, 0));
    SAY(pwritev2(server, &part, 1, 5, 0));
    SAY(preadv2(server, &into, 1, -1, 0x40000000));
    SAY(syscall(SYS_pwritev2, server, &part, 1, -1, -1, 0));
    SAY(syscall(SYS_preadv2, server, &into, 1, -1, -1, 0));
    SAY(syscall(SYS_sendmmsg, server, messages, 2, 0));
    while (syscall(SYS_ioctl, server, FIONREAD, &one) == 0 && one < 20) {
        poll(&file, 1, 10);
    }
    SAY(one);
    messages[0].msg_hdr.msg_iov = messages[1].msg_hdr.msg_iov = &into;
    SAY(syscall(SYS_recvmmsg, server, messages, 2, 0, NULL));
    one = 1;
    SAY(syscall(SYS_ioctl, server, FIONBIO, &one));
    SAY(recv(server, heard, 10, 0));
    SAY(syscall(SYS_ioctl, server, FIONBIO, &zero));
    SAY(syscall(SYS_fcntl, server, F_SETFL, O_NONBLOCK));
    SAY(recv(server, heard, 10, 0));
    SAY(syscall(SYS_fcntl, server, F_SETFL, 0));
    struct timeval time = {0, 20000};
    SAY(syscall(SYS_setsockopt, server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    SAY(recv(server, heard, 10, 0));
    time.tv_usec = 0;
    SAY(syscall(SYS_setsockopt, server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    int copy = syscall(SYS_fcntl, server, F_DUPFD_CLOEXEC, 50);
    SAY(dup3(copy, server, 0x12345));
    SAY(send(server, bytes, 10, 0));
    SAY(recv(server, heard, 10, MSG_WAITALL));
    close(server);
    server = copy;
    SAY(send(server, bytes, 10, 0));
    SAY(recv(server, heard, 10, MSG_WAITALL));
    /* A child by the call's number. */
    fflush(stdout);
    pid_t child = FORK_BY_NUMBER();
    if (child == 0) {
        SAY(send(server, bytes, 10, 0));
        SAY(recv(server, heard, 10, MSG_WAITALL));
        fflush(stdout);
        syscall(SYS_exit_group, 0);
    }
    await_child(child);
    SAY(send(server, bytes, 10, 0));
    SAY(recv(server, heard, 10, MSG_WAITALL));
    close(server);
    join();
}

/* A child that is cloned by the call's number has the connection as well. */
static void cloned(void) {
    char bytes[16] = "0123456789", heard[16] = "";
    meet(act_echo);
    fflush(stdout);
    unsigned long long arguments[11] = {[4] = SIGCHLD};
    pid_t child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0) {
        await_by(start);
        SAY(send(server, bytes, 10, 0));
        SAY(recv(server, heard, 10, MSG_WAITALL));
        fflush(stdout);
        syscall(SYS_exit_group, 0);
    }
    /* It is not the last copy. */
    SAY(close(server));
    fflush(stdout);
    signal_by(start);
    await_child(child);
    join();
}

/* A child whose first call of the library is a close, by an inline system call that nobody sees; it sends and closes when all
   others that had the socket have ended. */
static void act_late_and_alone(void) {
    int closed[2], go[2], lives[2], ends[2];
    char byte;
    need(pipe2(closed, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0, "pipes");
    need(pipe2(lives, O_CLOEXEC) == 0 && pipe2(ends, O_CLOEXEC) == 0, "pipes");
    pid_t first = fork();
    if (first == 0) {
        int copy = dup(client);
        long child;
        CALL_INLINE(child, SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
        if (child == 0) {
            syscall(SYS_close, lives[1]);
            close(copy);
            signal_by(closed);
            await_by(go);
            send_all(client, amount);
            close(client);
            signal_by(told);
            syscall(SYS_exit_group, 0);
        }
        pid_t other = fork();
        if (other == 0) {
            await_by(ends);
            _exit(0);
        }
        await_by(closed);
        _exit(0);
    }
    close(lives[1]);
    close(client);
    await_child(first);
    signal_by(ends);
    need(read(lives[0], &byte, 1) == 0, "the second one's end");
    signal_by(go);
}

static void cloned_late(void) {
    meet(act_late_and_alone);
    await_by(told);
    hand_on("exec");
    close(server);
    join();
}

static int say_by_list(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vdprintf(fd, format, arguments);
    va_end(arguments);
    return length;
}

/* Texts that the C library writes by itself, with more arguments than registers hold. */
static void printed(void) {
    char heard[64] = "";
    meet(act_echo);
    SAY(send(server, "<", 1, 0));
    SAY(dprintf(server, "%d %d %d %d %d %d %.1f %.1f %s", 1, 2, 3, 4, 5, 6, 7.5, 8.5, "nine"));
    SAY(send(server, ">", 1, 0));
    SAY(recv(server, heard, 26, MSG_WAITALL));
    printf("%s\n", heard);
    SAY(say_by_list(server, "%s %.2f", "ten", 11.25));
    memset(heard, 0, sizeof heard);
    SAY(recv(server, heard, 9, MSG_WAITALL));
    printf("%s\n", heard);
    close(server);
    join();
}

/* The C library's own threads read and write. */
static void asynchronous(void) {
    char bytes[16] = "0123456789", heard[16] = "";
    meet(act_echo);
    struct aiocb there = {.aio_fildes = server, .aio_buf = bytes, .aio_nbytes = 10};
    struct aiocb back = {.aio_fildes = server, .aio_buf = heard, .aio_nbytes = 10};
    const struct aiocb *list[] = {&back};
    const struct aiocb *first[] = {&there};
    SAY(aio_write(&there));
    SAY(aio_suspend(first, 1, NULL));
    SAY(aio_return(&there));
    SAY(aio_read(&back));
    SAY(aio_suspend(list, 1, NULL));
    SAY(aio_return(&back));
    printf("%s\n", heard);
    close(server);
    join();
}

static void *send_a_file(void *argument) {
    int file = memfd_create("a file", 0);
    char bytes[4096];
    for (size_t place = 0; place < 200000; place += sizeof bytes) {
        for (size_t at = 0; at < sizeof bytes; at++) {
            bytes[at] = byte_at(place + at);
        }
        need(write(file, bytes, sizeof bytes) == sizeof bytes, "a file");
    }
    off_t from = 0;
    SAY(sendfile(server, file, &from, 1000));
    SAY(sendfile(server, file, &from, 199000));
    SAY(shutdown(server, SHUT_WR));
    return argument;
}

static void act_read_all(void) {
    await_by(start);
    read_all("a file", client);
}

/* A thread with as little stack as threads can have sends a file, and gives it back. */
static void small(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    meet(act_read_all);
    pthread_attr_init(&attributes);
    need(pthread_attr_setstacksize(&attributes, 16384) == 0, "a small stack");
    need(pthread_create(&thread, &attributes, send_a_file, NULL) == 0, "a thread");
    join_thread(thread);
    signal_by(start);
    join();
}

/* Addresses, time-outs and sets that are not there. */
static void nowhere(const char *whose) {
    char *none = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char bytes[16] = "0123456789";
    struct pollfd file = {0, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set some;
    if (is(whose, "carried")) {
        meet(act_echo);
    } else {
        server = socket(AF_INET, SOCK_STREAM, 0);
        meet(act_echo);
        dup2(socket(AF_INET, SOCK_STREAM, 0), server);
    }
    int set = epoll_create1(0);
    file.fd = server;
    for (int turn = 0; turn < 2; turn++) {
        void *bad = turn == 0 ? (void *)none : (void *)-4096L;
        struct msghdr message = {.msg_iov = bad, .msg_iovlen = 1};
        struct msghdr control = {.msg_control = bad, .msg_controllen = 64};
        FD_ZERO(&some);
        FD_SET(server, &some);
        SAY(connect(server, bad, sizeof(struct sockaddr_in)));
        SAY(poll(bad, 1, 0));
        SAY(syscall(SYS_ppoll, &file, 1, bad, NULL, 8));
        SAY(ppoll(bad, 1, NULL, NULL));
        SAY(select(server + 1, bad, NULL, NULL, NULL));
#ifdef SYS_select
        SAY(syscall(SYS_select, server + 1, &some, NULL, NULL, bad));
#endif
        SAY(syscall(SYS_pselect6, server + 1, &some, NULL, NULL, bad, NULL));
        SAY(epoll_ctl(set, EPOLL_CTL_ADD, server, bad));
        SAY(epoll_ctl(set, EPOLL_CTL_ADD, server, &event));
        SAY(epoll_ctl(set, EPOLL_CTL_MOD, server, bad));
        SAY(epoll_ctl(set, EPOLL_CTL_DEL, server, bad));
        SAY(epoll_pwait2(set, &event, 1, bad, NULL));
        SAY(sendmsg(server, bad, MSG_NOSIGNAL));
        SAY(sendmsg(server, &message, MSG_NOSIGNAL));
        SAY(sendmsg(server, &control, MSG_NOSIGNAL));
        SAY(recvmsg(server, bad, MSG_DONTWAIT));
        SAY(recvmsg(server, &message, MSG_DONTWAIT));
        SAY(sendmmsg(server, bad, 1, MSG_NOSIGNAL));
        SAY(recvmmsg(server, bad, 1, MSG_DONTWAIT, NULL));
        SAY(writev(server, bad, 1));
        SAY(readv(server, bad, 1));
        SAY(pwritev2(server, bad, 1, -1, 0));
        SAY(ioctl(server, FIONREAD, bad));
        SAY(sendfile(server, memfd_create("a file", 0), bad, 10));
    }
    (void)bytes;
    close(server);
    join();
}

static volatile int handled;

static void handle(int number, siginfo_t *information, void *context) {
    (void)context;
    handled += number == SIGUSR1 && information->si_pid == getpid();
}

/* What a handler of one time leaves behind; and one that has no place for it. */
static void handlers(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_NODEFER}, after;
    meet(act_echo);
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigaction(SIGUSR1, NULL, &after);
    printf("%d %d %#x %d\n", handled, after.sa_handler == SIG_DFL, (unsigned)after.sa_flags & ~0x04000000u,
           sigismember(&after.sa_mask, SIGUSR2));
    close(server);
    join();
}

static void say_and_end(int number, siginfo_t *information, void *context) {
    (void)context;
    printf("signal %d, code %d\n", number, information->si_code);
    fflush(stdout);
    _exit(0);
}

/* A signal whose stack cannot be written, with a handler for what comes of it, or without. */
static void unwritable(const char *way) {
    meet(act_echo);
    pid_t child = fork_flushed();
    if (child == 0) {
        struct rlimit none = {0, 0};
        struct sigaction action = {.sa_sigaction = say_and_end, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        stack_t stack = {.ss_size = 65536};
        setrlimit(RLIMIT_CORE, &none);
        stack.ss_sp = mmap(NULL, stack.ss_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        need(sigaltstack(&stack, NULL) == 0, "sigaltstack");
        sigaction(SIGUSR1, &action, NULL);
        if (is(way, "handled")) {
            action.sa_flags = SA_SIGINFO;
            sigaction(SIGSEGV, &action, NULL);
        }
        char byte = 'x';
        send(server, &byte, 1, 0);
        raise(SIGUSR1);
        printf("it went on\n");
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("status %#x\n", status);
    char byte;
    need(recv(server, &byte, 1, 0) == 1, "an echo");
    close(server);
    join();
}

static void *signal_later(void *argument) {
    usleep(1000000);
    signal_by(start);
    return argument;
}

/* A blocking send for which there is no memory waits, and works not. */
static void starved(void) {
    struct rusage before, after;
    meet(act_read_all);
    void (*end)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "memory_ends");
    if (end != NULL) {
        end();
    }
    pthread_t thread = start_thread(signal_later, NULL);
    getrusage(RUSAGE_SELF, &before);
    send_all(server, 12000000);
    getrusage(RUSAGE_SELF, &after);
    long worked_us = (after.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_utime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
                     after.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_utime.tv_usec - before.ru_stime.tv_usec;
    printf("%s\n", worked_us < 500000 ? "it has slept" : "it has spun");
    close(server);
    join_thread(thread);
    join();
}

static void act_shut_and_hear(void) {
    char byte;
    SAY(shutdown(client, SHUT_RDWR));
    signal_by(told);
    await_by(start);
    SAY(recv(client, &byte, 1, 0));
    signal_by(told);
}

/* A shutdown that comes too late fails, and changes nothing of what the other end hears. */
static void shut_late(void) {
    meet(act_shut_and_hear);
    await_by(told);
    SAY(send(server, "x", 1, MSG_NOSIGNAL));
    await_events(server, POLLHUP, "a reset");
    SAY(shutdown(server, SHUT_WR));
    signal_by(start);
    await_by(told);
    close(server);
    join();
}

/* A question about bytes takes a while, for which a sandbox that closes waits. */
static void *ask(void *argument) {
    int waiting = -1;
    ioctl(server, FIONREAD, &waiting);
    return argument;
}

static volatile int has_waited;

static void *close_the_sandbox(void *argument) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "a filter");
    has_waited = 1;
    return argument;
}

/* Lists of messages go on while a sandbox closes. */
static void closing(void) {
    char text[] = "some text";
    struct iovec part = {text, sizeof text};
    struct mmsghdr *message = calloc(1, sizeof *message);
    meet(act_echo);
    void (*from_now)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "slow_from_now");
    void (*no_more)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "slow_no_more");
    int (*is_asked)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "slow_is_asked");
    if (from_now != NULL) {
        from_now();
    }
    pthread_t asker = start_thread(ask, NULL);
    while (is_asked != NULL && !is_asked()) {
        usleep(1000);
    }
    pthread_t closer = start_thread(close_the_sandbox, NULL);
    /* The sandbox waits for two seconds at most. */
    usleep(400000);
    int is_in_time = !has_waited || from_now == NULL;
    message->msg_hdr.msg_iov = &part, message->msg_hdr.msg_iovlen = 1;
    SAY(sendmmsg(server, message, 1, MSG_NOSIGNAL));
    SAY(recvmmsg(server, message, 1, MSG_WAITALL, NULL));
    printf("%s\n", is_in_time ? "meanwhile" : "too late");
    if (no_more != NULL) {
        no_more();
    }
    join_thread(asker);
    join_thread(closer);
    close(server);
    join();
}

/* Descriptors with high numbers, of which the program has none, cost no walk. */
static void walked(void) {
    struct rusage before, after;
    /* The code is in memory by then, and so is what a walk looks at in any case. */
    need(close_range(3000, 3001, 0) == 0, "close_range");
    meet(act_echo);
    getrusage(RUSAGE_SELF, &before);
    need(close_range(3000, 3001, 0) == 0, "close_range");
    getrusage(RUSAGE_SELF, &after);
    printf("%s\n", after.ru_minflt - before.ru_minflt < 8 ? "a look" : "a long walk");
    close(server);
    join();
}

/* A server with Nagle's algorithm, as most have it, that answers and ends its connection while bytes of the client are unread, or
   with SO_LINGER of no time. The connection has carried this many questions and answers before. */
enum { TRIES = 48, REST = 300 };

static void serve_and_end(int listener, const char *how, int rounds, size_t length) {
    struct linger at_once = {1, 0};
    int is_lingering = is(how, "linger");
    char bytes[REST];
    int fd = accepted_socket(listener, SOCK_CLOEXEC);
    need(close(listener) == 0, "close");
    for (int round = 0; round < rounds; round++) {
        need(recv(fd, bytes, 1, 0) == 1 && send(fd, bytes, 1, 0) == 1, "a round");
    }
    need(recv(fd, bytes, is_lingering ? REST : 1, is_lingering ? MSG_WAITALL : 0) > 0, "a request");
    send_all(fd, length);
    if (is_lingering) {
        await_by(start);
        need(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0, "SO_LINGER");
        close(fd);
    } else if (is(how, "close")) {
        close(fd);
    } else if (is(how, "exec")) {
        execl("/bin/true", "true", NULL);
    }
    exit(0);
}

static void answered(const char *how) {
    int others = 0;
    need(pipe2(start, O_CLOEXEC) == 0, "pipe");
    for (int try = 0; try < TRIES; try++) {
        static char bytes[65536];
        size_t length = try % 3 == 2 ? 20000 : 100, total = 0;
        struct sockaddr_in address;
        int listener = listening_socket(&address), waiting = 0;
        pid_t child = fork_flushed();
        if (child == 0) {
            serve_and_end(listener, how, try, length);
        }
        close(listener);
        int fd = connected_socket(&address, SOCK_CLOEXEC);
        for (int round = 0; round < try; round++) {
            need(send(fd, bytes, 1, 0) == 1 && recv(fd, bytes, 1, 0) == 1, "a round");
        }
        need(send(fd, bytes, REST, 0) == REST, "a request");
        if (is(how, "linger")) {
            while (waiting < (int)length) {
                await_events(fd, POLLIN, "an answer");
                need(ioctl(fd, FIONREAD, &waiting) == 0, "FIONREAD");
            }
            signal_by(start);
        }
        /* The reset is there before the first byte of the answer is read. For a moment the kernel shows its error alone. */
        short events;
        do {
            events = await_events(fd, 0, "a reset");
        } while (events == POLLERR);
        need(events == (POLLERR | POLLHUP), "a reset");
        ssize_t found;
        while ((found = read(fd, bytes, 64)) > 0) {
            total += found;
        }
        int error = found < 0 ? errno : 0;
        found = read(fd, bytes, 64);
        if (total != length || error != ECONNRESET || found != 0) {
            printf("after %d rounds: %zu of %zu, then %s, then %zd\n", try, total, length, strerror(error), found);
            others++;
        }
        close(fd);
        await_child(child);
    }
    printf("%d tries differ\n", others);
}

/* The kernel's account of what it was given to send, and of what of that it holds back. */
static __u64 given_to_kernel(int fd, unsigned *held_back) {
    char bytes[256] = {0};
    __u64 sent, sent_again;
    socklen_t length = sizeof bytes;
    need(getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes, &length) == 0 && length >= 216, "the kernel's account");
    memcpy(held_back, bytes + 144, 4);
    memcpy(&sent, bytes + 200, 8);
    memcpy(&sent_again, bytes + 208, 8);
    return sent - sent_again + *held_back;
}

/* A peer that acknowledges late what it has not answered. */
static void answer_late(int fd) {
    char bytes[3];
    int zero = 0;
    do {
        setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof zero);
    } while (recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes && send(fd, bytes, 1, 0) == 1);
    _exit(0);
}

/* Nagle's algorithm holds the last bytes in the kernel back, and with them everything that follows in memory. */
static void cut_over(void) {
    int tries_held = 0;
    for (int try = 0; try < 12; try++) {
        struct sockaddr_in address;
        int listener = listening_socket(&address);
        pid_t child = fork_flushed();
        if (child == 0) {
            answer_late(accepted_socket(listener, SOCK_CLOEXEC));
        }
        close(listener);
        int fd = connected_socket(&address, SOCK_CLOEXEC);
        unsigned held_back, held_last = 0;
        __u64 before = 0;
        char byte = 'x';
        for (int sends = 0, in_memory = 0; in_memory < 30; sends++) {
            need(sends < 3000, "it is never carried");
            need(send(fd, &byte, 1, 0) == 1, "a byte");
            __u64 given = given_to_kernel(fd, &held_back);
            in_memory = given == before ? in_memory + 1 : 0;
            held_last = given == before ? held_last : held_back;
            before = given;
            need(sends % 3 != 2 || recv(fd, &byte, 1, 0) == 1, "an answer");
        }
        tries_held += held_last > 0;
        close(fd);
        await_child(child);
    }
    printf("%d tries were held back\n", tries_held);
}

/* A peer that reads nothing at first, and then what has come to it. */
static void act_read_late(void) {
    await_by(start);
    read_all("the peer", client);
}

/* The same, whatever part of it has come. */
static void act_read_a_part(void) {
    char byte;
    ssize_t found;
    int is_right = 1;
    await_by(start);
    while ((found = read(client, &byte, 1)) > 0) {
        is_right &= byte == 0;
    }
    printf("the peer: %s, then %s\n", is_right ? "right" : "wrong", found == 0 ? "the end" : strerror(errno));
}

/* With TCP_USER_TIMEOUT a sender whose peer reads nothing is ended, however it waits. */
static void timed_out(const char *way) {
    enum { TIME_MS = 600, LATE_MS = 1400 };
    static char bytes[65536];
    int is_blocking = is(way, "send");
    long started_ms, taken_ms;
    meet(act_read_a_part);
    start_thread(watch_stalls, NULL);
    set_option(server, IPPROTO_TCP, TCP_USER_TIMEOUT, TIME_MS);
    if (!is(way, "poll")) {
        kill(peer, SIGSTOP);
    }
    int set = epoll_create1(0);
    struct epoll_event event = {.events = is(way, "edges") ? EPOLLOUT | EPOLLET : EPOLLOUT};
    need(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
    ssize_t sent;
    for (;;) {
        started_ms = now_ms(), stalled_ms = 0;
        while ((sent = send(server, bytes, sizeof bytes, MSG_NOSIGNAL | (is_blocking ? 0 : MSG_DONTWAIT))) > 0) {
            started_ms = sent == sizeof bytes ? now_ms() : started_ms;
        }
        if (is_blocking || errno != EAGAIN) {
            break;
        }
        if (is(way, "poll")) {
            event.events = await_events(server, POLLOUT, "poll");
        } else {
            need(epoll_wait(set, &event, 1, 20000) == 1, "epoll_wait");
        }
        if (event.events & EPOLLERR) {
            printf("events %x\n", event.events);
            sent = send(server, bytes, 1, MSG_NOSIGNAL);
            break;
        }
    }
    printf("%zd %s\n", sent, strerror(errno));
    taken_ms = now_ms() - started_ms;
    printf("%s\n", taken_ms < TIME_MS ? "too early" : taken_ms - stalled_ms > LATE_MS ? "too late" : "in time");
    SAY(send(server, bytes, 1, MSG_NOSIGNAL));
    SAY(recv(server, bytes, 1, 0));
    struct pollfd file = {server, POLLIN | POLLOUT | POLLRDHUP, 0};
    SAY(poll(&file, 1, 0));
    printf("%x\n", file.revents);
    kill(peer, SIGCONT);
    signal_by(start);
    join();
}

/* A peer that hands its end to a program which reads nothing. */
static void act_hand_to_idle(void) {
    await_by(start);
    pid_t child = spawn_reader("idle", client, 1);
    await_by(start);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* The time passes while bytes that were returned wait for room in the kernel. */
static void timed_out_owing(const char *way) {
    static char bytes[65536];
    int error = 0;
    socklen_t size = sizeof error;
    meet(act_hand_to_idle);
    while (send(server, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    set_option(server, IPPROTO_TCP, TCP_USER_TIMEOUT, 600);
    signal_by(start);
    struct pollfd file = {server, POLLOUT, 0};
    need(poll(&file, 1, 20000) == 1, "poll");
    printf("%x\n", file.revents);
    if (is(way, "send")) {
        SAY(send(server, bytes, 1, MSG_NOSIGNAL));
    } else if (is(way, "recv")) {
        SAY(recv(server, bytes, 1, 0));
    } else {
        need(getsockopt(server, SOL_SOCKET, SO_ERROR, &error, &size) == 0, "SO_ERROR");
        printf("%s\n", strerror(error));
    }
    SAY(send(server, bytes, 1, MSG_NOSIGNAL));
    SAY(recv(server, bytes, 1, 0));
    SAY(poll(&file, 1, 0));
    printf("%x\n", file.revents);
    signal_by(start);
    join();
}

static void act_read_slowly(void) {
    static char bytes[65536];
    for (long started_ms = now_ms(); now_ms() - started_ms < 2000; usleep(20000)) {
        need(read(client, bytes, sizeof bytes) > 0, "slowly");
    }
    while (read(client, bytes, sizeof bytes) > 0) {
    }
}

/* A peer that reads slowly, and one that is stopped while nothing is sent, are not ended. */
static void kept(const char *way) {
    meet(is(way, "slow") ? act_read_slowly : act_read_late);
    set_option(server, IPPROTO_TCP, TCP_USER_TIMEOUT, 400);
    if (is(way, "slow")) {
        send_all(server, 12 << 20);
    } else {
        /* The kernel asks every second whether the peer's machine is there, which a stopped process does not prevent. */
        set_option(server, SOL_SOCKET, SO_KEEPALIVE, 1);
        set_option(server, IPPROTO_TCP, TCP_KEEPIDLE, 1);
        set_option(server, IPPROTO_TCP, TCP_KEEPINTVL, 1);
        set_option(server, IPPROTO_TCP, TCP_KEEPCNT, 1);
        kill(peer, SIGSTOP);
        usleep(2500000);
        kill(peer, SIGCONT);
        signal_by(start);
        send_all(server, 1000);
    }
    SAY(shutdown(server, SHUT_WR));
    read_all("the end", server);
    join();
}

static void act_as_caller(void) {
    const char *lines[] = {"one\n", "two\n", "three\n"};
    char heard[8];
    for (int index = 0; index < 3; index++) {
        size_t length = strlen(lines[index]);
        need(send(client, lines[index], length, 0) == (ssize_t)length, "a line");
        need(recv(client, heard, length, MSG_WAITALL) == (ssize_t)length, "an answer");
        printf("%.*s", (int)length, heard);
    }
    shutdown(client, SHUT_WR);
    printf("then %zd\n", recv(client, heard, sizeof heard, 0));
}

/* A server whose standard input and output are a connection, as those that inetd starts: it uses the streams of the C library, and
   then starts a program. */
static void as_inetd(const char *way) {
    char line[80];
    meet(act_as_caller);
    close(0);
    if (is(way, "dup2")) {
        need(dup2(server, 0) == 0 && dup2(server, 1) == 1, "dup2");
    } else if (is(way, "dup3")) {
        need(dup3(server, 0, 0) == 0 && dup3(server, 1, 0) == 1, "dup3");
    } else if (is(way, "dup")) {
        need(dup(server) == 0 && close(1) == 0 && dup(server) == 1, "dup");
    } else {
        need(fcntl(server, F_DUPFD, 0) == 0 && close(1) == 0 && fcntl(server, F_DUPFD, 0) == 1, "fcntl");
    }
    close(server);
    for (int round = 0; round < 2; round++) {
        need(fgets(line, sizeof line, stdin) == line, "a line");
        need(printf("%s", line) > 0 && fflush(stdout) == 0, "an answer");
    }
    pid_t child = fork();
    if (child == 0) {
        execlp("cat", "cat", NULL);
        _exit(1);
    }
    await_child(child);
    close(0);
    close(1);
    join();
}

/* A server of which standard error alone is a connection: it answers by that stream. */
static void by_errors(void) {
    char line[80];
    int kept = dup(2), are_right = 1;
    meet(act_as_caller);
    need(kept > 2 && dup2(server, 2) == 2 && close(server) == 0, "dup2");
    for (int round = 0; round < 3; round++) {
        ssize_t length = recv(2, line, sizeof line - 1, 0);
        line[length > 0 ? length : 0] = 0;
        are_right &= length > 0 && fprintf(stderr, "%s", line) == length;
    }
    need(dup2(kept, 2) == 2 && close(kept) == 0, "dup2");
    need(are_right, "lines and answers");
    join();
}

static void act_end_at_once(void) {
    await_by(start);
}

/* A terminal replaces a connection as standard input, in a child. */
static void terminal(const char *way) {
    int master, slave, status;
    meet(act_end_at_once);
    need(dup2(server, 0) == 0, "dup2");
    pid_t child = is(way, "forkpty") ? forkpty(&master, NULL, NULL, NULL) : fork();
    if (child == 0) {
        struct pollfd files[] = {{server, POLLIN, 0}, {0, POLLIN, 0}};
        if (is(way, "login_tty") && (openpty(&master, &slave, NULL, NULL, NULL) != 0 || login_tty(slave) != 0)) {
            _exit(100);
        }
        signal_by(start);
        poll(files, 1, 10000);
        poll(files, 2, 0);
        _exit(files[0].revents << 4 | files[1].revents);
    }
    need(waitpid(child, &status, 0) == child && WIFEXITED(status), "a child");
    printf("%x\n", WEXITSTATUS(status));
    close(0);
    close(server);
    join();
}

/* A stream closes the descriptor of a connection, and another file gets the number. */
static void reused(const char *way) {
    int ends[2];
    meet(act_end_at_once);
    int copy = dup(server);
    FILE *stream = fdopen(copy, "r+");
    need(stream != NULL && (is(way, "fclose") ? fclose(stream) == 0 : freopen("/dev/zero", "r", stream) == stream), way);
    if (is(way, "fclose")) {
        need(pipe(ends) == 0 && (ends[0] == copy || dup2(ends[0], copy) == copy), "a pipe");
    } else {
        need(fileno(stream) == copy, "the number");
    }
    signal_by(start);
    join();
    struct pollfd files[] = {{server, POLLIN, 0}, {copy, POLLIN, 0}};
    await_events(server, POLLIN, "the end");
    poll(files, 2, 0);
    printf("%x %x\n", files[0].revents, files[1].revents);
}

static void act_first(void) {
    send_all(client, 3000);
    signal_by(told);
    await_by(start);
    read_all("the first peer", client);
}

/* Talks over `fd` for a while, and reads to the end: with `SAY` of what an error would be. */
static void talk_again(const char *what, int fd, int other) {
    char byte = 'x';
    struct pollfd file = {other, POLLIN, 0};
    int rounds = 0;
    for (; rounds < 40; rounds++) {
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 || poll(&file, 1, 20000) != 1 || recv(other, &byte, 1, 0) != 1 ||
            send(other, &byte, 1, MSG_NOSIGNAL) != 1 || recv(fd, &byte, 1, 0) != 1) {
            perror(what);
            break;
        }
    }
    printf("%s: %d rounds\n", what, rounds);
    send_all(fd, 5000);
    shutdown(fd, SHUT_WR);
    read_all(what, other);
    file.fd = fd, file.events = POLLIN | POLLOUT | POLLRDHUP;
    close(other);
    usleep(10000);
    poll(&file, 1, 0);
    printf("%s: %x\n", what, file.revents);
    read_all(what, fd);
}

/* What a socket does that has been connected before. */
static void connected_again(const char *way) {
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    struct sockaddr_in address, refusing;
    int waiting = -1, is_child = is(way, "child");
    char byte;
    int listener = listening_socket(&address), refuser = bound_socket(&refusing);
    meet(act_first);
    await_by(told);
    send_all(server, 2000);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u64 = 7};
    need(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
    pid_t child = is_child ? fork_flushed() : 0;
    if (is_child && child != 0) {
        /* The child dissolves the connection of both. */
        await_child(child);
    } else {
        SAY(connect(server, &nowhere, sizeof nowhere));
        SAY(recv(server, &byte, 1, 0));
        SAY(recv(server, &byte, 1, 0));
        SAY(send(server, "x", 1, MSG_NOSIGNAL));
        SAY(ioctl(server, FIONREAD, &waiting));
        struct pollfd file = {server, POLLIN | POLLOUT | POLLRDHUP, 0};
        SAY(poll(&file, 1, 0));
        printf("%x\n", file.revents);
        SAY(setsockopt(server, IPPROTO_TCP, TCP_ULP, "tls", 3));
        if (is_child) {
            fflush(stdout);
            _exit(0);
        }
    }
    signal_by(start);
    join();
    if (is(way, "listen")) {
        socklen_t size = sizeof address;
        SAY(listen(server, 4));
        getsockname(server, (struct sockaddr *)&address, &size);
        SAY(epoll_wait(set, &event, 1, 0));
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        SAY(connect(fd, (struct sockaddr *)&address, size));
        SAY(epoll_wait(set, &event, 1, 20000));
        printf("%x of %d\n", event.events, (int)event.data.u64);
        int other = accepted_socket(server, SOCK_CLOEXEC);
        talk_again("accepted", fd, other);
        close(fd);
    } else {
        if (is(way, "refused")) {
            SAY(connect(server, (struct sockaddr *)&refusing, sizeof refusing));
        }
        SAY(connect(server, (struct sockaddr *)&address, sizeof address));
        int other = accepted_socket(listener, SOCK_CLOEXEC);
        SAY(epoll_wait(set, &event, 1, 20000));
        printf("%x of %d\n", event.events, (int)event.data.u64);
        SAY(recv(server, &byte, 1, MSG_DONTWAIT));
        talk_again("again", server, other);
    }
    close(server);
    close(refuser);
    close(listener);
}

/* A connection that is dissolved at any moment of its way into memory leaves nothing to the next one. */
static void connected_early(void) {
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    struct sockaddr_in address;
    int listener = listening_socket(&address);
    for (int rounds = 0; rounds < 16; rounds++) {
        char byte = 'x';
        int fd = connected_socket(&address, SOCK_CLOEXEC);
        int first = accepted_socket(listener, SOCK_CLOEXEC);
        for (int round = 0; round < rounds; round++) {
            need(send(fd, &byte, 1, 0) == 1 && recv(first, &byte, 1, 0) == 1, "a question");
            need(send(first, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1, "an answer");
        }
        need(connect(fd, &nowhere, sizeof nowhere) == 0, "dissolve");
        need(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect again");
        int second = accepted_socket(listener, SOCK_CLOEXEC);
        talk_again("the second", fd, second);
        read_all("the first", first);
        close(first);
        close(fd);
    }
    close(listener);
}

/* Sockets that were refused, or have listened, before they connect. */
static void connected_late(void) {
    struct sockaddr_in address, refusing;
    int listener = listening_socket(&address), refuser = bound_socket(&refusing);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    SAY(connect(fd, (struct sockaddr *)&refusing, sizeof refusing));
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(connect(fd, (struct sockaddr *)&address, sizeof address));
    int other = accepted_socket(listener, SOCK_CLOEXEC);
    talk_again("refused", fd, other);
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    SAY(listen(fd, 1));
    SAY(shutdown(fd, SHUT_RDWR));
    SAY(connect(fd, (struct sockaddr *)&address, sizeof address));
    other = accepted_socket(listener, SOCK_CLOEXEC);
    talk_again("was a listener", fd, other);
    close(fd);
    close(refuser);
    close(listener);
}

/* Words and their echoes, none of which goes through the kernel if the connection is carried. */
static void converse(void) {
    char before[16], after[16], byte;
    count_kernels(server, before);
    for (int round = 0; round < 24; round++) {
        byte = 'a' + round;
        need(send(server, &byte, 1, 0) == 1 && recv(server, &byte, 1, 0) == 1 && byte == 'a' + round, "an echo");
    }
    count_kernels(server, after);
    need(!has_library() || memcmp(before, after, sizeof before) == 0, "it is carried");
}

static volatile int noted, counted;

static void count_signal(int number) {
    (void)number;
    counted++;
}

/* What a child in its parent's memory does to its own descriptors and handlers, and to their memory. */
static int change_everything(void *argument) {
    int ends[2];
    char byte = 0;
    (void)argument;
    signal(SIGUSR1, SIG_IGN);
    sigaction(SIGUSR2, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    noted = 1;
    /* The number of a connection is another file's from here on. */
    if (pipe(ends) != 0 || dup2(ends[1], server) != server) _exit(1);
    if (write(server, "x", 1) != 1 || read(ends[0], &byte, 1) != 1 || byte != 'x') _exit(2);
    noted = 2;
    close(server);
    if (send(server, "x", 1, 0) != -1 || errno != EBADF) _exit(3);
    close_range(3, 1000, 0);
    if (socket(AF_INET, SOCK_STREAM, 0) != 3 || epoll_create1(0) != 4 || dup(3) != 5) _exit(4);
    noted = 3;
    execl("/nowhere/at/all", "all", NULL);
    noted = errno == ENOENT ? 4 : errno;
    _exit(5);
}

static int send_from_child(void *argument) {
    (void)argument;
    _exit(send(server, "hello", 5, 0) != 5);
}

static int fork_in_child(void *argument) {
    int status;
    (void)argument;
    close(server);
    pid_t child = fork();
    if (child == 0) {
        noted = 100;
        close(dup(1));
        _exit(7);
    }
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) _exit(1);
    noted = 1;
    _exit(0);
}

static int become_cat(void *argument) {
    (void)argument;
    dup2(server, 0);
    dup2(server, 1);
    execlp("cat", "cat", NULL);
    noted = errno;
    _exit(1);
}

/* A child in its parent's memory, made by `vfork` or by `clone`. */
static void vforked(const char *way, const char *what) {
    int (*act)(void *) = is(what, "changes") ? change_everything
                         : is(what, "sends") ? send_from_child
                         : is(what, "forks") ? fork_in_child
                                                      : become_cat;
    enum { BYTES = 1 << 17 };
    char heard[8] = "", *stack = malloc(BYTES);
    int status;
    meet(act == become_cat ? act_as_caller : act_echo);
    if (act != become_cat) {
        converse();
    }
    signal(SIGUSR1, count_signal);
    sigaction(SIGUSR2, &(struct sigaction){.sa_handler = count_signal}, NULL);
    pid_t child;
    if (is(way, "vfork")) {
        child = vfork();
        if (child == 0) {
            act(NULL);
        }
    } else {
        child = clone(act, stack + BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    }
    if (act == become_cat) {
        close(server);
    }
    need(child > 0 && waitpid(child, &status, 0) == child, "a child");
    raise(SIGUSR1), raise(SIGUSR2);
    printf("noted %d, counted %d, ended with %x\n", noted, counted, status);
    if (act == send_from_child) {
        need(recv(server, heard, 5, MSG_WAITALL) == 5, "an echo");
        printf("%s\n", heard);
    }
    if (act != become_cat) {
        converse();
        close(server);
    }
    join();
    free(stack);
}

/* A program that fails to become another one, and ends its connection then: with bytes that it has not read, or without. Its
   socket would have been closed by the other program's start, or inherited. */
static const char *left_unread;
static int is_inherited;

static void act_failed(void) {
    char byte;
    await_by(start);
    fcntl(client, F_SETFD, is_inherited ? 0 : FD_CLOEXEC);
    for (int try = 0; try < 3; try++) {
        execl("/nowhere/at/all", "all", NULL);
        need(errno == ENOENT, "an exec that fails");
    }
    if (is(left_unread, "none")) {
        need(recv(client, &byte, 1, 0) == 1, "a byte");
    } else if (is(left_unread, "passed")) {
        await_child(spawn_reader("reader", client, 1));
    }
    if (!is(left_unread, "exit")) {
        close(client);
    }
    signal_by(told);
}

static void failed(const char *what, const char *how) {
    left_unread = what;
    is_inherited = is(how, "inherited");
    meet(act_failed);
    need(send(server, "\0", 1, 0) == 1, "a byte");
    if (is(what, "passed")) {
        need(shutdown(server, SHUT_WR) == 0, "shutdown");
    }
    signal_by(start);
    /* While the peer waits for the byte, this end gives back what it was asked for. */
    if (is(what, "none") || is(what, "passed")) {
        await_events(server, POLLRDHUP, "an end");
    } else {
        await_by(told);
        join();
    }
    say_end(server);
    close(server);
}

static const char *unshares;

static int close_own(void *argument) {
    (void)argument;
    close(server);
    _exit(0);
}

/* A thread closes its own copy of a descriptor, which is none of the others' business. */
static void *close_own_copy(void *argument) {
    if (is(unshares, "range")) {
        need(syscall(SYS_close_range, server, server, 2 /* CLOSE_RANGE_UNSHARE */) == 0, "close_range");
    } else {
        need((is(unshares, "call") ? unshare(CLONE_FILES) : syscall(SYS_unshare, CLONE_FILES)) == 0, "unshare");
        need(close(server) == 0, "close");
    }
    printf("%d\n", send(server, "x", 1, MSG_NOSIGNAL) < 0 ? errno : 0);
    return argument;
}

static void unshared(const char *way) {
    char heard[8] = "", *stack = malloc(1 << 17);
    meet(act_echo);
    converse();
    need(send(server, "word", 4, 0) == 4, "a word");
    unshares = way;
    if (is(way, "clone")) {
        await_child(clone(close_own, stack + (1 << 17), CLONE_VM | SIGCHLD, NULL));
    } else {
        run_in_thread(close_own_copy, NULL);
    }
    need(recv(server, heard, 4, MSG_WAITALL) == 4, "an echo");
    printf("%s\n", heard);
    for (int round = 0; round < 24; round++) {
        need(send(server, "more", 4, 0) == 4 && recv(server, heard, 4, MSG_WAITALL) == 4, "an echo");
    }
    printf("%s\n", heard);
    close(server);
    join();
    free(stack);
}

static void read_as_program(void) {
    read_all("in the program", 0);
}

static void wait_for_ever(void) {
    pause();
}

static const struct action actions[] = {
    {"reader", .none = read_as_program},
    {"idle", .none = wait_for_ever},
    {"waiting", .three = wait_and_read},
    {"answered", .one = answered},
    {"as_inetd", .one = as_inetd},
    {"asynchronous", .none = asynchronous},
    {"become", .one = become},
    {"by_errors", .none = by_errors},
    {"cloned", .none = cloned},
    {"cloned_late", .none = cloned_late},
    {"closed", .one = closed_meanwhile},
    {"closing", .none = closing},
    {"connected_again", .one = connected_again},
    {"connected_early", .none = connected_early},
    {"connected_late", .none = connected_late},
    {"cut_over", .none = cut_over},
    {"echoed", .none = echoed},
    {"ended", .three = ended},
    {"exits", .one = exits},
    {"failed", .two = failed},
    {"handlers", .none = handlers},
    {"helped", .one = helped},
    {"kept", .one = kept},
    {"nowhere", .one = nowhere},
    {"others", .none = others},
    {"outlived", .none = outlived},
    {"owing", .one = owing},
    {"passed", .none = passed},
    {"printed", .none = printed},
    {"renumbered", .none = renumbered},
    {"reused", .one = reused},
    {"shut_by_killed", .none = shut_by_killed},
    {"shut_late", .none = shut_late},
    {"small", .none = small},
    {"starved", .none = starved},
    {"survived", .none = survived},
    {"terminal", .one = terminal},
    {"timed_out", .one = timed_out},
    {"timed_out_owing", .one = timed_out_owing},
    {"unshared", .one = unshared},
    {"unwritable", .one = unwritable},
    {"vforked", .two = vforked},
    {"walked", .none = walked},
    {},
};

int main(int count, char **words) {
    self = words[0];
    signal(SIGPIPE, SIG_IGN);
    return perform(actions, count, words);
}
