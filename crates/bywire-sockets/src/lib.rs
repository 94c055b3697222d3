//! Carries the TCP connections of unmodified programs of one machine in shared memory.
//!
//! `bywire run` preloads this library. It stands in front of the C library's calls on descriptors. What it never does is
//! in `docs/sockets.md`, and how it works in `docs/carried-connections.md`. What a call finds is in `table` and `arena`; how
//! a connection leaves the kernel, in `offer` and `send`; where its bytes are, in `carry` and `receive`; what it is ready
//! for, in `ready`, `poll`, `select` and `epoll`.
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
        process::lifecycle::begin();
    }
    begin
};

/// Runs when the program ends in order.
// SAFETY: the section holds addresses of functions of this type.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        process::lifecycle::end();
    }
    end
};
