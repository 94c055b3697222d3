/* Half-RTT and rates between two ranks, as the field's own programs measure them: every round trip timed on its
 * own; streams in windows of 64, each acknowledged. Payloads are written before they are sent and read after.
 * usage: mpirun -np 2 ping_pong CORE_OF_RANK_0 CORE_OF_RANK_1 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUND_TRIPS = 200000, WARM_UP = 20000, WINDOW = 64 };

static int rank;
static volatile unsigned long seen;

static void must(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "ping_pong: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void read_all(const char *bytes, size_t length) {
    unsigned long sum = 0, word;
    for (size_t offset = 0; offset + sizeof word <= length; offset += sizeof word) {
        memcpy(&word, bytes + offset, sizeof word);
        sum += word;
    }
    seen += sum;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void latency(void) {
    double *half_ns = malloc(ROUND_TRIPS * sizeof *half_ns), started = 0;
    char message[8] = {0};
    must(half_ns != NULL, "no memory");
    for (int turn = -WARM_UP; turn < ROUND_TRIPS; turn++) {
        if (rank == 1) {
            MPI_Recv(message, 8, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(message, 8, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
            continue;
        }
        double before = MPI_Wtime();
        if (turn == 0)
            started = before;
        memcpy(message, &turn, sizeof turn);
        MPI_Send(message, 8, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(message, 8, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        read_all(message, 8);
        if (turn >= 0)
            half_ns[turn] = (MPI_Wtime() - before) / 2 * 1e9;
    }
    if (rank == 0) {
        double mean = (MPI_Wtime() - started) / ROUND_TRIPS / 2 * 1e9;
        qsort(half_ns, ROUND_TRIPS, sizeof *half_ns, by_value);
        printf("latency %.1f %.1f\n", half_ns[ROUND_TRIPS / 2], mean);
    }
    free(half_ns);
}

static void stream(size_t length, int windows) {
    MPI_Request requests[WINDOW];
    char *buffers = malloc(length * WINDOW), done = 0;
    double started = 0;
    must(buffers != NULL, "no memory");
    memset(buffers, 1, length * WINDOW);
    for (int window = -windows / 10 - 1; window < windows; window++) {
        if (window == 0)
            started = MPI_Wtime();
        for (int index = 0; index < WINDOW; index++) {
            char *buffer = buffers + index * length;
            if (rank == 0) {
                memset(buffer, window, length);
                MPI_Isend(buffer, (int)length, MPI_CHAR, 1, 2, MPI_COMM_WORLD, &requests[index]);
            } else {
                MPI_Irecv(buffer, (int)length, MPI_CHAR, 0, 2, MPI_COMM_WORLD, &requests[index]);
            }
        }
        if (rank == 0) {
            MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
            MPI_Recv(&done, 1, MPI_CHAR, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int index = 0; index < WINDOW; index++) {
                MPI_Wait(&requests[index], MPI_STATUS_IGNORE);
                read_all(buffers + index * length, length);
            }
            MPI_Send(&done, 1, MPI_CHAR, 0, 3, MPI_COMM_WORLD);
        }
    }
    if (rank == 0)
        printf("stream %zu %.1f\n", length, (double)windows * WINDOW / (MPI_Wtime() - started));
    free(buffers);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    must(ranks == 2 && count == 3, "start two of me, with the cores of both");
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(atoi(arguments[1 + rank]), &core);
    must(sched_setaffinity(0, sizeof core, &core) == 0, "cannot run on that core");
    latency();
    stream(8, 20000);
    stream(1024, 4000);
    stream(65536, 60);
    stream(1048576, 5);
    MPI_Finalize();
    return 0;
}
