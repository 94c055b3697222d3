/* Conditions that end the whole job, for programs that use MPI. */

#include <mpi.h>
#include <stdio.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            int rank_; \
            MPI_Comm_rank(MPI_COMM_WORLD, &rank_); \
            fprintf(stderr, "%s: rank %d, line %d: %s\n", __FILE__, rank_, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)
