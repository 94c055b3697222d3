//! A sign of life in shared memory: a robust mutex that a thread holds until it ends.
//!
//! However the thread ends, the kernel marks the mutex then. Others who have the memory for reading see whether its
//! maker lives without asking the kernel.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, align_of, size_of};

use rustix::io::Errno;

use crate::memory::Mapping;

/// A mutex that the calling thread holds while this lives, in memory that belongs to it.
#[derive(Debug)]
pub struct Life {
    memory: Mapping,
    offset: usize,
    /// The thread that holds the mutex must let it go.
    _of_this_thread: PhantomData<*const ()>,
}

impl Life {
    /// Makes a mutex at this offset, and takes it.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if it does not lie within writable memory at a word's boundary, or the error of the C library.
    pub fn begin(memory: Mapping, offset: usize) -> Result<Self, Errno> {
        let fits = offset
            .checked_add(size_of::<libc::pthread_mutex_t>())
            .is_some_and(|end| end <= memory.length_bytes());
        if !fits || !offset.is_multiple_of(align_of::<u64>()) || !memory.is_writable() {
            return Err(Errno::INVAL);
        }
        let mut attributes = MaybeUninit::uninit();
        let mutex = Self::mutex(&memory, offset);
        // SAFETY: the attributes are initialised before they are used, and the mutex lies within memory that this value
        // owns, at a word's boundary. Nobody else has a mutex there.
        unsafe {
            succeed(libc::pthread_mutexattr_init(attributes.as_mut_ptr()))?;
            let attributes = attributes.assume_init_mut();
            succeed(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
            succeed(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
            succeed(libc::pthread_mutex_init(mutex, attributes))?;
            succeed(libc::pthread_mutex_lock(mutex))?;
        }
        Ok(Self { memory, offset, _of_this_thread: PhantomData })
    }

    /// The memory.
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    fn mutex(memory: &Mapping, offset: usize) -> *mut libc::pthread_mutex_t {
        memory.base().wrapping_add(offset).cast()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex, which stays mapped until the memory is dropped after this.
        unsafe { libc::pthread_mutex_unlock(Self::mutex(&self.memory, self.offset)) };
    }
}

fn succeed(status: i32) -> Result<(), Errno> {
    if status == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(status)) }
}
