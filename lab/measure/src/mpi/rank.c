/*
 * One rank of a measurement between the ranks of an MPI job: rank 0 is the source, rank 1 the target. More ranks do as rank 1.
 *
 * It is compiled by the implementation's own mpicc, and started by a process that reads the accounts of this one between
 * blocks and speaks for it: what is to be told goes to standard output a line at a time, and a block begins with a line
 * on standard input. What a message carries is written before it is sent and read after it has arrived, word by word,
 * as in payload.rs; its first byte says what it is, as in endpoint.rs.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SOURCE, TARGET };
enum { DATA_TAG = 1, CONTROL_TAG = 2, UNMATCHED_TAG = 3 };
enum { DATA = 0, END = 3 << 5 };

/* So many messages may be under way in each direction, and so many bytes. */
#define SLOTS_MAX 64
#define SLOTS_MIN 2
#define UNDER_WAY_BYTES (4u << 20)

/* More round trips end a block before its time. */
#define SAMPLES_MAX (8u << 20)

struct part {
    uint64_t began_ns, ended_ns, operations, sent_bytes, received_bytes, cpu_ns;
};

static int rank, ranks, peer, verify;
static uint64_t block_ns;
static volatile uint64_t sink;

static void fail(const char *reason)
{
    printf("failed %s\n", reason);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* --- clocks --- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int counts;
static uint64_t counter_start, ns_per_count; /* 32 bits behind the point */

#ifdef __x86_64__
static uint64_t counter(void) { return __builtin_ia32_rdtsc(); }
#else
static uint64_t counter(void) { return 0; }
#endif

/* Both clocks at one moment: the closest of a few readings, so that a preemption in between does no harm. */
static uint64_t simultaneous(uint64_t *count)
{
    uint64_t width_min = UINT64_MAX, closest_ns = 0;
    for (int reading = 0; reading < 8; reading++) {
        uint64_t before = counter(), now = clock_ns(CLOCK_MONOTONIC), width = counter() - before;
        if (width < width_min) {
            width_min = width;
            closest_ns = now;
            *count = before + width / 2;
        }
    }
    return closest_ns;
}

/* The same clock as the laboratory's own (clock.rs), so that reading it costs the same. */
static void calibrate(void)
{
    struct timespec apart = {0, 10000000};
    uint64_t end = 0, started_ns = simultaneous(&counter_start);
    nanosleep(&apart, NULL);
    uint64_t elapsed_ns = simultaneous(&end) - started_ns;
    if (end != counter_start)
        ns_per_count = (uint64_t)(((unsigned __int128)elapsed_ns << 32) / (end - counter_start));
    counts = ns_per_count > 0;
}

static inline uint64_t now_ns(void)
{
    if (!counts)
        return clock_ns(CLOCK_MONOTONIC);
    /* Another core's counter may be a few counts behind the one that was read first: never go below zero. */
    uint64_t count = counter(), passed = count > counter_start ? count - counter_start : 0;
    return (uint64_t)(((unsigned __int128)passed * ns_per_count) >> 32);
}

/* --- payloads --- */

#define STRIDE 0x9e3779b97f4a7c15u
#define SEQUENCE_MASK ((UINT64_C(1) << 56) - 1)

static uint64_t sequence_out, sequence_in;

static void write_message(unsigned char *message, size_t length, int mark, uint64_t sequence)
{
    if (length < 8) {
        memset(message, 0xa5, length);
        message[0] = (unsigned char)mark;
        return;
    }
    uint64_t word = sequence << 8 | (uint64_t)mark, place = 8;
    memcpy(message, &word, 8);
    word = sequence * STRIDE;
    for (; place + 8 <= length; place += 8) {
        word++;
        memcpy(message + place, &word, 8);
    }
    word++;
    memcpy(message + place, &word, length - place);
}

static inline void fill(unsigned char *message, size_t length, int mark)
{
    write_message(message, length, mark, sequence_out);
    sequence_out = (sequence_out + 1) & SEQUENCE_MASK;
}

static void compare(const unsigned char *message, size_t length, uint64_t sequence)
{
    static unsigned char *expected;
    static size_t room;
    if (room < length) {
        expected = realloc(expected, length);
        room = length;
        if (!expected)
            fail("no memory to compare payloads in");
    }
    write_message(expected, length, message[0], sequence);
    if (memcmp(message, expected, length) != 0)
        fail("payload corrupted: a message is not what must have been written");
}

/* Reads every byte; returns the message's first one. */
static inline int look(const unsigned char *message, size_t length, uint64_t sequence)
{
    if (verify)
        compare(message, length, sequence);
    uint64_t sum = 0, word = 0;
    size_t place = 0;
    for (; place + 8 <= length; place += 8) {
        memcpy(&word, message + place, 8);
        sum += word;
    }
    word = 0;
    memcpy(&word, message + place, length - place);
    sink = sum + word;
    if (message[0] != DATA && message[0] != END)
        fail("payload corrupted: a message begins with a byte that is not a mark");
    return message[0];
}

static inline int take(const unsigned char *message, size_t length, MPI_Status *status, size_t due)
{
    int received;
    MPI_Get_count(status, MPI_BYTE, &received);
    if ((size_t)received != due)
        fail("a message arrived with another length than was due");
    uint64_t sequence = sequence_in;
    sequence_in = (sequence_in + 1) & SEQUENCE_MASK;
    return look(message, length, sequence);
}

static unsigned char *memory(size_t length)
{
    void *bytes = NULL;
    if (posix_memalign(&bytes, 4096, length) != 0)
        fail("no memory for messages");
    memset(bytes, 0, length);
    return bytes;
}

/* --- messages, one at a time: half-RTT and transactions --- */

static size_t out_bytes, in_bytes;
static unsigned char *out, *in;
static uint32_t *samples;
static size_t sample_count;

static int receive_one(void)
{
    MPI_Status status;
    MPI_Recv(in, (int)in_bytes, MPI_BYTE, peer, DATA_TAG, MPI_COMM_WORLD, &status);
    return take(in, in_bytes, &status, in_bytes);
}

static void send_one(int mark)
{
    fill(out, out_bytes, mark);
    MPI_Send(out, (int)out_bytes, MPI_BYTE, peer, DATA_TAG, MPI_COMM_WORLD);
}

static void ping(struct part *part)
{
    uint64_t now, stop = now_ns() + block_ns;
    do {
        uint64_t sent = now_ns();
        send_one(DATA);
        receive_one();
        now = now_ns();
        uint64_t took = now - sent;
        samples[sample_count++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    } while (now < stop && sample_count < SAMPLES_MAX);
    part->ended_ns = now;
    part->operations = sample_count;
    part->sent_bytes = sample_count * out_bytes;
    part->received_bytes = sample_count * in_bytes;
    send_one(END);
    receive_one();
}

static void pong(struct part *part)
{
    while (receive_one() == DATA) {
        send_one(DATA);
        part->operations++;
    }
    part->ended_ns = now_ns();
    part->sent_bytes = part->operations * out_bytes;
    part->received_bytes = part->operations * in_bytes;
    send_one(END);
}

/* --- messages in a row: rates --- */

/* Messages under way in one direction, each in a slot of its own. */
struct row {
    unsigned char *memory;
    size_t length, slots, next;
    MPI_Request requests[SLOTS_MAX];
};

static struct row sending, receiving;

static void open_row(struct row *row, size_t length)
{
    size_t slots = UNDER_WAY_BYTES / length;
    row->slots = slots < SLOTS_MIN ? SLOTS_MIN : slots > SLOTS_MAX ? SLOTS_MAX : slots;
    row->length = length;
    row->memory = memory(row->slots * length);
    row->next = 0;
    for (size_t slot = 0; slot < row->slots; slot++)
        row->requests[slot] = MPI_REQUEST_NULL;
}

static unsigned char *slot(struct row *row) { return row->memory + row->next * row->length; }

static void post(struct row *row)
{
    MPI_Irecv(slot(row), (int)row->length, MPI_BYTE, peer, DATA_TAG, MPI_COMM_WORLD, &row->requests[row->next]);
    row->next = (row->next + 1) % row->slots;
}

/* The slot's last message has gone. */
static void push(struct row *row, int mark)
{
    fill(slot(row), row->length, mark);
    MPI_Isend(slot(row), (int)row->length, MPI_BYTE, peer, DATA_TAG, MPI_COMM_WORLD, &row->requests[row->next]);
    row->next = (row->next + 1) % row->slots;
}

static void push_waiting(struct row *row, int mark)
{
    MPI_Wait(&row->requests[row->next], MPI_STATUS_IGNORE);
    push(row, mark);
}

static int pull_waiting(struct row *row)
{
    MPI_Status status;
    MPI_Wait(&row->requests[row->next], &status);
    int mark = take(slot(row), row->length, &status, row->length);
    post(row);
    return mark;
}

/* So many messages may pass between two looks at the clock. */
static uint64_t stride(size_t length) { return length < 4096 ? 16 : 1; }

static void stream(struct part *part)
{
    uint64_t stop = now_ns() + block_ns, at_once = stride(out_bytes);
    while (now_ns() < stop) {
        for (uint64_t count = 0; count < at_once; count++)
            push_waiting(&sending, DATA);
        part->operations += at_once;
    }
    push_waiting(&sending, END);
    part->operations++;
    part->sent_bytes = part->operations * out_bytes;
    char ended;
    MPI_Recv(&ended, 1, MPI_BYTE, peer, CONTROL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    part->ended_ns = now_ns();
}

static void drain(struct part *part)
{
    int mark;
    do {
        mark = pull_waiting(&receiving);
        part->operations++;
    } while (mark == DATA);
    part->ended_ns = now_ns();
    part->received_bytes = part->operations * in_bytes;
    char ended = 0;
    MPI_Send(&ended, 1, MPI_BYTE, peer, CONTROL_TAG, MPI_COMM_WORLD);
}

/* Both ends send and receive at once; the source ends by the clock, the target when it has seen the source's end. */
static void both(struct part *part)
{
    uint64_t stop = now_ns() + block_ns;
    int peer_ended = 0, ended = 0, ready;
    while (!ended || !peer_ended) {
        int over = rank == SOURCE ? now_ns() >= stop : peer_ended;
        for (uint64_t count = stride(out_bytes); count > 0 && !ended; count--) {
            MPI_Test(&sending.requests[sending.next], &ready, MPI_STATUS_IGNORE);
            if (!ready)
                break;
            push(&sending, over ? END : DATA);
            part->sent_bytes += out_bytes;
            ended = over;
        }
        for (uint64_t count = stride(in_bytes); count > 0 && !peer_ended; count--) {
            MPI_Status status;
            MPI_Test(&receiving.requests[receiving.next], &ready, &status);
            if (!ready)
                break;
            peer_ended = take(slot(&receiving), in_bytes, &status, in_bytes) == END;
            post(&receiving);
            part->operations++;
            part->received_bytes += in_bytes;
            part->ended_ns = now_ns();
        }
    }
}

/* --- operations of all ranks --- */

/* The next operation of this test. Returns the mark that rank 0 gave it. */
static int (*operate)(int mark);

static uint64_t sequence_between(int source, int target)
{
    return ((sequence_out * (uint64_t)ranks + (uint64_t)source) * (uint64_t)ranks + (uint64_t)target) & SEQUENCE_MASK;
}

/* Every rank sends every rank a message of its own. */
static int exchange(int mark)
{
    for (int other = 0; other < ranks; other++)
        write_message(out + (size_t)other * out_bytes, out_bytes, mark, sequence_between(rank, other));
    MPI_Alltoall(out, (int)out_bytes, MPI_BYTE, in, (int)in_bytes, MPI_BYTE, MPI_COMM_WORLD);
    int marks[2] = {DATA, DATA};
    for (int other = 0; other < ranks; other++)
        marks[other != SOURCE] = look(in + (size_t)other * in_bytes, in_bytes, sequence_between(other, rank));
    sequence_out = (sequence_out + 1) & SEQUENCE_MASK;
    return marks[0];
}

/* What rank 0 adds to the first number at the end. */
#define END_NUMBER (UINT64_C(1) << 63)

/* Every rank gets the sums of the numbers that all have. */
static int reduce(int mark)
{
    uint64_t *numbers = (uint64_t *)out, *sums = (uint64_t *)in;
    size_t count = out_bytes / sizeof *numbers;
    uint64_t first = sequence_out * STRIDE, all = (uint64_t)ranks, sum = 0;
    for (size_t place = 0; place < count; place++)
        numbers[place] = first + place + (uint64_t)rank;
    if (mark == END)
        numbers[0] += END_NUMBER;
    MPI_Allreduce(numbers, sums, (int)count, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    uint64_t expected = all * first + all * (all - 1) / 2;
    int ended = sums[0] == expected + END_NUMBER;
    if (!ended && sums[0] != expected)
        fail("payload corrupted: a sum is not that of the numbers that the ranks had");
    for (size_t place = 1; place < count; place++) {
        sum += sums[place];
        if (verify && sums[place] != expected + all * place)
            fail("payload corrupted: a sum is not that of the numbers that the ranks had");
    }
    sink = sum;
    sequence_out = (sequence_out + 1) & SEQUENCE_MASK;
    return ended ? END : DATA;
}

static void lead(struct part *part)
{
    uint64_t now, stop = now_ns() + block_ns;
    do {
        uint64_t began = now_ns();
        operate(DATA);
        now = now_ns();
        uint64_t took = now - began;
        samples[sample_count++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    } while (now < stop && sample_count < SAMPLES_MAX);
    part->ended_ns = now;
    part->operations = sample_count;
    part->sent_bytes = sample_count * out_bytes;
    part->received_bytes = sample_count * in_bytes;
    operate(END);
}

static void follow(struct part *part)
{
    while (operate(DATA) == DATA)
        part->operations++;
    part->ended_ns = now_ns();
    part->sent_bytes = part->operations * out_bytes;
    part->received_bytes = part->operations * in_bytes;
}

/* --- the block loop --- */

struct test {
    const char *name;
    int sends[2], receives[2]; /* in a row, by side */
    void (*block[2])(struct part *);
    int (*operation)(int mark);
};

/* The side of this rank. */
static int side(void) { return rank == SOURCE ? SOURCE : TARGET; }

static const struct test tests[] = {
    {"latency", {0, 0}, {0, 0}, {ping, pong}, NULL},
    {"stream", {1, 0}, {0, 1}, {stream, drain}, NULL},
    {"bidir", {1, 1}, {1, 1}, {both, both}, NULL},
    {"alltoall", {0, 0}, {0, 0}, {lead, follow}, exchange},
    {"allreduce", {0, 0}, {0, 0}, {lead, follow}, reduce},
};

/* Joins the other ranks at the start of a block. */
static void begin(void)
{
    char word = 0;
    if (operate) {
        MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    if (rank == SOURCE)
        MPI_Send(&word, 1, MPI_BYTE, peer, CONTROL_TAG, MPI_COMM_WORLD);
    MPI_Recv(&word, 1, MPI_BYTE, peer, CONTROL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == TARGET)
        MPI_Send(&word, 1, MPI_BYTE, peer, CONTROL_TAG, MPI_COMM_WORLD);
}

/* The accounts of this process are read while it waits for a line. */
static void await_leave(void)
{
    char line[16];
    printf("ready %llu\n", (unsigned long long)clock_ns(CLOCK_THREAD_CPUTIME_ID));
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(3);
}

static void tell(const struct part *part, uint64_t began_ns)
{
    printf("block %llu %llu %llu %llu %llu %llu %llu %zu\n", (unsigned long long)part->began_ns,
           (unsigned long long)(part->ended_ns - began_ns), (unsigned long long)part->operations,
           (unsigned long long)part->sent_bytes, (unsigned long long)part->received_bytes,
           (unsigned long long)part->cpu_ns, (unsigned long long)clock_ns(CLOCK_THREAD_CPUTIME_ID), sample_count);
    if (sample_count > 0)
        fwrite(samples, sizeof *samples, sample_count, stdout);
    fflush(stdout);
}

static void run(const struct test *test, long blocks)
{
    int sends = test->sends[side()], receives = test->receives[side()];
    operate = test->operation;
    if (sends)
        open_row(&sending, out_bytes);
    if (receives) {
        open_row(&receiving, in_bytes);
        for (size_t count = 0; count < receiving.slots; count++)
            post(&receiving);
    }
    for (; blocks > 0; blocks--) {
        struct part part = {0};
        sample_count = 0;
        await_leave();
        begin();
        part.began_ns = clock_ns(CLOCK_MONOTONIC);
        uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID), began_ns = now_ns();
        part.ended_ns = began_ns;
        test->block[side()](&part);
        part.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
        tell(&part, began_ns);
    }
    /* What the other rank still expects, so that nothing has to be cancelled. */
    for (size_t count = 0; sends && count < sending.slots; count++)
        push_waiting(&sending, DATA);
    if (receives)
        MPI_Waitall((int)receiving.slots, receiving.requests, MPI_STATUSES_IGNORE);
    if (sends)
        MPI_Waitall((int)sending.slots, sending.requests, MPI_STATUSES_IGNORE);
}

static void introduce(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING], thread[64];
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n\r")] = 0;
    /* As /proc calls it, which may be another namespace's. */
    ssize_t named = readlink("/proc/thread-self", thread, sizeof thread - 1);
    thread[named > 0 ? named : 0] = 0;
    printf("rank %d %s %s\n", rank, thread, version);
    fflush(stdout);
}

/* Receives that were posted before all others, each for a message with a tag of its own that is sent in the end. */
static MPI_Request *unmatched;

static void post_unmatched(size_t count)
{
    static char nothing;
    unmatched = calloc(count + 1, sizeof *unmatched);
    if (!unmatched)
        fail("no memory for receives");
    for (size_t place = 0; place < count; place++)
        MPI_Irecv(&nothing, 0, MPI_BYTE, peer, UNMATCHED_TAG + (int)place, MPI_COMM_WORLD, &unmatched[place]);
}

static void match_unmatched(size_t count)
{
    for (size_t place = 0; place < count; place++)
        MPI_Send(NULL, 0, MPI_BYTE, peer, UNMATCHED_TAG + (int)place, MPI_COMM_WORLD);
    MPI_Waitall((int)count, unmatched, MPI_STATUSES_IGNORE);
}

/* TEST FORWARD_BYTES BACK_BYTES BLOCK_US BLOCKS VERIFY COUNTER UNMATCHED */
int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 9 || ranks < 2)
        fail("it takes at least two ranks and eight words");
    peer = 1 - rank;
    out_bytes = strtoull(words[rank == SOURCE ? 2 : 3], NULL, 10);
    in_bytes = strtoull(words[rank == SOURCE ? 3 : 2], NULL, 10);
    block_ns = strtoull(words[4], NULL, 10) * 1000;
    verify = words[6][0] == '1';
    if (words[7][0] == '1')
        calibrate();
    if (out_bytes < 1 || in_bytes < 1)
        fail("a message has at least one byte");
    const struct test *test = NULL;
    for (size_t place = 0; place < sizeof tests / sizeof *tests; place++)
        if (strcmp(tests[place].name, words[1]) == 0)
            test = &tests[place];
    if (!test)
        fail("there is no such test");
    if (!test->operation && ranks != 2)
        fail("it takes two ranks");
    out = memory(test->operation ? out_bytes * (size_t)ranks : out_bytes);
    in = memory(test->operation ? in_bytes * (size_t)ranks : in_bytes);
    if (rank == SOURCE)
        samples = (uint32_t *)memory(SAMPLES_MAX * sizeof *samples);
    introduce();
    size_t waiting = strtoull(words[8], NULL, 10);
    post_unmatched(waiting);
    run(test, strtol(words[5], NULL, 10));
    match_unmatched(waiting);
    MPI_Finalize();
    return 0;
}
