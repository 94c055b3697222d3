/* A server and a client, built with one of the compiler's sanitizers. Ends with 0 if all of it went well. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORD = 100, WORDS = 3000 };

static void need(int is_well, const char *what) {
    if (!is_well) {
        perror(what);
        exit(1);
    }
}

static struct sockaddr_in address;

static int listening(void) {
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    need(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
    need(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "a name");
    return listener;
}

static int connected(void) {
    int client = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(client, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    return client;
}

/* Reads words of WORD bytes and gives them back, until there are no more. */
static void serve(int end) {
    char *word = malloc(WORD);
    while (recv(end, word, WORD, MSG_WAITALL) == WORD) {
        need(send(end, word, WORD, 0) == WORD, "an answer");
    }
    free(word);
    close(end);
}

static void ask(int end, char *word, int words) {
    for (int index = 0; index < words; index++) {
        memset(word, index, WORD);
        need(write(end, word, WORD) == WORD, "a question");
        need(recv(end, word, WORD, MSG_WAITALL) == WORD && word[WORD - 1] == (char)index, "an answer");
    }
}

/* What one thread has written, another one reads when it has been told over a connection: nothing else puts them in order. */
static int handed_over[WORDS];

static void *fill(void *argument) {
    int end = *(int *)argument;
    for (int index = 0; index < WORDS; index++) {
        char turn;
        handed_over[index] = index;
        need(write(end, "!", 1) == 1 && read(end, &turn, 1) == 1, "a turn");
    }
    return NULL;
}

static void hand_over(void) {
    pthread_t thread;
    int listener = listening(), client = connected(), server = accept(listener, NULL, NULL);
    need(pthread_create(&thread, NULL, fill, &client) == 0, "a thread");
    for (int index = 0; index < WORDS; index++) {
        char turn;
        need(read(server, &turn, 1) == 1 && handed_over[index] == index, "what was handed over");
        need(write(server, "!", 1) == 1, "a turn");
    }
    need(pthread_join(thread, NULL) == 0, "the thread's end");
    close(client);
    close(server);
}

int main(int count, char **words) {
    const char *role = count > 1 ? words[1] : "";
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(count > 2 ? atoi(words[2]) : 0);
    char *word = malloc(WORD);
    if (strcmp(role, "server") == 0) {
        serve(accept(listening(), NULL, NULL));
    } else if (strcmp(role, "client") == 0) {
        ask(connected(), word, WORDS);
    } else if (strncmp(role, "over", 4) == 0) {
        /* As many bytes as the pair has are more than the word has room for, or has. */
        int end = connected();
        char pair[2 * WORD] = {0};
        ask(end, word, WORDS);
        char *from = strcmp(role, "overread") == 0 ? word : pair, *to = strcmp(role, "overrun") == 0 ? word : pair;
        need(write(end, from, sizeof pair) == sizeof pair, "two questions");
        need(recv(end, to, sizeof pair, MSG_WAITALL) == sizeof pair, "two answers");
    } else {
        hand_over();
    }
    free(word);
    return 0;
}
