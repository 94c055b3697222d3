/* Two endpoints of one process read and write each other's memory by every call, over libfabric's own interface. */

#include <stdint.h>
#include <rdma/fabric.h>

static const uint64_t counted[] = { FI_WRITE, FI_READ, FI_REMOTE_WRITE, FI_REMOTE_READ };
enum { WRITTEN, READ, REMOTE_WRITTEN, REMOTE_READ, COUNTERS };

#include "ends.h"

#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 300, LONG = 1 << 20, KEY = 7 };

/* The next thing that an end is told: the error of the operation with this context. */
static int error_of(struct end *end, void *context)
{
    struct fi_cq_err_entry error = next_error(end);
    CHECK(error.op_context == context);
    return error.err;
}

static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t place = 0; place < length; place++)
        bytes[place] = (unsigned char) (place * 7919u >> 5) + seed;
}

static const uint64_t ALL = FI_REMOTE_READ | FI_REMOTE_WRITE;
static unsigned char memory[LONG + 16], out[LONG], in[LONG];

/* Every length, to another endpoint and to itself, in one piece and in several. */
static void lengths(void)
{
    static const size_t lengths[] = { 0, 1, 8, 40, 4096, 16383, 16384, 16385, 65536, 65537, LONG };
    struct fid_mr *mr;
    int word;
    DONE(fi_mr_reg(domain, memory, LONG, ALL, 0, KEY, 0, &mr, NULL));
    CHECK(fi_mr_key(mr) == KEY);
    for (int turn = 0; turn < 4; turn++)
        for (size_t place = 0; place < sizeof lengths / sizeof *lengths; place++) {
            size_t length = lengths[place], offset = LONG - length, half = length / 3;
            fi_addr_t target = turn % 2 ? a.own : a.other;
            struct iovec from[2] = { { out, half }, { out + half, length - half } };
            struct iovec to[2] = { { in, half }, { in + half, length - half } };
            fill(out, length, (unsigned) (turn + place));
            memset(memory, 0xee, sizeof memory);
            memset(in, 0xdd, sizeof in);
            if (turn < 2)
                DONE(fi_write(a.ep, out, length, fi_mr_desc(mr), target, offset, KEY, &word));
            else
                DONE(fi_writev(a.ep, from, NULL, 2, target, offset, KEY, &word));
            struct fi_cq_tagged_entry entry = next(&a);
            CHECK(entry.op_context == &word && entry.flags == (FI_RMA | FI_WRITE));
            CHECK(!memcmp(memory + offset, out, length) && memory[LONG] == 0xee);
            CHECK(!offset || memory[offset - 1] == 0xee);
            if (turn < 2)
                DONE(fi_read(a.ep, in, length, NULL, target, offset, KEY, &word));
            else
                DONE(fi_readv(a.ep, to, NULL, 2, target, offset, KEY, &word));
            entry = next(&a);
            CHECK(entry.op_context == &word && entry.flags == (FI_RMA | FI_READ));
            CHECK(!memcmp(in, out, length) && (length == LONG || in[length] == 0xdd));
        }
    DONE(fi_close(&mr->fid));
}

