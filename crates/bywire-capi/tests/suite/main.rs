//! Bywire for C as its users have it: installed, compiled against, linked and run.

mod completeness;
mod contract;
mod examples;
mod header;
mod install;
mod installed;
mod machines;
