//! The surroundings of pairs: namespaces, nodes around a switch, other machines.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use bywire_command::exit_status::Misuse;
use bywire_results::message_link::Security;

use crate::ethernet::FrameLink;
use crate::fabric_pair::FabricPair;
use crate::namespaces::Namespaces;
use crate::options::Request;
use crate::placement::Placement;
use crate::plan::{Level, Test};
use crate::remote_target::Host;

/// The namespaces, nodes and hosts that pairs run in, opened once and shared by the measurements of a session.
#[derive(Default)]
pub struct Topology {
    fabrics: BTreeMap<(FrameLink, Security), Arc<FabricPair>>,
    /// By their link, and their number if it was requested.
    namespaces: BTreeMap<(FrameLink, Option<u32>), Arc<Namespaces>>,
    hosts: BTreeMap<String, Arc<Host>>,
}

impl Topology {
    pub(crate) fn open(&mut self, request: &Request, level: Level, between: &str) -> Result<Placement> {
        if request.joins_nodes() {
            return self.fabric(request, between);
        }
        let reason = "an engine relays to a peer that is not carried: leave out --between, or give --between namespaces";
        ensure!(!request.is_relayed() || between == "namespaces", Misuse(reason.to_owned()));
        let placement = match between {
            "processes" => Placement::Processes,
            "threads" if level == Level::Sock => bail!(Misuse(
                "level sock joins programs, each with a library of its own: leave out --between".to_owned()
            )),
            "threads" => Placement::Threads,
            _ if !level.carrier().is_ip && !request.is_relayed() => bail!(Misuse(format!(
                "level {level} joins processes of one machine: give --between processes or threads, or another level or --link"
            ))),
            "namespaces" => self.namespaces(FrameLink::cable(request)?)?,
            host => self.host(request, host)?,
        };
        check_cable(request, &placement)?;
        Ok(placement)
    }

    fn host(&mut self, request: &Request, name: &str) -> Result<Placement> {
        let host =
            opened(&mut self.hosts, name.to_owned(), || Host::resolve(name, request.credential.clone()));
        host.map(Placement::Host)
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
            let reason = "between two machines the fabric file decides on encryption, and there are no idle peers: leave \
                          out --security and --nodes";
            ensure!(request.security.is_none() && request.nodes.is_none(), Misuse(reason.to_owned()));
            let placement = self.host(request, between)?;
            check_cable(request, &placement)?;
            return Ok(placement);
        }
        let security =
            request.security.as_deref().map_or(Ok(Security::Encrypted), str::parse).map_err(Misuse::of)?;
        let cable = FrameLink::cable(request)?;
        let namespaces = self.joined(cable, None)?;
        let pair = opened(&mut self.fabrics, (cable, security), || FabricPair::open(namespaces, security));
        pair.map(Placement::Fabric)
    }

    /// The nodes that a test with several connections requests. Makes them at first use.
    pub(crate) fn network(
        &mut self,
        request: &Request,
        level: Level,
        test: Test,
        between: &str,
        of_ethernet: Option<FrameLink>,
    ) -> Result<Option<Arc<Namespaces>>> {
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
        let frame_link = of_ethernet.map_or_else(|| FrameLink::cable(request), Ok)?;
        self.joined(frame_link, Some(nodes)).map(Some)
    }

    /// The namespaces joined by this link. Makes them at first use.
    pub(crate) fn namespaces(&mut self, frame_link: FrameLink) -> Result<Placement> {
        Ok(Placement::Namespaces { network: self.joined(frame_link, None)?, source: 0, target: 1 })
    }

    fn joined(&mut self, frame_link: FrameLink, nodes: Option<u32>) -> Result<Arc<Namespaces>> {
        opened(&mut self.namespaces, (frame_link, nodes), || frame_link.open(nodes))
    }
}

/// The thing that is known by `key`, which `open` makes at first use.
fn opened<K: Ord, T>(
    known: &mut BTreeMap<K, Arc<T>>,
    key: K,
    open: impl FnOnce() -> Result<T>,
) -> Result<Arc<T>> {
    Ok(Arc::clone(match known.entry(key) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => place.insert(Arc::new(open()?)),
    }))
}

/// Refuses options of a veth pair where there is none.
fn check_cable(request: &Request, placement: &Placement) -> Result<()> {
    let of_cable = [
        ("mtu", request.mtu_bytes.is_some()),
        ("segmentation", request.segmentation.is_some()),
        ("loss", request.loss_percent.is_some()),
        ("rate", request.rate_mbits.is_some()),
    ];
    match of_cable.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) if !matches!(placement, Placement::Namespaces { .. }) => {
            bail!(Misuse(format!(
                "--{name} applies to the link between namespaces: add --between namespaces"
            )))
        }
        _ => Ok(()),
    }
}
