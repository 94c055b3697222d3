/*
 * The memory of quiet connections between the ranks of one machine: rank 0 exchanges a message with each other rank, and adds up the
 * proportional set sizes of all ranks before and after. The other ranks have exchanged messages in pairs before, so
 * that what a rank needs for its first connection does not count. It prints `bytes BYTES`, for a connection, both ends.
 *
 * The ranks tell each other their processes by files in DIRECTORY, as messages would make connections. Rank 0 does so last, and
 * the others await that.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int rank, ranks;

static void fail(const char *reason)
{
    fprintf(stderr, "%s\n", reason);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void exchange(int peer, int times)
{
    char own[8] = {0}, theirs[8];
    for (; times > 0; times--)
        MPI_Sendrecv(own, 8, MPI_BYTE, peer, 0, theirs, 8, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void path_of(char path[4096], const char *directory, int number)
{
    snprintf(path, 4096, "%s/%d", directory, number);
}

static void tell_process(const char *directory)
{
    char path[4096], hidden[4096];
    path_of(path, directory, rank);
    path_of(hidden, directory, ranks + rank);
    FILE *file = fopen(hidden, "w");
    if (!file || fprintf(file, "%d", getpid()) < 1 || fclose(file) != 0 || rename(hidden, path) != 0)
        fail("cannot write a file for the other ranks");
}

static int process_of(const char *directory, int number)
{
    char path[4096];
    path_of(path, directory, number);
    for (int turn = 0; turn < 10000; turn++) {
        int process = 0;
        FILE *file = fopen(path, "r");
        if (file) {
            int found = fscanf(file, "%d", &process);
            fclose(file);
            if (found == 1)
                return process;
        }
        usleep(1000);
    }
    fail("another rank does not say its process");
    return 0;
}

/* The memory of all ranks, in KiB. */
static long resident(const int *processes)
{
    long sum = 0;
    for (int number = 0; number < ranks; number++) {
        char path[64], line[256];
        long kibibytes = -1;
        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", processes[number]);
        FILE *file = fopen(path, "r");
        while (file && kibibytes < 0 && fgets(line, sizeof line, file))
            if (sscanf(line, "Pss: %ld kB", &kibibytes) != 1)
                kibibytes = -1;
        if (kibibytes < 0)
            fail("cannot read the memory of a rank");
        fclose(file);
        sum += kibibytes;
    }
    return sum;
}

/* DIRECTORY */
int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 2 || ranks < 3 || ranks % 2 == 0)
        fail("it takes a directory and an odd number of ranks");
    if (rank > 0) {
        exchange(((rank - 1) ^ 1) + 1, 100);
        tell_process(words[1]);
        if (rank > 1)
            process_of(words[1], 0);
        exchange(0, 10);
    } else {
        int *processes = calloc((size_t)ranks, sizeof *processes);
        if (!processes)
            fail("no memory");
        processes[0] = getpid();
        for (int number = 1; number < ranks; number++)
            processes[number] = process_of(words[1], number);
        /* The first of them may have been there already. */
        exchange(1, 10);
        long before = resident(processes);
        tell_process(words[1]);
        for (int number = 2; number < ranks; number++)
            exchange(number, 10);
        long after = resident(processes);
        printf("bytes %f\n", 1024.0 * (double)(after - before) / (ranks - 2));
    }
    MPI_Finalize();
    return 0;
}
