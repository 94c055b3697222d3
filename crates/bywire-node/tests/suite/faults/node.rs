//! A service in a process of its own, which can be killed and stopped.

use std::os::unix::net::UnixStream;

use bywire_node::service::{Options, Service};
use bywire_testing::actor::{Actor, Context};
use bywire_testing::test_network::Machine;

use super::ends::start;

/// The role: it serves until it hears a line.
pub fn serve(context: &mut Context) {
    let options = Options {
        configuration: context.argument::<String>(0).into(),
        runtime_directory: Some(context.directory.clone()),
        udp_port: context.argument(1),
        boot_id: [context.argument(2); 16],
    };
    let (stop, stopped) = UnixStream::pair().expect("a pair");
    let (_reload, reloaded) = UnixStream::pair().expect("a pair");
    let service = Service::start(&options, &|_| {}).expect("it begins");
    context.tell("serves");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _line = context.hear();
            drop(stop);
        });
        service.run(&stopped, &reloaded).expect("it ends well");
    });
}

/// The service of a machine, which is ready.
pub fn start_node(machine: &Machine) -> Actor {
    let configuration = machine.configuration();
    let (udp_port, boot_id) = (machine.address.port().to_string(), machine.boot_id[0].to_string());
    let arguments = [configuration.to_str().expect("a path of text"), &udp_port, &boot_id];
    let mut node = start(machine, "node", &arguments);
    node.expect("serves");
    node
}
