//! Two ends of a connection between machines, with a perfect network between them: every kind of transfer.

mod endings;
mod pair;
mod rules;
mod transfers;
