//! The laboratory's report: as text, as a page, and in a browser.

mod browser;
mod generated;
mod netperf;
mod report;
