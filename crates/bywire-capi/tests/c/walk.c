/* The whole contract between two ports of one thread, so that every step is the program's own. Both are on this machine,
 *
 *     walk
 *
 * or each on a machine of its own, whose network namespace and runtime directory are named:
 *
 *     walk NAMESPACE DIRECTORY NAMESPACE DIRECTORY
 */

#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>

static bw_port_t *a, *b;
static bw_peer_t to_a, to_b;
/* The machines, if there are two. */
static char **machines;

/* Opens a port on one of the machines, if there are two. The socket for other machines is made inside. */
static void open_on(int number, bw_port_options_t *options, bw_port_t **port) {
    if (machines != NULL) {
        int space = open(machines[2 * number], O_RDONLY | O_CLOEXEC);
        CHECK(space >= 0 && setns(space, CLONE_NEWNET) == 0 && close(space) == 0);
        options->runtime_directory = machines[2 * number + 1];
        options->reach = BW_REACH_FABRIC;
    }
    CHECK_CODE(bw_port_open(options, port), BW_OK);
    options->runtime_directory = NULL;
    options->reach = BW_REACH_MACHINE;
}

static void fill(unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t index = 0; index < length; index++)
        bytes[index] = (unsigned char)(index * 31 + seed * 7 + (index >> 8));
}

static void opening(void) {
    bw_port_options_t options, asked;
    bw_port_t *twice = NULL;
    CHECK_CODE(bw_port_options_init(&options, sizeof options), BW_OK);
    CHECK(options.size_bytes == sizeof options && options.name == NULL && options.send_tokens == 64);
    CHECK(options.borrow_bytes_max == 1u << 30);
    CHECK(options.fragment_bytes == BW_FRAGMENT_BYTES && options.admit == BW_ADMIT_SAME_USER);
    options.name = "walk";
    options.send_tokens = 2;
    options.receive_tokens = 1;
    options.message_bytes_max = 1000000;
    open_on(0, &options, &a);
    CHECK(strcmp(bw_port_name(a), "walk") == 0 && strstr(bw_port_address(a), "/walk") != NULL);
    CHECK_CODE(bw_port_options(a, &asked, sizeof asked), BW_OK);
    CHECK(strcmp(asked.name, "walk") == 0 && asked.send_tokens == 2 && asked.message_bytes_max == 1000000);
    options.runtime_directory = asked.runtime_directory;
    CHECK_CODE(bw_port_open(&options, &twice), BW_ERROR_IN_USE);
    options.runtime_directory = NULL;
    CHECK(twice == NULL && strstr(bw_last_error_text(), "walk") != NULL);
    /* A structure of a program that knows of more options, all unset, and one that sets one of them. */
    struct {
        bw_port_options_t known;
        uint64_t unknown;
    } newer;
    CHECK_CODE(bw_port_options_init(&newer.known, sizeof newer), BW_OK);
    CHECK(newer.known.size_bytes == sizeof newer && newer.unknown == 0);
    newer.unknown = 1;
    CHECK_CODE(bw_port_open(&newer.known, &twice), BW_ERROR_ARGUMENT);
    newer.unknown = 0;
    newer.known.receive_tokens = 1;
    open_on(1, &newer.known, &b);
    options.name = "other";
    options.send_tokens = 0;
    CHECK_CODE(bw_port_open(&options, &twice), BW_ERROR_OPTION);
    options.name = "no name";
    CHECK_CODE(bw_port_open(&options, &twice), BW_ERROR_ADDRESS_PORT);
    options.name = "other";
    options.send_tokens = 2;
    options.runtime_directory = "/dev/null/none";
    CHECK_CODE(bw_port_open(&options, &twice), BW_ERROR_RUNTIME_DIRECTORY);
    CHECK(strstr(bw_last_error_text(), "/dev/null/none") != NULL);
}

