/* Two endpoints of one process make every call for messages, over libfabric's own interface. */

#include <stdint.h>
#include <rdma/fabric.h>

static const uint64_t counted[] = { FI_SEND, FI_RECV };
enum { SENT, RECEIVED, COUNTERS };

#include "ends.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORT = 32, LONG = 1 << 20 };

static void calls(void)
{
    char out[] = "abcdefgh", in[16] = { 0 };
    struct iovec pieces[2] = { { out, 3 }, { out + 5, 2 } }, places[2] = { { in, 1 }, { in + 4, 10 } };
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
    int word[8];

    /* A receive before its message. */
    DONE(fi_trecv(b.ep, in, sizeof in, NULL, b.other, 7, 0, &word[0]));
    DONE(fi_tsend(a.ep, out, 8, NULL, a.other, 7, &word[1]));
    entry = next_from(&b, &source);
    CHECK(entry.op_context == &word[0] && entry.flags == (FI_RECV | FI_TAGGED) && entry.len == 8 && entry.tag == 7);
    CHECK(!memcmp(in, out, 8) && source == b.other && entry.buf == in);
    entry = next(&a);
    CHECK(entry.op_context == &word[1] && entry.flags == (FI_SEND | FI_TAGGED));

    /* A message before its receive, any source, bits of the tag ignored, data of both lengths. */
    for (int wide = 0; wide < 2; wide++) {
        uint64_t data = wide ? 0x123456789abcdef0 : 5;
        DONE(fi_tsenddata(a.ep, out, 8, NULL, data, a.other, 0x1007, &word[1]));
        CHECK(next(&a).op_context == &word[1]);
        DONE(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 7, 0xff00, &word[2]));
        entry = next_from(&b, &source);
        CHECK(entry.flags == (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA) && entry.data == data && entry.tag == 0x1007);
    }

    /* Injected payloads may change at once, and report nothing at their source. */
    DONE(fi_tinject(a.ep, out, 8, a.other, 1));
    DONE(fi_tinjectdata(a.ep, out, 8, 9, a.other, 2));
    memset(out, 'x', 8);
    no_completion(&a);
    for (int tag = 2; tag; tag--) {
        DONE(fi_trecv(b.ep, in, sizeof in, NULL, b.other, tag, 0, &word[3]));
        entry = next(&b);
        CHECK(entry.len == 8 && !memcmp(in, "abcdefgh", 8) && (tag == 1 || entry.data == 9));
    }
    memcpy(out, "abcdefgh", 8);

    /* Pieces. */
    DONE(fi_trecvv(b.ep, places, NULL, 2, b.other, 3, 0, &word[4]));
    DONE(fi_tsendv(a.ep, pieces, NULL, 2, a.other, 3, &word[5]));
    CHECK(next(&b).len == 5 && in[0] == 'a' && !memcmp(in + 4, "bcfg", 4));
    CHECK(next(&a).op_context == &word[5]);

    /* A completion only once it has matched. */
    struct fi_msg_tagged message = { .msg_iov = pieces, .iov_count = 2, .addr = a.other, .tag = 4, .context = &word[6],
                                     .data = 77 };
    DONE(fi_tsendmsg(a.ep, &message, FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA | FI_COMPLETION));
    no_completion(&a);
    DONE(fi_trecv(b.ep, in, sizeof in, NULL, b.other, 4, 0, &word[7]));
    CHECK(next(&b).data == 77);
    CHECK(next(&a).op_context == &word[6]);

    /* Injected by a flag. */
    DONE(fi_tsendmsg(a.ep, &message, FI_INJECT | FI_COMPLETION));
    memset(out, 'y', 8);
    CHECK(next(&a).op_context == &word[6]);
    DONE(fi_trecv(b.ep, in, sizeof in, NULL, b.other, 4, 0, &word[7]));
    CHECK(next(&b).len == 5 && !memcmp(in, "abcfg", 5));

    /* Too short a receive. */
    DONE(fi_trecv(b.ep, in, 3, NULL, b.other, 5, 0, &word[0]));
    DONE(fi_tinject(a.ep, "12345678", 8, a.other, 5));
    struct fi_cq_err_entry error = next_error(&b);
    CHECK(error.err == FI_ETRUNC && error.op_context == &word[0] && error.len == 3 && error.olen == 5);
    CHECK(!memcmp(in, "123fg", 5));

    /* A cancelled receive takes nothing. */
    DONE(fi_trecv(b.ep, in, 8, NULL, b.other, 6, 0, &word[1]));
    DONE(fi_cancel(&b.ep->fid, &word[1]));
    error = next_error(&b);
    CHECK(error.err == FI_ECANCELED && error.op_context == &word[1]);
    CHECK(fi_cancel(&b.ep->fid, &word[1]) == -FI_ENOENT);
    DONE(fi_tinject(a.ep, "12345678", 8, a.other, 6));
    no_completion(&b);

    /* What is refused. */
    CHECK(fi_tinject(a.ep, out, 8, 99, 0) == -FI_EINVAL);
    CHECK(fi_tinject(a.ep, out, 4097, a.other, 0) == -FI_EMSGSIZE);
    CHECK(fi_trecv(a.ep, in, 8, NULL, 99, 0, 0, NULL) == -FI_EINVAL);
    CHECK(fi_trecv(a.ep, NULL, 8, NULL, a.other, 0, 0, NULL) == -FI_EINVAL);
    CHECK(fi_tsendv(a.ep, &(struct iovec) { NULL, 1 }, NULL, 1, a.other, 0, NULL) == -FI_EINVAL);
    CHECK(fi_cq_sread(a.cq, in, 1, NULL, 0) == -FI_EINVAL);
}

