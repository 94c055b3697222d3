/* The least that a program between two networks can do: moves frames from TAP to TAP with the kernel's own headers, and
 * looks at nothing. A bound for `bywire eth up` in docs/performance.md.
 * usage: cc -O2 -o copier lab/figures/src/copier.c && ./copier NETWORK_NAMESPACE_1 NETWORK_NAMESPACE_2
 * It makes the interface by0 in either namespace and copies until it is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { FRAME_BYTES_MAX = 80000, FRAMES_IN_TURN = 64 };

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static int tap(const char *namespace) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int place = open(path, O_RDONLY);
    must(place >= 0 && setns(place, CLONE_NEWNET) == 0, path);
    close(place);
    int end = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    must(end >= 0, "/dev/net/tun");
    struct ifreq request = {.ifr_name = "by0", .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    must(ioctl(end, TUNSETIFF, &request) == 0, "TUNSETIFF");
    must(ioctl(end, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) == 0, "TUNSETOFFLOAD");
    return end;
}

int main(int count, char **arguments) {
    static char frame[FRAME_BYTES_MAX];
    if (count != 3) {
        fprintf(stderr, "usage: %s NETWORK_NAMESPACE_1 NETWORK_NAMESPACE_2\n", arguments[0]);
        return 2;
    }
    struct pollfd ends[2] = {{.fd = tap(arguments[1]), .events = POLLIN}, {.fd = tap(arguments[2]), .events = POLLIN}};
    for (;;) {
        must(poll(ends, 2, -1) > 0, "poll");
        for (int from = 0; from < 2; from++) {
            for (int frames = 0; ends[from].revents && frames < FRAMES_IN_TURN; frames++) {
                ssize_t length = read(ends[from].fd, frame, sizeof frame);
                if (length <= 0) {
                    break;
                }
                /* What finds no room is lost, as on a wire. */
                (void)!write(ends[1 - from].fd, frame, (size_t)length);
            }
        }
    }
}