static void connecting(void) {
    bw_peer_t peer = 0;
    CHECK_CODE(bw_connect(a, "localhost/nobody", 1000, &peer), BW_ERROR_NO_PORT);
    const int unknown = machines == NULL ? BW_ERROR_NO_FABRIC : BW_ERROR_UNKNOWN_NODE;
    CHECK_CODE(bw_connect(a, "elsewhere.invalid/7", 5000000, &peer), unknown);
    CHECK_CODE(bw_connect_start(a, "localhost/walk", &peer), BW_ERROR_OWN_PORT);
    CHECK_CODE(bw_connect_start(a, "no node/7", &peer), BW_ERROR_ADDRESS_NODE);
    CHECK_CODE(bw_connect_start(a, "localhost/-7", &peer), BW_ERROR_ADDRESS_PORT);
    CHECK(strstr(bw_last_error_text(), "-7") != NULL);
    /* The other end does not poll, as this is its thread. */
    CHECK_CODE(bw_connect(a, bw_port_address(b), 1000, &peer), BW_ERROR_TIMED_OUT);
    CHECK(peer == 0);

    meet(a, b, &to_b, &to_a);
    bw_peer_info_t info;
    CHECK_CODE(bw_peer_info(b, to_a, &info, sizeof info), BW_OK);
    CHECK(strcmp(info.address, bw_port_address(a)) == 0);
    if (machines == NULL)
        CHECK(info.pid == getpid() && info.uid == getuid() && info.user[0] == '\0');
    else
        CHECK(info.pid == 0 && info.uid == UINT32_MAX && info.user[0] != '\0');
    /* Between machines every packet is checked. */
    CHECK(info.message_bytes_max == 1000000 && info.integrity == (machines != NULL));
    bw_peer_t peers[2] = {0, 0};
    CHECK(bw_peers(a, peers, 2) == 1 && peers[0] == to_b && bw_peers(a, NULL, 0) == 1);
}

static void messages(void) {
    static unsigned char sent[5000];
    fill(sent, sizeof sent, 1);
    const size_t lengths[] = {0, 1, 56, 57, 4096};
    for (size_t index = 0; index < sizeof lengths / sizeof *lengths; index++) {
        for (uint32_t priority = BW_PRIORITY_LOW; priority <= BW_PRIORITY_HIGH; priority++) {
            CHECK_CODE(bw_send(a, to_b, priority, sent, lengths[index]), BW_OK);
            bw_event_t event = expect(b, BW_EVENT_MESSAGE, a);
            CHECK(event.peer == to_a && event.priority == priority && event.length_bytes == lengths[index]);
            CHECK(memcmp(event.data, sent, lengths[index]) == 0 && event.buffer == NULL);
        }
    }
    CHECK_CODE(bw_event_release(b), BW_OK);
    CHECK_CODE(bw_send(a, to_b, BW_PRIORITY_LOW, sent, 4097), BW_ERROR_TOO_LONG);
    CHECK(strstr(bw_last_error_text(), "4096") != NULL);

    uint32_t count = 0, received = 0, rooms = 0;
    int code;
    while ((code = bw_send(a, to_b, BW_PRIORITY_LOW, &count, sizeof count)) == BW_OK)
        count++;
    CHECK(code == BW_ERROR_FULL && count > 0);
    /* There may be room before everything has been taken. */
    time_t limit = time(NULL) + 60;
    while (received < count || rooms == 0) {
        bw_event_t event;
        CHECK(time(NULL) < limit);
        for (int got = bw_poll(b, &event); got == 1; got = bw_poll_arrived(b, &event)) {
            uint32_t number;
            CHECK(event.kind == BW_EVENT_MESSAGE && event.length_bytes == sizeof number);
            memcpy(&number, event.data, sizeof number);
            CHECK(number == received++);
        }
        if (bw_poll(a, &event) == 1) {
            CHECK(event.kind == BW_EVENT_ROOM && event.peer == to_b && event.priority == BW_PRIORITY_LOW);
            CHECK(++rooms == 1);
        }
    }
    CHECK_CODE(bw_send(a, to_b, BW_PRIORITY_LOW, &count, sizeof count), BW_OK);
    expect(b, BW_EVENT_MESSAGE, a);
}

