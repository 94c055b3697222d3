/* A program in C with a library in Go: it is linked with it, or loads it once its connection is carried. Both use that
 * connection. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "talk.h"

typedef int call(int, int);

#ifdef LINKED
extern call Relay, Dial;
#endif

static void need(int is_well, const char *what) {
    if (!is_well) {
        puts(what);
        exit(1);
    }
}

int main(int count, char **words) {
    need(count > 2, "a port and a library are needed");
    int port = atoi(words[1]), fd = meet(port);
    need(fd >= 0 && talk(fd, 200), "C");
#ifdef LINKED
    call *relay = Relay, *dial = Dial;
#else
    void *library = dlopen(words[2], RTLD_NOW);
    need(library != NULL, "dlopen");
    call *relay = (call *)dlsym(library, "Relay"), *dial = (call *)dlsym(library, "Dial");
#endif
    need(relay(fd, 100), "Go on the connection of C");
    need(talk(fd, 100), "C again");
    need(dial(port, 100), "Go on a connection of its own");
    need(talk(fd, 100), "C at last");
    puts("fine");
    return 0;
}
