/* Bywire for C++20: the functions of bywire.h as classes that give back what they hold.
 *
 * docs/c.md tells how to use it. What a call does on the wire, what its limits are and which errors it has
 * is documented in bywire.h, at the function that is named beside each member here.
 *
 * - Everything is inline over libbywire. Nothing is allocated, and no exception is thrown: the header compiles
 *   with -fno-exceptions and -fno-rtti.
 * - A call that can fail returns a result<T>: std::expected<T, error> where the standard library has it
 *   (C++23), a small class with the same members otherwise.
 * - What has to be given back is held by a class that can only be moved: port, connection, region, heap, block,
 *   lent_message, event. Its destructor gives it back. Empty objects, such as moved-from ones, hold nothing:
 *   their calls return errc::argument, and their destructors do nothing.
 * - Lengths and offsets are bytes. Memory is std::span<std::byte>, which bytes_of makes of an object or a text.
 * - A port belongs to one thread at a time, together with its connections, regions and events. It may move between
 *   threads. A lent_message may be read and given back on any thread. */

#ifndef BYWIRE_HPP
#define BYWIRE_HPP

#include "bywire/result.hpp"

#include <chrono>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace bywire {
inline namespace BYWIRE_RESULTS {

/* ---- Values ---- */

/* bw_priority_t: one of two independent lanes. */
enum class priority : std::uint32_t { low = BW_PRIORITY_LOW, high = BW_PRIORITY_HIGH };

/* bw_confirm_t: when a transfer counts as complete. */
enum class confirm : std::uint32_t { copied = BW_CONFIRM_COPIED, delivered = BW_CONFIRM_DELIVERED };

/* bw_right_t: what peers may do with a region. */
enum class rights : std::uint32_t {
    read = BW_RIGHT_READ,
    write = BW_RIGHT_WRITE,
    read_write = BW_RIGHT_READ | BW_RIGHT_WRITE
};

/* bw_event_kind_t, which says what each has. Programs ignore kinds that they do not know. */
enum class event_kind : std::uint32_t {
    none = BW_EVENT_NONE,
    message = BW_EVENT_MESSAGE,
    datagram = BW_EVENT_DATAGRAM,
    lent = BW_EVENT_LENT,
    connected = BW_EVENT_CONNECTED,
    disconnected = BW_EVENT_DISCONNECTED,
    sent = BW_EVENT_SENT,
    put = BW_EVENT_PUT,
    got = BW_EVENT_GOT,
    notified = BW_EVENT_NOTIFIED,
    room = BW_EVENT_ROOM,
    buffer_needed = BW_EVENT_BUFFER_NEEDED,
    other = BW_EVENT_OTHER,
};

/* Identifies an asynchronous transfer until its completion (bw_transfer_t). */
enum class transfer_id : bw_transfer_t {};

/* The capability to reach a region, 8 bytes: hand it to peers, in a message for example (bw_key_t). */
enum class region_key : bw_key_t {};

/* The identity of one connection of a port (bw_peer_t). It is a number, and keeps nothing alive. An empty one names no
   peer, and is false. */
class peer {
public:
    constexpr peer() noexcept = default;
    constexpr explicit peer(bw_peer_t handle) noexcept : handle_(handle) {}

    [[nodiscard]] constexpr bw_peer_t handle() const noexcept { return handle_; }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return handle_ != 0; }
    friend constexpr auto operator<=>(const peer &, const peer &) noexcept = default;

private:
    bw_peer_t handle_ = 0;
};

/* A text that ends in a zero byte, such as a literal or a std::string, which outlives the call. */
class c_text {
public:
    constexpr c_text(const char *text) noexcept : text_(text) {}
    template <class Text>
        requires requires(const Text &text) { { text.c_str() } -> std::convertible_to<const char *>; }
    constexpr c_text(const Text &text) noexcept : text_(text.c_str()) {}

    [[nodiscard]] constexpr const char *get() const noexcept { return text_; }

private:
    const char *text_;
};

