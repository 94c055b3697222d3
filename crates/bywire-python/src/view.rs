//! Memory of Python objects that the library reads or fills, by the buffer protocol.
//!
//! The stable interface of CPython has the buffer protocol since version 3.11 only. The functions exist and have the same
//! structure since 3.3, so they are declared here, and one module serves 3.9 and 3.10 as well.

use std::ffi::{c_char, c_int, c_void};

use bywire::Buffer;
use pyo3::ffi::{self, Py_ssize_t};
use pyo3::prelude::*;

/// `Py_buffer`.
#[repr(C)]
#[derive(Debug)]
pub struct RawView {
    pub address: *mut c_void,
    pub object: *mut ffi::PyObject,
    pub length: Py_ssize_t,
    item_bytes: Py_ssize_t,
    readonly: c_int,
    dimensions: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

const SIMPLE: c_int = 0;
const WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut RawView, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawView);
    pub fn PyBuffer_FillInfo(
        view: *mut RawView,
        object: *mut ffi::PyObject,
        address: *mut c_void,
        length: Py_ssize_t,
        readonly: c_int,
        flags: c_int,
    ) -> c_int;
}

/// The contiguous memory of an object. The object neither frees nor moves it while this value lives.
#[derive(Debug)]
pub struct View {
    // Boxed: some objects keep its address until it is released.
    raw: Box<RawView>,
}

// SAFETY: the memory stays valid until the view is released, which `drop` does with the interpreter attached. Threads only
// copy from it or into it.
unsafe impl Send for View {}
// SAFETY: a shared reference only yields the address and the length.
unsafe impl Sync for View {}

impl View {
    /// The memory of an object that has the buffer protocol, to read it or to fill it.
    ///
    /// # Errors
    /// `TypeError` for other objects, `BufferError` for memory that is not contiguous or cannot be written.
    pub fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let mut raw = Box::new(RawView {
            address: std::ptr::null_mut(),
            object: std::ptr::null_mut(),
            length: 0,
            item_bytes: 0,
            readonly: 0,
            dimensions: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        let flags = if writable { WRITABLE } else { SIMPLE };
        // SAFETY: the object is alive, and the structure is valid for writes. A `Bound` proves that the interpreter is
        // attached.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self { raw })
    }

    /// The memory's address.
    pub fn address(&self) -> *mut u8 {
        self.raw.address.cast()
    }

    /// The memory's length in bytes.
    pub fn len(&self) -> usize {
        self.raw.length.try_into().unwrap_or(0)
    }

    /// The memory for the library, which must give it back before this view is dropped.
    ///
    /// # Safety
    /// The caller keeps this view until the library has given the buffer back or the port is gone.
    pub unsafe fn lend(&self) -> Buffer {
        // SAFETY: the protocol promises that the bytes are valid while the view lives, which the caller sees to. Python code
        // that writes to them meanwhile changes only which bytes cross.
        unsafe { Buffer::from_raw(self.address(), self.len()) }
    }

    /// The bytes.
    ///
    /// # Safety
    /// Nothing writes to the memory while the slice lives: the interpreter stays attached, and the slice is used at once.
    pub unsafe fn bytes(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: valid for reads while the view lives, and unchanged by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.address(), self.len()) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Without an interpreter, which is about to end, the memory is left to the process.
        let _ = Python::try_attach(|_| {
            // SAFETY: filled by `PyObject_GetBuffer`, released once, with the interpreter attached.
            unsafe { PyBuffer_Release(&raw mut *self.raw) }
        });
    }
}
