//! Comparisons of sessions.

mod compare;
