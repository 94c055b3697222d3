/* Ranks of one MPI job send each other messages of all kinds and lengths, and look at every byte. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_check.h"

enum { LENGTH_MAX = (3 << 20) + 1 };
static unsigned char out[LENGTH_MAX], in[LENGTH_MAX];

static void fill(unsigned char *bytes, int length, unsigned seed)
{
    for (int place = 0; place < length; place++)
        bytes[place] = (unsigned char) ((place * 2654435761u + seed * 40503u) >> 11);
}

static void look(const unsigned char *bytes, int length, unsigned seed)
{
    for (int place = 0; place < length; place++)
        CHECK(bytes[place] == (unsigned char) ((place * 2654435761u + seed * 40503u) >> 11));
}

/* Lengths around every border: slots, frames, eager payloads, puts. */
static const int lengths[] = { 0, 1, 8, 39, 40, 41, 48, 49, 4096, 16343, 16344, 16383, 16384, 16385, 32767,
                               32768, 65535, 65536, 65537, 100000, 1 << 20, LENGTH_MAX };
enum { COUNT = sizeof lengths / sizeof *lengths };

static void exchange(int rank, int other)
{
    for (int round = 0; round < 3; round++)
        for (int place = 0; place < COUNT; place++) {
            int length = lengths[place];
            unsigned seed = place + 100 * round;
            MPI_Status status;
            int count;
            memset(in, 0xee, length);
            if (rank < other) {
                fill(out, length, seed);
                MPI_Send(out, length, MPI_BYTE, other, place, MPI_COMM_WORLD);
                MPI_Recv(in, length, MPI_BYTE, other, place, MPI_COMM_WORLD, &status);
                look(in, length, seed + 1);
            } else {
                MPI_Recv(in, length, MPI_BYTE, other, place, MPI_COMM_WORLD, &status);
                look(in, length, seed);
                fill(out, length, seed + 1);
                MPI_Ssend(out, length, MPI_BYTE, other, place, MPI_COMM_WORLD);
            }
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK(count == length && status.MPI_SOURCE == other && status.MPI_TAG == place);
        }
}

/* Many messages before any receive, which then come in the order of their sends; probes; cancelled receives. */
static void unexpected(int rank, int other)
{
    enum { MANY = 3000 };
    static int numbers[MANY];
    static MPI_Request requests[MANY + 1];
    MPI_Status status;
    if (rank < other) {
        for (int number = 0; number < MANY; number++) {
            numbers[number] = number;
            MPI_Isend(&numbers[number], 1, MPI_INT, other, number % 3, MPI_COMM_WORLD, &requests[number]);
        }
        MPI_Isend(NULL, 0, MPI_BYTE, other, 9, MPI_COMM_WORLD, &requests[MANY]);
        MPI_Waitall(MANY + 1, requests, MPI_STATUSES_IGNORE);
    } else {
        MPI_Recv(NULL, 0, MPI_BYTE, other, 9, MPI_COMM_WORLD, &status);
        for (int tag = 2; tag >= 0; tag--)
            for (int number = tag; number < MANY; number += 3) {
                int found = -1, count, flag;
                MPI_Message message;
                if (number % 2)
                    MPI_Recv(&found, 1, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &status);
                else {
                    MPI_Improbe(other, tag, MPI_COMM_WORLD, &flag, &message, &status);
                    CHECK(flag);
                    MPI_Get_count(&status, MPI_INT, &count);
                    CHECK(count == 1);
                    MPI_Mrecv(&found, 1, MPI_INT, &message, &status);
                }
                CHECK(found == number);
            }
        int flag;
        for (int tag = 0; tag < 3; tag++) {
            MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, &status);
            CHECK(!flag);
        }
        MPI_Request request;
        MPI_Irecv(in, 1, MPI_BYTE, other, 77, MPI_COMM_WORLD, &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &flag);
        CHECK(flag);
    }
}

/* A message to oneself, of every length. */
static void alone(int rank)
{
    for (int place = 0; place < COUNT; place++) {
        MPI_Request request;
        fill(out, lengths[place], place);
        MPI_Irecv(in, lengths[place], MPI_BYTE, rank, place, MPI_COMM_WORLD, &request);
        MPI_Send(out, lengths[place], MPI_BYTE, rank, place, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        look(in, lengths[place], place);
    }
}

/* A message that is longer than its receive is an error there, and the next one is whole. */
static void truncated(int rank, int other)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int place = 1; place < COUNT; place++) {
        int length = lengths[place], class = 0;
        if (rank < other) {
            fill(out, length, place);
            MPI_Send(out, length, MPI_BYTE, other, 5, MPI_COMM_WORLD);
            MPI_Send(out, length, MPI_BYTE, other, 6, MPI_COMM_WORLD);
        } else {
            int error = MPI_Recv(in, length - 1, MPI_BYTE, other, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Error_class(error, &class);
            CHECK(class == MPI_ERR_TRUNCATE);
            MPI_Recv(in, length, MPI_BYTE, other, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            look(in, length, place);
        }
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int one = 0; one < size; one++)
        for (int two = one + 1; two < size; two++) {
            if (rank == one || rank == two) {
                int other = rank == one ? two : one;
                exchange(rank, other);
                unexpected(rank, other);
                truncated(rank, other);
            }
            MPI_Barrier(MPI_COMM_WORLD);
        }
    alone(rank);
    int sum = 0, own = rank + 1;
    MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == size * (size + 1) / 2);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("exchanged\n");
    MPI_Finalize();
    return 0;
}
