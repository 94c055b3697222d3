//! Structures that grow. Programs of an older interface pass a shorter one, programs of a newer interface a longer
//! one.

use crate::failure::Failure;

/// Marks structures in which every bit pattern is a value, in particular all zeros.
///
/// # Safety
/// The type has no padding, and consists of integers and raw pointers only.
pub unsafe trait Plain: Sized {}

/// Writes as much of `value` as the program's structure of `size_bytes` holds, and zeros into the part that this
/// library does not know.
///
/// # Safety
/// `target` is null or valid for writes of `size_bytes`.
///
/// # Errors
/// Null, or shorter than `least_bytes`.
pub unsafe fn write<T: Plain>(
    value: &T,
    target: *mut T,
    size_bytes: usize,
    least_bytes: usize,
) -> Result<(), Failure> {
    check(target, size_bytes, least_bytes)?;
    let known_bytes = size_of::<T>().min(size_bytes);
    let source = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: both are valid for `known_bytes`, one by its type and one by the caller's promise; a local value and
    // C's memory do not overlap.
    unsafe { target.cast::<u8>().copy_from_nonoverlapping(source, known_bytes) };
    // SAFETY: the rest of the bytes that the caller promised.
    unsafe { target.cast::<u8>().add(known_bytes).write_bytes(0, size_bytes - known_bytes) };
    Ok(())
}

/// Reads a structure of `size_bytes` over `defaults`, which stand for fields that an older program does not know.
///
/// # Safety
/// `source` is null or valid for reads of `size_bytes`, all initialised.
///
/// # Errors
/// Null, shorter than `least_bytes`, or a part that this library does not know and that is not zero.
pub unsafe fn read<T: Plain>(
    mut defaults: T,
    source: *const T,
    size_bytes: usize,
    least_bytes: usize,
) -> Result<T, Failure> {
    check(source, size_bytes, least_bytes)?;
    let known_bytes = size_of::<T>().min(size_bytes);
    let target = std::ptr::from_mut(&mut defaults).cast::<u8>();
    // SAFETY: both are valid for `known_bytes`, one by its type and one by the caller's promise, and do not overlap.
    // Any bytes make a `Plain`.
    unsafe { target.copy_from_nonoverlapping(source.cast(), known_bytes) };
    // SAFETY: the rest of the bytes that the caller promised.
    let rest =
        unsafe { std::slice::from_raw_parts(source.cast::<u8>().add(known_bytes), size_bytes - known_bytes) };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Failure::argument(
            "the structure is of a newer interface: this library does not know it all",
        ));
    }
    Ok(defaults)
}

/// No structure of this interface will ever be longer.
const SIZE_BYTES_MAX: usize = 4096;

fn check<T>(pointer: *const T, size_bytes: usize, least_bytes: usize) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument("the structure is null"));
    }
    if !(least_bytes..=SIZE_BYTES_MAX).contains(&size_bytes) {
        return Err(Failure::argument(format!("{size_bytes} bytes is not a size of this structure")));
    }
    Ok(())
}