/* What a target learns, and what completes how. */
static void calls(void)
{
    struct fid_mr *mr;
    int word;
    struct iovec piece = { out, 8 };
    struct fi_rma_iov place = { 100, 8, KEY };
    struct fi_msg_rma message = { &piece, NULL, 1, a.other, &place, 1, &word, 0x123456789abcdef0 };
    struct fi_cq_tagged_entry entry;
    uint64_t written = fi_cntr_read(a.counters[WRITTEN]), read = fi_cntr_read(a.counters[READ]);
    uint64_t remote_written = fi_cntr_read(b.counters[REMOTE_WRITTEN]), remote_read = fi_cntr_read(b.counters[REMOTE_READ]);
    struct fid_cntr *counter;
    struct fi_cntr_attr attributes = { .events = FI_CNTR_EVENTS_COMP };
    DONE(fi_mr_reg(domain, memory, LONG, ALL, 0, KEY, FI_RMA_EVENT, &mr, NULL));
    CHECK(fi_mr_reg(domain, memory, LONG, ALL, 0, KEY, 0, &(struct fid_mr *) { 0 }, NULL) == -FI_ENOKEY);
    DONE(fi_cntr_open(domain, &attributes, &counter, NULL));
    DONE(fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE));
    DONE(fi_mr_enable(mr));

    fill(out, 16, 1);
    DONE(fi_inject_write(a.ep, out, 8, a.other, 0, KEY));
    memset(out, 0, 8);
    no_completion(&a);
    fill(out, 16, 1);
    CHECK(!memcmp(memory, out, 8));
    DONE(fi_cntr_wait(a.counters[WRITTEN], written + 1, -1));

    DONE(fi_writedata(a.ep, out, 8, NULL, 5, a.other, 8, KEY, &word));
    entry = next(&b);
    CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && entry.data == 5 && entry.len == 8);
    CHECK(next(&a).op_context == &word && !memcmp(memory + 8, out, 8));
    DONE(fi_inject_writedata(a.ep, out, 8, 6, a.other, 16, KEY));
    CHECK(next(&b).data == 6);
    DONE(fi_writedata(a.ep, out, LONG, NULL, 7, a.other, 0, KEY, &word));
    entry = next(&b);
    CHECK(entry.data == 7 && entry.len == LONG && !memcmp(memory, out, LONG));
    CHECK(next(&a).op_context == &word);

    DONE(fi_writemsg(a.ep, &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE));
    CHECK(next(&b).data == 0x123456789abcdef0);
    CHECK(next(&a).op_context == &word);
    DONE(fi_writemsg(a.ep, &message, FI_INJECT | FI_COMPLETION));
    memset(out, 0, 8);
    CHECK(next(&a).op_context == &word && memcmp(memory + 100, out, 8));
    piece.iov_base = in;
    memset(in, 0, 8);
    DONE(fi_readmsg(a.ep, &message, 0));
    CHECK(next(&a).flags == (FI_RMA | FI_READ) && !memcmp(in, memory + 100, 8));
    DONE(fi_read(a.ep, in, LONG, NULL, a.other, 0, KEY, &word));
    CHECK(next(&a).flags == (FI_RMA | FI_READ) && !memcmp(in, memory, LONG));

    CHECK(fi_cntr_read(a.counters[WRITTEN]) == written + 6 && fi_cntr_read(a.counters[READ]) == read + 2);
    CHECK(fi_cntr_read(b.counters[REMOTE_WRITTEN]) == remote_written + 6 && fi_cntr_read(b.counters[REMOTE_READ]) == remote_read + 2);
    CHECK(fi_cntr_read(counter) == 6);

    /* What is refused at once. */
    place.len = 7;
    CHECK(fi_writemsg(a.ep, &message, 0) == -FI_EINVAL);
    message.rma_iov_count = 2;
    CHECK(fi_readmsg(a.ep, &message, 0) == -FI_EINVAL);
    CHECK(fi_inject_write(a.ep, out, 4097, a.other, 0, KEY) == -FI_EMSGSIZE);
    CHECK(fi_write(a.ep, NULL, 8, NULL, a.other, 0, KEY, NULL) == -FI_EINVAL);
    CHECK(fi_write(a.ep, out, 8, NULL, 99, 0, KEY, NULL) == -FI_EINVAL);
    CHECK(fi_close(&counter->fid) == -FI_EBUSY);
    DONE(fi_close(&mr->fid));
    DONE(fi_close(&counter->fid));
}

