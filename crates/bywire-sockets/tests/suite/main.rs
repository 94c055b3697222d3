//! Programs with the library and without it: what they see is the same, and their connections are carried.

mod allowance;
mod counted;
mod differential;
mod ends;
mod faults;
mod found;
mod kills;
mod left;
mod lives;
mod loops;
mod many_connections;
mod namespaces;
mod nested;
mod numbers;
mod outlived;
mod owing;
mod programs;
mod random;
mod random_programs;
mod sandbox;
mod signals;
mod situations;
mod test_service;
mod threads;
mod users;
mod waking;
