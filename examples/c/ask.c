/* A client of `echo`: sends a short message and a long one, and awaits both answers.
 *
 *     cc ask.c -o ask $(pkg-config --cflags --libs bywire)
 *     ./ask                 while `echo` runs
 *     ./ask web2/echo       while `echo --fabric` runs on the machine web2
 */

#include <bywire.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONG_BYTES = 5000 };

static int check(int code) {
    if (code < 0) {
        fprintf(stderr, "ask: %s\n", bw_last_error_text());
        exit(1);
    }
    return code;
}

int main(int count, char **arguments) {
    static unsigned char request[LONG_BYTES], answer[LONG_BYTES];
    const char *address = count > 1 ? arguments[1] : "localhost/echo";
    bw_port_t *port;
    bw_peer_t server;
    check(bw_port_open(NULL, &port));
    /* Memory for the answer that is longer than 4 KiB. */
    check(bw_post_receive(port, BW_PRIORITY_LOW, answer, sizeof answer));
    check(bw_connect(port, address, 5000000, &server));
    check(bw_send(port, server, BW_PRIORITY_LOW, "hello", 5));
    /* The request is the library's until BW_EVENT_SENT. */
    check(bw_send_buffer(port, server, BW_PRIORITY_LOW, request, sizeof request, BW_CONFIRM_COPIED, NULL));
    for (int answers = 0; answers < 2;) {
        bw_event_t event;
        if (check(bw_wait(port, 5000000, &event)) == 0) {
            fprintf(stderr, "ask: the server has not answered for 5 s\n");
            return 1;
        }
        if (event.kind == BW_EVENT_MESSAGE) {
            printf("%llu bytes back\n", (unsigned long long)event.length_bytes);
            answers++;
        } else if (event.kind == BW_EVENT_DISCONNECTED) {
            fprintf(stderr, "ask: the server has left: %s\n", bw_error_text(event.status));
            return 1;
        }
    }
    check(bw_port_close(port));
    return 0;
}