/* A target checks key, right and bounds. The operation fails, and nothing else happens. */
static void not_permitted(void)
{
    static const size_t lengths[] = { 8, LONG / 2 };
    struct fid_mr *readable, *writable;
    int word;
    DONE(fi_mr_reg(domain, memory, LONG, FI_REMOTE_READ, 0, KEY, 0, &readable, NULL));
    DONE(fi_mr_reg(domain, memory, LONG, FI_REMOTE_WRITE, 0, KEY + 1, 0, &writable, NULL));
    memset(memory, 0xee, sizeof memory);
    uint64_t failed = fi_cntr_readerr(a.counters[WRITTEN]);
    for (int which = 0; which < 2; which++) {
        size_t length = lengths[which];
        struct { uint64_t place, key; int error; } places[] = {
            { 0, KEY + 2, FI_ENOKEY },           { 0, KEY, FI_EACCES },
            { LONG - length + 1, KEY + 1, FI_EACCES }, { UINT64_MAX, KEY + 1, FI_EACCES },
            { UINT64_MAX - length + 1, KEY + 1, FI_EACCES },
        };
        for (int turn = 0; turn < 5; turn++) {
            DONE(fi_write(a.ep, out, length, NULL, a.other, places[turn].place, places[turn].key, &word));
            CHECK(error_of(&a, &word) == places[turn].error);
            uint64_t key = places[turn].key == KEY + 2 ? KEY + 2 : 2 * KEY + 1 - places[turn].key;
            DONE(fi_read(a.ep, in, length, NULL, a.other, places[turn].place, key, &word));
            CHECK(error_of(&a, &word) == places[turn].error);
        }
    }
    CHECK(fi_cntr_readerr(a.counters[WRITTEN]) == failed + 10 && fi_cntr_wait(a.counters[WRITTEN], UINT64_MAX, 1) == -FI_ETIMEDOUT);
    for (size_t place = 0; place < sizeof memory; place++)
        CHECK(memory[place] == 0xee);

    /* A closed region refuses, also what is under way: nothing touches its memory once it is closed. */
    for (int turn = 0; turn < 40; turn++) {
        struct fid_mr *mr;
        int words[4], is_done[4] = { 0 };
        unsigned char *closed = malloc(LONG);
        CHECK(closed);
        memset(closed, 1, LONG);
        DONE(fi_mr_reg(domain, closed, LONG, ALL, 0, KEY + 2, 0, &mr, NULL));
        DONE(fi_write(a.ep, out, LONG, NULL, a.other, 0, KEY + 2, &words[0]));
        DONE(fi_read(a.ep, in, LONG, NULL, a.other, 0, KEY + 2, &words[1]));
        DONE(fi_write(a.ep, out, 8, NULL, a.other, 0, KEY + 2, &words[2]));
        DONE(fi_read(a.ep, in, 8, NULL, a.other, 0, KEY + 2, &words[3]));
        for (int step = 0; step < turn; step++)
            move();
        /* Closing waits for a put that reads the memory. */
        DONE(fi_close(&mr->fid));
        memset(closed, 2, LONG);
        for (int count = 0; count < 4; count++) {
            struct fi_cq_tagged_entry entry;
            ssize_t answer;
            while ((answer = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN)
                move();
            if (answer == 1) {
                is_done[(int *) entry.op_context - words] = 1;
                continue;
            }
            struct fi_cq_err_entry error = announced_error(&a, answer);
            CHECK(error.err == FI_ENOKEY && !is_done[(int *) error.op_context - words]);
        }
        for (size_t place = 0; place < LONG; place++)
            CHECK(closed[place] == 2);
        free(closed);
    }
    DONE(fi_close(&readable->fid));
    DONE(fi_close(&writable->fid));
}

/* Memory in several pieces is not registered, and the description says so. */
static void pieces(void)
{
    struct iovec places[2] = { { memory, 1000 }, { memory + 1000, LONG - 1000 } };
    struct fi_mr_attr attributes = { .mr_iov = places, .iov_count = 2, .access = ALL, .requested_key = KEY };
    struct fid_mr *mr;
    CHECK(info->domain_attr->mr_iov_limit == 1 && info->domain_attr->mr_cnt == 1 << 20);
    for (size_t count = 0; count <= 2; count += 2) {
        attributes.iov_count = count;
        CHECK(fi_mr_regv(domain, places, count, ALL, 0, KEY, 0, &mr, NULL) == -FI_EINVAL);
        CHECK(fi_mr_regattr(domain, &attributes, 0, &mr) == -FI_EINVAL);
    }
    attributes.iov_count = 1;
    DONE(fi_mr_regv(domain, places, 1, ALL, 0, KEY, 0, &mr, NULL));
    DONE(fi_close(&mr->fid));
    DONE(fi_mr_regattr(domain, &attributes, 0, &mr));
    DONE(fi_close(&mr->fid));
}

/* Both ways at once, more than a link takes. */
static void floods(void)
{
    static unsigned char from[MANY][5000], to[MANY][5000];
    struct fid_mr *mr;
    DONE(fi_mr_reg(domain, to, sizeof to, ALL, 0, KEY, 0, &mr, NULL));
    for (int turn = 0; turn < 3; turn++) {
        size_t length = turn == 1 ? 5000 : 100;
        for (int count = 0; count < MANY; count++) {
            struct end *end = count % 2 ? &a : &b;
            uint64_t place = (uint64_t) count * 5000;
            fill(from[count], length, (unsigned) (count + turn));
            if (turn == 2)
                DONE(fi_read(end->ep, from[count], length, NULL, end->other, place, KEY, NULL));
            else
                DONE(fi_write(end->ep, from[count], length, NULL, end->other, place, KEY, NULL));
        }
        for (int count = 0; count < MANY; count++)
            next(count % 2 ? &a : &b);
        for (int count = 0; count < MANY; count++)
            CHECK(!memcmp(from[count], to[count], length));
    }
    DONE(fi_close(&mr->fid));

    /* As many long messages, all of whose receives are there. Without FI_DIRECTED_RECV their source means nothing. */
    CHECK(!(info->caps & FI_DIRECTED_RECV));
    for (int count = 0; count < MANY; count++)
        DONE(fi_trecv(b.ep, to[count], 5000, NULL, count % 2 ? b.other : 99, count, 0, NULL));
    for (int count = 0; count < MANY; count++) {
        fill(from[count], 5000, count);
        DONE(fi_tsend(a.ep, from[count], 5000, NULL, a.other, count, NULL));
    }
    for (int count = 0; count < MANY; count++) {
        next(&a);
        next(&b);
    }
    for (int count = 0; count < MANY; count++)
        CHECK(!memcmp(from[count], to[count], 5000));
}

/* Programs that know the older way of registration name addresses, and get keys. */
static void older_registration(void)
{
    struct fid_domain *before = domain;
    struct fid_mr *mr, *other;
    int word, *address = &word, value = 77;
    CHECK(info->domain_attr->mr_mode == 0);
    info->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED;
    DONE(fi_domain(fabric, info, &domain, NULL));
    open_both();
    DONE(fi_mr_reg(domain, &word, sizeof word, ALL, 0, 0, 0, &mr, NULL));
    DONE(fi_mr_reg(domain, &word, sizeof word, ALL, 0, 0, 0, &other, NULL));
    CHECK(fi_mr_key(mr) != fi_mr_key(other));
    DONE(fi_write(a.ep, &value, sizeof value, NULL, a.other, (uintptr_t) address, fi_mr_key(mr), NULL));
    next(&a);
    CHECK(word == 77);
    DONE(fi_write(a.ep, &value, sizeof value, NULL, a.other, 0, fi_mr_key(mr), &word));
    CHECK(error_of(&a, &word) == FI_EACCES);
    DONE(fi_close(&mr->fid));
    DONE(fi_close(&other->fid));
    close_both();
    DONE(fi_close(&domain->fid));
    info->domain_attr->mr_mode = 0;
    domain = before;

    struct fi_info *hints = fi_allocinfo(), *found;
    hints->caps = FI_RMA;
    hints->domain_attr->mr_mode = FI_MR_BASIC;
    hints->fabric_attr->prov_name = strdup("bywire");
    DONE(fi_getinfo(FI_VERSION(1, 4), NULL, NULL, 0, hints, &found));
    CHECK(found->domain_attr->mr_mode == FI_MR_BASIC && found->tx_attr->rma_iov_limit == 1);
    CHECK((found->caps & (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SEND)) ==
          (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE));
    fi_freeinfo(found);
    fi_freeinfo(hints);
}

/* Operations with an endpoint that has gone fail. */
static void gone(void)
{
    int words[3];
    struct fid_mr *mr;
    DONE(fi_mr_reg(domain, memory, LONG, ALL, 0, KEY, 0, &mr, NULL));
    move();
    DONE(fi_write(a.ep, out, LONG, NULL, a.other, 0, KEY, &words[0]));
    DONE(fi_read(a.ep, in, LONG, NULL, a.other, 0, KEY, &words[1]));
    DONE(fi_write(a.ep, out, 8, NULL, a.other, 0, KEY, &words[2]));
    close_end(&b);
    for (int count = 0; count < 3; count++) {
        int error = next_error_alone().err;
        CHECK(error == FI_ESHUTDOWN || error == FI_ECONNRESET);
    }
    CHECK(fi_read(a.ep, in, 8, NULL, a.other, 0, KEY, NULL) == -FI_ESHUTDOWN);
    DONE(fi_close(&mr->fid));
    close_end(&a);
}

/* Events that the program itself writes. */
static void events(void)
{
    struct fi_eq_attr attributes = { .size = 4, .flags = FI_WRITE, .wait_obj = FI_WAIT_FD };
    struct fi_eq_entry entry = { 0 }, taken;
    struct fi_eq_err_entry error;
    struct fid_eq *eq;
    uint32_t kind;
    int descriptor;
    DONE(fi_eq_open(fabric, &attributes, &eq, NULL));
    DONE(fi_domain_bind(domain, &eq->fid, 0));
    struct fid *fids[] = { &eq->fid };
    DONE(fi_control(&eq->fid, FI_GETWAIT, &descriptor));
    struct pollfd ready = { descriptor, POLLIN, 0 };
    CHECK(fi_eq_read(eq, &kind, &taken, sizeof taken, 0) == -FI_EAGAIN);
    CHECK(fi_eq_sread(eq, &kind, &taken, sizeof taken, 1, 0) == -FI_EAGAIN);
    CHECK(fi_eq_readerr(eq, &error, 0) == -FI_EAGAIN);
    CHECK(fi_trywait(fabric, fids, 1) == 0 && poll(&ready, 1, 0) == 0);
    for (uintptr_t turn = 1; turn < 4; turn++) {
        entry.context = (void *) turn;
        CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0) == sizeof entry);
    }
    CHECK(fi_trywait(fabric, fids, 1) == -FI_EAGAIN && poll(&ready, 1, 0) == 1);
    CHECK(fi_eq_read(eq, &kind, &taken, 1, 0) == -FI_ETOOSMALL);
    CHECK(fi_eq_read(eq, &kind, &taken, sizeof taken, FI_PEEK) == sizeof taken && taken.context == (void *) 1);
    for (uintptr_t turn = 1; turn < 4; turn++)
        CHECK(fi_eq_sread(eq, &kind, &taken, sizeof taken, -1, 0) == sizeof taken && kind == FI_NOTIFY &&
              taken.context == (void *) turn);
    CHECK(poll(&ready, 1, 0) == 0);
    DONE(fi_close(&eq->fid));
    attributes.flags = 0;
    attributes.wait_obj = FI_WAIT_NONE;
    DONE(fi_eq_open(fabric, &attributes, &eq, NULL));
    CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0) == -FI_EINVAL);
    CHECK(fi_control(&eq->fid, FI_GETWAIT, &descriptor) == -FI_ENOSYS);
    DONE(fi_close(&eq->fid));
}

