/* Two processes: `serve` echoes what comes, until it is told to die; `ask ADDRESS` talks to it. `serve --fabric` serves
 * other machines, too. */

#include "check.h"

#include <signal.h>

enum { LONG_BYTES = 300000 };

static int serve(uint32_t reach) {
    static unsigned char memory[LONG_BYTES];
    bw_port_t *port = open_reaching(NULL, reach);
    CHECK_CODE(bw_post_receive(port, BW_PRIORITY_LOW, memory, sizeof memory), BW_OK);
    printf("%s\n", bw_port_address(port));
    fflush(stdout);
    for (;;) {
        bw_event_t event;
        CHECK(bw_wait(port, BW_FOREVER, &event) == 1);
        if (event.kind == BW_EVENT_MESSAGE && event.buffer != NULL) {
            /* A long one goes back from where it came to lie, and is posted again when it has gone. */
            CHECK_CODE(bw_send_buffer(port, event.peer, event.priority, event.data, (size_t)event.length_bytes,
                                      BW_CONFIRM_COPIED, NULL), BW_OK);
        } else if (event.kind == BW_EVENT_MESSAGE) {
            if (event.length_bytes == 3 && memcmp(event.data, "die", 3) == 0)
                raise(SIGKILL);
            CHECK_CODE(bw_send(port, event.peer, event.priority, event.data, (size_t)event.length_bytes), BW_OK);
        } else if (event.kind == BW_EVENT_SENT) {
            CHECK_CODE(event.status, BW_OK);
            CHECK_CODE(bw_post_receive(port, BW_PRIORITY_LOW, memory, sizeof memory), BW_OK);
        }
    }
}

static bw_event_t next(bw_port_t *port, uint32_t kind) {
    bw_event_t event;
    do
        CHECK(bw_wait(port, BW_FOREVER, &event) == 1);
    while (event.kind != kind);
    return event;
}

static int ask(const char *address) {
    static unsigned char sent[LONG_BYTES], memory[LONG_BYTES];
    bw_port_t *port = open_named(NULL);
    bw_peer_t peer;
    CHECK_CODE(bw_connect(port, address, BW_FOREVER, &peer), BW_OK);
    for (uint32_t number = 0; number < 1000; number++) {
        CHECK_CODE(bw_send(port, peer, number % 2, &number, sizeof number), BW_OK);
        bw_event_t event = next(port, BW_EVENT_MESSAGE);
        CHECK(event.peer == peer && event.length_bytes == sizeof number);
        CHECK(memcmp(event.data, &number, sizeof number) == 0);
    }
    for (size_t index = 0; index < sizeof sent; index++)
        sent[index] = (unsigned char)(index * 7 + (index >> 9));
    for (int round = 0; round < 3; round++) {
        CHECK_CODE(bw_post_receive(port, BW_PRIORITY_LOW, memory, sizeof memory), BW_OK);
        CHECK_CODE(bw_send_buffer(port, peer, BW_PRIORITY_LOW, sent, sizeof sent, BW_CONFIRM_COPIED, NULL), BW_OK);
        bw_event_t event = next(port, BW_EVENT_MESSAGE);
        CHECK(event.data == memory && event.length_bytes == sizeof sent && memcmp(memory, sent, sizeof sent) == 0);
    }
    CHECK_CODE(bw_send(port, peer, BW_PRIORITY_LOW, "die", 3), BW_OK);
    CHECK_CODE(next(port, BW_EVENT_DISCONNECTED).status, BW_ERROR_DISCONNECTED_DIED);
    CHECK_CODE(bw_send(port, peer, BW_PRIORITY_LOW, "x", 1), BW_ERROR_DISCONNECTED_DIED);
    CHECK_CODE(bw_port_close(port), BW_OK);
    puts("answered");
    return 0;
}

int main(int count, char **arguments) {
    CHECK(count >= 2);
    if (strcmp(arguments[1], "serve") == 0)
        return serve(count == 2 ? BW_REACH_MACHINE : BW_REACH_FABRIC);
    return ask(arguments[2]);
}
