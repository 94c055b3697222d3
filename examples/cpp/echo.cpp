/* A server that sends every message back, of whatever length, and outlives its clients. `ask` is a client, in C++ and
 * in every other language of examples.
 *
 *     c++ -std=c++20 echo.cpp -o echo $(pkg-config --cflags --libs bywire)
 *     ./echo                serves as `localhost/echo`
 *     ./echo --fabric       serves other machines, too
 */

#include <bywire.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <string_view>
#include <vector>

namespace {

/* The longest message that this server takes. A client that sends a longer one gets errc::too_long. */
constexpr std::size_t length_max = 1 << 20;
/* Long messages that can arrive at the same time. */
constexpr std::size_t buffers = 16;
/* Long answers that one client may leave unread. */
constexpr auto unread_max = 4;

/* Ends the program with a sentence when a call failed. */
template <class T> T check(bywire::result<T> result) {
    if (!result) {
        std::fprintf(stderr, "echo: %s\n", bywire::last_error_text());
        std::exit(1);
    }
    if constexpr (!std::is_void_v<T>)
        return *std::move(result);
}

/* A long answer, which is the library's until event_kind::sent. */
struct answer {
    bywire::peer peer;
    std::vector<std::byte> bytes;
};

class server {
public:
    explicit server(const bywire::port_options &options)
        : memory_(buffers * length_max), port_(check(bywire::port::open(options))) {
        /* A message of more than 4 KiB arrives in a posted buffer. A shorter one needs none. */
        for (std::size_t index = 0; index < buffers; index++)
            check(port_.post_receive(std::span(memory_).subspan(index * length_max, length_max)));
        std::printf("serving %s\n", port_.address());
    }

    void serve() {
        for (;;) {
            std::fflush(stdout);
            const bywire::event event = check(port_.wait());
            switch (event.kind()) {
            case bywire::event_kind::connected:
                std::puts("a client has come");
                break;
            case bywire::event_kind::message:
                reply(event);
                break;
            case bywire::event_kind::sent:
                unread_.remove_if([&](const answer &sent) { return sent.bytes.data() == event.buffer().data(); });
                break;
            case bywire::event_kind::disconnected:
                std::printf("a client has left: %s\n", event.status().text());
                break;
            default:
                break;
            }
        }
    }

private:
    void reply(const bywire::event &message) {
        const bool is_short = message.bytes().size() <= BW_FRAGMENT_BYTES;
        const auto sent =
            is_short ? port_.send(message.peer(), message.bytes(), message.priority()) : reply_long(message);
        /* A client that does not read its answers is disconnected, so that it cannot hold up others. */
        if (!sent)
            check(port_.disconnect(message.peer()));
        if (!message.buffer().empty())
            check(port_.post_receive(message.buffer(), message.priority()));
    }

    /* Sends a copy of a long message, as its own memory is posted again at once. */
    bywire::result<void> reply_long(const bywire::event &message) {
        const auto is_hers = [&](const answer &sent) { return sent.peer == message.peer(); };
        if (std::count_if(unread_.begin(), unread_.end(), is_hers) == unread_max)
            return bywire::unexpected(bywire::errc::full);
        unread_.push_front({message.peer(), {message.bytes().begin(), message.bytes().end()}});
        const auto sent = port_.send_buffer(message.peer(), unread_.front().bytes, bywire::confirm::copied,
                                            message.priority());
        if (!sent) {
            unread_.pop_front();
            return bywire::unexpected(sent.error());
        }
        return {};
    }

    /* Memory that the port uses outlives it: members end in reverse order. */
    std::vector<std::byte> memory_;
    std::list<answer> unread_;
    bywire::port port_;
};

} // namespace

int main(int count, char **arguments) {
    bywire::port_options options("echo");
    options.message_bytes_max = length_max;
    /* Other machines reach the port only with `--fabric`. */
    if (count > 1 && std::string_view(arguments[1]) == "--fabric")
        options.reach = BW_REACH_FABRIC;
    server(options).serve();
}
