//! Carries the TCP connections of unmodified programs of one machine in shared memory.
//!
//! `bywire run` preloads this library. It stands in front of the C library's calls on descriptors. `docs/sockets.md` says
//! what it never does, `docs/carried-connections.md` how it works.
//!
//! The rooms form a staircase: each uses only those above it in this table.
//!
//! | room | what is there |
//! | --- | --- |
//! | `os` | the C library's own functions, the kernel's answers, this thread and process, jumps, signals held off |
//! | `memory` | what forked processes share, and each has of its own: locks, sockets, sets, the meaning of descriptors |
//! | `wakeup` | doorbells, and spinning before a sleep |
//! | `connection` | a connection: where its next byte is, sleeping for it, its end, its way back to the kernel |
//! | `epoll` | `epoll_ctl`, `epoll_wait`, sets within sets, sets that other programs get |
//! | `polling` | `poll` and `select` |
//! | `pairing` | how a connection leaves the kernel: the pairing service, and getting ready |
//! | `process` | load, fork, exec, exit, signal handlers, sandboxes, `io_uring`; making and closing descriptors |
//! | `transfer` | `send` and `receive`, with the cut-over |
//! | `entry` | the hooked calls, one file for each kind |
//!
//! Rules of every call: no allocation, no lock of the standard library, no thread-local destructor, no panic, nothing
//! printed; what is held across a call of the C library's is given back by `Drop`, as a thread may be cancelled there. Where anything is in doubt, the connection stays in the kernel.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the preloaded library knows the calls of Linux on x86-64 only");

mod connection;
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