/* How long to wait, at most: any duration of std::chrono, or `forever`. Rounded down to microseconds. Less than none is
   none; more than a century is forever. */
class timeout {
public:
    template <class Count, class Period>
    constexpr timeout(std::chrono::duration<Count, Period> limit) noexcept {
        const double seconds = std::chrono::duration<double>(limit).count();
        if (seconds < 3155760000.0)
            us_ = seconds > 0 ? std::chrono::duration_cast<std::chrono::microseconds>(limit).count() : 0;
    }
    [[nodiscard]] static constexpr timeout never() noexcept { return {}; }
    /* As bw_wait and bw_connect take it. */
    [[nodiscard]] constexpr std::int64_t us() const noexcept { return us_; }

private:
    constexpr timeout() noexcept = default;
    std::int64_t us_ = BW_FOREVER;
};

/* A timeout that never ends. */
inline constexpr timeout forever = timeout::never();

/* The bytes of an object that can be copied as bytes. */
template <class T>
    requires std::is_trivially_copyable_v<T> && (!std::is_pointer_v<T>) && (!std::is_array_v<T>) &&
             (!std::is_convertible_v<const T &, std::string_view>)
[[nodiscard]] std::span<const std::byte> bytes_of(const T &object) noexcept {
    return std::as_bytes(std::span<const T, 1>(&object, 1));
}
/* A temporary has no bytes to give, as it ends at once. */
template <class T>
    requires std::is_trivially_copyable_v<T> && (!std::is_convertible_v<const T &, std::string_view>)
std::span<const std::byte> bytes_of(const T &&object) = delete;

/* The bytes of a text, without a zero byte at its end. */
[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) noexcept {
    return std::as_bytes(std::span<const char>(text));
}

/* Options of a port: the fields of bw_port_options_t, which has their defaults, units and limits. Texts must outlive
   the call that opens the port. */
struct port_options : bw_port_options_t {
    port_options() noexcept : bw_port_options_t{} {
        /* Fails for no size of this library. If another one fails, size_bytes stays 0, and port::open says so. */
        static_cast<void>(bw_port_options_init(this, sizeof(bw_port_options_t)));
    }
    port_options(const char *port_name) noexcept : port_options() { name = port_name; }
    template <class Text>
        requires requires(const Text &text) { { text.c_str() } -> std::convertible_to<const char *>; }
    port_options(const Text &port_name) noexcept : port_options() { name = port_name.c_str(); }
};

class port;

namespace detail {

/* Makes a result of a code. */
[[nodiscard]] inline result<void> done(int code) noexcept {
    if (code < 0) [[unlikely]]
        return unexpected(error(code));
    return {};
}

template <class T> [[nodiscard]] result<T> made(int code, T value) noexcept {
    if (code < 0) [[unlikely]]
        return unexpected(error(code));
    return result<T>(std::move(value));
}

/* A temporary that owns its bytes, and would free them before a transfer has read them. */
template <class Bytes>
concept temporary = !std::is_lvalue_reference_v<Bytes> && requires(Bytes &bytes) { bytes.data(); } &&
                    !std::ranges::enable_borrowed_range<std::remove_cv_t<Bytes>>;

/* A place in the ring of a port and of what is held of it. So what outlives its port is empty from then on, without
   memory for it. */
class place {
public:
    place() noexcept = default;
    explicit place(bw_port_t *handle) noexcept : port_(handle) {}
    place(place &head, bw_port_t *handle) noexcept : port_(handle), before_(&head), after_(head.after_) {
        before_->after_ = after_->before_ = this;
    }
    place(place &&other) noexcept { take(other); }
    place &operator=(place &&other) noexcept {
        if (this != &other) {
            leave();
            take(other);
        }
        return *this;
    }
    ~place() { leave(); }

    [[nodiscard]] bw_port_t *port() const noexcept { return port_; }

