/* A server for many clients: each request is a line of text, its answer the same line in capitals.
 *
 *     cc requests.c -o requests $(pkg-config --cflags --libs bywire)
 *     ./requests                              prints its address and serves
 *     ./requests --fabric                     the same, for other machines, too
 *     ./requests localhost/61234 some words   asks once per word
 */

#include <bywire.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(int code) {
    if (code < 0) {
        fprintf(stderr, "requests: %s\n", bw_last_error_text());
        exit(1);
    }
    return code;
}

/* An answer for which there was no room yet. They wait per client, so that one which does not take its answers holds
 * up nobody else. */
struct unsent {
    struct unsent *next;
    bw_peer_t peer;
    size_t length;
    char text[];
};

static struct unsent *first, **last = &first;

/* Keeps an answer until BW_EVENT_ROOM. */
static void keep(bw_peer_t peer, const char *text, size_t length) {
    struct unsent *answer = malloc(sizeof *answer + length);
    if (answer == NULL)
        exit(1);
    *answer = (struct unsent){.peer = peer, .length = length};
    memcpy(answer->text, text, length);
    *last = answer, last = &answer->next;
}

static int has_unsent(bw_peer_t peer) {
    for (struct unsent *answer = first; answer != NULL; answer = answer->next)
        if (answer->peer == peer)
            return 1;
    return 0;
}

/* Sends a client's kept answers as long as there is room; for one that has gone they are dropped. */
static void send_kept(bw_port_t *port, bw_peer_t peer) {
    struct unsent **place = &first;
    int code = BW_OK;
    while (*place != NULL) {
        struct unsent *answer = *place;
        if (answer->peer != peer || code == BW_ERROR_FULL ||
            (code = bw_send(port, peer, BW_PRIORITY_LOW, answer->text, answer->length)) == BW_ERROR_FULL) {
            place = &answer->next;
            continue;
        }
        *place = answer->next;
        free(answer);
    }
    last = place;
}

static void serve(uint32_t reach) {
    bw_port_options_t options;
    bw_port_t *port;
    bw_event_t event;
    bw_peer_info_t info;
    check(bw_port_options_init(&options, sizeof options));
    options.reach = reach;
    check(bw_port_open(&options, &port));
    printf("%s\n", bw_port_address(port));
    for (;;) {
        fflush(stdout);
        check(bw_wait(port, BW_FOREVER, &event));
        switch (event.kind) {
        case BW_EVENT_CONNECTED:
            if (bw_peer_info(port, event.peer, &info, sizeof info) != BW_OK)
                break;
            /* A client of this machine has a process, and one of another machine the name of a user. */
            printf("serving %s ", info.address);
            if (info.user[0] == '\0')
                printf("(pid %d), ", info.pid);
            else
                printf("(user %s), ", info.user);
            printf("%d in all\n", bw_peers(port, NULL, 0));
            break;
        case BW_EVENT_MESSAGE: {
            char answer[BW_FRAGMENT_BYTES];
            size_t length = event.length_bytes < sizeof answer ? event.length_bytes : sizeof answer;
            for (size_t index = 0; index < length; index++)
                answer[index] = (char)toupper(((const unsigned char *)event.data)[index]);
            /* In order: not past those that wait. */
            if (has_unsent(event.peer) ||
                bw_send(port, event.peer, BW_PRIORITY_LOW, answer, length) == BW_ERROR_FULL)
                keep(event.peer, answer, length);
            break;
        }
        case BW_EVENT_ROOM:
            send_kept(port, event.peer);
            break;
        case BW_EVENT_DISCONNECTED:
            send_kept(port, event.peer);
            printf("a client has gone: %s\n", bw_error_text(event.status));
            break;
        default:
            break;
        }
    }
}

/* Prints at most one answer; returns how many. */
static int print_answer(bw_port_t *port) {
    bw_event_t event;
    check(bw_wait(port, BW_FOREVER, &event));
    if (event.kind == BW_EVENT_DISCONNECTED) {
        fprintf(stderr, "requests: the server has gone: %s\n", bw_error_text(event.status));
        exit(1);
    }
    if (event.kind != BW_EVENT_MESSAGE)
        return 0;
    printf("%.*s\n", (int)event.length_bytes, (const char *)event.data);
    return 1;
}

/* Sends every request at once and prints the answers, which come in the same order. */
static void ask(const char *address, char **requests, int count) {
    bw_port_t *port;
    bw_peer_t server;
    int awaited = 0, code;
    check(bw_port_open(NULL, &port));
    check(bw_connect(port, address, 5000000, &server));
    for (int index = 0; index < count; index++, awaited++) {
        const char *request = requests[index];
        while ((code = bw_send(port, server, BW_PRIORITY_LOW, request, strlen(request))) == BW_ERROR_FULL)
            awaited -= print_answer(port);
        check(code);
    }
    while (awaited > 0)
        awaited -= print_answer(port);
    bw_port_close(port);
}

int main(int count, char **arguments) {
    if (count < 2)
        serve(BW_REACH_MACHINE);
    else if (strcmp(arguments[1], "--fabric") == 0)
        serve(BW_REACH_FABRIC);
    else
        ask(arguments[1], arguments + 2, count - 2);
    return 0;
}
