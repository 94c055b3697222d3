/* Every class and every call of bywire.hpp, between two ports of one thread, so that each step is the program's own. */

#include <bywire.hpp>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <new>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

using namespace std::chrono_literals;
using namespace std::string_view_literals;
using bywire::errc;
using bywire::event_kind;
using bywire::priority;

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            std::fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
                         bywire::last_error_text());                                                      \
            std::exit(1);                                                                                 \
        }                                                                                                 \
    } while (0)

/* Whether a call has failed with this code. */
#define FAILS(call, expected)                                        \
    do {                                                             \
        const auto failed = (call);                                  \
        CHECK(!failed && failed.error() == bywire::errc::expected);  \
    } while (0)

/* ---- The header allocates nothing: what this program allocates is counted ---- */

static int allocations = 0;

void *operator new(std::size_t size) {
    allocations++;
    void *const memory = std::malloc(size);
    if (!memory)
        std::abort();
    return memory;
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

/* ---- Calls that do not compile ---- */

template <class T>
constexpr bool moves_only = std::is_nothrow_default_constructible_v<T> && std::is_nothrow_move_constructible_v<T> &&
                            std::is_nothrow_move_assignable_v<T> && !std::is_copy_constructible_v<T> &&
                            !std::is_copy_assignable_v<T>;
static_assert(moves_only<bywire::port> && moves_only<bywire::connection> && moves_only<bywire::region>);
static_assert(moves_only<bywire::heap> && moves_only<bywire::block> && moves_only<bywire::lent_message>);
static_assert(moves_only<bywire::event>);
static_assert(std::is_trivially_copyable_v<bywire::peer> && sizeof(bywire::peer) == sizeof(bw_peer_t));
static_assert(std::is_convertible_v<bywire::connection &, bywire::peer>);
static_assert(!std::is_convertible_v<bywire::connection, bywire::peer>, "its peer would end with the temporary");

template <class Bytes>
constexpr bool can_send_buffer = requires(bywire::port &port, Bytes &&bytes) {
    port.send_buffer(bywire::peer(), std::forward<Bytes>(bytes));
};
template <class Bytes>
constexpr bool can_put = requires(bywire::port &port, Bytes &&bytes) {
    port.put(bywire::peer(), bywire::region_key(), 0, std::forward<Bytes>(bytes));
    port.put_notify(bywire::peer(), bywire::region_key(), 0, std::forward<Bytes>(bytes), bywire::bytes_of("note"));
};
template <class T> constexpr bool has_bytes = requires(T &&object) { bywire::bytes_of(std::forward<T>(object)); };
static_assert(can_send_buffer<std::vector<std::byte> &> && !can_send_buffer<std::vector<std::byte>>);
static_assert(can_send_buffer<std::span<std::byte>> && can_send_buffer<std::array<std::byte, 4> &>);
static_assert(can_put<std::vector<std::byte> &> && !can_put<std::vector<std::byte>>);
static_assert(!can_put<std::array<std::byte, 4>>);
static_assert(has_bytes<int &> && !has_bytes<int> && !has_bytes<std::vector<int> &> && !has_bytes<int *&>);

static_assert(bywire::forever.us() == BW_FOREVER && bywire::timeout(std::chrono::hours::max()).us() == BW_FOREVER);
static_assert(bywire::timeout(1s).us() == 1000000 && bywire::timeout(1999ns).us() == 1);
static_assert(bywire::timeout(-1s).us() == 0 && bywire::timeout(0s).us() == 0 && bywire::timeout(0.5s).us() == 500000);
static_assert(!bywire::error() && bywire::error(errc::full) && bywire::error(BW_ERROR_FULL) == errc::full);
static_assert(!bywire::error(1), "a positive result of bywire.h is no error");

/* ---- Waiting for events ---- */

static bywire::port a, b;
static bywire::connection to_b;
static bywire::peer to_a;

/* Takes what has succeeded. */
template <class T> static T take(bywire::result<T> result) {
    CHECK(result);
    if constexpr (!std::is_void_v<T>)
        return *std::move(result);
}

/* Polls a port until it has an event, which must be of this kind; `other`, if any, moves on without events. */
static bywire::event expect(bywire::port &port, event_kind kind, bywire::port *other) {
    const std::time_t limit = std::time(nullptr) + 120;
    for (;;) {
        auto event = take(port.poll());
        if (event) {
            if (event.kind() != kind)
                std::fprintf(stderr, "event %u instead of %u\n", event.raw().kind, static_cast<unsigned>(kind));
            CHECK(event.kind() == kind);
            return event;
        }
        CHECK(!other || !take(other->poll()));
        CHECK(std::time(nullptr) < limit);
    }
}

/* Connects two ports of this thread. */
static void meet(bywire::port &first, bywire::port &second, bywire::connection &to_second, bywire::peer &to_first) {
    const std::time_t limit = std::time(nullptr) + 120;
    to_second = take(first.connect_start(second.address()));
    CHECK(to_second && to_second.peer());
    for (bool at_first = false, at_second = false; !at_first || !at_second;) {
        if (const auto event = take(first.poll())) {
            CHECK(event.kind() == event_kind::connected && event.peer() == to_second);
            at_first = true;
        }
        if (const auto event = take(second.poll())) {
            CHECK(event.kind() == event_kind::connected);
            to_first = event.peer();
            at_second = true;
        }
        CHECK(std::time(nullptr) < limit);
    }
}

/* Moving into itself keeps a value; the compiler is not to see that it is the same. */
template <class T> static void move_into_itself(T &value) {
    T &same = value;
    value = std::move(same);
}

/* ---- Steps ---- */

static void results() {
    bywire::result<int> three(3);
    CHECK(three && three.has_value() && *three == 3 && std::move(three).value_or(4) == 3);
    bywire::result<int> none = bywire::unexpected(errc::full);
    CHECK(!none && !none.has_value() && none.error() == errc::full && std::move(none).value_or(4) == 4);
    none = 5;
    CHECK(none && *none == 5);
    none = bywire::unexpected(errc::dropped);
    CHECK(!none && none.error().code() == errc::dropped);
    CHECK(std::strcmp(none.error().text(), bw_error_text(BW_ERROR_DROPPED)) == 0);
    const bywire::result<std::string> text(std::string("text"));
    CHECK(text->size() == 4 && *text == "text");
    bywire::result<void> done;
    CHECK(done);
    done = bywire::unexpected(errc::no_peer);
    CHECK(!done && done.error() == errc::no_peer);
    CHECK(bywire::abi_version() == BW_ABI_VERSION && std::strcmp(bywire::version(), bw_version()) == 0);
}

/* Objects that hold nothing: made so, or moved from. */
static void nothing(bywire::port &port, bywire::connection &connection, bywire::region &region, bywire::heap &heap,
                    bywire::block &block, bywire::lent_message &lent) {
    std::array<std::byte, 8> bytes{};
    const bywire::peer nobody;
    const bywire::region_key key{};
    CHECK(!port && !port.handle() && !port.name() && !port.address() && port.close());
    FAILS(port.options(), argument);
    FAILS(port.statistics(), argument);
    FAILS(port.connect("localhost/walk", 1s), argument);
    FAILS(port.connect_start("localhost/walk"), argument);
    FAILS(port.disconnect(nobody), argument);
    FAILS(port.peer_info(nobody), argument);
    FAILS(port.peers(), argument);
    FAILS(port.send(nobody, bytes), argument);
    FAILS(port.send(nobody, "text"), argument);
    FAILS(port.send_datagram(nobody, bytes), argument);
    FAILS(port.await_room(nobody), argument);
    FAILS(port.flush(), argument);
    FAILS(port.send_buffer(nobody, bytes), argument);
    FAILS(port.post_receive(bytes), argument);
    FAILS(port.poll(), argument);
    FAILS(port.poll_arrived(), argument);
    FAILS(port.wait(1s), argument);
    FAILS(port.has_progressed(), argument);
    FAILS(port.release_event(), argument);
    FAILS(port.descriptor(), argument);
    FAILS(port.arm(), argument);
    FAILS(port.register_region(bytes, bywire::rights::read), argument);
    FAILS(port.allocate_region(8, bywire::rights::read), argument);
    FAILS(port.put(nobody, key, 0, bytes), argument);
    FAILS(port.put_notify(nobody, key, 0, bytes, bywire::bytes_of("note")), argument);
    FAILS(port.get(nobody, key, 0, bytes), argument);
    FAILS(port.open_heap(nobody, 64, 1), argument);
    FAILS(port.send_lent(block, 1), argument);
    CHECK(!connection && !connection.peer() && connection.disconnect() && !connection.release());
    CHECK(!region && region.memory().empty() && region.revoke());
    CHECK(!heap && heap.block_bytes() == 0 && !heap.peer());
    FAILS(heap.block(), argument);
    CHECK(!block && block.memory().empty());
    CHECK(!lent && lent.size_bytes() == 0 && lent.memory().empty() && lent.read(bytes) == 0);
    lent.give_back();
}

static void nothing_is_held_at_first() {
    bywire::port port;
    bywire::connection connection;
    bywire::region region;
    bywire::heap heap;
    bywire::block block;
    bywire::lent_message lent;
    nothing(port, connection, region, heap, block, lent);
    bywire::event event;
    CHECK(!event && event.bytes().empty() && event.text().empty() && event.buffer().empty() && !event.take_lent());
    CHECK(event.status() == errc::ok && !event.peer() && event.length_bytes() == 0);
    CHECK(!bywire::peer() && bywire::peer(7).handle() == 7 && bywire::peer(7) < bywire::peer(8));
}

static void opening() {
    bywire::port_options options("walk");
    CHECK(options.size_bytes == sizeof(bw_port_options_t) && options.send_tokens == 64);
    options.send_tokens = 2;
    options.receive_tokens = 1;
    options.message_bytes_max = 1000000;
    a = take(bywire::port::open(options));
    CHECK(a && a.name() == "walk"sv && std::string_view(a.address()).ends_with("/walk"));
    FAILS(bywire::port::open(options), in_use);
    CHECK(std::strstr(bywire::last_error_text(), "walk"));
    const auto asked = take(a.options());
    CHECK(asked.name == "walk"sv && asked.send_tokens == 2 && asked.message_bytes_max == 1000000);
    FAILS(bywire::port::open("no name"), address_port);
    options.name = "other";
    options.send_tokens = 0;
    FAILS(bywire::port::open(options), option);
    options.send_tokens = 2;
    options.runtime_directory = "/dev/null/none";
    FAILS(bywire::port::open(options), runtime_directory);
    CHECK(std::strstr(bywire::last_error_text(), "/dev/null/none"));
    options.runtime_directory = nullptr;
    options.name = nullptr;
    b = take(bywire::port::open(options));
    CHECK(b && take(a.statistics()).refused == 0);
    /* Assigning a port closes the one before, whose name is free again. */
    auto named = take(bywire::port::open("short"));
    named = take(bywire::port::open());
    const auto again = take(bywire::port::open(std::string("short")));
    CHECK(again && named);
    move_into_itself(named);
    CHECK(named && named.name());
    CHECK(named.close() && !named && named.close());
}

static void connecting() {
    FAILS(a.connect("localhost/nobody", 1ms), no_port);
    FAILS(a.connect(std::string("localhost/walk"), 1ms), own_port);
    FAILS(a.connect_start("no node/7"), address_node);
    FAILS(a.connect_start(nullptr), argument);
    /* The other end does not poll, as this is its thread. */
    FAILS(a.connect(b.address(), 1ms), timed_out);
    meet(a, b, to_b, to_a);
    const auto info = take(b.peer_info(to_a));
    CHECK(info.address == std::string_view(a.address()) && info.pid == getpid() && info.message_bytes_max == 1000000);
    FAILS(b.peer_info(bywire::peer(12345)), no_peer);
    std::array<bw_peer_t, 2> handles{};
    CHECK(take(a.peers()) == 1 && take(a.peers(handles)) == 1 && bywire::peer(handles[0]) == to_b);
    const bywire::peer same = to_b;
    CHECK(same == to_b.peer() && same && same != bywire::peer());
    /* Moved away and back. */
    bywire::connection moved = std::move(to_b);
    to_b = std::move(moved);
    move_into_itself(to_b);
    CHECK(to_b && to_b.peer() == same && take(a.peers()) == 1);
}

static void messages() {
    std::array<std::byte, 4097> sent{};
    for (std::size_t index = 0; index < sent.size(); index++)
        sent[index] = static_cast<std::byte>(index * 31 + (index >> 8));
    for (const std::size_t length : {0u, 1u, 56u, 57u, 4096u}) {
        for (const priority lane : {priority::low, priority::high}) {
            CHECK(a.send(to_b, std::span(sent).first(length), lane));
            const auto event = expect(b, event_kind::message, &a);
            CHECK(event.peer() == to_a && event.priority() == lane && event.bytes().size() == length);
            CHECK(event.length_bytes() == length && event.buffer().empty());
            CHECK(length == 0 || std::memcmp(event.bytes().data(), sent.data(), length) == 0);
        }
    }
    FAILS(a.send(to_b, sent), too_long);
    CHECK(a.send(to_b, "text") && a.send(to_b, std::string("string")));
    CHECK(expect(b, event_kind::message, nullptr).text() == "text");
    CHECK(expect(b, event_kind::message, nullptr).text() == "string");
    CHECK(b.release_event() && b.release_event());
    const double pi = 3.14;
    CHECK(a.send(to_b, bywire::bytes_of(pi)));
    CHECK(std::memcmp(expect(b, event_kind::message, nullptr).bytes().data(), &pi, sizeof pi) == 0);

    std::uint32_t count = 0, received = 0;
    bywire::result<void> result;
    while ((result = a.send(to_b, bywire::bytes_of(count))))
        count++;
    CHECK(result.error() == errc::full && count > 0);
    const std::time_t limit = std::time(nullptr) + 120;
    for (bool has_room = false; received < count || !has_room;) {
        CHECK(std::time(nullptr) < limit);
        for (auto event = take(b.poll()); event; event = take(b.poll_arrived())) {
            std::uint32_t number;
            CHECK(event.kind() == event_kind::message && event.bytes().size() == sizeof number);
            std::memcpy(&number, event.bytes().data(), sizeof number);
            CHECK(number == received++);
        }
        if (const auto event = take(a.poll())) {
            CHECK(event.kind() == event_kind::room && event.peer() == to_b && event.priority() == priority::low);
            has_room = true;
        }
    }
}

static void datagrams() {
    int sent = 0;
    bywire::result<void> result;
    while ((result = a.send_datagram(to_b, "news", priority::high)))
        sent++;
    CHECK(result.error() == errc::dropped && sent > 0 && take(a.statistics()).datagrams_unsent == 1);
    CHECK(a.await_room(to_b, priority::high));
    for (; sent > 0; sent--) {
        const auto event = expect(b, event_kind::datagram, nullptr);
        CHECK(event.text() == "news" && event.priority() == priority::high && event.peer() == to_a);
    }
    CHECK(expect(a, event_kind::room, &b).priority() == priority::high);
    const std::array<std::byte, 3> bytes{};
    CHECK(a.send_datagram(to_b, bytes));
    CHECK(expect(b, event_kind::datagram, nullptr).bytes().size() == 3);
}

static std::array<std::byte, 100000> long_message;
static std::array<std::byte, 200000> posted;

static void long_messages() {
    for (std::size_t index = 0; index < long_message.size(); index++)
        long_message[index] = static_cast<std::byte>(index * 7 + (index >> 9));
    const auto transfer = take(a.send_buffer(to_b, long_message, bywire::confirm::delivered));
    auto event = expect(b, event_kind::buffer_needed, &a);
    CHECK(event.peer() == to_a && event.length_bytes() == long_message.size() && event.bytes().empty());
    CHECK(b.post_receive(posted));
    FAILS(b.post_receive(posted), argument);
    FAILS(b.post_receive(std::span(posted).subspan(1, 10)), no_receive_token);
    FAILS(b.post_receive({}), argument);
    event = expect(b, event_kind::message, &a);
    CHECK(event.bytes().data() == posted.data() && event.bytes().size() == long_message.size());
    CHECK(event.buffer().data() == posted.data() && event.buffer().size() == posted.size());
    CHECK(std::memcmp(posted.data(), long_message.data(), long_message.size()) == 0);
    event = expect(a, event_kind::sent, &b);
    CHECK(event.transfer() == transfer && !event.status() && event.buffer().data() == long_message.data());
    CHECK(event.buffer().size() == long_message.size());

    const auto few = std::span<const std::byte>(long_message).first(10);
    for (int count = 0; count < 2; count++)
        CHECK(a.send_buffer(to_b, few, bywire::confirm::delivered, priority::high));
    FAILS(a.send_buffer(to_b, few, bywire::confirm::delivered, priority::high), no_token);
    for (int count = 0; count < 2; count++)
        expect(b, event_kind::message, nullptr);
    for (int count = 0; count < 2; count++)
        CHECK(expect(a, event_kind::sent, &b).status() == errc::ok);
}

static void regions() {
    std::array<std::byte, 64> memory{};
    std::array<std::byte, 8> data{};
    std::array<std::byte, 4> got{};
    for (std::size_t index = 0; index < data.size(); index++)
        data[index] = static_cast<std::byte>(index + 1);
    auto both = take(b.register_region(memory, bywire::rights::read_write));
    CHECK(both && both.memory().data() == memory.data() && both.memory().size() == memory.size());
    auto readable = take(b.allocate_region(32, bywire::rights::read));
    CHECK(readable.memory().size() == 32 && readable.memory()[31] == std::byte{0} && readable.key() != both.key());
    std::memcpy(readable.memory().data(), "readable", 8);

    auto transfer = take(a.put_notify(to_b, both.key(), 56, data, bywire::bytes_of("note")));
    auto event = expect(b, event_kind::notified, &a);
    CHECK(event.peer() == to_a && event.text() == "note" && std::memcmp(&memory[56], data.data(), 8) == 0);
    event = expect(a, event_kind::put, &b);
    CHECK(event.transfer() == transfer && !event.status() && event.buffer().data() == data.data());
    CHECK(a.put_notify(to_b, both.key(), 0, data, {}));
    CHECK(expect(b, event_kind::notified, &a).bytes().empty());
    CHECK(!expect(a, event_kind::put, &b).status());
    CHECK(a.put(to_b, both.key(), 8, data, priority::high));
    CHECK(!expect(a, event_kind::put, &b).status() && memory[15] == std::byte{8});

    transfer = take(a.get(to_b, both.key(), 60, got));
    event = expect(a, event_kind::got, &b);
    CHECK(event.transfer() == transfer && !event.status() && std::memcmp(got.data(), &data[4], 4) == 0);
    CHECK(a.get(to_b, readable.key(), 4, got, priority::high));
    CHECK(!expect(a, event_kind::got, &b).status() && std::memcmp(got.data(), "able", 4) == 0);

    CHECK(a.put(to_b, both.key(), 57, data));
    CHECK(expect(a, event_kind::put, &b).status() == errc::out_of_range);
    CHECK(a.put(to_b, readable.key(), 0, data));
    CHECK(expect(a, event_kind::put, &b).status() == errc::no_right);
    const std::array<std::byte, BW_NOTE_BYTES_MAX + 1> note{};
    FAILS(a.put_notify(to_b, both.key(), 0, data, note), too_long);

    /* A moved region keeps its key; an assigned one has ended the one before. */
    const auto before = both.key();
    both = std::move(readable);
    CHECK(!readable && both && std::memcmp(both.memory().data(), "readable", 8) == 0);
    CHECK(a.get(to_b, before, 0, got));
    CHECK(expect(a, event_kind::got, &b).status() == errc::bad_key);
    move_into_itself(both);
    CHECK(a.get(to_b, both.key(), 0, got));
    CHECK(!expect(a, event_kind::got, &b).status());
    /* So has one that went out of scope, but not one that was left to the port. */
    const auto left = both.release();
    CHECK(!both && both.memory().empty() && both.revoke());
    CHECK(a.get(to_b, left, 0, got));
    CHECK(!expect(a, event_kind::got, &b).status());
    CHECK(bw_region_revoke(b.handle(), static_cast<bw_key_t>(left)) == BW_OK);
    bywire::region_key ended;
    {
        const auto scoped = take(b.register_region(memory, bywire::rights::read));
        ended = scoped.key();
    }
    CHECK(a.get(to_b, ended, 0, got));
    CHECK(expect(a, event_kind::got, &b).status() == errc::bad_key);
    CHECK(take(b.register_region({}, bywire::rights::read)).memory().empty());
}

static void *read_lent(void *argument) {
    std::array<std::byte, 16> copy{};
    bywire::lent_message lent = std::move(*static_cast<bywire::lent_message *>(argument));
    CHECK(lent.read(copy, 5) == 9 && std::memcmp(copy.data(), "in place", 8) == 0);
    return nullptr;
}

/* Waits until a block has come back. */
static bywire::block come_back(bywire::heap &heap) {
    const std::time_t limit = std::time(nullptr) + 120;
    for (;;) {
        auto block = heap.block();
        if (block)
            return *std::move(block);
        CHECK(block.error() == errc::no_block && std::time(nullptr) < limit);
        CHECK(!take(a.poll()) && !take(b.poll()));
    }
}

static void lend(bywire::block &block) {
    std::memcpy(block.memory().data(), "lent in place", 14);
    CHECK(a.send_lent(block, 14) && !block && block.memory().empty());
}

static void lending() {
    FAILS(a.open_heap(to_b, 0, 1), heap_size);
    auto heap = take(a.open_heap(to_b, 1000, 1));
    CHECK(heap && heap.block_bytes() == 1024 && heap.peer() == to_b);
    {
        const auto block = take(heap.block());
        FAILS(heap.block(), no_block);
    }
    auto block = take(heap.block());
    CHECK(block.memory().size() == 1024);
    /* A failure leaves the block with the program. */
    FAILS(a.send_lent(block, 1025), too_long);
    CHECK(!b.send_lent(block, 14) && block && block.memory().size() == 1024);
    bywire::block moved = std::move(block);
    CHECK(!block && moved);
    block = std::move(moved);
    move_into_itself(block);
    lend(block);
    auto event = expect(b, event_kind::lent, &a);
    CHECK(event.peer() == to_a && event.length_bytes() == 14 && event.bytes().empty());
    auto lent = event.take_lent();
    CHECK(lent && !event.take_lent() && lent.size_bytes() == 14);
    CHECK(std::memcmp(lent.memory().data(), "lent in place", 14) == 0);
    bywire::lent_message taken;
    taken = std::move(lent);
    move_into_itself(taken);
    CHECK(!lent && taken);
    /* Another thread may read it and give it back. */
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, read_lent, &taken) == 0 && pthread_join(thread, nullptr) == 0);
    CHECK(!taken);
    block = come_back(heap);
    /* A message that is left in an event goes back with it. */
    lend(block);
    expect(b, event_kind::lent, &a);
    block = come_back(heap);
    lend(block);
    event = expect(b, event_kind::lent, &a);
    event = bywire::event();
    /* A block outlives its heap. */
    block = come_back(heap);
    heap = bywire::heap();
    CHECK(block.memory().size() == 1024);
    block.memory()[1023] = std::byte{1};
}

