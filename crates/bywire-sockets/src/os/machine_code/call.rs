//! What was found in machine code.

/// A system call that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It has this number.
    Number(u32),
    /// It has a number from the stack. So code does that was compiled without optimization, with functions for any call.
    Any,
}

/// What an instruction puts into a register.
pub(super) enum Value<Register> {
    Number(u32),
    Of(Register),
    Stack,
}
