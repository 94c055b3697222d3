//! Two machines with each other, and with a peer that breaks the rules.

mod fixture;
mod hostile;
mod oracle;
mod steps;
