//! Every call for messages, by a program in C over libfabric's own interface.

mod loaded;

use loaded::{Loaded, finish};

#[test]
fn two_endpoints_of_one_process_make_every_call_for_messages() {
    let Some(loaded) = Loaded::new(&["cc"], "rdma/fabric.h") else { return };
    let program = loaded.compile("cc", "messages.c", &["-lfabric"]);
    let mut command = loaded.command(&program);
    let output = finish(command.env("FI_LOG_LEVEL", "info").env("FI_LOG_PROV", "bywire"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"matched\n", "{said}");
    // Endpoints that have met have one connection.
    let counted =
        said.lines().filter_map(|line| line.split_once(" closes, connections: ")).map(|(_, count)| count);
    let counts: Vec<_> = counted.collect();
    assert!(counts.len() > 40 && counts.iter().all(|count| ["0", "1"].contains(count)), "{counts:?}");
}
