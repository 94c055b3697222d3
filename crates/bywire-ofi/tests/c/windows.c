/* Two ranks of one machine write into a shared window, and one puts into a window of the other. */

#include <mpi.h>
#include <stdio.h>

int main(int count, char **words)
{
    int rank, unit, *own, *first, memory[4] = { 0 }, value = 5;
    MPI_Aint bytes;
    MPI_Win window;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);

    MPI_Win_allocate_shared(rank == 0 ? 4096 : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &own, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &first);
    MPI_Win_fence(0, window);
    if (rank == 1)
        first[3] = 77;
    MPI_Win_fence(0, window);
    int is_shared = first[3] == 77;
    MPI_Win_free(&window);

    MPI_Win_create(memory, sizeof memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    if (rank == 1)
        MPI_Put(&value, 1, MPI_INT, 0, 2, 1, MPI_INT, window);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    if (rank == 0)
        printf("%s, %s\n", is_shared ? "shared" : "apart", memory[2] == value ? "put" : "lost");
    MPI_Finalize();
    return 0;
}
