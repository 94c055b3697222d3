//! The rings' own code: every interleaving within loom's bounds, against a model, and between processes.

mod cut_over;
mod gate;
mod leaving;
mod loom;
mod model;
mod oracle;
mod quiet;
mod shared;
mod sleeping;
mod waking;
mod word;
