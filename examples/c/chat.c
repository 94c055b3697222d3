/* A port beside other descriptors in one epoll: what is typed goes to the peer, what the peer says is printed.
 *
 *     cc chat.c -o chat $(pkg-config --cflags --libs bywire)
 *     ./chat                        prints its address and waits for somebody
 *     ./chat --fabric               the same, for somebody on another machine, too
 *     ./chat localhost/61234        connects
 *
 * Ends with the input, or when the peer leaves.
 */

#include <bywire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static int check(int code) {
    if (code < 0) {
        fprintf(stderr, "chat: %s\n", bw_last_error_text());
        exit(1);
    }
    return code;
}

static void watch(int epoll, int descriptor) {
    struct epoll_event interest = {.events = EPOLLIN, .data.fd = descriptor};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &interest) != 0) {
        perror("chat: cannot watch");
        exit(1);
    }
}

/* Takes every event there is, until the port has nothing more and is armed. Returns 0 when the peer has left. */
static int take_events(bw_port_t *port, bw_peer_t *peer) {
    bw_event_t event;
    do {
        while (check(bw_poll(port, &event)) == 1) {
            if (event.kind == BW_EVENT_CONNECTED)
                *peer = event.peer;
            else if (event.kind == BW_EVENT_MESSAGE && event.peer == *peer)
                fwrite(event.data, 1, event.length_bytes, stdout);
            else if (event.kind == BW_EVENT_DISCONNECTED && event.peer == *peer)
                return 0;
        }
    } while (check(bw_arm(port)) == 0);
    fflush(stdout);
    return 1;
}

int main(int count, char **arguments) {
    bw_port_options_t options;
    bw_port_t *port;
    bw_peer_t peer = 0;
    int epoll = epoll_create1(EPOLL_CLOEXEC), is_typing = 0;
    int serves_fabric = count > 1 && strcmp(arguments[1], "--fabric") == 0;
    check(bw_port_options_init(&options, sizeof options));
    options.reach = serves_fabric ? BW_REACH_FABRIC : BW_REACH_MACHINE;
    check(bw_port_open(&options, &port));
    if (count > 1 && !serves_fabric)
        check(bw_connect_start(port, arguments[1], &peer));
    printf("%s\n", bw_port_address(port));
    watch(epoll, check(bw_descriptor(port)));
    while (take_events(port, &peer)) {
        struct epoll_event ready;
        /* Typing makes sense from the first connection on. */
        bw_peer_info_t info;
        if (!is_typing && bw_peer_info(port, peer, &info, sizeof info) == BW_OK) {
            watch(epoll, STDIN_FILENO);
            is_typing = 1;
        }
        if (epoll_wait(epoll, &ready, 1, -1) < 1 || ready.data.fd != STDIN_FILENO)
            continue;
        char line[BW_FRAGMENT_BYTES];
        ssize_t length = read(STDIN_FILENO, line, sizeof line);
        if (length <= 0)
            break;
        check(bw_send(port, peer, BW_PRIORITY_LOW, line, (size_t)length));
    }
    fflush(stdout);
    bw_port_close(port);
    close(epoll);
    return 0;
}