static void sleeping() {
    CHECK(!take(b.wait(0s)) && !take(b.wait(-1s)));
    const time_t limit = time(nullptr) + 60;
    /* On a busy machine the time may be up before the port sleeps. */
    do
        CHECK(!take(b.wait(1ms)));
    while (take(b.statistics()).sleeps == 0 && time(nullptr) < limit);
    CHECK(take(b.statistics()).sleeps > 0);
    pollfd watched = {take(b.descriptor()), POLLIN, 0};
    while (!take(b.arm()))
        CHECK(!take(b.poll()));
    CHECK(poll(&watched, 1, 0) == 0);
    CHECK(a.send(to_b, "up") && a.flush() && poll(&watched, 1, 60000) == 1);
    CHECK(expect(b, event_kind::message, nullptr).text() == "up");
    CHECK(a.send(to_b, "up"));
    CHECK(take(b.wait()).text() == "up");
    CHECK(!take(b.poll()) && !take(b.has_progressed()));
}

/* A port keeps what is held of it when it moves, and empties it when it closes. */
static void owners_that_move() {
    std::array<std::byte, 8> memory{}, data{};
    auto region = take(b.register_region(memory, bywire::rights::read_write));
    auto other = take(b.allocate_region(8, bywire::rights::read));
    bywire::port moved = std::move(b);
    bywire::heap heap;
    bywire::block block;
    bywire::lent_message lent;
    bywire::connection none;
    bywire::region nowhere;
    nothing(b, none, nowhere, heap, block, lent);
    CHECK(region && other && moved);
    b = std::move(moved);
    CHECK(a.put(to_b, region.key(), 0, data));
    CHECK(!expect(a, event_kind::put, &b).status());
    /* One that has moved leaves the ring of its port from where it is. */
    bywire::region elsewhere = std::move(region);
    other = bywire::region();
    CHECK(a.put(to_b, elsewhere.key(), 0, data));
    CHECK(!expect(a, event_kind::put, &b).status());

    auto closing = take(bywire::port::open());
    bywire::peer met;
    bywire::connection connection;
    meet(closing, b, connection, met);
    auto outliving = take(closing.allocate_region(8, bywire::rights::read));
    auto leased = take(closing.open_heap(connection, 64, 1));
    auto written = take(leased.block());
    CHECK(closing.send(b.address() ? connection.peer() : bywire::peer(), "last"));
    CHECK(closing.close());
    nothing(closing, connection, outliving, heap, block, lent);
    CHECK(leased && written.memory().size() == 64);
    CHECK(expect(b, event_kind::message, nullptr).text() == "last");
    const auto event = expect(b, event_kind::disconnected, nullptr);
    CHECK(event.peer() == met && event.status() == errc::disconnected_closed);
}

