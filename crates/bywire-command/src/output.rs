//! Standard output, whose reader may go away at any time.

use std::io::{self, Write};

use anyhow::Result;

/// Prints to standard output. A closed one is an error that [`exit_status::of`](crate::exit_status::of) does not
/// report.
pub fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// `println!` panics when the reader of a pipe is gone (`bywire … | head`): that is no failure of ours. SIGPIPE stays
/// ignored, as workers and the message layer write to pipes whose readers may die.
pub fn quiet_when_closed() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>();
        if said
            .is_some_and(|said| said.starts_with("failed printing to stdout") && said.contains("Broken pipe"))
        {
            std::process::exit(0);
        }
        report(panic);
    }));
}
