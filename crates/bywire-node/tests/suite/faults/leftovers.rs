//! Nothing of the machines of these tests is left after a panic.

use bywire_sys::namespace::Namespace;
use bywire_testing::eventually;
use bywire_testing::test_network::{TestNetwork, ip, path};

/// The interfaces of a namespace.
fn interfaces(namespace: &Namespace) -> String {
    namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev").expect("a table")).expect("inside")
}

#[test]
fn simulated_machines_are_removed_after_a_panic() {
    let Ok(watch) = Namespace::fresh() else { return println!("not run: no network namespace: run as root") };
    for count in [2, 3, 5] {
        let panicked: Result<(), _> = std::thread::scope(|scope| {
            let failing = || {
                let network = TestNetwork::up(count).expect("as above");
                // An interface whose other end is in a namespace goes with that namespace.
                for (number, machine) in network.machines.iter().enumerate() {
                    let name = format!("seen{number}");
                    ip(
                        &machine.namespace,
                        &format!("link add watch type veth peer name {name} netns {}", path(&watch)),
                    );
                    assert!(interfaces(&watch).contains(&name));
                }
                let paths: Vec<_> = network.machines.iter().map(|machine| machine.runtime()).collect();
                assert!(paths.iter().all(|path| path.join("node").exists()));
                // Not by `panic!`, which would print a backtrace of an expected panic.
                std::panic::resume_unwind(Box::new(paths));
            };
            scope.spawn(failing).join()
        });
        let paths = panicked.expect_err("it panics");
        let paths = paths.downcast::<Vec<std::path::PathBuf>>().expect("its directories");
        assert!(paths.iter().all(|path| !path.exists()));
        eventually("every namespace is gone", || !interfaces(&watch).contains("seen"));
        println!("{count} machines left nothing");
    }
}
