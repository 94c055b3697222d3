//! The examples do what their pages say, on one machine and between two.

mod machines;
mod programs;
