//! The surroundings of pairs: namespaces, nodes around a switch, other machines.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use bywire_command::exit_status::Misuse;
use bywire_results::message_link::Security;

use crate::ethernet::{Ethernet, FrameLink};
use crate::fabric_pair::FabricPair;
use crate::namespaces::Namespaces;
use crate::options::Request;
use crate::placement::Placement;
use crate::plan::{Level, Test};
use crate::remote_target::Host;
use crate::switched_network::SwitchedNetwork;

/// The namespaces, nodes and hosts that pairs run in, opened once and shared by the measurements of a session.
#[derive(Default)]
pub struct Topology {
    fabrics: BTreeMap<(FrameLink, Security), Arc<FabricPair>>,
    namespaces: BTreeMap<FrameLink, Arc<Namespaces>>,
    networks: BTreeMap<(FrameLink, u32), Arc<SwitchedNetwork>>,
    hosts: BTreeMap<String, Arc<Host>>,
}

impl Topology {
    pub(crate) fn open(&mut self, request: &Request, level: Level, between: &str) -> Result<Placement> {
        if request.joins_nodes() {
            return self.fabric(request, between);
        }
        let placement = match between {
            "processes" => Placement::Processes,
            "threads" if level == Level::Sock => bail!(Misuse(
                "level sock joins programs, each with a library of its own: leave out --between".to_owned()
            )),
            "threads" => Placement::Threads,
            _ if !level.carrier().is_ip => bail!(Misuse(format!(
                "level {level} joins processes of one machine: give --between processes or threads, or another level or --link"
            ))),
            "namespaces" => self.namespaces(FrameLink::cable(request)?)?,
            host => self.host(request, host)?,
        };
        check_cable(request, &placement)?;
        Ok(placement)
    }

    fn host(&mut self, request: &Request, name: &str) -> Result<Placement> {
        if !self.hosts.contains_key(name) {
            let resolved = Arc::new(Host::resolve(name, request.credential.clone())?);
            self.hosts.insert(name.to_owned(), resolved);
        }
        Ok(Placement::Host(Arc::clone(&self.hosts[name])))
    }

    /// Two nodes of a fabric, in namespaces with a cable between them, or this machine's node and another one's.
    fn fabric(&mut self, request: &Request, between: &str) -> Result<Placement> {
        ensure!(
            !["processes", "threads"].contains(&between),
            Misuse(format!(
                "link udp connects two nodes, which {between} do not have: leave out --between, or give --between HOST"
            ))
        );
        if between != "namespaces" {
            ensure!(
                request.security.is_none() && request.nodes.is_none(),
                Misuse(
                    "between two machines the fabric file decides on encryption, and there are no idle peers: leave out \
                     --security and --nodes"
                        .to_owned()
                )
            );
            let placement = self.host(request, between)?;
            check_cable(request, &placement)?;
            return Ok(placement);
        }
        let security =
            request.security.as_deref().map_or(Ok(Security::Encrypted), str::parse).map_err(Misuse::of)?;
        let cable = FrameLink::cable(request)?;
        let namespaces = self.joined(cable)?;
        let pair = match self.fabrics.entry((cable, security)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Arc::new(FabricPair::open(namespaces, security)?)),
        };
        Ok(Placement::Fabric(Arc::clone(pair)))
    }

    /// The nodes that a test with several connections requests. Makes them at first use.
    pub(crate) fn network(
        &mut self,
        request: &Request,
        level: Level,
        test: Test,
        between: &str,
        ethernet: Option<&Ethernet>,
    ) -> Result<Option<Arc<SwitchedNetwork>>> {
        let Some(nodes) = request.nodes.filter(|_| test.is_multi_connection()) else {
            return Ok(None);
        };
        ensure!(
            level.carrier().is_ip && between == "namespaces",
            Misuse(format!(
                "--nodes makes namespaces around a switch, which {} between {between} does not cross: leave it out, \
                 or take tcp, udp or eth",
                request.level
            ))
        );
        let frame_link =
            ethernet.map_or_else(|| FrameLink::cable(request), |ethernet| Ok(ethernet.frame_link))?;
        Ok(Some(match self.networks.entry((frame_link, nodes)) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(entry) => Arc::clone(entry.insert(Arc::new(frame_link.open_network(nodes)?))),
        }))
    }

    pub(crate) fn ethernet(&mut self, frame_link: FrameLink) -> Result<Placement> {
        self.namespaces(frame_link)
    }

    /// The namespaces joined by this link. Makes them at first use.
    fn namespaces(&mut self, frame_link: FrameLink) -> Result<Placement> {
        Ok(Placement::Namespaces(self.joined(frame_link)?))
    }

    fn joined(&mut self, frame_link: FrameLink) -> Result<Arc<Namespaces>> {
        let pair = match self.namespaces.entry(frame_link) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(entry) => entry.insert(Arc::new(frame_link.open()?)),
        };
        Ok(Arc::clone(pair))
    }
}

/// Refuses options of a veth pair where there is none.
fn check_cable(request: &Request, placement: &Placement) -> Result<()> {
    let of_cable = [
        ("mtu", request.mtu_bytes.is_some()),
        ("segmentation", request.segmentation.is_some()),
        ("loss", request.loss_percent.is_some()),
        ("rate", request.rate_mbits.is_some()),
    ];
    for (name, _) in of_cable.iter().filter(|(_, is_given)| *is_given) {
        ensure!(
            matches!(placement, Placement::Namespaces(_)),
            Misuse(format!("--{name} applies to the link between namespaces: add --between namespaces"))
        );
    }
    Ok(())
}
