/* Conditions and calls that have to succeed, for programs that use libfabric. */

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <rdma/fi_errno.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)
#define DONE(call) \
    do { \
        ssize_t answer_ = (call); \
        if (answer_) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror((int) -answer_)); \
            exit(1); \
        } \
    } while (0)
