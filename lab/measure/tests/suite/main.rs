//! The laboratory's engine over every level, and the sources that its figures name.

mod engine;
mod sources;
