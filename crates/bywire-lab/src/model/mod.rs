//! The machines of the source documents as models: small pipelines that redraw the graphs which the documents had and
//! their texts lost.
//!
//! What a pipeline is made of comes from the document's own printed figures. A figure that went into it is *fitted*; one
//! that did not is *predicted*, and how far off the prediction is stands beside it. Nothing here is measured.

mod machine;
mod pipeline;

pub use machine::{Check, Kind, Machine, machines};
pub use pipeline::{Pipeline, Stage};
