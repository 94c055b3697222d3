/* A server that sends every message back, of whatever length, and outlives its clients. `ask` is a client, in C and in
 * every other language of examples.
 *
 *     cc echo.c -o echo $(pkg-config --cflags --libs bywire)
 *     ./echo                serves as `localhost/echo`
 *     ./echo --fabric       serves other machines, too
 */

#include <bywire.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The longest message that this server takes. A client that sends a longer one gets BW_ERROR_TOO_LONG. */
enum { LENGTH_MAX = 1 << 20 };
/* Long messages that can arrive at the same time. */
enum { BUFFERS = 16 };
/* Long answers that one client may leave unread. */
enum { UNREAD_MAX = 4 };

/* A long answer, which is the library's until BW_EVENT_SENT. */
struct answer {
    struct answer *next;
    bw_peer_t peer;
    unsigned char bytes[];
};

static struct answer *unread;

static int check(int code) {
    if (code < 0) {
        fprintf(stderr, "echo: %s\n", bw_last_error_text());
        exit(1);
    }
    return code;
}

static int count_unread(bw_peer_t peer) {
    int count = 0;
    for (struct answer *answer = unread; answer != NULL; answer = answer->next)
        count += answer->peer == peer;
    return count;
}

/* Sends a copy of a long message, as its own memory is posted again at once. */
static int answer_long(bw_port_t *port, const bw_event_t *message) {
    if (count_unread(message->peer) == UNREAD_MAX)
        return BW_ERROR_FULL;
    size_t length = (size_t)message->length_bytes;
    struct answer *answer = malloc(sizeof *answer + length);
    if (answer == NULL)
        return BW_ERROR_SYSTEM;
    memcpy(answer->bytes, message->data, length);
    int code = bw_send_buffer(port, message->peer, message->priority, answer->bytes, length, BW_CONFIRM_COPIED, NULL);
    if (code < 0) {
        free(answer);
        return code;
    }
    answer->peer = message->peer;
    answer->next = unread;
    unread = answer;
    return code;
}

/* Frees an answer that has been sent, or whose client has gone. */
static void forget(void *bytes) {
    for (struct answer **place = &unread; *place != NULL; place = &(*place)->next) {
        struct answer *answer = *place;
        if (answer->bytes == bytes) {
            *place = answer->next;
            free(answer);
            return;
        }
    }
}

static void answer(bw_port_t *port, const bw_event_t *message) {
    int code = message->length_bytes <= BW_FRAGMENT_BYTES
                   /* Copied at once. */
                   ? bw_send(port, message->peer, message->priority, message->data, (size_t)message->length_bytes)
                   : answer_long(port, message);
    /* A client that does not read its answers is disconnected, so that it cannot hold up others. */
    if (code < 0)
        check(bw_disconnect(port, message->peer));
    if (message->buffer != NULL)
        check(bw_post_receive(port, message->priority, message->buffer, (size_t)message->buffer_bytes));
}

int main(int count, char **arguments) {
    static unsigned char buffers[BUFFERS][LENGTH_MAX];
    bw_port_options_t options;
    bw_port_t *port;
    check(bw_port_options_init(&options, sizeof options));
    options.name = "echo";
    options.message_bytes_max = LENGTH_MAX;
    /* Other machines reach the port only with `--fabric`. */
    if (count > 1 && strcmp(arguments[1], "--fabric") == 0)
        options.reach = BW_REACH_FABRIC;
    check(bw_port_open(&options, &port));
    /* A message of more than 4 KiB arrives in a posted buffer. A shorter one needs none. */
    for (int index = 0; index < BUFFERS; index++)
        check(bw_post_receive(port, BW_PRIORITY_LOW, buffers[index], LENGTH_MAX));
    printf("serving %s\n", bw_port_address(port));
    for (;;) {
        bw_event_t event;
        fflush(stdout);
        check(bw_wait(port, BW_FOREVER, &event));
        switch (event.kind) {
        case BW_EVENT_CONNECTED:
            puts("a client has come");
            break;
        case BW_EVENT_MESSAGE:
            answer(port, &event);
            break;
        case BW_EVENT_SENT:
            forget(event.buffer);
            break;
        case BW_EVENT_DISCONNECTED:
            printf("a client has left: %s\n", bw_error_text(event.status));
            break;
        default:
            break;
        }
    }
}