/* Messages without a tag, which no tagged receive takes; buffers for several of them; counters. */
static void untagged(void)
{
    char out[] = "abcdefgh", in[64] = { 0 };
    struct iovec place = { in, sizeof in };
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
    int word[4];
    size_t bytes = 16, length = sizeof bytes;
    uint64_t sent = fi_cntr_read(a.counters[SENT]), received = fi_cntr_read(b.counters[RECEIVED]), failed = fi_cntr_readerr(b.counters[RECEIVED]);

    DONE(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 0, UINT64_MAX, &word[0]));
    DONE(fi_recv(b.ep, in + 8, 8, NULL, b.other, &word[1]));
    DONE(fi_send(a.ep, out, 8, NULL, a.other, &word[2]));
    entry = next_from(&b, &source);
    CHECK(entry.op_context == &word[1] && entry.flags == (FI_RECV | FI_MSG) && source == b.other);
    CHECK(next(&a).flags == (FI_SEND | FI_MSG));
    DONE(fi_tinject(a.ep, out, 8, a.other, 1));
    CHECK(next(&b).op_context == &word[0]);
    DONE(fi_senddata(a.ep, out, 8, NULL, 5, a.other, &word[2]));
    DONE(fi_injectdata(a.ep, out, 7, 6, a.other));
    DONE(fi_inject(a.ep, out, 6, a.other));
    DONE(fi_sendv(a.ep, &(struct iovec) { out, 5 }, NULL, 1, a.other, &word[2]));
    for (int count = 0; count < 2; count++)
        CHECK(next(&a).op_context == &word[2]);
    for (int count = 0; count < 4; count++) {
        if (count % 2)
            DONE(fi_recvv(b.ep, &place, NULL, 1, FI_ADDR_UNSPEC, &word[3]));
        else
            DONE(fi_recvmsg(b.ep, &(struct fi_msg) { &place, NULL, 1, b.other, &word[3], 0 }, 0));
        entry = next(&b);
        CHECK(entry.len == (size_t) (8 - count) && entry.data == (count < 2 ? 5u + count : 0u));
        CHECK(!(entry.flags & FI_REMOTE_CQ_DATA) == (count >= 2));
    }
    CHECK(fi_cntr_read(a.counters[SENT]) == sent + 6 && fi_cntr_read(b.counters[RECEIVED]) == received + 6);

    /* Room for five messages. With the fifth, less is left than an endpoint asks for. */
    DONE(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &bytes, length));
    bytes = 0;
    DONE(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &bytes, &length));
    CHECK(bytes == 16);
    DONE(fi_recvmsg(b.ep, &(struct fi_msg) { &place, NULL, 1, FI_ADDR_UNSPEC, &word[0], 0 }, FI_MULTI_RECV));
    for (int count = 0; count < 6; count++) {
        out[0] = 'a' + count;
        struct fi_msg message = { (struct iovec[]) { { out, 8 }, { out, 4 } }, NULL, 2, a.other, NULL, 0 };
        DONE(fi_sendmsg(a.ep, &message, FI_INJECT | FI_COMPLETION));
        next(&a);
    }
    for (int count = 0; count < 5; count++) {
        entry = next(&b);
        CHECK(entry.op_context == &word[0] && entry.len == 12 && entry.buf == in + 12 * count);
        CHECK(!(entry.flags & FI_MULTI_RECV) == (count < 4));
        CHECK(in[12 * count] == 'a' + count && !memcmp(in + 12 * count + 1, "bcdefgh", 7));
    }
    no_completion(&b);
    DONE(fi_recv(b.ep, in, 3, NULL, FI_ADDR_UNSPEC, &word[1]));
    CHECK(next_error(&b).err == FI_ETRUNC && fi_cntr_readerr(b.counters[RECEIVED]) == failed + 1);

    /* Waiting for a counter. */
    DONE(fi_recv(a.ep, in, 3, NULL, a.own, &word[1]));
    CHECK(fi_cntr_wait(a.counters[RECEIVED], fi_cntr_read(a.counters[RECEIVED]) + 1, 1) == -FI_ETIMEDOUT);
    DONE(fi_inject(a.ep, "x", 1, a.own));
    DONE(fi_cntr_wait(a.counters[RECEIVED], fi_cntr_read(a.counters[RECEIVED]), -1));
    CHECK(next(&a).op_context == &word[1]);
    DONE(fi_cntr_set(a.counters[RECEIVED], 5));
    DONE(fi_cntr_add(a.counters[RECEIVED], 2));
    CHECK(fi_cntr_read(a.counters[RECEIVED]) == 7);
}

