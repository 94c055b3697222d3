//! The report: one self-contained HTML file that opens from disk without a network, and the same as plain text.
//!
//! It begins with the verdict, the ladder of every way, what to do next, and a table. Plots with a table each follow,
//! then what could not be measured, the machine and the commands. The source documents have a section of their own. A
//! picture and a page of Markdown are written beside it. All text of cells is escaped.

mod ceiling;
mod comparison;
mod digest;
mod disturbed_cells;
mod ethernet_table;
mod export;
mod headline;
mod history;
mod level_tables;
pub mod merged;
mod model;
pub mod netperf;
mod page;
mod pair_tables;
mod picture;
mod plot;
mod summary;
pub mod table;
mod text;
mod verdict;
mod way;
mod web_table;

pub use export::{File, drawings, files, files_of_presets, tables};
pub use model::rows as model_rows;
pub use page::{render, render_presets};
pub use picture::svg as picture;
pub use summary::markdown;
pub use text::summary_text;
