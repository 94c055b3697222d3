//! Carries the connections of unmodified programs on one machine, by TCP and by Unix stream sockets, in shared memory.
//!
//! `bywire run` preloads this library. It hooks the C library's calls on descriptors. `docs/sockets.md` says what it
//! never does, and `docs/carried-connections.md` how it works.
//!
//! The modules form a staircase: each uses only those above it in this table.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `os` | the C library's own functions, the kernel's answers, loaded objects, this thread and process, jumps, deferred signals |
//! | `memory` | what forked processes share, and what each has of its own: locks, sockets, sets, kinds of descriptors |
//! | `wakeup` | doorbells, and spinning before a sleep |
//! | `connection` | a connection: where its next byte is, sleeping for it, its end, its return to the kernel |
//! | `datagram` | UDP sockets: flows of datagrams with other ends |
//! | `epoll` | `epoll_ctl`, `epoll_wait`, nested sets, sets that other programs inherit |
//! | `polling` | `poll` and `select` |
//! | `pairing` | how a connection leaves the kernel: the pairing service, and the preparation of segments |
//! | `process` | load, fork, exec, exit, signal handlers, sandboxes, `io_uring`, libraries loaded later; making and closing descriptors |
//! | `transfer` | `send` and `receive`, with the cut-over |
//! | `entry` | the hooked calls, one file for each kind |
//!
//! Rules for every call: no allocation, no lock of the standard library, no thread-local destructor, no panic, no
//! output. `Drop` releases what is held across a call of the C library, because a thread may be cancelled there. In
//! case of doubt the connection stays in the kernel.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("the preloaded library knows the calls of Linux on x86-64 and aarch64 only");

mod connection;
mod datagram;
mod entry;
mod epoll;
mod memory;
mod os;
mod pairing;
mod polling;
mod process;
mod transfer;
mod wakeup;

/// Runs when the program loads the library, before the program itself.
// SAFETY: the section holds addresses of functions of this type.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        // Nothing of ours panics; if it does, no half of a change gets as far as the program.
        std::panic::set_hook(Box::new(|_| std::process::abort()));
        process::startup::begin();
    }
    begin
};

/// Runs when the program ends in order.
// SAFETY: the section holds addresses of functions of this type.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        process::exit::end();
    }
    end
};
