/* Ranks that send each other messages of all lengths, until one of them kills itself at a random moment. */

#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum { LENGTH_MAX = 1 << 20, EACH = 4 };
static char in[EACH][LENGTH_MAX], out[EACH][LENGTH_MAX];

static void die(int signal)
{
    static const char text[] = "this rank kills itself\n";
    (void) signal;
    if (write(2, text, sizeof text - 1) != sizeof text - 1)
        _exit(1);
    kill(getpid(), SIGKILL);
}

int main(int count, char **words)
{
    int rank, size;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    unsigned seed = atoi(words[1]);
    srand(seed);
    if (rank == (int) seed % size) {
        struct itimerval timer = { .it_value = { 0, 1 + rand() % 50000 } };
        signal(SIGALRM, die);
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    for (;;) {
        MPI_Request requests[2 * EACH];
        int length = rand() % (rand() % 2 ? 5000 : LENGTH_MAX);
        for (int place = 0; place < EACH; place++) {
            int next = (rank + 1) % size, previous = (rank + size - 1) % size;
            MPI_Irecv(in[place], LENGTH_MAX, MPI_BYTE, previous, 1, MPI_COMM_WORLD, &requests[2 * place]);
            MPI_Isend(out[place], length, MPI_BYTE, next, 1, MPI_COMM_WORLD, &requests[2 * place + 1]);
        }
        MPI_Waitall(2 * EACH, requests, MPI_STATUSES_IGNORE);
    }
}
