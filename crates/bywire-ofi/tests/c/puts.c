/* Two ranks put into each other's windows, get from them and add to them. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_check.h"

enum { LENGTH = 8 << 20 };

int main(int count, char **words)
{
    int rank, size;
    unsigned char *memory, *out = malloc(LENGTH), *in = malloc(LENGTH);
    MPI_Win window;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(size == 2 && out && in);
    int other = 1 - rank;
    MPI_Win_allocate(LENGTH, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 0, LENGTH);
    memset(out, rank + 1, LENGTH);
    MPI_Win_fence(0, window);
    MPI_Put(out, LENGTH, MPI_BYTE, other, 0, LENGTH, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    for (int place = 0; place < LENGTH; place++)
        CHECK(memory[place] == other + 1);
    MPI_Get(in, LENGTH, MPI_BYTE, other, 0, LENGTH, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    CHECK(!memcmp(in, out, LENGTH));
    MPI_Accumulate(out, 100, MPI_BYTE, other, 50, 100, MPI_BYTE, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int place = 0; place < 200; place++)
        CHECK(memory[place] == (other + 1) * (place >= 50 && place < 150 ? 2 : 1));
    MPI_Win_free(&window);
    if (rank == 0)
        printf("accessed\n");
    MPI_Finalize();
    return 0;
}
