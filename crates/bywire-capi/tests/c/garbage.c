/* Null pointers and numbers that mean nothing: each an error, none a crash, and the ports go on. */

#include "check.h"

#define CHECK_BAD(call) CHECK_CODE(call, BW_ERROR_ARGUMENT)

static bw_port_t *port, *other;
static bw_peer_t peer, back;
static unsigned char memory[8192];

static void nulls(void) {
    bw_port_options_t options;
    bw_event_t event;
    bw_statistics_t statistics;
    bw_peer_info_t info;
    bw_peer_t made;
    bw_key_t key;
    bw_heap_t *heap;
    bw_block_t *block;
    void *place;
    CHECK_BAD(bw_port_options_init(NULL, sizeof options));
    CHECK_BAD(bw_port_open(NULL, NULL));
    CHECK_BAD(bw_port_close(NULL));
    CHECK(bw_port_name(NULL) == NULL && bw_port_address(NULL) == NULL);
    CHECK_BAD(bw_port_options(NULL, &options, sizeof options));
    CHECK_BAD(bw_port_options(port, NULL, sizeof options));
    CHECK_BAD(bw_port_statistics(NULL, &statistics, sizeof statistics));
    CHECK_BAD(bw_port_statistics(port, NULL, sizeof statistics));
    CHECK_BAD(bw_descriptor(NULL));
    CHECK_BAD(bw_connect(NULL, "localhost/x", 0, &made));
    CHECK_BAD(bw_connect(port, NULL, 0, &made));
    CHECK_BAD(bw_connect(port, "localhost/x", 0, NULL));
    CHECK_BAD(bw_connect_start(NULL, "localhost/x", &made));
    CHECK_BAD(bw_connect_start(port, NULL, &made));
    CHECK_BAD(bw_connect_start(port, "localhost/x", NULL));
    CHECK_BAD(bw_disconnect(NULL, peer));
    CHECK_BAD(bw_peer_info(NULL, peer, &info, sizeof info));
    CHECK_BAD(bw_peer_info(port, peer, NULL, sizeof info));
    CHECK_BAD(bw_peers(NULL, &made, 1));
    CHECK_BAD(bw_peers(port, NULL, 1));
    CHECK_BAD(bw_send(NULL, peer, BW_PRIORITY_LOW, memory, 1));
    CHECK_BAD(bw_send(port, peer, BW_PRIORITY_LOW, NULL, 1));
    CHECK_BAD(bw_send_datagram(NULL, peer, BW_PRIORITY_LOW, memory, 1));
    CHECK_BAD(bw_await_room(NULL, peer, BW_PRIORITY_LOW));
    CHECK_BAD(bw_send_datagram(port, peer, BW_PRIORITY_LOW, NULL, 1));
    CHECK_BAD(bw_send_buffer(NULL, peer, BW_PRIORITY_LOW, memory, 1, BW_CONFIRM_COPIED, NULL));
    CHECK_BAD(bw_send_buffer(port, peer, BW_PRIORITY_LOW, NULL, 1, BW_CONFIRM_COPIED, NULL));
    CHECK_BAD(bw_post_receive(NULL, BW_PRIORITY_LOW, memory, 1));
    CHECK_BAD(bw_post_receive(port, BW_PRIORITY_LOW, NULL, 1));
    CHECK_BAD(bw_poll(NULL, &event));
    CHECK_BAD(bw_poll(port, NULL));
    CHECK_BAD(bw_poll_arrived(NULL, &event));
    CHECK_BAD(bw_poll_arrived(port, NULL));
    CHECK_BAD(bw_has_progressed(NULL));
    CHECK_BAD(bw_wait(NULL, 0, &event));
    CHECK_BAD(bw_wait(port, 0, NULL));
    CHECK_BAD(bw_event_release(NULL));
    CHECK_BAD(bw_arm(NULL));
    CHECK_BAD(bw_region_register(NULL, NULL, 1, 0, &key));
    CHECK_BAD(bw_region_register(port, NULL, 1, 0, NULL));
    CHECK_BAD(bw_region_memory(NULL, 0, &place, NULL));
    CHECK_BAD(bw_region_memory(port, 0, NULL, NULL));
    CHECK_BAD(bw_region_revoke(NULL, 0));
    CHECK_BAD(bw_put(NULL, peer, BW_PRIORITY_LOW, 0, 0, memory, 1, NULL, 0, NULL));
    CHECK_BAD(bw_put(port, peer, BW_PRIORITY_LOW, 0, 0, NULL, 1, NULL, 0, NULL));
    CHECK_BAD(bw_put(port, peer, BW_PRIORITY_LOW, 0, 0, memory, 1, NULL, 1, NULL));
    CHECK_BAD(bw_get(NULL, peer, BW_PRIORITY_LOW, 0, 0, memory, 1, NULL));
    CHECK_BAD(bw_get(port, peer, BW_PRIORITY_LOW, 0, 0, NULL, 1, NULL));
    CHECK_BAD(bw_heap_open(NULL, peer, 64, 1, &heap));
    CHECK_BAD(bw_heap_open(port, peer, 64, 1, NULL));
    CHECK_BAD(bw_heap_close(NULL));
    CHECK_BAD(bw_heap_block(NULL, &block));
    CHECK(bw_heap_block_bytes(NULL) == 0 && bw_heap_peer(NULL) == 0 && bw_block_memory(NULL) == NULL);
    CHECK_BAD(bw_block_drop(NULL));
    CHECK_BAD(bw_send_lent(NULL, BW_PRIORITY_LOW, NULL, 0));
    CHECK_BAD(bw_send_lent(port, BW_PRIORITY_LOW, NULL, 0));
    CHECK(bw_lent_read(NULL, 0, memory, 1) == 0 && bw_lent_memory(NULL) == NULL && bw_lent_bytes(NULL) == 0);
    CHECK_BAD(bw_lent_return(NULL));
}

