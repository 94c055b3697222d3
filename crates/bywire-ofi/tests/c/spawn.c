/* Ranks spawn processes three times. All exchange messages with all, short and long ones, and part again.
   usage: spawn */

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "mpi_check.h"

enum { CHILDREN = 3, RANKS_MAX = 16, LENGTH = 70000 };
static unsigned char out[LENGTH], in[LENGTH];

/* What all parents and children say to each other. */
static void exchange(MPI_Comm all)
{
    int rank, size, sent[RANKS_MAX], got[RANKS_MAX];
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    CHECK(size <= RANKS_MAX);
    for (int other = 0; other < size; other++)
        sent[other] = rank * 100 + other;
    MPI_Alltoall(sent, 1, MPI_INT, got, 1, MPI_INT, all);
    for (int other = 0; other < size; other++)
        CHECK(got[other] == other * 100 + rank);
    for (int distance = 1; distance < size; distance++) {
        int next = (rank + distance) % size, previous = (rank + size - distance) % size;
        memset(out, rank * 16 + distance, LENGTH);
        MPI_Sendrecv(out, LENGTH, MPI_BYTE, next, 1, in, LENGTH, MPI_BYTE, previous, 1, all, MPI_STATUS_IGNORE);
        for (int place = 0; place < LENGTH; place++)
            CHECK(in[place] == (unsigned char) (previous * 16 + distance));
    }
}

static void meet(MPI_Comm others, int come_second)
{
    MPI_Comm all;
    MPI_Intercomm_merge(others, come_second, &all);
    exchange(all);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&others);
}

int main(int count, char **words)
{
    int rank, size;
    MPI_Comm parents, children;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parents);
    if (parents != MPI_COMM_NULL) {
        CHECK(size == CHILDREN);
        meet(parents, 1);
    } else {
        for (int turn = 0; turn < 3; turn++) {
            MPI_Comm_spawn(words[0], MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
            meet(children, 0);
        }
        if (rank == 0)
            printf("exchanged\n");
    }
    MPI_Finalize();
    return 0;
}
