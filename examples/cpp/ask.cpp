/* A client of `echo`: sends a short message and a long one, and awaits both answers.
 *
 *     c++ -std=c++20 ask.cpp -o ask $(pkg-config --cflags --libs bywire)
 *     ./ask                 while `echo` runs
 *     ./ask web2/echo       while `echo --fabric` runs on the machine web2
 */

#include <bywire.hpp>

#include <array>
#include <cstdio>

namespace {

using namespace std::chrono_literals;

/* Errors are values. The caller prints the sentence of this one. */
bywire::result<void> ask(const char *address) {
    /* Memory that the port uses outlives it. */
    std::array<std::byte, 5000> request{}, answer{};
    auto port = bywire::port::open();
    if (!port)
        return bywire::unexpected(port.error());
    /* Memory for the answer that is longer than 4 KiB. */
    if (auto posted = port->post_receive(answer); !posted)
        return posted;
    auto server = port->connect(address, 5s);
    if (!server)
        return bywire::unexpected(server.error());
    if (auto sent = port->send(*server, "hello"); !sent)
        return sent;
    /* The request is the library's until event_kind::sent. */
    if (auto sent = port->send_buffer(*server, request); !sent)
        return bywire::unexpected(sent.error());
    for (int answers = 0; answers < 2;) {
        const auto event = port->wait(5s);
        if (!event)
            return bywire::unexpected(event.error());
        if (event->kind() == bywire::event_kind::none)
            return bywire::unexpected(bywire::errc::timed_out);
        if (event->kind() == bywire::event_kind::disconnected)
            return bywire::unexpected(event->status());
        if (event->kind() == bywire::event_kind::message) {
            std::printf("%zu bytes back\n", event->bytes().size());
            answers++;
        }
    }
    return {};
}

} // namespace

int main(int count, char **arguments) {
    const auto asked = ask(count > 1 ? arguments[1] : "localhost/echo");
    if (!asked) {
        std::fprintf(stderr, "ask: %s\n", asked.error().text());
        return 1;
    }
}
