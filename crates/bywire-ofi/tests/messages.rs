//! Every call for messages, by a program in C over libfabric's own interface.

mod loaded;

use loaded::{Loaded, run};

#[test]
fn two_endpoints_of_one_process_make_every_call_for_messages() {
    let Some(loaded) = Loaded::new(&["cc"], "rdma/fabric.h") else { return };
    let program = loaded.compile("cc", "messages.c", &["-lfabric"]);
    assert_eq!(run(&mut loaded.command(&program)), "matched\n");
}