/* Takes the datagrams that arrive from another machine, until there is room for more and none has come for a second. A network
 * may lose some. */
static void take_datagrams(int sent) {
    int received = 0, rooms = 0;
    time_t limit = time(NULL) + 60, last = time(NULL);
    while (rooms == 0 || time(NULL) < last + 2) {
        bw_event_t event;
        CHECK(time(NULL) < limit);
        if (bw_poll(b, &event) == 1) {
            CHECK(event.kind == BW_EVENT_DATAGRAM && event.priority == BW_PRIORITY_HIGH);
            CHECK(event.length_bytes == 4 && memcmp(event.data, "news", 4) == 0);
            received++;
            last = time(NULL);
        }
        if (bw_poll(a, &event) == 1) {
            CHECK(event.kind == BW_EVENT_ROOM && event.peer == to_b && event.priority == BW_PRIORITY_HIGH);
            CHECK(++rooms == 1);
        }
    }
    CHECK(received > 0 && received <= sent);
}

static void datagrams(void) {
    int sent = 0, code;
    while ((code = bw_send_datagram(a, to_b, BW_PRIORITY_HIGH, "news", 4)) == BW_OK)
        sent++;
    CHECK(code == BW_ERROR_DROPPED && sent > 0);
    bw_statistics_t statistics;
    CHECK_CODE(bw_port_statistics(a, &statistics, sizeof statistics), BW_OK);
    CHECK(statistics.datagrams_unsent == 1);
    CHECK_CODE(bw_await_room(a, to_b, BW_PRIORITY_HIGH), BW_OK);
    if (machines != NULL) {
        take_datagrams(sent);
        return;
    }
    bw_event_t event;
    CHECK_CODE(bw_poll(a, &event), 0);
    CHECK_CODE(bw_has_progressed(a), 0);
    /* Its news is not for the other end's polls to take. */
    for (; sent > 0; sent--) {
        event = expect(b, BW_EVENT_DATAGRAM, NULL);
        CHECK(event.length_bytes == 4 && memcmp(event.data, "news", 4) == 0 && event.priority == BW_PRIORITY_HIGH);
    }
    event = expect(a, BW_EVENT_ROOM, b);
    CHECK(event.peer == to_b && event.priority == BW_PRIORITY_HIGH);
}

static void long_messages(void) {
    static unsigned char sent[100000], posted[200000];
    bw_transfer_t transfer = 0;
    fill(sent, sizeof sent, 2);
    CHECK_CODE(bw_send_buffer(a, to_b, BW_PRIORITY_LOW, sent, sizeof sent, BW_CONFIRM_DELIVERED, &transfer), BW_OK);
    CHECK(transfer != 0);
    bw_event_t event = expect(b, BW_EVENT_BUFFER_NEEDED, a);
    CHECK(event.peer == to_a && event.priority == BW_PRIORITY_LOW && event.length_bytes == sizeof sent);
    CHECK_CODE(bw_post_receive(b, BW_PRIORITY_LOW, posted, sizeof posted), BW_OK);
    CHECK_CODE(bw_post_receive(b, BW_PRIORITY_LOW, posted, sizeof posted), BW_ERROR_ARGUMENT);
    CHECK_CODE(bw_post_receive(b, BW_PRIORITY_LOW, posted + 1, 10), BW_ERROR_NO_RECEIVE_TOKEN);
    event = expect(b, BW_EVENT_MESSAGE, a);
    CHECK(event.data == posted && event.buffer == posted && event.buffer_bytes == sizeof posted);
    CHECK(event.length_bytes == sizeof sent && memcmp(posted, sent, sizeof sent) == 0);
    event = expect(a, BW_EVENT_SENT, b);
    CHECK(event.transfer == transfer && event.buffer == sent && event.buffer_bytes == sizeof sent);
    CHECK(event.status == BW_OK);

    /* Tokens: two may be out. */
    for (int count = 0; count < 2; count++)
        CHECK_CODE(bw_send_buffer(a, to_b, BW_PRIORITY_HIGH, sent, 10, BW_CONFIRM_DELIVERED, NULL), BW_OK);
    CHECK_CODE(bw_send_buffer(a, to_b, BW_PRIORITY_HIGH, sent, 10, BW_CONFIRM_DELIVERED, NULL), BW_ERROR_NO_TOKEN);
    for (int count = 0; count < 2; count++)
        expect(b, BW_EVENT_MESSAGE, NULL);
    for (int count = 0; count < 2; count++)
        CHECK(expect(a, BW_EVENT_SENT, b).buffer == sent);
    /* What the target states as its limit. */
    CHECK_CODE(bw_send_buffer(b, to_a, BW_PRIORITY_LOW, sent, 1000001, BW_CONFIRM_COPIED, NULL), BW_ERROR_TOO_LONG);
}

