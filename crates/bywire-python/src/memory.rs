//! An object that lends memory of the library to Python: a block to fill, or a message that a peer lent.
//!
//! Made by hand, because the stable interface before Python 3.11 has no classes with the buffer protocol. The interpreter
//! takes them since 3.9.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bywire::{Heap, LendBuffer, Lent};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{self, Py_ssize_t};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::shared::Shared;
use crate::view::{PyBuffer_FillInfo, RawView};

/// A block to fill.
pub struct FreeBlock {
    /// `None` once it was lent. The heap then keeps its memory mapped.
    pub block: Option<LendBuffer>,
    #[expect(dead_code, reason = "kept for its memory")]
    pub heap: Heap,
    pub shared: Arc<Shared>,
}

impl Drop for FreeBlock {
    fn drop(&mut self) {
        if self.block.take().is_some() {
            // Another thread may wait for a block.
            self.shared.wake_waiters();
        }
    }
}

/// The owner of the memory. It keeps the memory valid.
pub enum Owner {
    Block(FreeBlock),
    /// A message that a peer lent. Dropping it gives the block back.
    Lent(#[expect(dead_code, reason = "kept for its memory")] Lent),
}

#[repr(C)]
struct Object {
    base: ffi::PyObject,
    address: *mut u8,
    length: usize,
    readonly: bool,
    /// Views of the memory that Python code holds.
    exports: usize,
    owner: ManuallyDrop<Owner>,
}

/// Slots of a class, as `typeslots.h` numbers them.
const BF_GETBUFFER: c_int = 1;
const BF_RELEASEBUFFER: c_int = 2;
const TP_DEALLOC: c_int = 52;

static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The class, made at its first use.
fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let made = CLASS.get_or_try_init(py, || {
        let slot = |slot, function: *mut c_void| ffi::PyType_Slot { slot, pfunc: function };
        let mut slots = [
            slot(BF_GETBUFFER, fill_view as *mut c_void),
            slot(BF_RELEASEBUFFER, release_view as *mut c_void),
            slot(TP_DEALLOC, deallocate as *mut c_void),
            slot(0, std::ptr::null_mut()),
        ];
        let mut spec = ffi::PyType_Spec {
            name: c"bywire._bywire.Memory".as_ptr(),
            basicsize: size_of::<Object>() as c_int,
            itemsize: 0,
            flags: ffi::Py_TPFLAGS_DEFAULT as _,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: the name is static, the slots end with a zero and hold functions of the types that their numbers demand.
        // `Object` begins with the header of an object. The interpreter copies the description.
        let class = unsafe { ffi::PyType_FromSpec(&raw mut spec) };
        // SAFETY: a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, class) }.map(Bound::unbind)
    })?;
    Ok(made.bind(py))
}

/// A new object for this memory.
pub fn lend<'py>(
    py: Python<'py>,
    (address, length): (*mut u8, usize),
    readonly: bool,
    owner: Owner,
) -> PyResult<Bound<'py, PyAny>> {
    let class = class(py)?;
    // SAFETY: the class is a type object of `class`.
    let object = unsafe { ffi::PyType_GenericAlloc(class.as_ptr().cast(), 0) };
    // SAFETY: a new reference, or null with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, object)? };
    let object = object.cast::<Object>();
    // SAFETY: a new object of our class, `size_of::<Object>()` bytes that nothing else refers to yet. The header stays.
    unsafe {
        (&raw mut (*object).address).write(address);
        (&raw mut (*object).length).write(length);
        (&raw mut (*object).readonly).write(readonly);
        (&raw mut (*object).exports).write(0);
        (&raw mut (*object).owner).write(ManuallyDrop::new(owner));
    }
    Ok(made)
}

/// Takes the block out of an object of a block. With `is_forced`, views that Python code holds stay readable. Otherwise they are
/// an error.
///
/// # Errors
/// `BufferError`.
pub fn take_block(memory: &Bound<'_, PyAny>, is_forced: bool) -> PyResult<LendBuffer> {
    // SAFETY: only `lend` makes the objects that are passed here, and the attached interpreter makes this the only access.
    let object = unsafe { &mut *memory.as_ptr().cast::<Object>() };
    if object.exports > 0 && !is_forced {
        return Err(PyBufferError::new_err(
            "the block's memory is still in use: release its memoryviews and arrays before lending it",
        ));
    }
    let Owner::Block(owner) = &mut *object.owner else {
        return Err(PyBufferError::new_err("a message that a peer lent cannot be lent on: copy it"));
    };
    owner.block.take().ok_or_else(|| PyBufferError::new_err("the block was lent already: take another one"))
}

/// Returns whether Python code holds views of the memory.
pub fn is_used(memory: &Bound<'_, PyAny>) -> bool {
    // SAFETY: only `lend` makes the objects that are passed here, and the attached interpreter makes this the only access.
    unsafe { (*memory.as_ptr().cast::<Object>()).exports > 0 }
}

/// Puts a block back that could not be lent.
pub fn return_block(memory: &Bound<'_, PyAny>, returned: LendBuffer) {
    // SAFETY: only `lend` makes the objects that are passed here, and the attached interpreter makes this the only access.
    let object = unsafe { &mut *memory.as_ptr().cast::<Object>() };
    if let Owner::Block(owner) = &mut *object.owner {
        owner.block = Some(returned);
    }
}

unsafe extern "C" fn fill_view(object: *mut ffi::PyObject, view: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the interpreter calls this with an object of our class, attached.
    let memory = unsafe { &mut *object.cast::<Object>() };
    if matches!(&*memory.owner, Owner::Block(FreeBlock { block: None, .. })) {
        // SAFETY: attached, and the text is static. The view is the interpreter's, which wants its object null after an error.
        unsafe {
            (*view.cast::<RawView>()).object = std::ptr::null_mut();
            ffi::PyErr_SetString(
                ffi::PyExc_BufferError,
                c"the block was lent: take another one from its heap".as_ptr(),
            );
        }
        return -1;
    }
    let length = memory.length as Py_ssize_t;
    let readonly = c_int::from(memory.readonly);
    // SAFETY: the view is the interpreter's, and the memory stays valid as long as the object, which the view refers to.
    let filled = unsafe {
        PyBuffer_FillInfo(view.cast::<RawView>(), object, memory.address.cast(), length, readonly, flags)
    };
    memory.exports += usize::from(filled == 0);
    filled
}

unsafe extern "C" fn release_view(object: *mut ffi::PyObject, _view: *mut c_void) {
    // SAFETY: the interpreter calls this with an object of our class, attached, once for each view.
    unsafe { (*object.cast::<Object>()).exports -= 1 };
}

unsafe extern "C" fn deallocate(object: *mut ffi::PyObject) {
    // SAFETY: the last reference is gone, so nothing else uses the object. Its class was counted by its allocation.
    unsafe {
        let class = ffi::Py_TYPE(object);
        ManuallyDrop::drop(&mut (*object.cast::<Object>()).owner);
        ffi::PyObject_Free(object.cast());
        ffi::Py_DECREF(class.cast());
    }
}
