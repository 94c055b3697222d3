//! x86-64.

use core::ffi::{CStr, c_long, c_void};

/// The name by which programs require the dynamic loader.
pub const LOADER: &CStr = c"ld-linux-x86-64.so.2";
/// The kernel's function that reads a clock, in the image that it maps into every process.
pub const VDSO_CLOCK: &CStr = c"__vdso_clock_gettime";

/// Relocations that are filled with the address of a symbol: any word, an entry of the global offset table, and a
/// function that may be found at its first call. From the "System V ABI, AMD64 supplement".
pub const ADDRESS: u32 = 1;
/// See [`ADDRESS`].
pub const TABLE_ENTRY: u32 = 6;
/// See [`ADDRESS`].
pub const LAZY_FUNCTION: u32 = 7;

/// Waits that newer architectures have only under other numbers.
pub const OLDER_WAITS: [c_long; 3] = [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait];

/// Stores the address of this thread's variable, which has a fixed distance from the thread's block. The first word of
/// the block is its own address.
macro_rules! thread_variable {
    ($symbol:literal, $at:ident) => {
        core::arch::asm!(
            concat!("mov {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
            "add {at}, qword ptr fs:[0]",
            at = out(reg) $at,
            options(pure, readonly, nostack),
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
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            // The stack is aligned to 16 bytes from here on.
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            // The fourth argument: where the caller continues.
            "mov rcx, [rsp + 24]",
            "call {choose}",
            "mov rcx, rdx",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "test rcx, rcx",
            "jz 2f",
            "jmp rcx",
            "2: ret",
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
            // The stack must be aligned to 16 bytes at a call.
            "sub rsp, 184",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            // The number of vector registers in use.
            "mov [rsp + 48], rax",
            "movups [rsp + 56], xmm0",
            "movups [rsp + 72], xmm1",
            "movups [rsp + 88], xmm2",
            "movups [rsp + 104], xmm3",
            "movups [rsp + 120], xmm4",
            "movups [rsp + 136], xmm5",
            "movups [rsp + 152], xmm6",
            "movups [rsp + 168], xmm7",
            "call {before}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov rax, [rsp + 48]",
            "movups xmm0, [rsp + 56]",
            "movups xmm1, [rsp + 72]",
            "movups xmm2, [rsp + 88]",
            "movups xmm3, [rsp + 104]",
            "movups xmm4, [rsp + 120]",
            "movups xmm5, [rsp + 136]",
            "movups xmm6, [rsp + 152]",
            "movups xmm7, [rsp + 168]",
            "add rsp, 184",
            "jmp r11",
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
            "pop rax",
            "push r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "mov rsi, rsp",
            // The address to continue at. The stack must be aligned to 16 bytes at a call.
            "push rax",
            "call {replace}",
            "pop rcx",
            "add rsp, 40",
            "push rcx",
            "ret",
            replace = sym $replace,
        )
    };
}
pub(crate) use with_list;

/// The body of `vfork`: continues at the address that `$choose` returns, or, if that is 0, makes the child, and returns
/// what `$resume` makes of the kernel's result. It returns twice, so nothing of it may stay on the stack: the address to
/// continue at is kept in a register, as the C library's own function does.
macro_rules! fork_in_memory {
    ($choose:path, $resume:path) => {
        core::arch::naked_asm!(
            "push rax",
            "call {choose}",
            "pop rcx",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "pop rdi",
            "mov eax, {number}",
            "syscall",
            "test rax, rax",
            "jz 3f",
            "push rdi",
            // The stack must be aligned to 16 bytes at a call.
            "sub rsp, 8",
            "mov rdi, rax",
            "call {resume}",
            "add rsp, 8",
            "ret",
            "3:",
            "jmp rdi",
            choose = sym $choose,
            number = const libc::SYS_vfork,
            resume = sym $resume,
        )
    };
}
pub(crate) use fork_in_memory;

/// The body of a function that is another name of `$function`.
macro_rules! alias {
    ($function:path) => {
        core::arch::naked_asm!("jmp {function}", function = sym $function)
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
            "syscall",
            inlateout("rax") libc::SYS_clock_gettime => _,
            in("rdi") clock as u64,
            in("rsi") time,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
}

/// The stack pointer of a context.
pub fn stack_pointer(context: &libc::ucontext_t) -> Option<usize> {
    context.uc_mcontext.gregs.get(libc::REG_RSP as usize).map(|pointer| *pointer as usize)
}

/// The stack pointer in a `jmp_buf` of the GNU C library: its seventh word, which `PTR_MANGLE` of its x86-64 sysdep.h
/// obfuscates.
///
/// # Safety
/// `place` must be a `jmp_buf` that `setjmp` has filled.
pub unsafe fn stack_in(place: *const c_void) -> usize {
    const STACK_POINTER: usize = 6;
    let guard: usize;
    // SAFETY: reads the word of the thread control block that the C library keeps for this purpose. A live `jmp_buf` of
    // the program has eight words.
    unsafe {
        core::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        place.cast::<usize>().add(STACK_POINTER).read().rotate_right(17) ^ guard
    }
}
