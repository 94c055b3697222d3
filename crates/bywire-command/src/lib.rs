//! Parts that the command `bywire` and the other programs share.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`exit_status`] | the exit status of a program, and its one line about an error |
//! | [`option_row`], [`chosen`] | a subcommand's options as one table, and the command line that is made of it |
//! | [`output`], [`plain`], [`shell`] | standard output, text for terminals, words for a shell |
//! | [`suggested_values`] | values that a shell may complete |
//! | [`provider`] | the settings by which MPI programs use the fabric |

pub mod chosen;
pub mod exit_status;
pub mod option_row;
pub mod output;
pub mod plain;
pub mod provider;
pub mod shell;
pub mod suggested_values;
