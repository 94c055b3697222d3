//! The operating system: the C library's own functions, the kernel's answers, this thread and this process.

pub mod arch;
pub mod available_memory;
pub mod clock;
pub mod errno;
pub mod iovec;
pub mod jumps;
pub mod kernel;
pub mod machine_code;
pub mod objects;
pub mod own_call;
pub mod per_thread;
pub mod pid;
pub mod real;
pub mod sanitizer;
pub mod signal_deferral;
pub mod small_file;
pub mod thread;
pub mod tsc;
pub mod user_access;