static void numbers(void) {
    bw_port_options_t options, none;
    bw_port_t *made = NULL;
    bw_peer_t reached;
    bw_key_t key;
    CHECK_BAD(bw_port_options_init(&options, 0));
    CHECK_BAD(bw_port_options_init(&options, SIZE_MAX));
    CHECK_CODE(bw_port_options_init(&options, sizeof options), BW_OK);
    memset(&none, 0, sizeof none);
    CHECK_BAD(bw_port_open(&none, &made));
    memset(&none, 0xff, sizeof none);
    CHECK_BAD(bw_port_open(&none, &made));
    none = options, none.admit = 3;
    CHECK_BAD(bw_port_open(&none, &made));
    none = options, none.integrity = 2;
    CHECK_BAD(bw_port_open(&none, &made));
    none = options, none.fragment_bytes = 1;
    CHECK_CODE(bw_port_open(&none, &made), BW_ERROR_OPTION);
    none = options, none.name = "\xff\xfe";
    CHECK_BAD(bw_port_open(&none, &made));
    none = options, none.lanes[1].slots = 100;
    CHECK_CODE(bw_port_open(&none, &made), BW_ERROR_OPTION);
    CHECK(made == NULL);
    CHECK_BAD(bw_connect_start(port, "\xff\xfe", &reached));
    CHECK_BAD(bw_send(port, peer, 2, memory, 1));
    CHECK_BAD(bw_send(port, peer, UINT32_MAX, memory, 1));
    CHECK_BAD(bw_send(port, peer, BW_PRIORITY_LOW, memory, SIZE_MAX));
    CHECK_BAD(bw_send_datagram(port, peer, 2, memory, 1));
    CHECK_BAD(bw_send_buffer(port, peer, 2, memory, 1, BW_CONFIRM_COPIED, NULL));
    CHECK_BAD(bw_send_buffer(port, peer, BW_PRIORITY_LOW, memory, 1, 2, NULL));
    CHECK_BAD(bw_send_buffer(port, peer, BW_PRIORITY_LOW, memory, SIZE_MAX, BW_CONFIRM_COPIED, NULL));
    CHECK_BAD(bw_post_receive(port, 2, memory, 1));
    CHECK_BAD(bw_post_receive(port, BW_PRIORITY_LOW, memory, 0));
    CHECK_BAD(bw_region_register(port, NULL, 1, 4, &key));
    CHECK_CODE(bw_region_register(port, NULL, SIZE_MAX, BW_RIGHT_READ, &key), BW_ERROR_SYSTEM);
    CHECK_BAD(bw_region_register(port, memory, SIZE_MAX, BW_RIGHT_READ, &key));
    CHECK_CODE(bw_region_revoke(port, UINT64_MAX), BW_ERROR_BAD_KEY);
}

/* Peers, keys, offsets, codes and lengths at random; a fixed seed, so that a failure comes again. */
static void random_numbers(void) {
    uint64_t state = 88172645463325252u;
    for (int round = 0; round < 10000; round++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        bw_peer_t stranger = round % 2 ? state : state % 64 + ((state >> 32) % 4 << 32);
        bw_peer_info_t info;
        bw_heap_t *heap;
        bw_event_t event;
        if (stranger == peer || stranger == back)
            continue;
        CHECK(bw_send(port, stranger, BW_PRIORITY_LOW, memory, 1) < 0);
        CHECK(bw_send_datagram(port, stranger, BW_PRIORITY_LOW, memory, 1) < 0);
        CHECK(bw_await_room(port, stranger, BW_PRIORITY_LOW) < 0);
        CHECK(bw_send_buffer(port, stranger, BW_PRIORITY_LOW, memory, 1, BW_CONFIRM_COPIED, NULL) < 0);
        CHECK(bw_get(port, stranger, BW_PRIORITY_LOW, state, state, memory, 1, NULL) < 0);
        CHECK(bw_heap_open(port, stranger, (size_t)state % 100000, 1, &heap) < 0);
        CHECK_CODE(bw_peer_info(port, stranger, &info, sizeof info), BW_ERROR_NO_PEER);
        CHECK_CODE(bw_region_revoke(port, state), BW_ERROR_BAD_KEY);
        CHECK_CODE(bw_disconnect(port, stranger), BW_OK);
        CHECK(bw_error_text((int)state) != NULL);
        /* A known peer with a key of nobody's: the answer is an event. */
        if (round % 100 == 0) {
            CHECK_CODE(bw_get(port, peer, BW_PRIORITY_LOW, state, state, memory, 8, NULL), BW_OK);
            event = expect(port, BW_EVENT_GOT, other);
            CHECK(event.status == BW_ERROR_BAD_KEY && event.buffer == memory);
        }
    }
}

int main(void) {
    port = open_named(NULL);
    other = open_named("other");
    meet(port, other, &peer, &back);
    nulls();
    numbers();
    random_numbers();
    CHECK_CODE(bw_send(port, peer, BW_PRIORITY_LOW, "well", 4), BW_OK);
    bw_event_t event = expect(other, BW_EVENT_MESSAGE, port);
    CHECK(memcmp(event.data, "well", 4) == 0);
    CHECK_CODE(bw_port_close(port), BW_OK);
    CHECK_CODE(bw_port_close(other), BW_OK);
    puts("unharmed");
    return 0;
}
