/* Ranks exchange messages of all lengths for some time, and look at every byte. Rank 0 tells of the first exchange and of the
   last one, and each rank of its process.
   usage: steady SECONDS [fork | late SECONDS]
   With `fork` rank 0 has children meanwhile, of which some run a program and some end as a rank does. With `late` the other ranks
   sleep before their first call. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mpi_check.h"

static const size_t lengths[] = { 0, 1, 40, 41, 16384, 16385, 65536, 65537, 1 << 20 };
enum { COUNT = sizeof lengths / sizeof *lengths, LENGTH_MAX = 1 << 20 };
static unsigned char out[LENGTH_MAX], in[LENGTH_MAX];
static int rank, size;

static unsigned char byte_of(size_t place, int from, int turn)
{
    return (unsigned char) (place * 31 + (place >> 8) * 7 + from * 101 + turn * 13);
}

static void exchange(int turn)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (int place = 0; place < COUNT; place++) {
        size_t length = lengths[place];
        int count;
        MPI_Status status;
        for (size_t at = 0; at < length; at++)
            out[at] = byte_of(at, rank, turn);
        memset(in, 0xee, length);
        MPI_Sendrecv(out, length, MPI_BYTE, next, place, in, length, MPI_BYTE, previous, place, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK((size_t) count == length);
        for (size_t at = 0; at < length; at++)
            CHECK(in[at] == byte_of(at, previous, turn));
    }
}

static void have_child(int turn)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (turn % 2) {
            execlp("true", "true", (char *) NULL);
            _exit(1);
        }
        /* It runs what libraries have registered for the end of the process. */
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double seconds = count > 1 ? atof(words[1]) : 1;
    int forks = count > 2 && !strcmp(words[2], "fork"), goes_on = 1;
    printf("rank %d is process %d\n", rank, (int) getpid());
    fflush(stdout);
    if (count > 3 && !strcmp(words[2], "late")) {
        if (rank == 0) {
            printf("begun\n");
            fflush(stdout);
        } else {
            sleep((unsigned) atoi(words[3]));
        }
    }
    double start = MPI_Wtime();
    for (int turn = 0; goes_on; turn++) {
        exchange(turn);
        if (forks && rank == 0)
            have_child(turn);
        goes_on = MPI_Wtime() - start < seconds;
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (turn == 0 && rank == 0) {
            printf("begun\n");
            fflush(stdout);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("exchanged to the end\n");
    MPI_Finalize();
}
