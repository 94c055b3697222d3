//! The figures that the five source documents printed, and models of their machines. Nothing here is measured.
//!
//! A model is a small pipeline that redraws the graphs of a document whose text has lost them. Its constants come from
//! the document's own printed figures. A figure that was used for them is *fitted*. Any other is *predicted*, and its
//! deviation is shown beside it.

mod document;
mod machine;
mod pipeline;

pub use document::{Document, Figure, Normalised, documents, figures};
pub use machine::{Check, Kind, Machine, machines};
pub use pipeline::{Pipeline, Stage};
