/* What the test programs share: a check that says what failed, and a way to wait for one event. */

#ifndef CHECK_H
#define CHECK_H

#include <bywire.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
                    bw_last_error_text());                                                          \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

#define CHECK_CODE(call, code) CHECK((call) == (code))

/* Polls `port` until it has an event, which must be of this kind; `other`, if any, moves on without events. */
static inline bw_event_t expect(bw_port_t *port, uint32_t kind, bw_port_t *other) {
    time_t limit = time(NULL) + 60;
    bw_event_t event, none;
    int got;
    while ((got = bw_poll(port, &event)) == 0) {
        if (other != NULL) {
            int moved = bw_poll(other, &none);
            if (moved != 0) {
                fprintf(stderr, "event %u at the other port instead of %u at this one\n", none.kind, kind);
                exit(1);
            }
        }
        CHECK(time(NULL) < limit);
    }
    CHECK(got == 1);
    if (event.kind != kind) {
        fprintf(stderr, "event %u instead of %u\n", event.kind, kind);
        exit(1);
    }
    return event;
}

static inline bw_port_t *open_reaching(const char *name, uint32_t reach) {
    bw_port_options_t options;
    bw_port_t *port = NULL;
    CHECK_CODE(bw_port_options_init(&options, sizeof options), BW_OK);
    options.name = name;
    options.reach = reach;
    CHECK_CODE(bw_port_open(&options, &port), BW_OK);
    CHECK(port != NULL);
    return port;
}

static inline bw_port_t *open_named(const char *name) {
    return open_reaching(name, BW_REACH_MACHINE);
}

/* Connects two ports of this thread; each learns the other's handle. */
static inline void meet(bw_port_t *first, bw_port_t *second, bw_peer_t *to_second, bw_peer_t *to_first) {
    time_t limit = time(NULL) + 60;
    CHECK_CODE(bw_connect_start(first, bw_port_address(second), to_second), BW_OK);
    int at_first = 0, at_second = 0;
    while (!at_first || !at_second) {
        bw_event_t event;
        if (bw_poll(first, &event) == 1) {
            CHECK(event.kind == BW_EVENT_CONNECTED && event.peer == *to_second);
            at_first = 1;
        }
        if (bw_poll(second, &event) == 1) {
            CHECK(event.kind == BW_EVENT_CONNECTED);
            *to_first = event.peer;
            at_second = 1;
        }
        CHECK(time(NULL) < limit);
    }
}

#endif