static void regions(void) {
    unsigned char data[8] = {1, 2, 3, 4, 5, 6, 7, 8}, got[4] = {0, 0, 0, 0};
    bw_key_t both = 0, readable = 0;
    bw_transfer_t transfer;
    void *memory = NULL;
    size_t length = 0;
    static unsigned char region[64];
    CHECK_CODE(bw_region_register(b, region, sizeof region, BW_RIGHT_READ | BW_RIGHT_WRITE, &both), BW_OK);
    CHECK_CODE(bw_region_memory(b, both, &memory, NULL), BW_OK);
    CHECK(memory == region);
    CHECK_CODE(bw_region_register(b, NULL, 32, BW_RIGHT_READ, &readable), BW_OK);
    CHECK_CODE(bw_region_memory(b, readable, &memory, &length), BW_OK);
    CHECK(memory != NULL && length == 32);
    memcpy(memory, "readable", 8);

    CHECK_CODE(bw_put(a, to_b, BW_PRIORITY_LOW, both, 56, data, 8, "note", 4, &transfer), BW_OK);
    bw_event_t event = expect(b, BW_EVENT_NOTIFIED, a);
    CHECK(event.peer == to_a && event.length_bytes == 4 && memcmp(event.data, "note", 4) == 0);
    CHECK(memcmp(region + 56, data, 8) == 0);
    event = expect(a, BW_EVENT_PUT, b);
    CHECK(event.transfer == transfer && event.buffer == data && event.status == BW_OK);
    CHECK_CODE(bw_put(a, to_b, BW_PRIORITY_LOW, both, 0, data, 1, NULL, 0, NULL), BW_OK);
    CHECK(expect(a, BW_EVENT_PUT, b).status == BW_OK);

    CHECK_CODE(bw_get(a, to_b, BW_PRIORITY_LOW, both, 60, got, 4, &transfer), BW_OK);
    event = expect(a, BW_EVENT_GOT, b);
    CHECK(event.transfer == transfer && event.buffer == got && event.status == BW_OK);
    CHECK(memcmp(got, data + 4, 4) == 0);
    CHECK_CODE(bw_get(a, to_b, BW_PRIORITY_HIGH, readable, 4, got, 4, NULL), BW_OK);
    CHECK(expect(a, BW_EVENT_GOT, b).status == BW_OK && memcmp(got, "able", 4) == 0);

    CHECK_CODE(bw_put(a, to_b, BW_PRIORITY_LOW, both, 57, data, 8, NULL, 0, NULL), BW_OK);
    CHECK(expect(a, BW_EVENT_PUT, b).status == BW_ERROR_OUT_OF_RANGE);
    CHECK_CODE(bw_put(a, to_b, BW_PRIORITY_LOW, readable, 0, data, 8, NULL, 0, NULL), BW_OK);
    CHECK(expect(a, BW_EVENT_PUT, b).status == BW_ERROR_NO_RIGHT);
    char note[BW_NOTE_BYTES_MAX + 1] = {0};
    CHECK_CODE(bw_put(a, to_b, BW_PRIORITY_LOW, both, 0, data, 8, note, sizeof note, NULL), BW_ERROR_TOO_LONG);
    CHECK_CODE(bw_region_revoke(b, both), BW_OK);
    CHECK_CODE(bw_region_revoke(b, both), BW_ERROR_BAD_KEY);
    CHECK_CODE(bw_region_memory(b, both, &memory, NULL), BW_ERROR_BAD_KEY);
    CHECK_CODE(bw_get(a, to_b, BW_PRIORITY_LOW, both, 0, got, 4, NULL), BW_OK);
    CHECK(expect(a, BW_EVENT_GOT, b).status == BW_ERROR_BAD_KEY);
}

