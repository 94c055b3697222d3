//! Simulated networks, from many seeds: each run is checked against a model, and each fault that is planted is found.

mod membership;
mod page;
mod planted;
mod rma;
mod scale;
mod seed_range;
mod seeds;
mod streams;
mod tagged;
mod transfers;
