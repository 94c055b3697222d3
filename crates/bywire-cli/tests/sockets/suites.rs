//! CPython's own tests.