    void leave() noexcept {
        before_->after_ = after_;
        after_->before_ = before_;
        before_ = after_ = this;
        port_ = nullptr;
    }
    /* Empties all others. */
    void scatter() noexcept {
        while (after_ != this)
            after_->leave();
    }

private:
    void take(place &other) noexcept {
        port_ = other.port_;
        if (other.after_ != &other) {
            before_ = other.before_;
            after_ = other.after_;
            before_->after_ = after_->before_ = this;
            other.before_ = other.after_ = &other;
        }
        other.port_ = nullptr;
    }

    bw_port_t *port_ = nullptr;
    place *before_ = this, *after_ = this;
};

} // namespace detail

/* ---- Objects that hold something ---- */

/* A connection that ends with its object (bw_disconnect). It stands wherever a peer does. Empty once its port is
   closed. If the peer ends it, event_kind::disconnected says so, and calls return the reason. */
class connection {
public:
    connection() noexcept = default;
    /* Takes over a peer that has connected, of an event for example. */
    connection(port &owner, peer who) noexcept;
    connection(connection &&other) noexcept = default;
    connection &operator=(connection &&other) noexcept {
        if (this != &other) {
            static_cast<void>(disconnect());
            place_ = std::move(other.place_);
            peer_ = other.peer_;
        }
        return *this;
    }
    ~connection() { static_cast<void>(disconnect()); }

    /* The peer, or an empty one. */
    [[nodiscard]] bywire::peer peer() const noexcept { return place_.port() ? peer_ : bywire::peer(); }
    operator bywire::peer() const & noexcept { return peer(); }
    /* A temporary has no peer to give: it ends at once, and its connection with it. */
    operator bywire::peer() const && = delete;
    [[nodiscard]] explicit operator bool() const noexcept { return place_.port() != nullptr; }
    /* Ends the connection now, and does nothing if it is empty. */
    result<void> disconnect() noexcept {
        const int code = place_.port() ? bw_disconnect(place_.port(), peer_.handle()) : BW_OK;
        place_.leave();
        return detail::done(code);
    }
    /* Leaves the connection to the port, and returns its peer. */
    bywire::peer release() noexcept {
        const bywire::peer left = peer();
        place_.leave();
        return left;
    }

private:
    detail::place place_;
    bywire::peer peer_;
};

/* Memory that peers may put into or get from, until the object ends (bw_region_revoke). Between calls on its port the
   program may read and write there. Empty once its port is closed. */
class region {
public:
    region() noexcept = default;
    region(region &&other) noexcept = default;
    region &operator=(region &&other) noexcept {
        if (this != &other) {
            static_cast<void>(revoke());
            place_ = std::move(other.place_);
            key_ = other.key_;
            memory_ = other.memory_;
        }
        return *this;
    }
    ~region() { static_cast<void>(revoke()); }

    [[nodiscard]] region_key key() const noexcept { return key_; }
    /* The program's memory or the library's, or none. */
    [[nodiscard]] std::span<std::byte> memory() const noexcept {
        return place_.port() ? memory_ : std::span<std::byte>();
    }
    [[nodiscard]] explicit operator bool() const noexcept { return place_.port() != nullptr; }
    /* Ends the region now, and does nothing if it is empty. */
    result<void> revoke() noexcept {
        bw_port_t *const owner = place_.port();
        const int code = owner ? bw_region_revoke(owner, static_cast<bw_key_t>(key_)) : BW_OK;
        place_.leave();
        return detail::done(code);
    }
    /* Leaves the region to the port, until that is closed, and returns its key. */
    region_key release() noexcept {
        place_.leave();
        return key_;
    }

private:
    friend class port;
    region(detail::place &head, region_key key, std::span<std::byte> memory) noexcept
        : place_(head, head.port()), key_(key), memory_(memory) {}

    detail::place place_;
    region_key key_{};
    std::span<std::byte> memory_;
};

/* A message that a peer lent, until the object ends (bw_lent_return). It may outlive its port, and be read and given
   back on any thread. */
