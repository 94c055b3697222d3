//! System calls in machine code: instructions with a constant number, or with one from the stack.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod call;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use call::Call;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{Registers, calls_in};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Registers, calls_in};