static void lending(void) {
    bw_heap_t *heap = NULL;
    bw_block_t *block = NULL, *spare = NULL;
    char copy[16] = {0};
    if (machines != NULL) {
        /* Two machines share no memory. */
        CHECK_CODE(bw_heap_open(a, to_b, 1000, 1, &heap), BW_ERROR_OTHER_MACHINE);
        CHECK(heap == NULL && strcmp(bw_last_error_text(), bw_error_text(BW_ERROR_OTHER_MACHINE)) == 0);
        return;
    }
    CHECK_CODE(bw_heap_open(a, to_b, 0, 1, &heap), BW_ERROR_HEAP_SIZE);
    CHECK_CODE(bw_heap_open(a, to_b, 1000, 1, &heap), BW_OK);
    CHECK(bw_heap_block_bytes(heap) == 1024 && bw_heap_peer(heap) == to_b);
    CHECK_CODE(bw_heap_block(heap, &block), BW_OK);
    CHECK_CODE(bw_heap_block(heap, &spare), BW_ERROR_NO_BLOCK);
    CHECK_CODE(bw_block_drop(block), BW_OK);
    CHECK_CODE(bw_heap_block(heap, &block), BW_OK);
    memcpy(bw_block_memory(block), "lent in place", 14);
    /* A failure leaves the block with the program. */
    CHECK_CODE(bw_send_lent(a, BW_PRIORITY_LOW, block, 1025), BW_ERROR_TOO_LONG);
    CHECK_CODE(bw_send_lent(b, BW_PRIORITY_LOW, block, 14) < BW_OK, 1);
    CHECK_CODE(bw_send_lent(a, BW_PRIORITY_LOW, block, 14), BW_OK);
    bw_event_t event = expect(b, BW_EVENT_LENT, a);
    CHECK(event.peer == to_a && event.length_bytes == 14 && bw_lent_bytes(event.lent) == 14);
    CHECK(bw_lent_read(event.lent, 5, copy, sizeof copy) == 9 && strcmp(copy, "in place") == 0);
    CHECK(bw_lent_read(event.lent, 14, copy, 1) == 0);
    CHECK(strcmp((const char *)bw_lent_memory(event.lent), "lent in place") == 0);
    CHECK_CODE(bw_heap_block(heap, &block), BW_ERROR_NO_BLOCK);
    CHECK_CODE(bw_lent_return(event.lent), BW_OK);
    time_t limit = time(NULL) + 60;
    while (bw_heap_block(heap, &block) == BW_ERROR_NO_BLOCK) {
        CHECK(bw_poll(b, &event) == 0 && bw_poll(a, &event) == 0 && time(NULL) < limit);
    }
    CHECK_CODE(bw_heap_close(heap), BW_OK);
    CHECK_CODE(bw_block_drop(block), BW_OK);
}

