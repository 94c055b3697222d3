//! aarch64.

use core::ffi::{CStr, c_long, c_void};

/// The name by which programs require the dynamic loader.
pub const LOADER: &CStr = c"ld-linux-aarch64.so.1";
/// The kernel's function that reads a clock, in the image that it maps into every process.
pub const VDSO_CLOCK: &CStr = c"__kernel_clock_gettime";

/// Relocations that are filled with the address of a symbol: any word, an entry of the global offset table, and a
/// function that may be found at its first call. From "ELF for the Arm 64-bit Architecture".
pub const ADDRESS: u32 = 257;
/// See [`ADDRESS`].
pub const TABLE_ENTRY: u32 = 1025;
/// See [`ADDRESS`].
pub const LAZY_FUNCTION: u32 = 1026;

/// Waits that this architecture has only under the numbers of their successors.
pub const OLDER_WAITS: [c_long; 0] = [];

/// Stores the address of this thread's variable, which has a fixed distance from the thread's block.
macro_rules! thread_variable {
    ($symbol:literal, $at:ident) => {
        core::arch::asm!(
            concat!("adrp {distance}, :gottprel:", $symbol),
            concat!("ldr {distance}, [{distance}, :gottprel_lo12:", $symbol, "]"),
            "mrs {at}, tpidr_el0",
            "add {at}, {at}, {distance}",
            at = out(reg) $at,
            distance = out(reg) _,
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}
pub(crate) use thread_variable;

/// The body of a function that calls `$choose` with its own first three arguments and its caller's address. It returns
/// the first word that it gets, or continues at the second one as if it had been called there.
macro_rules! answer_or_continue {
    ($choose:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-48]!",
            ".cfi_def_cfa_offset 48",
            ".cfi_offset x29, -48",
            ".cfi_offset x30, -40",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            // The fourth argument: where the caller continues.
            "mov x3, x30",
            "bl {choose}",
            // The registers from which a jump may lead to the start of any function.
            "mov x16, x1",
            "mov x17, x0",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x16, 2f",
            "br x16",
            "2: mov x0, x17",
            "ret",
            ".cfi_endproc",
            choose = sym $choose,
        )
    };
}
pub(crate) use answer_or_continue;

/// The body of a function with variable arguments that calls `$before` with its first argument, and continues at the
/// address that it gets, with the stack and all argument registers as they were.
macro_rules! continue_after {
    ($before:path) => {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-208]!",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "stp q0, q1, [sp, #80]",
            "stp q2, q3, [sp, #112]",
            "stp q4, q5, [sp, #144]",
            "stp q6, q7, [sp, #176]",
            "bl {before}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp q0, q1, [sp, #80]",
            "ldp q2, q3, [sp, #112]",
            "ldp q4, q5, [sp, #144]",
            "ldp q6, q7, [sp, #176]",
            "ldp x29, x30, [sp], #208",
            "br x16",
            before = sym $before,
        )
    };
}
pub(crate) use continue_after;

/// The body of a function with variable arguments that returns what `$replace` does with the first argument and the
/// others as an array: the words from registers are stored in front of those that are in memory already.
macro_rules! with_list {
    ($replace:path) => {
        core::arch::naked_asm!(
            // The stack must always be aligned to 16 bytes, so a word stays unused.
            "sub sp, sp, #80",
            "stp x29, x30, [sp]",
            "str x1, [sp, #24]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "add x1, sp, #24",
            "bl {replace}",
            "ldp x29, x30, [sp]",
            "add sp, sp, #80",
            "ret",
            replace = sym $replace,
        )
    };
}
pub(crate) use with_list;

/// The body of `vfork`: continues at the address that `$choose` returns, or, if that is 0, makes the child, and returns
/// what `$resume` makes of the kernel's result. It returns twice, so nothing of it may stay on the stack: the address to
/// continue at is kept in its register, as the C library's own function does.
macro_rules! fork_in_memory {
    ($choose:path, $resume:path) => {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-16]!",
            "bl {choose}",
            "ldp x29, x30, [sp], #16",
            "cbz x0, 2f",
            "mov x16, x0",
            "br x16",
            "2:",
            "mov x0, #{flags}",
            // The parent's stack, and nothing that only other flags would use.
            "mov x1, xzr",
            "mov x2, xzr",
            "mov x3, xzr",
            "mov x4, xzr",
            "mov x8, #{number}",
            "svc #0",
            "cbz x0, 3f",
            "stp x29, x30, [sp, #-16]!",
            "bl {resume}",
            "ldp x29, x30, [sp], #16",
            "3:",
            "ret",
            choose = sym $choose,
            flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            number = const libc::SYS_clone,
            resume = sym $resume,
        )
    };
}
pub(crate) use fork_in_memory;

/// The body of a function that is another name of `$function`.
macro_rules! alias {
    ($function:path) => {
        core::arch::naked_asm!("b {function}", function = sym $function)
    };
}
pub(crate) use alias;

/// Reads a clock by the kernel's own call.
///
/// # Safety
/// `time` must be valid for a write.
pub unsafe fn read_clock(clock: libc::clockid_t, time: *mut libc::timespec) {
    // SAFETY: the kernel writes one structure, and changes no other register.
    unsafe {
        core::arch::asm!(
            "svc #0",
            in("x8") libc::SYS_clock_gettime,
            inlateout("x0") clock as u64 => _,
            in("x1") time,
            options(nostack, preserves_flags),
        );
    }
}

/// The stack pointer of a context.
pub fn stack_pointer(context: &libc::ucontext_t) -> Option<usize> {
    Some(context.uc_mcontext.sp as usize)
}

/// The place of the stack pointer in a `jmp_buf` of the GNU C library: `JB_SP` of its jmpbuf-offsets.h, in words.
const JUMP_STACK_POINTER: usize = 13;

/// The stack pointer in a `jmp_buf` of the GNU C library. `PTR_MANGLE` of its aarch64 sysdep.h obfuscates it by a value
/// that is not for other libraries to know.
///
/// # Safety
/// `place` must be a `jmp_buf` that `setjmp` has filled.
pub unsafe fn stack_in(place: *const c_void) -> usize {
    // SAFETY: a live `jmp_buf` of the program has 22 words.
    unsafe { place.cast::<usize>().add(JUMP_STACK_POINTER).read() ^ jump_guard() }
}

unsafe extern "C" {
    fn _setjmp(place: *mut c_void) -> i32;
}

/// The value by which the C library obfuscates a stack pointer: what `setjmp` stores for a known one. Nothing ever jumps
/// there.
// SAFETY: the buffer is on this function's own stack, and has the size of `jmp_buf`, 312 bytes.
#[unsafe(naked)]
extern "C" fn jump_guard() -> usize {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-336]!",
        "add x0, sp, #16",
        "bl {set}",
        "ldr x0, [sp, #{place}]",
        "mov x1, sp",
        "eor x0, x0, x1",
        "ldp x29, x30, [sp], #336",
        "ret",
        set = sym _setjmp,
        place = const 16 + JUMP_STACK_POINTER * size_of::<usize>(),
    )
}
