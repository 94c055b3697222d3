//! What differs from one architecture to another: conventions of calls, registers, numbers, layouts of the C library.
//!
//! Each architecture has a file with the same names. Its machine code is read in [`crate::os::machine_code`].

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(test)]
mod tests {
    use core::ffi::{c_double, c_int, c_long, c_void};
    use core::mem::MaybeUninit;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    unsafe extern "C" {
        fn _setjmp(place: *mut c_void) -> c_int;
    }

    #[test]
    fn the_stack_pointer_of_a_jump_is_that_of_the_caller_of_setjmp() {
        let mut place = [0usize; 64];
        let here = (&raw const place) as usize;
        // SAFETY: more room than `jmp_buf` has in any C library, and nothing jumps there.
        let stack = unsafe {
            _setjmp(place.as_mut_ptr().cast());
            stack_in(place.as_ptr().cast())
        };
        assert!(stack.abs_diff(here) < 1 << 16, "{stack:x} {here:x}");
    }

    #[test]
    fn the_kernel_tells_the_time() {
        let mut time = MaybeUninit::<libc::timespec>::zeroed();
        // SAFETY: valid for a write; zeros are a value.
        let time = unsafe {
            read_clock(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
            time.assume_init()
        };
        assert!(time.tv_sec > 0 || time.tv_nsec > 0);
        assert!((0..1_000_000_000).contains(&time.tv_nsec));
    }

    /// The first argument, and the others up to a zero.
    unsafe extern "C" fn sum(first: usize, mut others: *const usize) -> usize {
        let (mut sum, mut factor) = (first, 10);
        // SAFETY: the caller has passed a list that ends with a zero.
        unsafe {
            while *others != 0 {
                (sum, factor) = (sum + factor * *others, factor * 10);
                others = others.add(1);
            }
        }
        sum
    }

    #[unsafe(naked)]
    unsafe extern "C" fn listed() {
        with_list!(sum)
    }

    #[test]
    fn the_words_of_a_list_are_an_array_wherever_they_were() {
        // SAFETY: a function with variable arguments in C's convention.
        let listed: unsafe extern "C" fn(usize, ...) -> usize =
            unsafe { core::mem::transmute(listed as *const ()) };
        // SAFETY: lists that end with a zero.
        unsafe {
            assert_eq!(listed(7, 0usize), 7);
            assert_eq!(listed(1, 2usize, 3usize, 0usize), 321);
            let [a, b, c, d, e, f, g, h, i] = [2usize, 3, 4, 5, 6, 7, 8, 9, 1];
            assert_eq!(listed(1, a, b, c, d, e, f, g, h, i, 0usize), 1_987_654_321);
        }
    }

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn before(first: usize) -> usize {
        SEEN.store(first, Ordering::Relaxed);
        // Whatever the conventions leave to a function to change is changed.
        assert!(std::hint::black_box(format!("{first} {:.3}", first as f64)).len() > 2);
        snprintf as *const () as usize
    }

    unsafe extern "C" {
        fn snprintf(target: *mut c_void, length: usize, format: *const c_void, ...) -> c_int;
    }

    #[unsafe(naked)]
    unsafe extern "C" fn printed() {
        continue_after!(before)
    }

    #[test]
    fn variable_arguments_reach_the_function_that_continues() {
        type Print = unsafe extern "C" fn(*mut u8, usize, *const u8, ...) -> c_int;
        // SAFETY: `snprintf` is what continues.
        let printed: Print = unsafe { core::mem::transmute(printed as *const ()) };
        let mut text = [0u8; 128];
        let numbers: [c_double; 10] = core::array::from_fn(|index| index as f64 + 0.5);
        let [a, b, c, d, e, f, g, h, i, j] = numbers;
        // SAFETY: room for the text, and arguments of the types that the format names.
        let length = unsafe {
            let format = c"%d %d %d %d %d %d %d|%g %g %g %g %g %g %g %g %g %g".as_ptr().cast();
            printed(text.as_mut_ptr(), text.len(), format, 1, 2, 3, 4, 5, 6, 7, a, b, c, d, e, f, g, h, i, j)
        };
        let text = core::str::from_utf8(&text[..length as usize]).expect("text");
        assert_eq!(text, "1 2 3 4 5 6 7|0.5 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5 9.5");
        assert_ne!(SEEN.load(Ordering::Relaxed), 0);
    }

    #[repr(C)]
    struct Choice {
        answer: usize,
        next: usize,
    }

    /// Answers 0, and has the next function continue for other numbers.
    extern "C" fn choose(first: usize, second: usize, third: usize, caller: usize) -> Choice {
        SEEN.store(caller, Ordering::Relaxed);
        Choice { answer: second + third, next: if first == 0 { 0 } else { product as *const () as usize } }
    }

    extern "C" fn product(first: usize, second: usize, third: usize) -> usize {
        first * second * third
    }

    #[unsafe(naked)]
    unsafe extern "C" fn chosen() {
        answer_or_continue!(choose)
    }

    #[test]
    fn a_lookup_is_answered_or_continues_with_its_arguments() {
        type Three = extern "C" fn(usize, usize, usize) -> usize;
        // SAFETY: both `choose` and `product` have these arguments.
        let chosen: Three = unsafe { core::mem::transmute(chosen as *const ()) };
        assert_eq!(std::hint::black_box(chosen)(0, 3, 4), 7);
        assert_eq!(std::hint::black_box(chosen)(2, 3, 4), 24);
    }

    #[unsafe(naked)]
    extern "C" fn another(_first: usize, _second: usize, _third: usize) -> usize {
        alias!(product)
    }

    #[test]
    fn another_name_is_the_same_function() {
        assert_eq!(another(2, 3, 5), 30);
    }

    extern "C" fn makes_the_child() -> usize {
        0
    }

    extern "C" fn twice(result: c_long) -> libc::pid_t {
        2 * result as libc::pid_t
    }

    #[unsafe(naked)]
    unsafe extern "C" fn in_memory() {
        fork_in_memory!(makes_the_child, twice)
    }

    #[test]
    fn a_child_in_this_memory_returns_first_and_its_parent_after_its_end() {
        let mut status = 0;
        // SAFETY: the child does nothing but exit, and the parent's frame is as it was.
        let child = unsafe {
            let fork: extern "C" fn() -> libc::pid_t = core::mem::transmute(in_memory as *const ());
            let child = fork();
            if child == 0 {
                libc::_exit(3);
            }
            child / 2
        };
        // SAFETY: a child of this test, and room for an int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 3);
    }
}