/* Looking, setting aside, dropping. The message with tag 6 is still there. */
static void peeks(void)
{
    char in[8] = { 0 };
    int word[3];
    struct iovec place = { in, sizeof in };
    struct fi_msg_tagged message = { .addr = FI_ADDR_UNSPEC, .tag = 6, .context = &word[0] };
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
    for (int turn = 0; turn < 2; turn++) {
        DONE(fi_trecvmsg(b.ep, &message, FI_PEEK));
        entry = next_from(&b, &source);
        CHECK(entry.op_context == &word[0] && entry.len == 8 && entry.tag == 6 && source == b.other);
    }
    DONE(fi_trecvmsg(b.ep, &message, FI_PEEK | FI_CLAIM));
    CHECK(next(&b).len == 8);
    /* A second message would take its place. */
    CHECK(fi_trecvmsg(b.ep, &message, FI_PEEK | FI_CLAIM) == -FI_EBUSY);
    DONE(fi_trecvmsg(b.ep, &(struct fi_msg_tagged) { .addr = FI_ADDR_UNSPEC, .tag = 6, .context = &word[1] }, FI_PEEK));
    struct fi_cq_err_entry error = next_error(&b);
    CHECK(error.err == FI_ENOMSG && error.op_context == &word[1]);
    message.msg_iov = &place;
    message.iov_count = 1;
    DONE(fi_trecvmsg(b.ep, &message, FI_CLAIM));
    CHECK(next(&b).len == 8 && !memcmp(in, "12345678", 8));
    CHECK(fi_trecvmsg(b.ep, &message, FI_CLAIM) == -FI_EINVAL);

    /* Dropped at once, and after it was set aside. Its source may not wait for ever. */
    for (int turn = 0; turn < 2; turn++) {
        struct fi_msg_tagged sent = { .msg_iov = &place, .iov_count = 1, .addr = a.other, .tag = 6, .context = &word[2] };
        DONE(fi_tsendmsg(a.ep, &sent, FI_DELIVERY_COMPLETE));
        no_completion(&a);
        if (turn) {
            DONE(fi_trecvmsg(b.ep, &message, FI_PEEK | FI_CLAIM));
            CHECK(next(&b).len == 8);
            DONE(fi_trecvmsg(b.ep, &message, FI_CLAIM | FI_DISCARD));
        } else
            DONE(fi_trecvmsg(b.ep, &message, FI_PEEK | FI_DISCARD));
        entry = next(&b);
        CHECK(entry.op_context == &word[0] && entry.tag == 6 && entry.len == 8);
        CHECK(next(&a).op_context == &word[2]);
    }
}

/* Long messages, both ways at once, in one piece and in several, and to an endpoint itself. */
static void long_messages(void)
{
    static unsigned char out[2][LONG], in[2][LONG + 1];
    int word[4];
    for (int turn = 0; turn < 6; turn++) {
        struct end *to_a = turn < 4 ? &b : &a, *to_b = &a;
        fi_addr_t target = turn < 4 ? a.other : a.own;
        int length = turn % 2 ? LONG : LONG / 3 + 5, late = turn / 2 % 2;
        struct iovec pieces[2] = { { in[1], 1000 }, { in[1] + 1000, LONG - 1000 } };
        for (int place = 0; place < length; place++) {
            out[0][place] = (unsigned char) (place * 7919u >> 5) + turn;
            out[1][place] = (unsigned char) (place * 104729u >> 7) + turn;
        }
        memset(in, 0xee, sizeof in);
        for (int step = 0; step < 2; step++)
            if (step == late) {
                DONE(fi_trecv(a.ep, in[0], LONG, NULL, target, 1, 0, &word[0]));
                DONE(fi_trecvv((turn < 4 ? &b : &a)->ep, pieces, NULL, 2, target, 2, 0, &word[1]));
            } else {
                DONE(fi_tsend(to_a->ep, out[0], length, NULL, target, 1, &word[2]));
                DONE(fi_tsend(to_b->ep, out[1], length, NULL, target, 2, &word[3]));
                move();
            }
        int seen = 0;
        for (int count = 0; count < 4;) {
            struct fi_cq_tagged_entry entry;
            struct end *ends[2] = { &a, &b };
            for (int end = 0; end < 2; end++) {
                ssize_t answer = fi_cq_read(ends[end]->cq, &entry, 1);
                CHECK(answer == 1 || answer == -FI_EAGAIN);
                if (answer == 1) {
                    int which = (int) ((int *) entry.op_context - word);
                    seen |= 1 << which;
                    CHECK(which >= 2 || entry.len == (size_t) length);
                    count++;
                }
            }
        }
        CHECK(seen == 15);
        CHECK(!memcmp(in[0], out[0], length) && in[0][length] == 0xee);
        CHECK(!memcmp(in[1], out[1], length) && in[1][length] == 0xee);
    }
}

