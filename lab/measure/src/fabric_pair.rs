//! Two nodes of a fabric on one machine: the two namespaces of a veth pair, each with a node service of its own.

use std::sync::Arc;

use anyhow::{Result, bail};
use bywire_results::message_link::Security;

use crate::namespaces::Namespaces;
use crate::node_services::{NodePlace, NodeServices};
use crate::plan::{End, RuntimeDirectories};

/// Two nodes with their services.
#[derive(Debug)]
pub struct FabricPair {
    services: NodeServices,
    directories: RuntimeDirectories,
    /// How their packets are protected.
    pub security: Security,
    /// The namespaces of the nodes.
    pub namespaces: Arc<Namespaces>,
}

/// The name of an end's node.
pub fn node_name(end: End) -> String {
    end.to_string()
}

impl FabricPair {
    /// Starts a service in either of `namespaces`. Several pairs with different security fit into the same namespaces. Fails
    /// with the reason why a service has not begun.
    pub fn open(namespaces: Arc<Namespaces>, security: Security) -> Result<Self> {
        let [source, target] = namespaces.pair();
        let nodes = [(End::Source, source), (End::Target, target)].map(|(end, namespace)| NodePlace {
            name: node_name(end),
            namespace,
            address: namespace.address(),
        });
        let services = NodeServices::start(&nodes, security)?;
        let [source, target] = &services.runtime_directories[..] else { bail!("a pair has two nodes") };
        let directories = RuntimeDirectories { source: source.clone(), target: target.clone() };
        Ok(Self { services, directories, security, namespaces })
    }

    /// The processes of the two services.
    pub fn services(&self) -> &[u32] {
        &self.services.processes
    }

    /// The runtime directories of both nodes.
    pub fn runtime_directories(&self) -> &RuntimeDirectories {
        &self.directories
    }
}
