//! Bywire for C as its users have it: installed, compiled against, linked and run.

mod cmake;
mod completeness;
mod contract;
mod cpp;
mod examples;
mod header;
mod install;
mod installed;
mod languages;
mod machines;