/* An endpoint that does not answer is given up after `FI_BYWIRE_CONNECT_TIMEOUT`: 100 ms here. The other one is of a domain in
   which nothing is read. */
static void no_answer(enum fi_wait_obj object)
{
    struct fi_cq_tagged_entry entry;
    int word;
    ssize_t answer;
    open_end_with(&a, FI_CQ_FORMAT_TAGGED, object, 0);
    struct fid_domain *second = open_elsewhere(&b);
    know(&a, &b);
    DONE(fi_write(a.ep, out, 8, NULL, a.other, 0, KEY, &word));
    double began = now();
    do
        answer = object == FI_WAIT_NONE ? fi_cq_read(a.cq, &entry, 1) : fi_cq_sread(a.cq, &entry, 1, NULL, 60000);
    while (answer == -FI_EAGAIN);
    CHECK(now() - began < 20);
    CHECK(announced_error(&a, answer).err == FI_ETIMEDOUT);
    CHECK(fi_tinject(a.ep, "x", 1, a.other, 0) == -FI_ETIMEDOUT);
    close_both();
    DONE(fi_close(&second->fid));
}

/* Closing a region ends although a peer that reads it does nothing any more: also in a forked child. */
static void stopped(void)
{
    struct fid_mr *mr;
    open_end(&a);
    open_elsewhere(&b);
    meet(&a, &b);
    DONE(fi_mr_reg(domain, memory, LONG, ALL, 0, KEY, 0, &mr, NULL));
    DONE(fi_write(b.ep, out, 8, NULL, b.other, 0, KEY, NULL));
    next(&b);
    DONE(fi_read(b.ep, in, LONG, NULL, b.other, 0, KEY, NULL));
    for (int turn = 0; turn < 1000; turn++)
        fi_cq_read(a.cq, NULL, 0);
    pid_t child = fork();
    CHECK(child >= 0);
    double began = now();
    if (!child) {
        alarm(20);
        DONE(fi_close(&mr->fid));
        CHECK(now() - began < 2);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    began = now();
    DONE(fi_close(&mr->fid));
    CHECK(now() - began > 4 && now() - began < 20);
    memset(memory, 0, LONG);
    DONE(fi_close(&a.ep->fid));
    DONE(fi_close(&b.ep->fid));
}

/* More long writes at once than a peer may put: the others come in pieces. */
static void shares(void)
{
    enum { WRITES = 1100, BYTES = 17000 };
    static unsigned char from[WRITES][BYTES], to[WRITES][BYTES];
    struct fid_mr *mr;
    open_end(&a);
    struct fid_domain *second = open_elsewhere(&b);
    meet(&a, &b);
    DONE(fi_mr_reg(domain, to, sizeof to, ALL, 0, KEY, 0, &mr, NULL));
    DONE(fi_write(b.ep, out, 8, NULL, b.other, 0, KEY, NULL));
    next(&b);
    for (int count = 0; count < WRITES; count++) {
        fill(from[count], BYTES, (unsigned) count);
        DONE(fi_write(b.ep, from[count], BYTES, NULL, b.other, (uint64_t) count * BYTES, KEY, NULL));
        fi_cq_read(a.cq, NULL, 0);
    }
    for (int turn = 0; turn < 1000; turn++)
        fi_cq_read(a.cq, NULL, 0);
    for (int count = 0; count < WRITES; count++)
        next(&b);
    CHECK(!memcmp(from, to, sizeof to));
    DONE(fi_close(&mr->fid));
    close_both();
    DONE(fi_close(&second->fid));
}

/* [no answer | shares | stopped] */
int main(int count, char **words)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_TAGGED | FI_MSG | FI_RMA | FI_RMA_EVENT;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    open_fabric(hints);
    fi_freeinfo(hints);
    const char *name = count > 1 ? words[1] : "every call";
    if (!strcmp(name, "stopped")) {
        stopped();
        printf("accessed\n");
        return 0;
    } else if (!strcmp(name, "no answer")) {
        no_answer(FI_WAIT_NONE);
        no_answer(FI_WAIT_UNSPEC);
    } else if (!strcmp(name, "shares")) {
        shares();
    } else {
        open_both();
        lengths();
        calls();
        not_permitted();
        pieces();
        floods();
        gone();
        older_registration();
        events();
    }
    close_fabric();
    printf("accessed\n");
    return 0;
}