/* A message that nobody takes comes back as an error when its target has gone; receives from any source stay. */
static void gone(void)
{
    static char out[LONG];
    int word[2];
    DONE(fi_tsend(a.ep, out, LONG, NULL, a.other, 1, &word[0]));
    DONE(fi_trecv(a.ep, out, 8, NULL, a.other, 1, 0, &word[1]));
    DONE(fi_trecv(a.ep, out, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
    move();
    close_end(&b);
    int errors[2];
    for (int count = 0; count < 2; count++) {
        struct fi_cq_err_entry error = next_error_alone();
        errors[(int *) error.op_context - word] = error.err;
    }
    CHECK(errors[0] == FI_ESHUTDOWN && errors[1] == FI_ESHUTDOWN);
    CHECK(fi_tinject(a.ep, out, 8, a.other, 1) == -FI_ESHUTDOWN);
    CHECK(fi_cq_read(a.cq, NULL, 0) == -FI_EAGAIN);
}

/* A name with another ticket lets nobody in, and harms nobody else. */
static void wrong_ticket(void)
{
    char name[NAME_BYTES], in[8];
    fi_addr_t address;
    int word[2];
    memcpy(name, b.name, NAME_BYTES);
    name[NAME_BYTES - 1] ^= 1;
    CHECK(fi_av_insert(a.av, name, 1, &address, 0, NULL) == 1);
    DONE(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &word[0]));
    struct fi_msg_tagged message = { .msg_iov = &(struct iovec) { "bad", 3 }, .iov_count = 1, .addr = address, .tag = 1,
                                     .context = &word[1] };
    DONE(fi_tsendmsg(a.ep, &message, FI_DELIVERY_COMPLETE));
    CHECK(next_error(&a).op_context == &word[1]);
    CHECK(fi_cq_read(b.cq, NULL, 0) == -FI_EAGAIN);
    /* An injected message has no context by which its failure could be reported: it is counted, and the next one fails. */
    name[NAME_BYTES - 1] ^= 2;
    CHECK(fi_av_insert(a.av, name, 1, &address, 0, NULL) == 1);
    uint64_t failed = fi_cntr_readerr(a.counters[SENT]);
    DONE(fi_tinject(a.ep, "bad", 3, address, 1));
    while (fi_cntr_readerr(a.counters[SENT]) == failed) {
        move();
        CHECK(fi_cq_read(a.cq, NULL, 0) == -FI_EAGAIN);
    }
    CHECK(fi_tinject(a.ep, "bad", 3, address, 1) < 0 && fi_tinject(a.ep, "bad", 3, address, 1) != -FI_EAGAIN);
    DONE(fi_tinject(a.ep, "good", 4, a.other, 1));
    CHECK(next(&b).len == 4 && !memcmp(in, "good", 4));
    /* Of a port that is not there, and of bytes that are no name. */
    name[PORT] ^= 0x55;
    CHECK(fi_av_insert(a.av, name, 1, &address, 0, NULL) == 1);
    ssize_t answer = fi_tsend(a.ep, "x", 1, NULL, address, 1, &word[1]);
    CHECK(answer == -FI_ECONNREFUSED || (answer == 0 && next_error(&a).err == FI_ECONNREFUSED));
    memset(name, 0, sizeof name);
    CHECK(fi_av_insert(a.av, name, 1, &address, 0, NULL) == 0 && address == FI_ADDR_NOTAVAIL);
}

/* What belongs to another domain has no place in this one. */
static void other_domain(void)
{
    struct fid_domain *second;
    struct fid_ep *endpoint;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_cntr *counter;
    DONE(fi_domain(fabric, info, &second, NULL));
    DONE(fi_cq_open(second, &(struct fi_cq_attr) { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE }, &cq, NULL));
    DONE(fi_av_open(second, &(struct fi_av_attr) { .type = FI_AV_TABLE }, &av, NULL));
    DONE(fi_cntr_open(second, &(struct fi_cntr_attr) { .events = FI_CNTR_EVENTS_COMP }, &counter, NULL));
    DONE(fi_endpoint(domain, info, &endpoint, NULL));
    CHECK(fi_ep_bind(endpoint, &cq->fid, FI_TRANSMIT | FI_RECV) == -FI_EINVAL);
    CHECK(fi_ep_bind(endpoint, &av->fid, 0) == -FI_EINVAL);
    CHECK(fi_ep_bind(endpoint, &counter->fid, FI_SEND) == -FI_EINVAL);
    DONE(fi_close(&endpoint->fid));
    DONE(fi_close(&cq->fid));
    DONE(fi_close(&av->fid));
    DONE(fi_close(&counter->fid));
    DONE(fi_close(&second->fid));
}

/* What is in use cannot be closed: what an endpoint reports to, and a domain in which something is open. */
static void in_use(void)
{
    struct fid *used[] = { &b.cq->fid, &b.av->fid, &b.counters[SENT]->fid, &b.counters[RECEIVED]->fid, &domain->fid };
    for (size_t place = 0; place < sizeof used / sizeof *used; place++)
        CHECK(fi_close(used[place]) == -FI_EBUSY);
}

/* A forked child has no part in its parent's endpoints. */
static void forked(void)
{
    char in[8];
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(fi_tinject(a.ep, "child", 5, a.other, 50) == -FI_EOPBADSTATE);
        CHECK(fi_tsend(a.ep, in, sizeof in, NULL, a.other, 50, NULL) == -FI_EOPBADSTATE);
        CHECK(fi_trecv(a.ep, in, sizeof in, NULL, a.other, 50, 0, NULL) == -FI_EOPBADSTATE);
        for (int turn = 0; turn < 100; turn++) {
            struct fi_cq_tagged_entry entry;
            CHECK(fi_cq_read(a.cq, &entry, 1) == -FI_EOPBADSTATE);
        }
        /* It closes what it has of its parent, as a program does at its end. */
        close_end(&b);
        DONE(fi_close(&domain->fid));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    DONE(fi_tinject(a.ep, "parent", 6, a.other, 50));
    DONE(fi_trecv(b.ep, in, sizeof in, NULL, b.other, 50, 0, NULL));
    CHECK(next(&b).len == 6);
}

/* A removed index means nothing any more. */
static void removed(void)
{
    fi_addr_t source, address = a.other;
    char in[8];
    DONE(fi_av_remove(b.av, &b.other, 1, 0));
    DONE(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
    DONE(fi_tinject(a.ep, "x", 1, address, 1));
    next_from(&b, &source);
    CHECK(source == FI_ADDR_NOTAVAIL);
    CHECK(fi_tinject(b.ep, "x", 1, b.other, 1) == -FI_EINVAL);
    CHECK(fi_av_insert(b.av, a.name, 1, &b.other, 0, NULL) == 1 && b.other == 2);
    DONE(fi_trecv(b.ep, in, 8, NULL, b.other, 1, 0, NULL));
    DONE(fi_tinject(a.ep, "x", 1, address, 1));
    next_from(&b, &source);
    CHECK(source == b.other);
}

/* Two endpoints that send to each other at once have one connection in the end, and nothing is lost. */
static void crossing(void)
{
    for (int turn = 0; turn < 20; turn++) {
        char in[2][8];
        int seen = 0;
        open_both();
        DONE(fi_trecv(a.ep, in[0], 8, NULL, a.other, 1, 0, NULL));
        DONE(fi_trecv(b.ep, in[1], 8, NULL, b.other, 1, 0, NULL));
        DONE(fi_tinject(a.ep, "to b", 4, a.other, 1));
        for (int step = 0; step < turn / 2; step++)
            fi_cq_read((turn % 2 ? &a : &b)->cq, NULL, 0);
        DONE(fi_tinject(b.ep, "to a", 4, b.other, 1));
        while (seen != 3) {
            struct fi_cq_tagged_entry entry;
            seen |= fi_cq_read(a.cq, &entry, 1) == 1 ? 1 : 0;
            seen |= fi_cq_read(b.cq, &entry, 1) == 1 ? 2 : 0;
        }
        CHECK(!memcmp(in[0], "to a", 4) && !memcmp(in[1], "to b", 4));
        /* Ports look for new and for ended peers each millisecond. */
        for (int step = 0; step < 100; step++) {
            move();
            usleep(200);
        }
        close_both();
    }
}

static void formats(void)
{
    static const size_t sizes[] = { sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry),
                                    sizeof(struct fi_cq_data_entry), sizeof(struct fi_cq_tagged_entry) };
    for (int format = 0; format < 4; format++) {
        unsigned char entries[2 * sizeof(struct fi_cq_tagged_entry) + 1];
        char in[8];
        int word[2];
        size_t size = sizes[format];
        open_end_with(&a, FI_CQ_FORMAT_CONTEXT + format, FI_WAIT_NONE, FI_SELECTIVE_COMPLETION);
        open_end_with(&b, FI_CQ_FORMAT_CONTEXT + format, FI_WAIT_NONE, 0);
        meet(&a, &b);
        for (int place = 0; place < 2; place++)
            DONE(fi_trecv(b.ep, in, 8, NULL, b.other, place, 0, &word[place]));
        /* Without FI_COMPLETION the sends report nothing. */
        DONE(fi_tsend(a.ep, "x", 1, NULL, a.other, 0, NULL));
        DONE(fi_tsenddata(a.ep, "xy", 2, NULL, 5, a.other, 1, NULL));
        for (size_t done = 0; done < 2;) {
            memset(entries, 0xee, sizeof entries);
            ssize_t count = fi_cq_read(b.cq, entries, 2);
            CHECK(fi_cq_read(a.cq, NULL, 0) == -FI_EAGAIN);
            for (ssize_t place = 0; place < count; place++, done++) {
                struct fi_cq_tagged_entry entry;
                memcpy(&entry, entries + place * size, size);
                CHECK(entry.op_context == &word[done]);
                CHECK(format < 1 || entry.len == done + 1);
                CHECK(format < 2 || !done || entry.data == 5);
                CHECK(format < 3 || entry.tag == done);
            }
            CHECK(count < 0 ? count == -FI_EAGAIN : entries[count * size] == 0xee);
        }
        close_both();
    }
}

static void *sleep_for_3_s(void *nothing)
{
    struct fi_cq_tagged_entry entry;
    CHECK(fi_cq_sread(b.cq, &entry, 1, NULL, 3000) == -FI_EAGAIN);
    return nothing;
}

/* A sleeping program is woken by a message, and not before. */
static void sleeping(void)
{
    struct fi_cq_tagged_entry entry;
    char in[8];
    int descriptor;
    open_end(&a);
    open_end_with(&b, FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, 0);
    meet(&a, &b);
    DONE(fi_control(&b.cq->fid, FI_GETWAIT, &descriptor));
    struct fid *fids[] = { &b.cq->fid };
    struct pollfd ready = { descriptor, POLLIN, 0 };
    for (int turn = 0; turn < 20; turn++) {
        int received = 0;
        DONE(fi_trecv(b.ep, in, 8, NULL, b.other, turn, 0, NULL));
        CHECK(fi_cq_sread(b.cq, &entry, 1, NULL, 1) == -FI_EAGAIN);
        DONE(fi_tinject(a.ep, "x", 1, a.other, turn));
        while (!received) {
            fi_cq_read(a.cq, NULL, 0);
            if (turn % 2)
                received = fi_cq_sread(b.cq, &entry, 1, NULL, 10) == 1;
            else {
                int answer = fi_trywait(fabric, fids, 1);
                CHECK(answer == 0 || answer == -FI_EAGAIN);
                if (!answer)
                    poll(&ready, 1, 10);
                received = fi_cq_read(b.cq, &entry, 1) == 1;
            }
        }
        CHECK(entry.tag == (uint64_t) turn);
    }
    /* A message to itself, and a signal. */
    DONE(fi_trecv(b.ep, in, 8, NULL, b.own, 1, 0, NULL));
    DONE(fi_tinject(b.ep, "x", 1, b.own, 1));
    CHECK(fi_cq_sread(b.cq, &entry, 1, NULL, -1) == 1);
    DONE(fi_cq_signal(b.cq));
    CHECK(fi_cq_sread(b.cq, &entry, 1, NULL, -1) == -FI_EAGAIN);
    /* Nobody waits for another thread that sleeps longer on the same queue. */
    pthread_t sleeper;
    DONE(pthread_create(&sleeper, NULL, sleep_for_3_s, NULL));
    usleep(100000);
    double began = now();
    CHECK(fi_cq_sread(b.cq, &entry, 1, NULL, 100) == -FI_EAGAIN);
    CHECK(now() - began < 2);
    DONE(pthread_join(sleeper, NULL));
    close_both();
}

static int has_completion(struct end *end, struct fi_cq_tagged_entry *entry)
{
    ssize_t count = fi_cq_read(end->cq, entry, 1);
    CHECK(count == 1 || count == -FI_EAGAIN);
    return count == 1;
}

/* One end sends a message to the other one, which has posted a receive. Nothing else arrives there before both have completed. */
static void deliver(struct end *from, fi_addr_t address, struct end *to, const char *text, uint64_t tag)
{
    struct fi_cq_tagged_entry entry;
    DONE(fi_tsend(from->ep, text, strlen(text) + 1, NULL, address, tag, NULL));
    for (int got = 0, sent = 0; !got || !sent;) {
        if (has_completion(to, &entry))
            CHECK(!got++ && entry.tag == tag);
        sent += has_completion(from, &entry);
    }
}

static void *sleep_on_a(void *nothing)
{
    struct fi_cq_tagged_entry entry;
    CHECK(fi_cq_sread(a.cq, &entry, 1, NULL, 60000) == 1);
    return nothing;
}

/* A message wakes whoever sleeps on a queue, whatever was done with others of the domain since: by the thread that is about to sleep,
   or by another one. */
static void two_queues(void)
{
    struct fi_cq_tagged_entry entry;
    struct end c;
    pthread_t sleeper;
    char in[8];
    int descriptor, answer;
    open_end_with(&a, FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, 0);
    open_end_with(&b, FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, 0);
    struct fid_domain *second = open_elsewhere(&c);
    meet(&c, &a);
    DONE(fi_control(&a.cq->fid, FI_GETWAIT, &descriptor));
    struct fid *fids[] = { &a.cq->fid, &b.cq->fid };
    struct pollfd ready = { descriptor, POLLIN, 0 };
    DONE(fi_trecv(a.ep, in, 8, NULL, a.other, 0, 0, NULL));
    deliver(&c, c.other, &a, "x", 0);
    for (int turn = 0; turn < 20; turn++) {
        DONE(fi_trecv(a.ep, in, 8, NULL, a.other, turn, 0, NULL));
        if (turn % 4 < 2) {
            while ((answer = fi_trywait(fabric, fids, 2)) == -FI_EAGAIN)
                has_completion(&b, &entry);
            CHECK(answer == 0);
            if (turn % 4)
                CHECK(!has_completion(&b, &entry));
        } else {
            DONE(pthread_create(&sleeper, NULL, sleep_on_a, NULL));
            usleep(20000);
            if (turn % 4 == 2)
                CHECK(!has_completion(&b, &entry));
            else
                fi_cntr_read(b.counters[SENT]);
        }
        double began = now();
        DONE(fi_tinject(c.ep, "x", 1, c.other, turn));
        if (turn % 4 < 2) {
            CHECK(poll(&ready, 1, 60000) == 1);
            while (!has_completion(&a, &entry))
                ;
        } else {
            DONE(pthread_join(sleeper, NULL));
        }
        CHECK(now() - began < 20);
    }
    close_both();
    close_end(&c);
    DONE(fi_close(&second->fid));
}

/* A new endpoint of a domain, which takes the place of a closed one there, has nothing of what was meant for that. */
static void reused(void)
{
    struct fid_domain *first = domain, *second;
    struct fi_cq_tagged_entry entry;
    char in[8], old_in[8];
    struct end old, new;
    fi_addr_t to_new;
    open_end(&a);
    DONE(fi_domain(fabric, info, &second, NULL));
    for (int turn = 0; turn < 20; turn++) {
        domain = second;
        open_end(&old);
        if (!turn)
            know(&a, &old);
        else
            CHECK(fi_av_insert(a.av, old.name, 1, &a.other, 0, NULL) == 1);
        know(&old, &a);
        DONE(fi_trecv(old.ep, in, 8, NULL, old.other, 1, 0, NULL));
        deliver(&a, a.other, &old, "first", 1);
        /* Receives and messages that are under way when it closes. */
        DONE(fi_trecv(old.ep, old_in, 8, NULL, old.other, 2, 0, NULL));
        DONE(fi_tinject(a.ep, "old", 4, a.other, turn % 2 ? 2 : 3));
        close_end(&old);
        memset(old_in, 0, sizeof old_in);
        open_end(&new);
        domain = first;
        know(&new, &a);
        CHECK(memcmp(new.name, old.name, NAME_BYTES));
        CHECK(fi_av_insert(a.av, new.name, 1, &to_new, 0, NULL) == 1);
        DONE(fi_trecv(new.ep, in, 8, NULL, FI_ADDR_UNSPEC, 0, ~0ull, NULL));
        deliver(&a, to_new, &new, "new", 4);
        CHECK(!strcmp(in, "new"));
        CHECK(fi_tinject(a.ep, "old", 4, a.other, 2) == -FI_ESHUTDOWN);
        CHECK(!has_completion(&new, &entry) && !old_in[0]);
        close_end(&new);
    }
    close_end(&a);
    DONE(fi_close(&second->fid));
}

/* An endpoint that was closed keeps nobody awake, although a forked child keeps its descriptors open. */
static void closed_in_a_parent(void)
{
    struct fi_cq_tagged_entry entry;
    struct end c;
    char in[8];
    open_end_with(&b, FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, 0);
    open_end_with(&c, FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, 0);
    struct fid_domain *second = open_elsewhere(&a);
    meet(&a, &b);
    DONE(fi_trecv(b.ep, in, 8, NULL, b.other, 1, 0, NULL));
    deliver(&a, a.other, &b, "x", 1);
    /* A message makes b's descriptor ready, and stays there. */
    struct fid *fids[] = { &b.cq->fid };
    while (fi_trywait(fabric, fids, 1) == -FI_EAGAIN)
        has_completion(&b, &entry);
    DONE(fi_tinject(a.ep, "x", 1, a.other, 2));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        close(1);
        close(2);
        sleep(20);
        _exit(0);
    }
    DONE(fi_close(&b.ep->fid));
    /* Sleeps and reads that find nothing take hardly any of the processor. */
    clock_t began = clock();
    CHECK(fi_cq_sread(b.cq, &entry, 1, NULL, 500) == -FI_EAGAIN);
    CHECK(clock() - began < CLOCKS_PER_SEC / 5);
    began = clock();
    for (double start = now(); now() - start < 0.5;)
        CHECK(!has_completion(&c, &entry));
    CHECK(clock() - began < CLOCKS_PER_SEC / 5);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    close_rest(&b);
    close_end(&a);
    close_end(&c);
    DONE(fi_close(&second->fid));
}

