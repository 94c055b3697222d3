/* Two endpoints of one process, `a` and `b`, over libfabric's own interface. A program defines before which counters its ends have:
   the values of `counted`, and as many names of their places with `COUNTERS` behind them. */

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { NAME_BYTES = 64 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;

struct end {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_cntr *counters[COUNTERS];
    fi_addr_t own, other;
    char name[NAME_BYTES];
};
static struct end a, b;

/* Opens the fabric that `hints` describe, and a domain of it. */
static inline void open_fabric(struct fi_info *hints)
{
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup("bywire");
    DONE(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    DONE(fi_fabric(info->fabric_attr, &fabric, NULL));
    DONE(fi_domain(fabric, info, &domain, NULL));
}

static inline void close_fabric(void)
{
    DONE(fi_close(&domain->fid));
    DONE(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

/* An end whose queue has this format and can be waited for in this way. `bind`: how it is bound to its endpoint. */
static inline void open_end_with(struct end *end, enum fi_cq_format format, enum fi_wait_obj wait, uint64_t bind)
{
    struct fi_cq_attr cq = { .format = format, .wait_obj = wait };
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    struct fi_cntr_attr counter = { .events = FI_CNTR_EVENTS_COMP };
    size_t length = 8;
    DONE(fi_endpoint(domain, info, &end->ep, NULL));
    DONE(fi_cq_open(domain, &cq, &end->cq, NULL));
    DONE(fi_av_open(domain, &av, &end->av, NULL));
    CHECK(fi_enable(end->ep) == -FI_ENOAV);
    DONE(fi_ep_bind(end->ep, &end->av->fid, 0));
    CHECK(fi_enable(end->ep) == -FI_ENOCQ);
    for (int place = 0; place < COUNTERS; place++) {
        DONE(fi_cntr_open(domain, &counter, &end->counters[place], NULL));
        DONE(fi_ep_bind(end->ep, &end->counters[place]->fid, counted[place]));
    }
    CHECK(fi_tinject(end->ep, "x", 1, 0, 0) == -FI_EOPBADSTATE);
    DONE(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV | bind));
    DONE(fi_enable(end->ep));
    CHECK(fi_getname(&end->ep->fid, end->name, &length) == -FI_ETOOSMALL && length == NAME_BYTES);
    DONE(fi_getname(&end->ep->fid, end->name, &length));
}

static inline void open_end(struct end *end)
{
    open_end_with(end, FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE, 0);
}

/* An end in another domain, which is returned. */
static inline struct fid_domain *open_elsewhere(struct end *end)
{
    struct fid_domain *first = domain, *second;
    DONE(fi_domain(fabric, info, &second, NULL));
    domain = second;
    open_end(end);
    domain = first;
    return second;
}

static inline void know(struct end *end, const struct end *other)
{
    char names[2][NAME_BYTES], found[NAME_BYTES];
    size_t length = sizeof found;
    fi_addr_t addresses[2];
    memcpy(names[0], end->name, NAME_BYTES);
    memcpy(names[1], other->name, NAME_BYTES);
    CHECK(fi_av_insert(end->av, names, 2, addresses, 0, NULL) == 2);
    end->own = addresses[0];
    end->other = addresses[1];
    CHECK(end->own == 0 && end->other == 1);
    DONE(fi_av_lookup(end->av, 1, found, &length));
    CHECK(length == NAME_BYTES && !memcmp(found, other->name, NAME_BYTES));
}

static inline void meet(struct end *one, struct end *other)
{
    know(one, other);
    know(other, one);
}

static inline void open_both(void)
{
    open_end(&a);
    open_end(&b);
    meet(&a, &b);
}

/* Closes everything that an end has besides its endpoint. */
static inline void close_rest(struct end *end)
{
    DONE(fi_close(&end->cq->fid));
    DONE(fi_close(&end->av->fid));
    for (int place = 0; place < COUNTERS; place++)
        DONE(fi_close(&end->counters[place]->fid));
}

static inline void close_end(struct end *end)
{
    DONE(fi_close(&end->ep->fid));
    close_rest(end);
}

static inline void close_both(void)
{
    close_end(&a);
    close_end(&b);
}

static inline void move(void)
{
    fi_cq_read(a.cq, NULL, 0);
    fi_cq_read(b.cq, NULL, 0);
}

/* The next completion of an end and its source, while the other end makes progress. Both ends have large entries. */
static inline struct fi_cq_tagged_entry next_from(struct end *end, fi_addr_t *source)
{
    struct fi_cq_tagged_entry entry;
    for (;;) {
        ssize_t count = fi_cq_readfrom(end->cq, &entry, 1, source);
        if (count == 1)
            return entry;
        CHECK(count == -FI_EAGAIN);
        move();
    }
}

static inline struct fi_cq_tagged_entry next(struct end *end)
{
    fi_addr_t ignored;
    return next_from(end, &ignored);
}

/* The error that a read of a queue has announced. */
static inline struct fi_cq_err_entry announced_error(struct end *end, ssize_t answer)
{
    struct fi_cq_err_entry error = { 0 };
    CHECK(answer == -FI_EAVAIL && fi_cq_readerr(end->cq, &error, 0) == 1);
    return error;
}

/* The next thing that an end is told, which is an error, while the other end makes progress. */
static inline struct fi_cq_err_entry next_error(struct end *end)
{
    struct fi_cq_tagged_entry entry;
    ssize_t count;
    while ((count = fi_cq_read(end->cq, &entry, 1)) == -FI_EAGAIN)
        move();
    return announced_error(end, count);
}

/* The next error of `a` after `b` has gone. */
static inline struct fi_cq_err_entry next_error_alone(void)
{
    struct fi_cq_tagged_entry entry;
    ssize_t count;
    while ((count = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN)
        ;
    return announced_error(&a, count);
}

static inline void no_completion(struct end *end)
{
    struct fi_cq_tagged_entry entry;
    for (int turn = 0; turn < 100; turn++) {
        move();
        CHECK(fi_cq_read(end->cq, &entry, 1) == -FI_EAGAIN);
    }
}

/* Seconds of a clock that runs evenly. */
static inline double now(void)
{
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (double) time.tv_sec + (double) time.tv_nsec / 1e9;
}
