//! iperf3: much data, either way, in several streams, both ways at once.

use serde_json::Value;

use super::{Fabric, await_listener, port, said, start};
use crate::packages::have;

#[test]
fn iperf3_streams_either_way() {
    if !have(&[("iperf3", "iperf3")]) {
        return;
    }
    let fabric = Fabric::new();
    for words in [
        &["-n", "300M"][..],
        &["-R", "-t", "1"],
        &["-P", "4", "-t", "1"],
        &["--bidir", "-t", "1"],
        &["-l", "1K", "-t", "1"],
    ] {
        // One port for each: iperf3 stops listening for a moment after each client.
        let port = port();
        let port_word = port.to_string();
        let mut server =
            start(&mut fabric.carried(&["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &port_word]));
        await_listener(port);
        let asked = [&["iperf3", "-c", "127.0.0.1", "-p", &port_word, "-J"], words].concat();
        let told: Value = serde_json::from_str(&said(fabric.carried(&asked))).expect("JSON");
        assert!(told.get("error").is_none(), "{words:?}: {}", told["error"]);
        let bytes = |what: &str| told["end"][what]["bytes"].as_f64().expect("a number");
        assert!(bytes("sum_received") > 1e6, "{words:?}: {}", told["end"]);
        // The sender stops at its own time. What it has sent then arrives.
        assert!(bytes("sum_received") <= bytes("sum_sent"), "{words:?}: {}", told["end"]);
        assert!(server.end("the server ends").success(), "{words:?}");
    }
    let status = fabric.status();
    assert!(status["carried_ever"].as_u64() >= Some(5), "{status}");
    // Most of the bytes of five runs of a second.
    assert!(status["bytes"].as_u64() >= Some(100_000_000), "{status}");
}
