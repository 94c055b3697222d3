//! Variables of each thread that are found by one load.
//!
//! A library's `thread_local!` calls a function of the dynamic loader at each access, which a call on a carried connection
//! would do fifteen times. This library is loaded with the program, so its variables can have a fixed distance from the
//! thread's own block: the "initial exec" model of "ELF Handling For Thread-Local Storage" (Drepper, 2013). They need no
//! allocation, so handlers may use them at any time.

/// A type for which zeros are a value.
///
/// # Safety
/// A value whose bytes are all 0 is valid, and is the one that a thread begins with.
pub unsafe trait Zeroed {}

// SAFETY: zeros are the number 0.
unsafe impl Zeroed for core::cell::Cell<u32> {}
// SAFETY: zeros are the number 0.
unsafe impl Zeroed for core::cell::Cell<i64> {}
// SAFETY: zeros are the number 0.
unsafe impl Zeroed for core::cell::Cell<usize> {}
// SAFETY: each element is zeroed.
unsafe impl<T: Zeroed, const COUNT: usize> Zeroed for [T; COUNT] {}

/// Defines a variable of each thread, which begins as zeros. Its symbol must be unique.
macro_rules! per_thread {
    ($(#[$meta:meta])* $visibility:vis static $name:ident: $type:ty, $symbol:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ",\"awT\",@nobits"),
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ",@tls_object"),
            concat!(".size ", $symbol, ",{size}"),
            ".balign {align}",
            concat!($symbol, ":"),
            ".zero {size}",
            ".popsection",
            size = const size_of::<$type>(),
            align = const align_of::<$type>(),
        );

        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "it is used as a variable")]
        $visibility struct $name;

        impl $name {
            /// Calls `visit` with this thread's variable.
            #[inline(always)]
            $visibility fn with<R>(self, visit: impl FnOnce(&$type) -> R) -> R {
                const fn is_zeroed<T: $crate::os::per_thread::Zeroed>() {}
                const { is_zeroed::<$type>() };
                let at: *const $type;
                // SAFETY: the address has a fixed distance from the thread's block. The variable lives as long as its thread,
                // and no other thread finds it.
                unsafe {
                    $crate::os::arch::thread_variable!($symbol, at);
                    visit(&*at)
                }
            }
        }
    };
}

pub(crate) use per_thread;

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    per_thread!(static COUNT: Cell<u32>, "bywire_test_count");
    per_thread!(static LIST: [Cell<usize>; 3], "bywire_test_list");

    #[test]
    fn each_thread_has_variables_of_its_own_that_begin_as_zeros() {
        let (barrier, others) = (std::sync::Barrier::new(4), 1..5);
        std::thread::scope(|scope| {
            for number in others {
                let barrier = &barrier;
                scope.spawn(move || {
                    let begins = COUNT.with(Cell::get) == 0
                        && LIST.with(|list| list.iter().all(|each| each.get() == 0));
                    assert!(begins);
                    COUNT.with(|count| count.set(number));
                    LIST.with(|list| list.iter().for_each(|each| each.set(number as usize)));
                    barrier.wait();
                    assert_eq!(COUNT.with(Cell::get), number);
                    assert!(LIST.with(|list| list.iter().all(|each| each.get() == number as usize)));
                });
            }
        });
        assert_eq!(COUNT.with(Cell::get), 0);
    }
}
