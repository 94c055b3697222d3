//! Nodes of a fabric on one machine: a node service in each of several namespaces.
//!
//! Keys, the fabric file and the sockets are in a scratch directory. All of it ends with this value or with this program.

use std::fs::DirBuilder;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use bywire_node::fabric::{self, Fabric, Node, ServiceAddress};
use bywire_node::{file, key};
use bywire_results::message_link::Security;

use crate::namespaces::Namespace;
use crate::scratch_directory::{ScratchDirectory, nonce};
use crate::service_process::ServiceProcess;

/// A node by its name in the fabric, the namespace that its service runs in, and its address there.
#[derive(Clone, Debug)]
pub(crate) struct NodePlace<'a> {
    pub(crate) name: String,
    pub(crate) namespace: &'a Namespace,
    pub(crate) address: Ipv4Addr,
}

/// The services of all nodes of a fabric.
#[derive(Debug)]
pub(crate) struct NodeServices {
    /// They end before the directory with their sockets is removed.
    _services: Vec<ServiceProcess>,
    /// The processes of the services, in the order of the nodes.
    pub(crate) processes: Vec<u32>,
    /// The runtime directories of the nodes, in their order.
    pub(crate) runtime_directories: Vec<PathBuf>,
    _scratch: ScratchDirectory,
}

impl NodeServices {
    /// Starts a service for each of `nodes`, which are one fabric. Fabrics of different security fit into the same
    /// namespaces.
    pub(crate) fn start(nodes: &[NodePlace], security: Security) -> Result<Self> {
        let scratch = ScratchDirectory::of(&nonce())?;
        let is_encrypted = security == Security::Encrypted;
        let udp_port = if is_encrypted { fabric::UDP_PORT } else { fabric::UDP_PORT + 1 };
        let configuration = |node: &NodePlace| scratch.path().join(format!("{}.etc", node.name));
        let mut members = Vec::new();
        let mut runtime_directories = Vec::new();
        for node in nodes {
            let runtime_directory = scratch.path().join(&node.name);
            make_directory(&runtime_directory)?;
            runtime_directories.push(runtime_directory);
            make_directory(&configuration(node))?;
            let key = key::make(&configuration(node).join(key::FILE_NAME))?.public();
            let address = ServiceAddress::Address((node.address, udp_port).into());
            members.push(Node { name: node.name.clone(), addresses: vec![address], key, is_bridge: false });
        }
        let fabric =
            Fabric { name: "laboratory".to_owned(), serial: 1, keeper: None, is_encrypted, nodes: members };
        let start = |(node, runtime_directory): (&NodePlace, &PathBuf)| {
            file::make(&configuration(node).join(fabric::FILE_NAME), 0o644, &fabric.to_string())?;
            let mut command = Command::new("/proc/self/exe");
            command.args(["up", "--port", &udp_port.to_string(), "--config"]).arg(configuration(node));
            command.env("BYWIRE_RUNTIME_DIR", runtime_directory).env_remove("NOTIFY_SOCKET");
            node.namespace.enter(&mut command)?;
            ServiceProcess::start(&mut command, "bywire up", 1)
        };
        let services = nodes.iter().zip(&runtime_directories).map(start).collect::<Result<Vec<_>>>()?;
        let processes = services.iter().map(ServiceProcess::process).collect();
        Ok(Self { _services: services, processes, runtime_directories, _scratch: scratch })
    }
}

fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.with_context(|| format!("cannot make {}", path.display()))
}
