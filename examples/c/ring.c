/* Nodes in a ring: each puts a counter straight into its neighbour's memory, with a note that it is there.
 *
 *     cc -pthread ring.c -o ring $(pkg-config --cflags --libs bywire)
 *     ./ring [NODES [LAPS]]
 *
 * The nodes are threads here; processes would do the same.
 */

#include <bywire.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(int code) {
    if (code < 0) {
        fprintf(stderr, "ring: %s\n", bw_last_error_text());
        exit(1);
    }
    return code;
}

/* One node: the one before it reaches `seen` by the key `region`; it reaches its neighbour's by `key`. */
struct node {
    bw_port_t *port;
    const char *next;
    long laps;
    int is_first;
    bw_peer_t before, neighbour;
    bw_key_t region, key;
    uint64_t seen;
    /* The counter to pass on, once the key is here; and what is under way, which the library reads until it is put. */
    uint64_t unsent, sent;
    int is_under_way;
};

static void pass_on(struct node *node) {
    if (node->key == 0 || node->unsent == 0 || node->is_under_way)
        return;
    node->sent = node->unsent;
    node->unsent = 0;
    node->is_under_way = 1;
    check(bw_put(node->port, node->neighbour, BW_PRIORITY_LOW, node->key, 0, &node->sent, sizeof node->sent,
                 "here", 4, NULL));
}

/* Passes the counter on, one higher each time, until it has come by often enough. */
static void *turn(void *argument) {
    struct node *node = argument;
    long lap = 0;
    check(bw_region_register(node->port, &node->seen, sizeof node->seen, BW_RIGHT_WRITE, &node->region));
    check(bw_connect(node->port, node->next, 30000000, &node->neighbour));
    /* The first node starts the counter. */
    node->unsent = (uint64_t)node->is_first;
    /* A node leaves when its last put has arrived; the first, where the counter ends, when the one before it left. */
    while (lap < node->laps || node->is_under_way || node->unsent != 0 || (node->is_first && node->before != 0)) {
        bw_event_t event;
        check(bw_wait(node->port, BW_FOREVER, &event));
        if (event.kind == BW_EVENT_CONNECTED && event.peer != node->neighbour) {
            node->before = event.peer;
            check(bw_send(node->port, event.peer, BW_PRIORITY_LOW, &node->region, sizeof node->region));
        } else if (event.kind == BW_EVENT_MESSAGE && event.length_bytes == sizeof node->key) {
            memcpy(&node->key, event.data, sizeof node->key);
        } else if (event.kind == BW_EVENT_NOTIFIED) {
            /* The note comes after the data: it is there. */
            lap++;
            if (!node->is_first || lap < node->laps)
                node->unsent = node->seen + 1;
        } else if (event.kind == BW_EVENT_PUT) {
            if (event.status != BW_OK) {
                fprintf(stderr, "ring: %s\n", bw_error_text(event.status));
                exit(1);
            }
            node->is_under_way = 0;
        } else if (event.kind == BW_EVENT_DISCONNECTED && event.peer == node->before) {
            if (lap < node->laps) {
                fprintf(stderr, "ring: it is broken: %s\n", bw_error_text(event.status));
                exit(1);
            }
            node->before = 0;
        }
        pass_on(node);
    }
    return NULL;
}

int main(int count, char **arguments) {
    enum { NODES_MAX = 64 };
    static struct node nodes[NODES_MAX];
    pthread_t threads[NODES_MAX];
    int node_count = count > 1 ? atoi(arguments[1]) : 4;
    long laps = count > 2 ? atol(arguments[2]) : 1000;
    if (node_count < 2 || node_count > NODES_MAX || laps < 1) {
        fprintf(stderr, "usage: ring [NODES [LAPS]], with 2 to 64 nodes\n");
        return 2;
    }
    for (int place = 0; place < node_count; place++)
        check(bw_port_open(NULL, &nodes[place].port));
    for (int place = 0; place < node_count; place++) {
        nodes[place].next = bw_port_address(nodes[(place + 1) % node_count].port);
        nodes[place].laps = laps;
        nodes[place].is_first = place == 0;
        if (pthread_create(&threads[place], NULL, turn, &nodes[place]) != 0)
            return 1;
    }
    /* Each thread's port comes back to this one, which closes them in turn: the last node first, as the first waits. */
    for (int place = node_count - 1; place >= 0; place--) {
        pthread_join(threads[place], NULL);
        check(bw_port_close(nodes[place].port));
    }
    for (int place = 0; place < node_count; place++)
        printf("node %d last saw %llu\n", place, (unsigned long long)nodes[place].seen);
    return 0;
}
