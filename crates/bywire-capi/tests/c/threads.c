/* Two threads in one port: the second one is turned away, and the first does not notice. */

#include "check.h"

#include <pthread.h>

static bw_port_t *shared;

/* Waits in the port until a message comes; told away itself where the other thread was first. */
static void *wait_inside(void *unused) {
    bw_event_t event;
    int got;
    do
        got = bw_wait(shared, BW_FOREVER, &event);
    while (got == BW_ERROR_THREADS);
    CHECK(got == 1 && event.kind == BW_EVENT_MESSAGE);
    CHECK(event.length_bytes == 4 && memcmp(event.data, "wake", 4) == 0);
    return unused;
}

int main(void) {
    bw_port_t *other = open_named("other");
    bw_peer_t to_shared, to_other;
    bw_event_t event;
    pthread_t thread;
    shared = open_named("shared");
    meet(other, shared, &to_shared, &to_other);
    CHECK(pthread_create(&thread, NULL, wait_inside, NULL) == 0);
    time_t limit = time(NULL) + 60;
    int got;
    while ((got = bw_poll(shared, &event)) == 0)
        CHECK(time(NULL) < limit);
    CHECK_CODE(got, BW_ERROR_THREADS);
    CHECK(strstr(bw_last_error_text(), "one thread at a time") != NULL);
    /* From now on the other one stays inside. */
    CHECK_CODE(bw_send(shared, to_other, BW_PRIORITY_LOW, "no", 2), BW_ERROR_THREADS);
    CHECK_CODE(bw_port_close(shared), BW_ERROR_THREADS);
    CHECK_CODE(bw_send(other, to_shared, BW_PRIORITY_LOW, "wake", 4), BW_OK);
    CHECK(pthread_join(thread, NULL) == 0);
    /* Handed over by the join, it is this thread's. */
    CHECK_CODE(bw_poll(shared, &event), 0);
    CHECK_CODE(bw_port_close(shared), BW_OK);
    CHECK_CODE(bw_port_close(other), BW_OK);
    puts("turned away");
    return 0;
}
