/* Asynchronous I/O of the kernel, for files and then for a socket: the results are the same with the library and without. The
   connection is carried although the program does such I/O, until the socket itself is submitted. */
#include "two_ends.h"

#include <linux/aio_abi.h>

static aio_context_t context;

/* Submits one request, and waits for its result. */
static long submit(int fd, int operation, const void *bytes, size_t length) {
    struct iocb request = {.aio_fildes = fd, .aio_lio_opcode = operation, .aio_buf = (__u64)bytes, .aio_nbytes = length};
    struct iocb *list[] = {&request};
    struct io_event done = {0};
    need(syscall(SYS_io_submit, context, 1, list) == 1, "io_submit");
    need(syscall(SYS_io_getevents, context, 1, 1, &done, NULL) == 1, "io_getevents");
    return done.res;
}

/* Bytes to a file and back. */
static void use_file(void) {
    char bytes[16] = "";
    int file = memfd_create("a file", 0);
    printf("written: %ld\n", submit(file, IOCB_CMD_PWRITE, "0123456789", 10));
    printf("read: %ld\n", submit(file, IOCB_CMD_PREAD, bytes, 10));
    printf("%s\n", bytes);
    close(file);
}

static void act_echo_late(void) {
    char bytes[16];
    need(send(client, "9876543210", 10, 0) == 10, "bytes");
    signal_by(told);
    need(recv(client, bytes, 10, MSG_WAITALL) == 10, "bytes");
    need(send(client, bytes, 10, 0) == 10, "bytes");
}

/* Lists and requests that are nowhere. */
static void use_nothing(void) {
    struct iocb *volatile low = (struct iocb *)8;
    struct iocb *list[] = {low};
    printf("list: %ld", syscall(SYS_io_submit, context, 1, low));
    printf(" %s\n", strerror(errno));
    printf("request: %ld", syscall(SYS_io_submit, context, 1, list));
    printf(" %s\n", strerror(errno));
    printf("none: %ld\n", syscall(SYS_io_submit, context, 0, NULL));
}

int main(void) {
    char bytes[16] = "", back[16] = "";
    alarm(60);
    need(syscall(SYS_io_setup, 8, &context) == 0, "io_setup");
    use_file();
    meet(act_echo_late);
    use_file();
    use_nothing();
    /* These bytes are in memory. */
    await_by(told);
    /* The kernel adds further events if it has waited for them. */
    printf("polled: %ld\n", submit(server, IOCB_CMD_POLL, (void *)POLLIN, 0) & POLLIN);
    printf("read: %ld\n", submit(server, IOCB_CMD_PREAD, bytes, 10));
    printf("%s\n", bytes);
    printf("written: %ld\n", submit(server, IOCB_CMD_PWRITE, bytes, 10));
    need(recv(server, back, 10, MSG_WAITALL) == 10, "bytes");
    printf("%s\n", back);
    close(server);
    join();
    fflush(stdout);
    return 0;
}