/* A process of its own, which connects and is killed. */
static void deaths() {
    const pid_t child = fork();
    if (child == 0) {
        /* Nothing is inherited. */
        CHECK(!take(a.poll()));
        FAILS(a.wait(0s), forked);
        FAILS(a.send(to_b, "x"), forked);
        auto port = take(bywire::port::open());
        auto connection = take(port.connect(b.address(), 60s));
        CHECK(port.send(connection, "alive"));
        raise(SIGKILL);
    }
    CHECK(child > 0);
    auto event = take(b.wait(60s));
    CHECK(event.kind() == event_kind::connected);
    const bywire::connection to_child(b, event.peer());
    event = take(b.wait(60s));
    CHECK(event.kind() == event_kind::message && event.text() == "alive" && event.peer() == to_child.peer());
    event = take(b.wait(60s));
    CHECK(event.kind() == event_kind::disconnected && event.status() == errc::disconnected_died);
    FAILS(b.send(to_child, "x"), disconnected_died);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void parting() {
    /* A peer that is left to the port stays connected. */
    const auto left = to_b.release();
    CHECK(!to_b && left && take(a.peers()) == 1);
    {
        const bywire::connection scoped(a, left);
        CHECK(a.send(scoped, "bye"));
        CHECK(expect(b, event_kind::message, nullptr).text() == "bye");
    }
    auto event = expect(a, event_kind::disconnected, nullptr);
    CHECK(event.peer() == left && event.status() == errc::disconnected_here);
    event = expect(b, event_kind::disconnected, nullptr);
    CHECK(event.peer() == to_a && event.status() == errc::disconnected_closed);
    FAILS(b.send(to_a, "x"), disconnected_closed);
    FAILS(a.send(left, "x"), disconnected_here);
    CHECK(a.disconnect(left));
    /* A message that was lent outlives its port. */
    meet(a, b, to_b, to_a);
    auto heap = take(a.open_heap(to_b, 64, 1));
    auto block = take(heap.block());
    lend(block);
    auto lent = expect(b, event_kind::lent, &a).take_lent();
    CHECK(to_b.disconnect() && !to_b && b.close() && a.close());
    CHECK(lent.size_bytes() == 14 && std::memcmp(lent.memory().data(), "lent", 4) == 0);
}

int main() {
    results();
    allocations = 0;
    nothing_is_held_at_first();
    opening();
    connecting();
    messages();
    datagrams();
    long_messages();
    regions();
    lending();
    sleeping();
    owners_that_move();
    deaths();
    parting();
    CHECK(allocations == 0);
    /* Peers are keys of maps. */
    std::unordered_map<bywire::peer, int> hashed{{bywire::peer(7), 1}};
    std::map<bywire::peer, int> ordered{{bywire::peer(7), 1}};
    CHECK(hashed[bywire::peer(7)] == 1 && ordered[bywire::peer(7)] == 1);
    std::puts("walked");
}
