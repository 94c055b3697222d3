//! Two nodes of a fabric on one machine: the two namespaces of a veth pair, each with a node service of its own.
//!
//! Keys, the fabric file and the sockets are in a scratch directory. All of it ends with this value or with this program.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use bywire_node::fabric::{self, Fabric, Node, ServiceAddress};
use bywire_node::{file, key};
use bywire_results::message_link::Security;

use crate::namespaces::{Namespace, Namespaces};
use crate::plan::{End, RuntimeDirectories};
use crate::scratch_directory::{ScratchDirectory, nonce};
use crate::service_process::ServiceProcess;

/// Two nodes with their services.
#[derive(Debug)]
pub struct FabricPair {
    /// They end before the directory with their sockets is removed.
    _services: [ServiceProcess; 2],
    processes: [u32; 2],
    directories: RuntimeDirectories,
    /// How their packets are protected.
    pub security: Security,
    /// Where they are.
    pub namespaces: Arc<Namespaces>,
    _scratch: ScratchDirectory,
}

/// The name of an end's node.
pub fn node_name(end: End) -> String {
    end.to_string()
}

impl FabricPair {
    /// Starts a service in either of `namespaces`. Several pairs with different security fit into the same namespaces.
    ///
    /// # Errors
    /// One line with the reason why a service has not begun.
    pub fn open(namespaces: Arc<Namespaces>, security: Security) -> Result<Self> {
        let scratch = ScratchDirectory::of(&nonce())?;
        let runtime = |end: End| scratch.path().join(end.to_string());
        let directories = RuntimeDirectories { source: runtime(End::Source), target: runtime(End::Target) };
        let udp_port = udp_port(security);
        let sides = [(End::Source, &namespaces.source), (End::Target, &namespaces.target)];
        let mut nodes = Vec::new();
        for (end, namespace) in sides {
            make_directory(directories.of(end))?;
            let configuration = configuration(scratch.path(), end);
            make_directory(&configuration)?;
            let key = key::make(&configuration.join(key::FILE_NAME))?.public();
            let address = ServiceAddress::Address((namespace.address(), udp_port).into());
            nodes.push(Node { name: node_name(end), addresses: vec![address], key, is_bridge: false });
        }
        let is_encrypted = security == Security::Encrypted;
        let fabric = Fabric { name: "laboratory".to_owned(), serial: 1, keeper: None, is_encrypted, nodes };
        let start = |(end, namespace): (End, &Namespace)| {
            let configuration = configuration(scratch.path(), end);
            file::make(&configuration.join(fabric::FILE_NAME), 0o644, &fabric.to_string())?;
            let mut command = Command::new("/proc/self/exe");
            command.args(["up", "--port", &udp_port.to_string(), "--config"]).arg(configuration);
            command.env("BYWIRE_RUNTIME_DIR", directories.of(end)).env_remove("NOTIFY_SOCKET");
            namespace.enter(&mut command)?;
            ServiceProcess::start(&mut command, "bywire up", 1)
        };
        let [source, target] = sides;
        let services = [start(source)?, start(target)?];
        let processes = services.each_ref().map(ServiceProcess::process);
        Ok(Self { _services: services, processes, directories, security, namespaces, _scratch: scratch })
    }

    /// The processes of the two services.
    pub fn services(&self) -> &[u32] {
        &self.processes
    }

    /// The runtime directories of both nodes.
    pub fn runtime_directories(&self) -> &RuntimeDirectories {
        &self.directories
    }
}

/// Services of both kinds may run in one namespace.
fn udp_port(security: Security) -> u16 {
    match security {
        Security::Encrypted => fabric::UDP_PORT,
        Security::Plain => fabric::UDP_PORT + 1,
    }
}

fn configuration(directory: &Path, end: End) -> PathBuf {
    directory.join(format!("{end}.etc"))
}

fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.with_context(|| format!("cannot make {}", path.display()))
}