class lent_message {
public:
    lent_message() noexcept = default;
    /* Takes over a handle of bywire.h. */
    explicit lent_message(bw_lent_t *handle) noexcept : handle_(handle) {}
    lent_message(lent_message &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    lent_message &operator=(lent_message &&other) noexcept {
        lent_message(std::move(other)).swap(*this);
        return *this;
    }
    ~lent_message() { give_back(); }

    [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
    /* Its length (bw_lent_bytes). */
    [[nodiscard]] std::size_t size_bytes() const noexcept { return bw_lent_bytes(handle_); }
    /* Copies bytes from `offset` on, and returns how many. Tolerates a lender that still writes (bw_lent_read). */
    std::size_t read(std::span<std::byte> target, std::size_t offset = 0) const noexcept {
        return bw_lent_read(handle_, offset, target.data(), target.size());
    }
    /* The message in place. Only of a peer that is trusted not to write there any more (bw_lent_memory). */
    [[nodiscard]] std::span<const std::byte> memory() const noexcept {
        return {static_cast<const std::byte *>(bw_lent_memory(handle_)), size_bytes()};
    }
    void give_back() noexcept {
        if (bw_lent_t *const handle = std::exchange(handle_, nullptr))
            static_cast<void>(bw_lent_return(handle));
    }
    void swap(lent_message &other) noexcept { std::swap(handle_, other.handle_); }

private:
    bw_lent_t *handle_ = nullptr;
};

/* A block to write a message into, for port::send_lent, or for its heap when the object ends (bw_block_drop). It may
   outlive its heap. */
class block {
public:
    block() noexcept = default;
    block(block &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
    block &operator=(block &&other) noexcept {
        block moved(std::move(other));
        std::swap(handle_, moved.handle_);
        std::swap(size_bytes_, moved.size_bytes_);
        return *this;
    }
    ~block() {
        if (handle_)
            static_cast<void>(bw_block_drop(handle_));
    }

    [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
    /* The whole block (bw_block_memory). */
    [[nodiscard]] std::span<std::byte> memory() noexcept {
        return {static_cast<std::byte *>(bw_block_memory(handle_)), size_bytes_};
    }

private:
    friend class heap;
    friend class port;
    block(bw_block_t *handle, std::size_t size_bytes) noexcept : handle_(handle), size_bytes_(size_bytes) {}
    void forget() noexcept {
        handle_ = nullptr;
        size_bytes_ = 0;
    }

    bw_block_t *handle_ = nullptr;
    std::size_t size_bytes_ = 0;
};

/* Memory shared with one peer, in equal blocks that can be lent to it, until the object ends (bw_heap_close). Blocks
   may outlive it. */
class heap {
public:
    heap() noexcept = default;
    heap(heap &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    heap &operator=(heap &&other) noexcept {
        heap moved(std::move(other));
        std::swap(handle_, moved.handle_);
        return *this;
    }
    ~heap() {
        if (handle_)
            static_cast<void>(bw_heap_close(handle_));
    }

    [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
    /* Takes a free block, or returns errc::no_block (bw_heap_block). */
    [[nodiscard]] result<bywire::block> block() noexcept {
        bw_block_t *taken = nullptr;
        const int code = bw_heap_block(handle_, &taken);
        return detail::made(code, bywire::block(taken, taken ? block_bytes() : 0));
    }
    /* The size of every block, which may be more than was asked for; 0 if empty. */
    [[nodiscard]] std::size_t block_bytes() const noexcept { return bw_heap_block_bytes(handle_); }
    /* The peer that it is shared with. */
    [[nodiscard]] bywire::peer peer() const noexcept { return bywire::peer(bw_heap_peer(handle_)); }

private:
    friend class port;
    explicit heap(bw_heap_t *handle) noexcept : handle_(handle) {}

    bw_heap_t *handle_ = nullptr;
};

/* News of a port: a message, or the news of a peer or a transfer (bw_event_t). bytes() and text() are valid until
   the port's next poll, poll_arrived, wait or release_event, unless they are in posted memory. A lent message that was
   not taken goes back with the event. */
class event {
public:
    /* Field by field: compilers clear the whole structure by a slow instruction, at each poll. */
    event() noexcept {
        raw_.kind = BW_EVENT_NONE;
        raw_.status = BW_OK;
        raw_.peer = raw_.transfer = 0;
        raw_.priority = 0;
        raw_.data = raw_.buffer = nullptr;
        raw_.length_bytes = raw_.buffer_bytes = 0;
        raw_.lent = nullptr;
    }
    event(event &&other) noexcept : event() { std::swap(raw_, other.raw_); }
    event &operator=(event &&other) noexcept {
        event moved(std::move(other));
        std::swap(raw_, moved.raw_);
        return *this;
    }
    ~event() {
        if (raw_.lent) [[unlikely]]
            static_cast<void>(bw_lent_return(raw_.lent));
    }

    /* event_kind::none: there was no event, or the time was up. */
    [[nodiscard]] event_kind kind() const noexcept { return static_cast<event_kind>(raw_.kind); }
    [[nodiscard]] explicit operator bool() const noexcept { return kind() != event_kind::none; }
    /* Why a transfer failed, or a peer has gone; errc::ok otherwise. */
    [[nodiscard]] error status() const noexcept { return error(raw_.status); }
    /* The peer that sent the message, or has come or gone. Empty for the end of a transfer. */
    [[nodiscard]] bywire::peer peer() const noexcept { return bywire::peer(raw_.peer); }
    [[nodiscard]] transfer_id transfer() const noexcept { return static_cast<transfer_id>(raw_.transfer); }
    [[nodiscard]] bywire::priority priority() const noexcept { return static_cast<bywire::priority>(raw_.priority); }
    /* The bytes of a message, a datagram or a note. */
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
        return {static_cast<const std::byte *>(raw_.data), raw_.data ? static_cast<std::size_t>(raw_.length_bytes) : 0};
    }
    /* Those bytes as characters. */
    [[nodiscard]] std::string_view text() const noexcept {
        return {static_cast<const char *>(raw_.data), raw_.data ? static_cast<std::size_t>(raw_.length_bytes) : 0};
    }
    /* The length of a message, also of one that is lent or needs a buffer. */
    [[nodiscard]] std::uint64_t length_bytes() const noexcept { return raw_.length_bytes; }
    /* The program's own memory, whole, which it may use again: posted, sent, put or got. */
    [[nodiscard]] std::span<std::byte> buffer() const noexcept {
        return {static_cast<std::byte *>(raw_.buffer), static_cast<std::size_t>(raw_.buffer_bytes)};
    }
    /* The lent message of event_kind::lent, once; empty afterwards. */
    [[nodiscard]] lent_message take_lent() noexcept { return lent_message(std::exchange(raw_.lent, nullptr)); }
    /* As bywire.h has it. */
    [[nodiscard]] const bw_event_t &raw() const noexcept { return raw_; }

private:
    friend class port;
    bw_event_t raw_;
};

/* ---- Ports ---- */

/* A protected message endpoint, until the object ends (bw_port_close). */
class port {
public:
    port() noexcept = default;
    port(port &&other) noexcept = default;
    port &operator=(port &&other) noexcept {
        if (this != &other) {
            static_cast<void>(close());
            place_ = std::move(other.place_);
        }
        return *this;
    }
    ~port() { static_cast<void>(close()); }

    /* Opens a port on this node: by its options, its name, or any free number (bw_port_open). */
    [[nodiscard]] static result<port> open(const port_options &options = {}) noexcept {
        bw_port_t *opened = nullptr;
        const int code = bw_port_open(&options, &opened);
        return detail::made(code, port(opened));
    }
    /* Closes the port now, and does nothing if it is empty. Its connections and regions become empty. */
    result<void> close() noexcept {
        const int code = handle() ? bw_port_close(handle()) : BW_OK;
        place_.scatter();
        place_.leave();
        return detail::done(code);
    }
    [[nodiscard]] explicit operator bool() const noexcept { return handle() != nullptr; }
    /* For functions of bywire.h. It stays the object's. */
    [[nodiscard]] bw_port_t *handle() const noexcept { return place_.port(); }

    /* Its name and its address `node/port`, valid until it is closed; null if empty. */
    [[nodiscard]] const char *name() const noexcept { return bw_port_name(handle()); }
    [[nodiscard]] const char *address() const noexcept { return bw_port_address(handle()); }
    /* The options that it was opened with; their texts are valid until it is closed (bw_port_options). */
    [[nodiscard]] result<port_options> options() const noexcept {
        port_options known;
        const int code = bw_port_options(handle(), &known, sizeof(bw_port_options_t));
        return detail::made(code, known);
    }
    [[nodiscard]] result<bw_statistics_t> statistics() const noexcept {
        bw_statistics_t counted{};
        const int code = bw_port_statistics(handle(), &counted, sizeof counted);
        return detail::made(code, counted);
    }

    /* Connects to `node/port` and waits for the answer (bw_connect). */
    [[nodiscard]] result<connection> connect(c_text to, timeout limit) noexcept {
        bw_peer_t met = 0;
        const int code = bw_connect(handle(), to.get(), limit.us(), &met);
        return connected(code, met);
    }
    /* Begins to connect: event_kind::connected or ::disconnected follows (bw_connect_start). */
    [[nodiscard]] result<connection> connect_start(c_text to) noexcept {
        bw_peer_t met = 0;
        const int code = bw_connect_start(handle(), to.get(), &met);
        return connected(code, met);
    }
    /* Ends a connection (bw_disconnect). */
    result<void> disconnect(peer who) noexcept { return detail::done(bw_disconnect(handle(), who.handle())); }
    [[nodiscard]] result<bw_peer_info_t> peer_info(peer who) const noexcept {
        bw_peer_info_t known{};
        const int code = bw_peer_info(handle(), who.handle(), &known, sizeof known);
        return detail::made(code, known);
    }
    /* Stores as many handles of connected peers as fit, and returns how many are connected (bw_peers). */
    [[nodiscard]] result<std::size_t> peers(std::span<bw_peer_t> handles = {}) const noexcept {
        const int count = bw_peers(handle(), handles.data(), handles.size());
        return detail::made(count, static_cast<std::size_t>(count < 0 ? 0 : count));
    }

    /* Copies a message of up to one fragment to a peer, at once. errc::full is back-pressure: send again after
       event_kind::room (bw_send). */
    [[nodiscard]] result<void> send(peer to, std::span<const std::byte> data, priority lane = priority::low) noexcept {
        return detail::done(bw_send(handle(), to.handle(), number(lane), data.data(), data.size()));
    }
    [[nodiscard]] result<void> send(peer to, std::string_view text, priority lane = priority::low) noexcept {
        return send(to, bytes_of(text), lane);
    }
    /* Sends a datagram of up to one fragment, or drops it: errc::dropped (bw_send_datagram). */
    result<void> send_datagram(peer to, std::span<const std::byte> data, priority lane = priority::low) noexcept {
        return detail::done(bw_send_datagram(handle(), to.handle(), number(lane), data.data(), data.size()));
    }
    result<void> send_datagram(peer to, std::string_view text, priority lane = priority::low) noexcept {
        return send_datagram(to, bytes_of(text), lane);
    }
    /* Asks for event_kind::room as soon as a whole fragment fits (bw_await_room). */
    [[nodiscard]] result<void> await_room(peer to, priority lane = priority::low) noexcept {
        return detail::done(bw_await_room(handle(), to.handle(), number(lane)));
    }
    /* Lets everything leave at once that was gathered for other machines (bw_flush). */
    result<void> flush() noexcept { return detail::done(bw_flush(handle())); }

    /* Sends a message of any length from the program's memory, which stays as it is until event_kind::sent or until the
       port is closed (bw_send_buffer). */
    [[nodiscard]] result<transfer_id> send_buffer(peer to, std::span<const std::byte> data,
                                                  confirm when = confirm::copied,
                                                  priority lane = priority::low) noexcept {
        bw_transfer_t begun = 0;
        const int code = bw_send_buffer(handle(), to.handle(), number(lane), data.data(), data.size(),
                                        static_cast<std::uint32_t>(when), &begun);
        return detail::made(code, static_cast<transfer_id>(begun));
    }
    template <detail::temporary Bytes>
    result<transfer_id> send_buffer(peer, Bytes &&, confirm = confirm::copied, priority = priority::low) = delete;
    /* Posts memory for one message that is longer than a fragment. It is the library's until the event of a message has
       it as buffer(), or until the port is closed (bw_post_receive). */
    [[nodiscard]] result<void> post_receive(std::span<std::byte> memory, priority lane = priority::low) noexcept {
        return detail::done(bw_post_receive(handle(), number(lane), memory.data(), memory.size()));
    }

    /* Takes the next event. Never waits (bw_poll). */
    [[nodiscard]] result<event> poll() noexcept {
        return take<bw_poll>();
    }
    /* Takes the next event that has arrived already, and makes no system call (bw_poll_arrived). */
    [[nodiscard]] result<event> poll_arrived() noexcept {
        return take<bw_poll_arrived>();
    }
    /* Waits for the next event. When the time is up it is event_kind::none (bw_wait). */
    [[nodiscard]] result<event> wait(timeout limit = forever) noexcept {
        return take<bw_wait>(limit.us());
    }
    /* Returns whether the last poll has moved something on without an event (bw_has_progressed). */
    [[nodiscard]] result<bool> has_progressed() noexcept {
        const int code = bw_has_progressed(handle());
        return detail::made(code, code > 0);
    }
    /* Gives back early what the last event's bytes() are in (bw_event_release). */
    result<void> release_event() noexcept { return detail::done(bw_event_release(handle())); }
    /* A descriptor that becomes readable, once arm has returned true, when there may be an event. It belongs to the
       port: watch it, but do not read or close it (bw_descriptor). */
    [[nodiscard]] result<int> descriptor() const noexcept {
        const int code = bw_descriptor(handle());
        return detail::made(code, code);
    }
    /* Prepares to sleep on the descriptor. false: poll again instead (bw_arm). */
    [[nodiscard]] result<bool> arm() noexcept {
        const int code = bw_arm(handle());
        return detail::made(code, code > 0);
    }

    /* Lets peers with its key reach the program's memory, which outlives the region (bw_region_register). */
    [[nodiscard]] result<region> register_region(std::span<std::byte> memory, rights allowed) noexcept {
        /* A null pointer would ask for memory of the library. */
        std::byte none{};
        return region_at(memory.data() ? memory.data() : &none, memory.size(), allowed);
    }
    /* Lets peers with its key reach zeroed memory of the library. */
    [[nodiscard]] result<region> allocate_region(std::size_t length_bytes, rights allowed) noexcept {
        return region_at(nullptr, length_bytes, allowed);
    }
    /* Puts data into a peer's region at `offset`. It stays as it is until event_kind::put (bw_put). */
    [[nodiscard]] result<transfer_id> put(peer to, region_key key, std::uint64_t offset,
                                          std::span<const std::byte> data, priority lane = priority::low) noexcept {
        return put_with(to, key, offset, data, nullptr, 0, lane);
    }
    /* Puts as `put` does, and notifies the peer after the data is visible: event_kind::notified, with this note of up
       to BW_NOTE_BYTES_MAX bytes, which are copied. */
    [[nodiscard]] result<transfer_id> put_notify(peer to, region_key key, std::uint64_t offset,
                                                 std::span<const std::byte> data, std::span<const std::byte> note,
                                                 priority lane = priority::low) noexcept {
        /* A null pointer would be no note, instead of an empty one. */
        const void *const text = note.data() ? static_cast<const void *>(note.data()) : "";
        return put_with(to, key, offset, data, text, note.size(), lane);
    }
    template <detail::temporary Bytes>
    result<transfer_id> put(peer, region_key, std::uint64_t, Bytes &&, priority = priority::low) = delete;
    template <detail::temporary Bytes>
    result<transfer_id> put_notify(peer, region_key, std::uint64_t, Bytes &&, std::span<const std::byte>,
                                   priority = priority::low) = delete;
    /* Fills `data` from a peer's region at `offset`. It is the library's until event_kind::got (bw_get). */
    [[nodiscard]] result<transfer_id> get(peer from, region_key key, std::uint64_t offset, std::span<std::byte> data,
                                          priority lane = priority::low) noexcept {
        bw_transfer_t begun = 0;
        const int code = bw_get(handle(), from.handle(), number(lane), static_cast<bw_key_t>(key), offset, data.data(),
                                data.size(), &begun);
        return detail::made(code, static_cast<transfer_id>(begun));
    }

    /* Makes memory from which messages can be lent to a peer of this machine (bw_heap_open). */
    [[nodiscard]] result<heap> open_heap(peer with, std::size_t block_bytes, std::uint32_t blocks) noexcept {
        bw_heap_t *opened = nullptr;
        const int code = bw_heap_open(handle(), with.handle(), block_bytes, blocks, &opened);
        return detail::made(code, heap(opened));
    }
    /* Lends the first bytes of a block, as a message, to the peer of its heap. The block is empty on success, and
       unchanged on failure (bw_send_lent). */
    [[nodiscard]] result<void> send_lent(block &lent, std::size_t length_bytes,
                                         priority lane = priority::low) noexcept {
        const int code = bw_send_lent(handle(), number(lane), lent.handle_, length_bytes);
        if (code >= 0)
            lent.forget();
        return detail::done(code);
    }

private:
    friend class connection;
    explicit port(bw_port_t *handle) noexcept : place_(handle) {}

    static constexpr std::uint32_t number(priority lane) noexcept { return static_cast<std::uint32_t>(lane); }

    result<connection> connected(int code, bw_peer_t met) noexcept {
        if (code < 0)
            return unexpected(error(code));
        return result<connection>(connection(*this, peer(met)));
    }
    /* The library writes the event to where it is returned. */
    template <auto Take, class... Limit> result<event> take(Limit... limit) noexcept {
        result<event> taken(std::in_place);
        const int code = Take(handle(), limit..., &taken->raw_);
        if (code < 0) [[unlikely]]
            taken = unexpected(error(code));
        return taken;
    }
    result<region> region_at(void *memory, std::size_t length_bytes, rights allowed) noexcept {
        bw_key_t key = 0;
        void *address = nullptr;
        int code = bw_region_register(handle(), memory, length_bytes, static_cast<std::uint32_t>(allowed), &key);
        if (code >= 0)
            code = bw_region_memory(handle(), key, &address, &length_bytes);
        if (code < 0)
            return unexpected(error(code));
        const std::span<std::byte> there(static_cast<std::byte *>(address), length_bytes);
        return result<region>(region(place_, static_cast<region_key>(key), there));
    }
    result<transfer_id> put_with(peer to, region_key key, std::uint64_t offset, std::span<const std::byte> data,
                                 const void *note, std::size_t note_bytes, priority lane) noexcept {
        bw_transfer_t begun = 0;
        const int code = bw_put(handle(), to.handle(), number(lane), static_cast<bw_key_t>(key), offset, data.data(),
                                data.size(), note, note_bytes, &begun);
        return detail::made(code, static_cast<transfer_id>(begun));
    }

    detail::place place_;
};

inline connection::connection(port &owner, bywire::peer who) noexcept
    : place_(owner.place_, owner.handle()), peer_(who) {}

/* ---- Versions ---- */

/* The version of the interface that the library was built with, to compare with BW_ABI_VERSION. */
[[nodiscard]] inline std::uint32_t abi_version() noexcept { return bw_abi_version(); }
/* The library's own version, such as "0.1.0"; valid forever. */
[[nodiscard]] inline const char *version() noexcept { return bw_version(); }

} // namespace BYWIRE_RESULTS
} // namespace bywire

/* A peer can be a key of std::unordered_map. */
template <> struct std::hash<bywire::peer> {
    std::size_t operator()(const bywire::peer &who) const noexcept { return std::hash<bw_peer_t>()(who.handle()); }
};

#endif /* BYWIRE_HPP */