/* A connection that lacks descriptors is tried again, but not for ever. */
static void few_descriptors(void)
{
    int word, free = dup(0);
    CHECK(free >= 0 && close(free) == 0);
    /* The hard limit too: the library raises the soft one to it. */
    struct rlimit few = { .rlim_cur = (rlim_t) free, .rlim_max = (rlim_t) free };
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    time_t began = time(NULL);
    DONE(fi_tsend(a.ep, "x", 1, NULL, a.other, 1, &word));
    struct fi_cq_tagged_entry entry;
    ssize_t count;
    /* This takes 10 s, which others may use the processor for. */
    while ((count = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN) {
        move();
        usleep(1000);
    }
    struct fi_cq_err_entry error = announced_error(&a, count);
    CHECK(error.err == FI_ENOMEM && error.op_context == &word);
    CHECK(time(NULL) - began >= 8);
    CHECK(fi_tsend(a.ep, "x", 1, NULL, a.other, 1, &word) == -FI_ENOMEM);
    close_both();
}

/* Polls the other end, as a program of its own would, until a message has come. */
static void *receive_one(void *nothing)
{
    struct fi_cq_tagged_entry entry;
    ssize_t count;
    while ((count = fi_cq_read(b.cq, &entry, 1)) == -FI_EAGAIN)
        ;
    CHECK(count == 1 && entry.tag == 1);
    return nothing;
}

/* The first message to an end that polls arrives although its sender makes no further call. Peers that do not poll cost senders little
   time. */
static void first_message(void)
{
    struct fid_domain *second = NULL;
    pthread_t thread;
    char in[8];
    for (int turn = 0; turn < 20; turn++) {
        close_both();
        if (turn)
            DONE(fi_close(&second->fid));
        open_end(&a);
        second = open_elsewhere(&b);
        meet(&a, &b);
        DONE(fi_trecv(b.ep, in, 8, NULL, b.other, 1, 0, NULL));
        CHECK(pthread_create(&thread, NULL, receive_one, NULL) == 0);
        DONE(fi_tinject(a.ep, "x", 1, a.other, 1));
        CHECK(pthread_join(thread, NULL) == 0);
    }
    close_end(&a);
    open_end(&a);
    know(&a, &b);
    double began = now();
    for (int count = 0; count < 100; count++)
        DONE(fi_tinject(a.ep, "x", 1, a.other, 1));
    CHECK(now() - began < 3);
    close_both();
    DONE(fi_close(&second->fid));
}

/* An endpoint sends its first messages to many peers at once, then many peers send theirs to another one at once: more than the
   connections without a greeting that one keeps. */
static void many_peers(void)
{
    enum { MANY = 70 };
    static struct end ends[MANY];
    static char in[MANY][8];
    static int out[MANY];
    fi_addr_t addresses[MANY], to_b;
    struct fi_cq_tagged_entry entry;
    struct fid_domain *first = domain, *second;
    struct rlimit limit;
    int got[2] = { 0 }, sent = 0;

    DONE(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    DONE(setrlimit(RLIMIT_NOFILE, &limit));
    DONE(fi_domain(fabric, info, &second, NULL));
    domain = second;
    for (int number = 0; number < MANY; number++) {
        open_end(&ends[number]);
        know(&ends[number], &a);
        CHECK(fi_av_insert(a.av, ends[number].name, 1, &addresses[number], 0, NULL) == 1);
        CHECK(fi_av_insert(ends[number].av, b.name, 1, &to_b, 0, NULL) == 1);
        DONE(fi_trecv(ends[number].ep, in[number], 8, NULL, ends[number].other, number, 0, NULL));
    }
    domain = first;
    for (int number = 0; number < MANY; number++) {
        out[number] = number;
        DONE(fi_tsend(a.ep, &out[number], sizeof out[number], NULL, addresses[number], number, NULL));
    }
    while (got[0] < MANY || sent < MANY) {
        sent += has_completion(&a, &entry);
        for (int number = 0; number < MANY; number++)
            if (has_completion(&ends[number], &entry)) {
                CHECK(entry.tag == (uint64_t) number && !memcmp(in[number], &number, sizeof number));
                got[0]++;
            }
    }
    for (int number = 0; number < MANY; number++) {
        DONE(fi_trecv(b.ep, in[number], 8, NULL, FI_ADDR_UNSPEC, number, 0, NULL));
        DONE(fi_tsend(ends[number].ep, "hello", 6, NULL, to_b, number, NULL));
    }
    while (got[1] < MANY) {
        for (int number = 0; number < MANY; number++)
            has_completion(&ends[number], &entry);
        got[1] += has_completion(&b, &entry);
    }
    for (int number = 0; number < MANY; number++) {
        CHECK(!strcmp(in[number], "hello"));
        close_end(&ends[number]);
    }
    DONE(fi_close(&second->fid));
    close_both();
}

/* [closed in a parent | few descriptors | first message | many peers] */
int main(int count, char **words)
{
    struct fi_info *hints = fi_allocinfo(), *none;
    hints->caps = FI_TAGGED | FI_MSG | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    open_fabric(hints);
    CHECK(info->domain_attr->threading == FI_THREAD_DOMAIN && info->mode == 0 && info->domain_attr->mr_mode == 0);
    CHECK(info->tx_attr->inject_size == 4096 && !info->next);
    hints->ep_attr->type = FI_EP_MSG;
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none) == -FI_ENODATA);
    fi_freeinfo(hints);

    const char *name = count > 1 ? words[1] : "every call";
    open_both();
    if (!strcmp(name, "first message")) {
        first_message();
    } else if (!strcmp(name, "many peers")) {
        many_peers();
    } else if (!strcmp(name, "closed in a parent")) {
        close_both();
        closed_in_a_parent();
    } else if (!strcmp(name, "few descriptors")) {
        few_descriptors();
    } else {
        calls();
        peeks();
        untagged();
        long_messages();
        wrong_ticket();
        other_domain();
        in_use();
        forked();
        removed();
        gone();
        close_end(&a);
        crossing();
        formats();
        sleeping();
        two_queues();
        reused();
    }
    close_fabric();
    printf("matched\n");
    return 0;
}
