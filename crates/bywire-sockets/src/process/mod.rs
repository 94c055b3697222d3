//! What a process does with its connections: fork, exec, signals, sandboxes, exit.

pub mod closing;
pub mod examination;
pub mod exec;
pub mod exit;
pub mod fork;
pub mod golang;
pub mod inline;
pub mod io_uring;
pub mod lifecycle;
pub mod loading;
pub mod sandbox;
pub mod signals;
pub mod startup;
