/* A client of `echo` that sends long messages and has no memory for their answers, until the server ends the connection. */

#include <bywire.hpp>

#include <array>
#include <cstdio>

int main() {
    /* More of it than the rings to a client hold. */
    static std::array<std::byte, 1 << 20> request;
    auto port = bywire::port::open();
    if (!port)
        return 1;
    const auto server = port->connect("localhost/echo", std::chrono::seconds(60));
    if (!server)
        return 2;
    for (int sent = 0; sent < 24; sent++)
        if (!port->send_buffer(*server, request))
            return 3;
    for (;;) {
        const auto event = port->wait(std::chrono::seconds(60));
        if (!event || !*event || event->kind() == bywire::event_kind::message)
            return 4;
        if (event->kind() == bywire::event_kind::disconnected)
            break;
    }
    std::puts("disconnected");
}
