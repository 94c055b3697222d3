//! What the five source documents printed, and their machines as models. Nothing here is measured.
//!
//! A model is a small pipeline that redraws the graphs which a document had and its text lost. What it is made of comes
//! from the document's own printed figures. A figure that went into it is *fitted*; one that did not is *predicted*, and
//! how far off the prediction is stands beside it.

mod document;
mod machine;
mod pipeline;

pub use document::{Document, Figure, Normalised, documents, figures};
pub use machine::{Check, Kind, Machine, machines};
pub use pipeline::{Pipeline, Stage};
