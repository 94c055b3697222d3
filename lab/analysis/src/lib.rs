//! Statistics of cells: medians and intervals, and what became better or worse between two sessions.

pub mod benchmark_action;
pub mod change;
pub mod comparison;
pub mod conditions;
pub mod junit;
pub mod missing;
pub mod shift;
pub mod side;
pub mod statistics;
mod text;

pub use comparison::{COMPARISON_SCHEMA, Comparison, Row, Rule, Verdict, WORSE_EXIT_CODE};
pub use side::Side;
