//! Names of users and groups, as this machine's databases have them. A lookup may ask a directory service and wait for it.

use core::ffi::{CStr, c_char};

/// The first size of the buffer for an entry, and the last.
const BUFFER_BYTES: [usize; 4] = [1 << 10, 1 << 14, 1 << 18, 1 << 22];

/// The name of a user, if it has one.
pub fn user_name(uid: u32) -> Option<String> {
    find(|buffer, found| {
        // SAFETY: zero is a valid value of every part of this structure of the C library.
        let mut entry: libc::passwd = unsafe { core::mem::zeroed() };
        let mut result = core::ptr::null_mut();
        let (base, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: entry, buffer and result live until the call returns; the length is the buffer's.
        let error = unsafe { libc::getpwuid_r(uid, &raw mut entry, base, length, &raw mut result) };
        // SAFETY: of an entry that was found, the name is a text within the buffer.
        *found = (!result.is_null()).then(|| unsafe { text(entry.pw_name) });
        error
    })
}

/// The name of a group, if it has one.
pub fn group_name(gid: u32) -> Option<String> {
    find(|buffer, found| {
        // SAFETY: zero is a valid value of every part of this structure of the C library.
        let mut entry: libc::group = unsafe { core::mem::zeroed() };
        let mut result = core::ptr::null_mut();
        let (base, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: entry, buffer and result live until the call returns; the length is the buffer's.
        let error = unsafe { libc::getgrgid_r(gid, &raw mut entry, base, length, &raw mut result) };
        // SAFETY: of an entry that was found, the name is a text within the buffer.
        *found = (!result.is_null()).then(|| unsafe { text(entry.gr_name) });
        error
    })
}

/// Looks an entry up, with larger buffers as long as the C library asks for one.
fn find(mut look: impl FnMut(&mut [c_char], &mut Option<Option<String>>) -> i32) -> Option<String> {
    for bytes in BUFFER_BYTES {
        let mut found = None;
        if look(&mut vec![0; bytes], &mut found) != libc::ERANGE {
            return found.flatten();
        }
    }
    None
}

/// The text at `name`; none if it is empty or not UTF-8.
///
/// # Safety
/// `name` is null or points to a text that ends with a zero byte.
unsafe fn text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, so a text by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_its_name_and_numbers_without_an_entry_have_none() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(group_name(0).as_deref(), Some("root"));
        assert_eq!((user_name(3_999_999_999), group_name(3_999_999_999)), (None, None));
    }
}
