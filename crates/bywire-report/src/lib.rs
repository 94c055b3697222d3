//! The report: one self-contained HTML file that opens from disk without a network, and its plain-text sister.
//!
//! It begins with the one-page answer, then come plots with a table each, everything beside the historic
//! figures, what could not be measured, the machine and the commands. Whatever comes from a cell is escaped.

mod account;
mod answer;
mod carried;
mod ceiling;
mod drawing;
mod export;
mod gain;
mod graph;
mod ladder;
pub mod merged;
mod model;
pub mod netperf;
mod page;
mod past;
mod plot;
mod section;
mod served;
mod text;
mod way;

pub use export::{drawings, tables};
pub use model::rows as model_rows;
pub use page::{render, render_presets};
pub use text::summary_text;
