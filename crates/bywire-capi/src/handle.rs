//! Handles: values that C owns by pointer. The types say which side owns a value. A handle given back is taken, not
//! borrowed.

use crate::failure::Failure;

/// A type that C holds by a pointer from [`Handle::give`] until [`Handle::take`] takes it back.
pub trait Handle: Sized {
    /// Its name in error messages.
    const NAME: &'static str;

    /// Moves the value out to C.
    fn give(self) -> *mut Self {
        Box::into_raw(Box::new(self))
    }

    /// Takes the value back from C.
    ///
    /// # Safety
    /// `pointer` is null or came from [`Handle::give`] and has not been taken since.
    ///
    /// # Errors
    /// Null.
    unsafe fn take(pointer: *mut Self) -> Result<Box<Self>, Failure> {
        if pointer.is_null() {
            return Err(null(Self::NAME));
        }
        // SAFETY: from `Box::into_raw` in `give`, and not taken yet, by the caller's promise.
        Ok(unsafe { Box::from_raw(pointer) })
    }

    /// Borrows the value that C holds.
    ///
    /// # Safety
    /// As for [`Handle::take`], and no code changes or takes the value during `'a`.
    ///
    /// # Errors
    /// Null.
    #[inline(always)]
    unsafe fn borrow<'a>(pointer: *const Self) -> Result<&'a Self, Failure> {
        // SAFETY: a live box by the caller's promise, unless it is null.
        unsafe { pointer.as_ref() }.ok_or_else(|| null(Self::NAME))
    }

    /// Borrows the value that C holds, to change it.
    ///
    /// # Safety
    /// As for [`Handle::take`], and no other code uses the value during `'a`.
    ///
    /// # Errors
    /// Null.
    #[inline(always)]
    unsafe fn borrow_mut<'a>(pointer: *mut Self) -> Result<&'a mut Self, Failure> {
        // SAFETY: a live box by the caller's promise, unless it is null; and used by one thread at a time.
        unsafe { pointer.as_mut() }.ok_or_else(|| null(Self::NAME))
    }
}

/// The place into which C wants a result.
///
/// # Safety
/// `target` is null or valid for a write of a `T`.
///
/// # Errors
/// Null.
#[inline(always)]
pub unsafe fn place<'a, T>(target: *mut T, what: &str) -> Result<&'a mut std::mem::MaybeUninit<T>, Failure> {
    // SAFETY: valid for writes by the caller's promise, unless it is null; nothing is read.
    unsafe { target.cast::<std::mem::MaybeUninit<T>>().as_mut() }.ok_or_else(|| null(what))
}

/// The bytes at `data`, which may be null if there are none.
///
/// # Safety
/// `data` is null or valid for reads of `length_bytes`, unchanged during `'a`.
///
/// # Errors
/// Null with a length, or an impossible length.
#[inline(always)]
pub unsafe fn bytes<'a>(data: *const std::ffi::c_void, length_bytes: usize) -> Result<&'a [u8], Failure> {
    if data.is_null() || length_bytes > isize::MAX as usize {
        return if length_bytes == 0 { Ok(&[]) } else { Err(bad_memory(data.is_null())) };
    }
    // SAFETY: not null, of a possible length, and valid by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length_bytes) })
}

/// Memory of the C program that the library uses until it gives it back in an event.
///
/// # Safety
/// As for [`bywire::Buffer::from_raw`], if `data` is not null.
///
/// # Errors
/// As for [`bytes`].
pub unsafe fn buffer(data: *mut std::ffi::c_void, length_bytes: usize) -> Result<bywire::Buffer, Failure> {
    if length_bytes == 0 {
        return Ok(bywire::Buffer::default());
    }
    if data.is_null() || length_bytes > isize::MAX as usize {
        return Err(bad_memory(data.is_null()));
    }
    // SAFETY: not null, of a possible length, and lent by the caller's promise.
    Ok(unsafe { bywire::Buffer::from_raw(data.cast(), length_bytes) })
}

#[cold]
fn bad_memory(is_null: bool) -> Failure {
    Failure::argument(if is_null { "the data pointer is null" } else { "no memory is that long" })
}

/// A null handle.
#[cold]
pub fn null(what: &str) -> Failure {
    Failure::argument(format!("{what} is null"))
}