static void sleeping(void) {
    bw_event_t event;
    struct pollfd watched = {bw_descriptor(b), POLLIN, 0};
    CHECK(watched.fd >= 0);
    while (bw_arm(b) == 0)
        CHECK(bw_poll(b, &event) == 0);
    /* A packet that only acknowledges may come from another machine at any time. */
    CHECK(poll(&watched, 1, 0) == 0 || machines != NULL);
    CHECK_CODE(bw_send(a, to_b, BW_PRIORITY_LOW, "up", 2), BW_OK);
    CHECK(poll(&watched, 1, 60000) == 1);
    expect(b, BW_EVENT_MESSAGE, NULL);
    bw_statistics_t statistics;
    time_t limit = time(NULL) + 60;
    do {
        /* On a busy machine the time may be up before the port sleeps. */
        CHECK(bw_wait(b, 1000, &event) == 0 && event.kind == BW_EVENT_NONE);
        CHECK_CODE(bw_port_statistics(b, &statistics, sizeof statistics), BW_OK);
    } while (statistics.sleeps == 0 && time(NULL) < limit);
    CHECK(statistics.sleeps > 0);
    CHECK_CODE(bw_send(a, to_b, BW_PRIORITY_LOW, "up", 2), BW_OK);
    /* Its port is not polled meanwhile, and may gather more for the same packet. */
    CHECK_CODE(bw_flush(a), BW_OK);
    CHECK(bw_wait(b, BW_FOREVER, &event) == 1 && event.kind == BW_EVENT_MESSAGE);
}

static void forking(void) {
    pid_t child = fork();
    if (child == 0) {
        bw_event_t event;
        CHECK(bw_poll(a, &event) == 0);
        CHECK_CODE(bw_wait(a, 0, &event), BW_ERROR_FORKED);
        CHECK_CODE(bw_send(a, to_b, BW_PRIORITY_LOW, "x", 1), BW_ERROR_FORKED);
        CHECK_CODE(bw_port_close(a), BW_OK);
        CHECK_CODE(bw_port_close(open_named("child")), BW_OK);
        _exit(0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK_CODE(bw_send(a, to_b, BW_PRIORITY_LOW, "still here", 10), BW_OK);
    expect(b, BW_EVENT_MESSAGE, a);
}

static void parting(void) {
    static unsigned char posted[10000];
    bw_peer_info_t info;
    CHECK_CODE(bw_disconnect(a, to_b), BW_OK);
    bw_event_t event = expect(a, BW_EVENT_DISCONNECTED, NULL);
    CHECK(event.peer == to_b && event.status == BW_ERROR_DISCONNECTED_HERE);
    event = expect(b, BW_EVENT_DISCONNECTED, NULL);
    CHECK(event.peer == to_a && event.status == BW_ERROR_DISCONNECTED_CLOSED);
    CHECK_CODE(bw_peer_info(b, to_a, &info, sizeof info), BW_ERROR_NO_PEER);
    CHECK_CODE(bw_send(b, to_a, BW_PRIORITY_LOW, "x", 1), BW_ERROR_DISCONNECTED_CLOSED);
    CHECK(bw_peers(b, NULL, 0) == 0);
    /* Closing gives posted memory back. */
    CHECK_CODE(bw_post_receive(b, BW_PRIORITY_HIGH, posted, sizeof posted), BW_OK);
    CHECK_CODE(bw_port_close(a), BW_OK);
    CHECK_CODE(bw_port_close(b), BW_OK);
    memset(posted, 1, sizeof posted);
}

int main(int count, char **arguments) {
    CHECK(count == 1 || count == 5);
    machines = count == 1 ? NULL : arguments + 1;
    opening();
    connecting();
    messages();
    datagrams();
    long_messages();
    regions();
    lending();
    sleeping();
    forking();
    parting();
    puts("walked");
    return 0;
}
