//! The report: one self-contained HTML file that opens from disk without a network, and its plain-text sister.
//!
//! It begins with the answer: a verdict, the ladder of every way, what to do next, and a table. Then come plots with a
//! table each, what could not be measured, the machine and the commands; the source documents stand by themselves. A
//! picture and a page of Markdown are written beside it. Whatever comes from a cell is escaped.

mod answer;
mod carried;
mod ceiling;
mod comparison;
mod export;
mod gain;
mod history;
mod machine;
pub mod merged;
mod model;
pub mod netperf;
mod page;
mod past;
mod picture;
mod plot;
mod quiet;
mod score;
mod served;
mod summary;
mod table;
mod text;
mod verdict;
mod way;

pub use export::{File, drawings, files, files_of_presets, tables};
pub use model::rows as model_rows;
pub use page::{render, render_presets};
pub use picture::svg as picture;
pub use summary::markdown;
pub use text::summary_text;
