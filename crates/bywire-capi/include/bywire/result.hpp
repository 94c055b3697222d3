/* Errors and results of bywire.hpp, which includes this file. */

#ifndef BYWIRE_RESULT_HPP
#define BYWIRE_RESULT_HPP

#include <bywire.h>

#if __cplusplus < 202002L
#error "bywire.hpp requires C++20: compile with -std=c++20, or include bywire.h, which plain C++11 takes"
#endif

#include <cassert>
#include <utility>
#include <version>

/* C++20 and C++23 have different results. So what one was compiled for does not link with the other, instead of
   going wrong at run time. BYWIRE_OWN_RESULT, defined before the header, gives C++23 the results of C++20. */
#if defined(__cpp_lib_expected) && !defined(BYWIRE_OWN_RESULT)
#include <expected>
#define BYWIRE_RESULTS expected_results
#else
#define BYWIRE_RESULTS own_results
#endif

namespace bywire {
inline namespace BYWIRE_RESULTS {

/* Reasons of failures: the codes of bw_error_t, with a sentence for each. A newer library may return others. */
enum class errc : int {
    ok = BW_OK,
    argument = BW_ERROR_ARGUMENT,
    panic = BW_ERROR_PANIC,
    system = BW_ERROR_SYSTEM,
    forked = BW_ERROR_FORKED,
    unknown = BW_ERROR_UNKNOWN,
    threads = BW_ERROR_THREADS,
    address_node = BW_ERROR_ADDRESS_NODE,
    address_port = BW_ERROR_ADDRESS_PORT,
    in_use = BW_ERROR_IN_USE,
    other_user = BW_ERROR_OTHER_USER,
    option = BW_ERROR_OPTION,
    runtime_directory = BW_ERROR_RUNTIME_DIRECTORY,
    locked = BW_ERROR_LOCKED,
    unknown_node = BW_ERROR_UNKNOWN_NODE,
    no_port = BW_ERROR_NO_PORT,
    not_admitted = BW_ERROR_NOT_ADMITTED,
    timed_out = BW_ERROR_TIMED_OUT,
    own_port = BW_ERROR_OWN_PORT,
    too_many_peers = BW_ERROR_TOO_MANY_PEERS,
    memory_kept = BW_ERROR_MEMORY_KEPT,
    no_fabric = BW_ERROR_NO_FABRIC,
    unreachable = BW_ERROR_UNREACHABLE,
    blocked = BW_ERROR_BLOCKED,
    refused_version = BW_ERROR_REFUSED_VERSION,
    refused_too_many_peers = BW_ERROR_REFUSED_TOO_MANY_PEERS,
    refused_unverified = BW_ERROR_REFUSED_UNVERIFIED,
    refused_bad_offer = BW_ERROR_REFUSED_BAD_OFFER,
    refused_no_resources = BW_ERROR_REFUSED_NO_RESOURCES,
    refused_closed = BW_ERROR_REFUSED_CLOSED,
    refused_memory_kept = BW_ERROR_REFUSED_MEMORY_KEPT,
    full = BW_ERROR_FULL,
    no_token = BW_ERROR_NO_TOKEN,
    too_long = BW_ERROR_TOO_LONG,
    no_peer = BW_ERROR_NO_PEER,
    connecting = BW_ERROR_CONNECTING,
    dropped = BW_ERROR_DROPPED,
    no_receive_token = BW_ERROR_NO_RECEIVE_TOKEN,
    disconnected_closed = BW_ERROR_DISCONNECTED_CLOSED,
    disconnected_died = BW_ERROR_DISCONNECTED_DIED,
    disconnected_broken = BW_ERROR_DISCONNECTED_BROKEN,
    disconnected_corrupted = BW_ERROR_DISCONNECTED_CORRUPTED,
    disconnected_here = BW_ERROR_DISCONNECTED_HERE,
    disconnected_unreachable = BW_ERROR_DISCONNECTED_UNREACHABLE,
    disconnected_removed = BW_ERROR_DISCONNECTED_REMOVED,
    bad_key = BW_ERROR_BAD_KEY,
    no_right = BW_ERROR_NO_RIGHT,
    out_of_range = BW_ERROR_OUT_OF_RANGE,
    no_block = BW_ERROR_NO_BLOCK,
    other_peer = BW_ERROR_OTHER_PEER,
    heap_size = BW_ERROR_HEAP_SIZE,
    other_machine = BW_ERROR_OTHER_MACHINE,
};

/* A code and its sentence. Like std::error_code it is true if it stands for a failure, and compares with errc. */
class error {
public:
    constexpr error() noexcept = default;
    constexpr error(errc code) noexcept : code_(code) {}
    /* `code` is the result of a function of bywire.h, or the status of its event. */
    constexpr explicit error(int code) noexcept : code_(static_cast<errc>(code < 0 ? code : 0)) {}

    [[nodiscard]] constexpr errc code() const noexcept { return code_; }
    /* The sentence for the code: what happened and what to do. Never null, valid forever (bw_error_text). */
    [[nodiscard]] const char *text() const noexcept { return bw_error_text(static_cast<int>(code_)); }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return code_ != errc::ok; }
    friend constexpr bool operator==(const error &, const error &) noexcept = default;

private:
    errc code_ = errc::ok;
};

/* The sentence for the last call of this thread that failed, with particulars such as a path or a limit. Valid until
   the next failing call of this thread (bw_last_error_text). */
[[nodiscard]] inline const char *last_error_text() noexcept { return bw_last_error_text(); }

#if defined(__cpp_lib_expected) && !defined(BYWIRE_OWN_RESULT)
template <class T> using result = std::expected<T, error>;
using unexpected = std::unexpected<error>;
#else
/* An error that becomes a result. */
class unexpected {
public:
    constexpr explicit unexpected(bywire::error failure) noexcept : error_(failure) {}
    [[nodiscard]] constexpr const bywire::error &error() const noexcept { return error_; }

private:
    bywire::error error_;
};

/* A value, or the error because of which there is none: the part of std::expected that needs no exception. T has a
   default constructor. */
template <class T> class [[nodiscard]] result {
public:
    constexpr result() noexcept = default;
    constexpr explicit result(std::in_place_t) noexcept {}
    constexpr result(T value) noexcept : value_(std::move(value)) {}
    constexpr result(unexpected failure) noexcept : error_(failure.error()) {}

    [[nodiscard]] constexpr bool has_value() const noexcept { return !error_; }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return !error_; }
    /* Only of a result with a value. */
    [[nodiscard]] constexpr T &operator*() & noexcept { return checked(*this).value_; }
    [[nodiscard]] constexpr const T &operator*() const & noexcept { return checked(*this).value_; }
    [[nodiscard]] constexpr T &&operator*() && noexcept { return std::move(checked(*this).value_); }
    [[nodiscard]] constexpr T *operator->() noexcept { return &checked(*this).value_; }
    [[nodiscard]] constexpr const T *operator->() const noexcept { return &checked(*this).value_; }
    [[nodiscard]] constexpr T value_or(T other) && noexcept { return error_ ? std::move(other) : std::move(value_); }
    /* Only of a result without a value. */
    [[nodiscard]] constexpr const bywire::error &error() const noexcept { return error_; }

private:
    template <class Self> static constexpr Self &checked(Self &self) noexcept {
        assert(!self.error_ && "this result has no value");
        return self;
    }

    T value_{};
    bywire::error error_;
};

/* Success, or an error. */
template <> class [[nodiscard]] result<void> {
public:
    constexpr result() noexcept = default;
    constexpr result(unexpected failure) noexcept : error_(failure.error()) {}

    [[nodiscard]] constexpr bool has_value() const noexcept { return !error_; }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return !error_; }
    /* Only of a result that is no success. */
    [[nodiscard]] constexpr const bywire::error &error() const noexcept { return error_; }

private:
    bywire::error error_;
};
#endif

} // namespace BYWIRE_RESULTS
} // namespace bywire

#endif /* BYWIRE_RESULT_HPP */
