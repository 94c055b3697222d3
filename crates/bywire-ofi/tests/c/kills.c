/* Endpoints whose peers are killed at random moments, while messages, writes and reads of all lengths are under way in both directions:
   everything under way with a dead peer ends with an error soon after its end, and the endpoint goes on with the next one.
   usage: kills ROUNDS SEED [AGENT]
   AGENT starts the peers, on another machine: it is called as ssh is, with a host's name and a command. */

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { NAME_BYTES = 64, LENGTH_MAX = 1 << 20, EACH = 8, KILL_AFTER_US = 6000, KEY = 7 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_mr *mr;
static char name[NAME_BYTES];
static uint64_t state;

/* Payloads of receives and of sends, and whether each is under way. */
static char in[EACH][LENGTH_MAX], out[EACH][LENGTH_MAX];
static int receives[EACH], sends[EACH];

/* Memory that the peer writes and reads, sources of writes, targets of reads, and whether each operation is under way. */
static char window[LENGTH_MAX], written[EACH][LENGTH_MAX], got[EACH][LENGTH_MAX];
static int writes[EACH], reads[EACH];

static uint64_t chance(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void open_all(void)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_cq_attr of_cq = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_av_attr of_av = { .type = FI_AV_TABLE };
    size_t length = sizeof name;
    hints->caps = FI_TAGGED | FI_DIRECTED_RECV | FI_RMA;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("bywire");
    DONE(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    DONE(fi_fabric(info->fabric_attr, &fabric, NULL));
    DONE(fi_domain(fabric, info, &domain, NULL));
    DONE(fi_endpoint(domain, info, &ep, NULL));
    DONE(fi_cq_open(domain, &of_cq, &cq, NULL));
    DONE(fi_av_open(domain, &of_av, &av, NULL));
    DONE(fi_ep_bind(ep, &av->fid, 0));
    DONE(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    DONE(fi_enable(ep));
    DONE(fi_getname(&ep->fid, name, &length));
    DONE(fi_mr_reg(domain, window, sizeof window, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
}

static void close_all(void)
{
    DONE(fi_close(&mr->fid));
    DONE(fi_close(&ep->fid));
    DONE(fi_close(&cq->fid));
    DONE(fi_close(&av->fid));
    DONE(fi_close(&domain->fid));
    DONE(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

/* A length of any path: in a slot, in one frame, a request. */
static size_t any_length(void)
{
    static const size_t below[] = { 1, 41, 16385, 70000, LENGTH_MAX };
    return chance(below[chance(5)]);
}

/* Whether an operation is under way now, by the answer to the call that begins it. Another error than -FI_EAGAIN goes to `error`. */
static int begun(ssize_t answer, int *error)
{
    if (answer && answer != -FI_EAGAIN)
        *error = (int) -answer;
    return !answer;
}

/* Keeps receives, sends, writes and reads under way. The result is an error of the peer. */
static int keep_busy(fi_addr_t peer)
{
    int error = 0;
    for (int place = 0; place < EACH && !error; place++) {
        if (!receives[place]) {
            DONE(fi_trecv(ep, in[place], LENGTH_MAX, NULL, peer, 1, 0, &receives[place]));
            receives[place] = 1;
        }
        if (!sends[place]) {
            struct iovec payload = { out[place], any_length() };
            struct fi_msg_tagged message = { .msg_iov = &payload, .iov_count = 1, .addr = peer, .tag = 1,
                                             .context = &sends[place] };
            sends[place] = begun(fi_tsendmsg(ep, &message, chance(2) ? FI_DELIVERY_COMPLETE : 0), &error);
        }
        if (!writes[place] && !error) {
            size_t length = any_length();
            uint64_t offset = chance(LENGTH_MAX - length + 1);
            writes[place] = begun(fi_write(ep, written[place], length, NULL, peer, offset, KEY, &writes[place]), &error);
        }
        if (!reads[place] && !error) {
            size_t length = any_length();
            uint64_t offset = chance(LENGTH_MAX - length + 1);
            reads[place] = begun(fi_read(ep, got[place], length, NULL, peer, offset, KEY, &reads[place]), &error);
        }
    }
    return error;
}

/* Whether something of the peer has arrived, so that it is connected. */
static int is_met;

/* Takes what has completed. The result is the first error. */
static int take(void)
{
    struct fi_cq_tagged_entry entries[EACH];
    ssize_t count = fi_cq_read(cq, entries, EACH);
    for (ssize_t place = 0; place < count; place++) {
        int *done = entries[place].op_context;
        is_met |= (done >= receives && done < receives + EACH) || (done >= reads && done < reads + EACH);
        *done = 0;
    }
    if (count != -FI_EAVAIL)
        return 0;
    struct fi_cq_err_entry error = { 0 };
    CHECK(fi_cq_readerr(cq, &error, 0) == 1);
    CHECK(error.err != FI_ECANCELED && error.err != FI_ETRUNC && error.err != FI_ENOKEY && error.err != FI_EACCES);
    *(int *) error.op_context = 0;
    return error.err;
}

static int under_way(void)
{
    int count = 0;
    for (int place = 0; place < EACH; place++)
        count += receives[place] + sends[place] + writes[place] + reads[place];
    return count;
}

/* The peer, until it is killed. */
static int child(int socket)
{
    fi_addr_t peer;
    char target[NAME_BYTES];
    open_all();
    CHECK(write(socket, name, NAME_BYTES) == NAME_BYTES && read(socket, target, NAME_BYTES) == NAME_BYTES);
    CHECK(fi_av_insert(av, target, 1, &peer, 0, NULL) == 1);
    for (;;) {
        keep_busy(peer);
        take();
    }
}

/* One peer. The result is how long after its end the last operation with it has ended, in milliseconds. */
static double round_of(const char *program, const char *agent)
{
    char number[16], seed[32], target[NAME_BYTES];
    int sockets[2];
    fi_addr_t peer;
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets));
    snprintf(number, sizeof number, "%d", sockets[1]);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long) chance(1 << 30));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        close(sockets[0]);
        if (agent)
            execl(agent, agent, "host", "exec", program, "child", seed, number, NULL);
        execl(program, program, "child", seed, number, NULL);
        _exit(1);
    }
    close(sockets[1]);
    CHECK(read(sockets[0], target, NAME_BYTES) == NAME_BYTES);
    CHECK(write(sockets[0], name, NAME_BYTES) == NAME_BYTES);
    CHECK(fi_av_insert(av, target, 1, &peer, 0, NULL) == 1);
    /* A connection to another machine takes longer, and one that is never made is given up after 10 s only. */
    double begun_at = now_ms(), kill_at = agent ? -1 : begun_at + chance(KILL_AFTER_US) / 1e3, ended = 0;
    is_met = 0;
    int is_killed = 0, is_reaped = 0, error = 0;
    memset(receives, 0, sizeof receives);
    memset(sends, 0, sizeof sends);
    memset(writes, 0, sizeof writes);
    memset(reads, 0, sizeof reads);
    while (!is_reaped || !error || under_way()) {
        if (!error)
            error = keep_busy(peer);
        int taken = take();
        error = error ? error : taken;
        /* No error comes before the end. */
        CHECK(!error || is_killed);
        CHECK(is_met || !agent || now_ms() < begun_at + 30000);
        if (kill_at < 0 && is_met)
            kill_at = now_ms() + chance(KILL_AFTER_US) / 1e3;
        if (!is_killed && kill_at >= 0 && now_ms() >= kill_at) {
            kill(pid, SIGKILL);
            is_killed = 1;
        }
        if (is_killed && !is_reaped && waitpid(pid, NULL, WNOHANG) == pid) {
            is_reaped = 1;
            ended = now_ms();
        }
        CHECK(!is_reaped || now_ms() < ended + 30000);
    }
    DONE(fi_av_remove(av, &peer, 1, 0));
    close(sockets[0]);
    return now_ms() - ended;
}

static int descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static int ascending(const void *one, const void *other)
{
    double a = *(const double *) one, b = *(const double *) other;
    return (a > b) - (a < b);
}

int main(int count, char **words)
{
    CHECK(count > 2);
    if (!strcmp(words[1], "child")) {
        state = strtoull(words[2], NULL, 10);
        return child(atoi(words[3]));
    }
    int rounds = atoi(words[1]), any = 0, before = 0;
    char byte;
    state = strtoull(words[2], NULL, 10);
    double *delays = calloc(rounds, sizeof *delays);
    open_all();
    /* A receive from any source outlives all peers. */
    DONE(fi_trecv(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 2, 0, &any));
    for (int turn = 0; turn < rounds; turn++) {
        delays[turn] = round_of(words[0], count == 4 ? words[3] : NULL);
        if (turn == rounds / 2)
            before = descriptors();
    }
    /* What closes descriptors may lag behind. */
    for (int turn = 0; turn < 1000 && descriptors() > before + 4; turn++) {
        take();
        usleep(10000);
    }
    CHECK(descriptors() <= before + 4);
    DONE(fi_cancel(&ep->fid, &any));
    close_all();
    /* Each opener clears away some of what killed processes have left. */
    for (int turn = 0; turn < 4; turn++) {
        open_all();
        close_all();
    }
    qsort(delays, rounds, sizeof *delays, ascending);
    fprintf(stderr, "%d rounds: the last operation ended %.2f ms (median), %.2f ms (longest) after the peer\n", rounds,
            delays[rounds / 2], delays[rounds - 1]);
    CHECK(delays[rounds / 2] < 10);
    free(delays);
    printf("survived\n");
    return 0;
}
