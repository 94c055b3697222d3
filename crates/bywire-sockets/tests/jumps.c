/* Leaves receives that sleep by siglongjmp, before and after the connection is carried, and receives again. */
#include "loopback.h"

#include <setjmp.h>

enum { ROUNDS = 600, JUMPS = 20, EVERY = ROUNDS / JUMPS };

static sigjmp_buf out;

static void leave(int signal) {
    (void)signal;
    siglongjmp(out, 1);
}

static void *echo(void *argument) {
    int fd = *(int *)argument;
    char buffer[256];
    ssize_t received;
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    while ((received = recv(fd, buffer, sizeof buffer, 0)) > 0)
        need(send(fd, buffer, received, 0) == received, "echo");
    return NULL;
}

static void exchange(int client, int round) {
    char sent[100], got[100];
    memset(sent, round, sizeof sent);
    need(send(client, sent, sizeof sent, 0) == sizeof sent, "send");
    for (size_t filled = 0; filled < sizeof got;) {
        ssize_t received = recv(client, got + filled, sizeof got - filled, 0);
        need(received > 0, "receive");
        filled += received;
    }
    need(memcmp(sent, got, sizeof got) == 0, "the same bytes");
}

int main(void) {
    struct sockaddr_in address;
    int listener = listening_socket(&address), client = connected_socket(&address, 0);
    int server = accepted_socket(listener, 0);
    pthread_t thread = start_thread(echo, &server);
    struct sigaction action = {.sa_handler = leave};
    sigaction(SIGALRM, &action, NULL);
    volatile int jumps = 0;
    for (volatile int round = 0; round < ROUNDS; round++) {
        char got[100];
        if (round % EVERY == 2 && sigsetjmp(out, 1) == 0) {
            struct itimerval soon = {.it_value.tv_usec = 3000};
            setitimer(ITIMER_REAL, &soon, NULL);
            /* Nobody sends anything. */
            recv(client, got, sizeof got, 0);
            need(0, "a receive of nothing has ended");
        } else if (round % EVERY == 2) {
            jumps++;
        }
        exchange(client, round);
    }
    /* Until it is told that it has been carried: calls hardly wait for a service that is slow. */
    struct pollfd told = {0, POLLIN, 0};
    while (poll(&told, 1, 0) == 0)
        exchange(client, 0);
    shutdown(client, SHUT_WR);
    char end;
    join_thread(thread);
    close(server);
    need(recv(client, &end, 1, 0) == 0, "the end");
    return jumps == JUMPS ? 0 : 1;
}
