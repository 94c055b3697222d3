/* Round trips of a short message between two processes, and how long half of one takes.
 *
 *     cc -O2 ping-pong.c -o ping-pong $(pkg-config --cflags --libs bywire)
 *     ./ping-pong                       one terminal: prints its address and answers
 *     ./ping-pong --fabric              the same, for other machines, too
 *     ./ping-pong vm/61234              the other one: asks
 */

#include <bywire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ends the program with a sentence when a call failed. */
static int check(int code) {
    if (code < 0) {
        fprintf(stderr, "ping-pong: %s\n", bw_last_error_text());
        exit(1);
    }
    return code;
}

/* Opens a port that can be reached from this machine, or from all machines of the fabric. */
static bw_port_t *open_port(uint32_t reach) {
    bw_port_options_t options;
    bw_port_t *port;
    check(bw_port_options_init(&options, sizeof options));
    options.reach = reach;
    check(bw_port_open(&options, &port));
    return port;
}

/* Sends every message back until the asking port is gone. */
static void answer(uint32_t reach) {
    bw_port_t *port = open_port(reach);
    bw_event_t event;
    printf("give this address to the other end: %s\n", bw_port_address(port));
    fflush(stdout);
    do {
        check(bw_wait(port, BW_FOREVER, &event));
        if (event.kind == BW_EVENT_MESSAGE)
            check(bw_send(port, event.peer, event.priority, event.data, event.length_bytes));
    } while (event.kind != BW_EVENT_DISCONNECTED);
    bw_port_close(port);
}

static void round_trip(bw_port_t *port, bw_peer_t peer, long number) {
    bw_event_t event;
    check(bw_send(port, peer, BW_PRIORITY_LOW, &number, sizeof number));
    check(bw_wait(port, BW_FOREVER, &event));
    if (event.kind != BW_EVENT_MESSAGE || event.length_bytes != sizeof number ||
        memcmp(event.data, &number, sizeof number) != 0) {
        fprintf(stderr, "ping-pong: event %u instead of the answer\n", event.kind);
        exit(1);
    }
}

static void ask(const char *address, long rounds) {
    bw_port_t *port = open_port(BW_REACH_MACHINE);
    bw_peer_t peer;
    struct timespec start, end;
    check(bw_connect(port, address, 5000000, &peer));
    /* The first rounds warm the caches and the rings. */
    for (long number = 0; number < rounds / 10; number++)
        round_trip(port, peer, number);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long number = 0; number < rounds; number++)
        round_trip(port, peer, number);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    printf("%ld round trips, half of one takes %.0f ns on average\n", rounds, ns / 2 / (double)rounds);
    bw_port_close(port);
}

int main(int count, char **arguments) {
    long rounds = count > 2 ? atol(arguments[2]) : 100000;
    if (rounds < 1) {
        fprintf(stderr, "usage: ping-pong [ADDRESS [ROUNDS]]\n");
        return 2;
    }
    if (count < 2)
        answer(BW_REACH_MACHINE);
    else if (strcmp(arguments[1], "--fabric") == 0)
        answer(BW_REACH_FABRIC);
    else
        ask(arguments[1], rounds);
    return 0;
}
