//! System calls in machine code: instructions with a constant number, or with one from the stack.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{Registers, calls_in};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Registers, calls_in};

/// A system call that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It has this number.
    Number(u32),
    /// It has a number from the stack. So code does that was compiled without optimization, with functions for any call.
    Any,
}

/// What an instruction puts into a register.
enum Value<Register> {
    Number(u32),
    Of(Register),
    Stack,
}
