//! The module as its users have it: loaded by the system's Python, with the package beside it.

mod examples;
mod package;
mod turns;
mod unit_tests;
