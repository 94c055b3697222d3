//! Decides where a frame goes.
//!
//! Every interface has the address that follows from its identity, so the switch does not learn it, and no frame can
//! change it. Other addresses exist only behind an interface that belongs to a bridge. The switch learns those,
//! forgets them after five minutes, and bounds their number. Of another machine it learns them only if the fabric file
//! permits bridges there.
//!
//! A frame from the fabric never returns to the fabric, and no frame returns to its source. So there are no loops.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::address::MacAddress;
use crate::claims::Claims;
use crate::drops::Cause;

/// The number of a port of the switch: its place in the table. Interfaces of this process have even numbers, each twice
/// its [`InterfaceId`](crate::order::InterfaceId). Ports to the fabric have odd numbers, one for each peer process.
pub type SwitchPortId = usize;

/// The most addresses that are learned behind all bridges together. Further addresses are reached by flooding.
pub const LEARNED_MAX: usize = 4096;
/// How long an address is remembered after its last frame.
pub const LEARNED_MS: u64 = 300_000;
/// The interval between searches for expired addresses while the table is full.
const SWEEP_MS: u64 = 1000;

/// What a port of the switch leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// An interface of this process.
    Interface {
        /// Its address.
        mac: MacAddress,
        /// True if other addresses may be behind the interface.
        is_bridge: bool,
    },
    /// The fabric, towards another process of this machine and all its interfaces.
    Fabric,
    /// The fabric, towards a process of another machine. Its frames have the addresses that it has announced, or are
    /// dropped.
    Node {
        /// True if other addresses, which no interface has, may be behind its interfaces.
        is_bridge: bool,
    },
}

/// The decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Deliver it to this port.
    To(SwitchPortId),
    /// Deliver it to every port for which [`Switch::floods`] returns true.
    Flood {
        /// True if its target is a single address without a known owner.
        is_unknown: bool,
    },
    /// Drop it.
    Drop(Cause),
}

/// The table of ports and addresses.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<Option<SwitchPort>>,
    /// Addresses with a known owner: those of interfaces here, and those that peers have announced.
    owners: HashMap<MacAddress, SwitchPortId>,
    /// IP addresses that interfaces here and peers have announced. Only frames of other machines are checked against them: see
    /// [`Claims`].
    ips: HashMap<IpAddr, SwitchPortId>,
    learned: HashMap<MacAddress, Learned>,
    sweep_again_ms: u64,
    storm_frames_per_second: u64,
}

#[derive(Debug)]
struct SwitchPort {
    attachment: Attachment,
    /// Broadcasts and multicasts that it may still send.
    allowance: u64,
    refilled_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    port: SwitchPortId,
    seen_ms: u64,
}

impl Switch {
    /// An empty switch that accepts this many broadcasts and multicasts from each port, per second.
    pub fn new(storm_frames_per_second: u64) -> Self {
        Self {
            ports: Vec::new(),
            owners: HashMap::new(),
            ips: HashMap::new(),
            learned: HashMap::with_capacity(LEARNED_MAX),
            sweep_again_ms: 0,
            storm_frames_per_second,
        }
    }

    /// Changes the limit on broadcasts and multicasts from each port, per second.
    pub fn allow_storms_of(&mut self, frames_per_second: u64) {
        self.storm_frames_per_second = frames_per_second;
    }

    /// Adds or replaces a port. Returns `false`, and changes nothing, if its address belongs to another interface of
    /// this process. If another process has claimed the address, it loses it. Otherwise it could keep an interface of
    /// this process from coming back.
    #[must_use]
    pub fn insert(&mut self, id: SwitchPortId, attachment: Attachment) -> bool {
        if let Attachment::Interface { mac, .. } = attachment
            && self.owners.get(&mac).is_some_and(|owner| *owner != id && !self.is_fabric(*owner))
        {
            return false;
        }
        self.remove(id);
        if self.ports.len() <= id {
            self.ports.resize_with(id + 1, || None);
        }
        self.ports[id] =
            Some(SwitchPort { attachment, allowance: self.storm_frames_per_second, refilled_ms: 0 });
        if let Attachment::Interface { mac, .. } = attachment {
            self.owners.insert(mac, id);
        }
        true
    }

    /// Makes a port to the fabric through which no address is reachable yet: [`Attachment::Fabric`] or
    /// [`Attachment::Node`]. An existing port to the fabric loses its addresses and nothing else, so a peer that announces
    /// again gets no new allowance for broadcasts.
    pub fn lead_to_fabric(&mut self, id: SwitchPortId, attachment: Attachment) {
        if self.is_fabric(id) {
            self.owners.retain(|_, port| *port != id);
            self.ips.retain(|_, port| *port != id);
            self.change_fabric(id, attachment);
        } else {
            // A port without an address of its own cannot be refused.
            let _ = self.insert(id, attachment);
        }
    }

    /// Changes what an existing port to the fabric leads to. The addresses that it may no longer have are forgotten.
    pub fn change_fabric(&mut self, id: SwitchPortId, attachment: Attachment) {
        if self.is_fabric(id)
            && let Some(Some(port)) = self.ports.get_mut(id)
            && std::mem::replace(&mut port.attachment, attachment) != attachment
        {
            self.learned.retain(|_, learned| learned.port != id);
        }
    }

    /// Makes `mac` reachable through a port to the fabric. Returns `false` if it belongs to another port.
    #[must_use]
    pub fn announce(&mut self, id: SwitchPortId, mac: MacAddress) -> bool {
        let owner = *self.owners.entry(mac).or_insert(id);
        owner == id
    }

    /// Makes `ip` the address of a peer: no other machine may send from it. Returns `false` if it belongs to another port. An
    /// address that cannot belong to one machine stays everybody's.
    #[must_use]
    pub fn announce_ip(&mut self, id: SwitchPortId, ip: IpAddr) -> bool {
        if !is_of_one_machine(&ip) {
            return true;
        }
        let owner = *self.ips.entry(ip).or_insert(id);
        owner == id
    }

    /// Changes the IP addresses of an interface of this process. A peer that has claimed one loses it.
    pub fn set_own_ips(&mut self, id: SwitchPortId, ips: &[IpAddr]) {
        self.ips.retain(|_, port| *port != id);
        self.ips.extend(ips.iter().filter(|ip| is_of_one_machine(ip)).map(|ip| (*ip, id)));
    }

    /// Removes a port with all its addresses.
    pub fn remove(&mut self, id: SwitchPortId) {
        if let Some(port) = self.ports.get_mut(id) {
            *port = None;
        }
        self.owners.retain(|_, port| *port != id);
        self.ips.retain(|_, port| *port != id);
        self.learned.retain(|_, learned| learned.port != id);
    }

    /// Decides about a whole frame from port `from`, at `now_ms` of any steady clock.
    pub fn judge(&mut self, from: SwitchPortId, frame: &[u8], now_ms: u64) -> Verdict {
        let (Some(target), Some(source)) = (MacAddress::target_of(frame), MacAddress::source_of(frame))
        else {
            return Verdict::Drop(Cause::Short);
        };
        if let Some(cause) = self.object(from, source, frame, now_ms) {
            return Verdict::Drop(cause);
        }
        if target.is_multicast() {
            return self.judge_group(from, target, now_ms);
        }
        let port = self.owners.get(&target).copied().or_else(|| self.learned_at(target, now_ms));
        match port {
            Some(port) if port == from => Verdict::Drop(Cause::SentBack),
            // From the fabric to the fabric.
            Some(port) if self.is_fabric(from) && self.is_fabric(port) => Verdict::Drop(Cause::SentBack),
            Some(port) => Verdict::To(port),
            None => self.judge_unknown(from, now_ms),
        }
    }

    /// An upper bound: every port has a smaller number.
    pub fn ports_count(&self) -> usize {
        self.ports.len()
    }

    /// True if a flooded frame from port `from` goes to port `to`. `is_unknown` means that its target is a single
    /// address without a known owner. Only bridges can lead to such an address.
    pub fn floods(&self, from: SwitchPortId, to: SwitchPortId, is_unknown: bool) -> bool {
        let Some(Some(port)) = self.ports.get(to) else { return false };
        match port.attachment {
            Attachment::Interface { is_bridge, .. } => from != to && (is_bridge || !is_unknown),
            Attachment::Fabric => from != to && !self.is_fabric(from),
            Attachment::Node { is_bridge } => {
                from != to && (is_bridge || !is_unknown) && !self.is_fabric(from)
            }
        }
    }

    /// The reason to drop a frame because of its source, if there is one. Learns the source where that is allowed.
    fn object(&mut self, from: SwitchPortId, source: MacAddress, frame: &[u8], now_ms: u64) -> Option<Cause> {
        let Some(Some(port)) = self.ports.get(from) else { return Some(Cause::ForeignSource) };
        let is_node = matches!(port.attachment, Attachment::Node { .. });
        if is_node && let Some(cause) = self.object_to_claims(from, frame) {
            return Some(cause);
        }
        if self.owners.get(&source) == Some(&from) {
            return None;
        }
        let may_be_foreign = match port.attachment {
            Attachment::Interface { is_bridge, .. } | Attachment::Node { is_bridge } => is_bridge,
            // The far end checks the addresses behind its bridge. They cannot be known here.
            Attachment::Fabric => true,
        };
        // A host behind a bridge must not use the address of an interface.
        if !may_be_foreign || source.is_multicast() || self.owners.contains_key(&source) {
            return Some(Cause::ForeignSource);
        }
        self.learn(from, source, now_ms);
        None
    }

    /// The reason to drop a frame because of the IP addresses that it claims, if there is one.
    fn object_to_claims(&self, from: SwitchPortId, frame: &[u8]) -> Option<Cause> {
        let Ok(claims) = Claims::of(frame) else { return Some(Cause::Unparsable) };
        let is_foreign = |ip| self.ips.get(ip).is_some_and(|owner| *owner != from);
        claims.ips().iter().any(is_foreign).then_some(Cause::ForeignSource)
    }

    fn learn(&mut self, port: SwitchPortId, mac: MacAddress, now_ms: u64) {
        let learned = Learned { port, seen_ms: now_ms };
        if let Some(known) = self.learned.get_mut(&mac) {
            *known = learned;
            return;
        }
        // A search through all addresses takes long. A sender of made-up addresses must not cause one for each frame.
        if self.learned.len() >= LEARNED_MAX && now_ms >= self.sweep_again_ms {
            self.sweep_again_ms = now_ms.saturating_add(SWEEP_MS);
            self.learned.retain(|_, known| now_ms.saturating_sub(known.seen_ms) < LEARNED_MS);
        }
        if self.learned.len() < LEARNED_MAX {
            self.learned.insert(mac, learned);
        }
    }

    fn learned_at(&self, mac: MacAddress, now_ms: u64) -> Option<SwitchPortId> {
        let known = self.learned.get(&mac)?;
        (now_ms.saturating_sub(known.seen_ms) < LEARNED_MS).then_some(known.port)
    }

    fn judge_group(&mut self, from: SwitchPortId, target: MacAddress, now_ms: u64) -> Verdict {
        if target.is_link_local_control() {
            return Verdict::Drop(Cause::LinkControl);
        }
        if self.spend(from, now_ms) {
            Verdict::Flood { is_unknown: false }
        } else {
            Verdict::Drop(Cause::Storm)
        }
    }

    fn judge_unknown(&mut self, from: SwitchPortId, now_ms: u64) -> Verdict {
        let leads_somewhere = (0..self.ports.len()).any(|to| self.floods(from, to, true));
        match (leads_somewhere, leads_somewhere && self.spend(from, now_ms)) {
            (false, _) => Verdict::Drop(Cause::UnknownTarget),
            (true, true) => Verdict::Flood { is_unknown: true },
            (true, false) => Verdict::Drop(Cause::Storm),
        }
    }

    /// Takes one frame out of a port's allowance. An empty allowance is full again after one second.
    fn spend(&mut self, from: SwitchPortId, now_ms: u64) -> bool {
        let rate = self.storm_frames_per_second;
        let Some(Some(port)) = self.ports.get_mut(from) else { return false };
        let earned = now_ms.saturating_sub(port.refilled_ms).saturating_mul(rate) / 1000;
        if earned > 0 {
            port.allowance = port.allowance.saturating_add(earned).min(rate);
            port.refilled_ms = now_ms;
        }
        let may = port.allowance > 0;
        port.allowance -= u64::from(may);
        may
    }

    fn is_fabric(&self, id: SwitchPortId) -> bool {
        let Some(Some(port)) = self.ports.get(id) else { return false };
        matches!(port.attachment, Attachment::Fabric | Attachment::Node { .. })
    }
}

/// Can an address belong to one machine of the segment? Every machine sends from the unspecified ones, to ask for an address or
/// whether its address is free, and may have link-local ones. Whoever could announce them would silence the others.
fn is_of_one_machine(ip: &IpAddr) -> bool {
    let is_special = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_special || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const GROUP: Verdict = Verdict::Flood { is_unknown: false };
    const UNKNOWN: Verdict = Verdict::Flood { is_unknown: true };

    const fn mac(last: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, last])
    }

    fn frame(target: MacAddress, source: MacAddress) -> Vec<u8> {
        [&target.0[..], &source.0[..], &[0x88, 0xB5]].concat()
    }

    /// Lanes 0 and 1 are interfaces. SwitchPort 2 belongs to a bridge. Lanes 3 and 4 lead to the fabric. Address 13 is
    /// behind port 3.
    fn switch() -> Switch {
        let mut switch = Switch::new(10);
        for port in 0..3 {
            assert!(
                switch.insert(port, Attachment::Interface { mac: mac(port as u8), is_bridge: port == 2 })
            );
        }
        assert!(switch.insert(3, Attachment::Fabric) && switch.insert(4, Attachment::Fabric));
        assert!(switch.announce(3, mac(13)));
        switch
    }

    #[test]
    fn single_addresses_go_to_their_owner() {
        let mut switch = switch();
        assert_eq!(switch.judge(0, &frame(mac(1), mac(0)), 0), Verdict::To(1));
        assert_eq!(switch.judge(0, &frame(mac(13), mac(0)), 0), Verdict::To(3));
        assert_eq!(switch.judge(3, &frame(mac(0), mac(13)), 0), Verdict::To(0));
        assert_eq!(switch.judge(0, &frame(mac(0), mac(0)), 0), Verdict::Drop(Cause::SentBack));
        assert_eq!(switch.judge(4, &frame(mac(13), mac(99)), 0), Verdict::Drop(Cause::SentBack));
        assert_eq!(switch.judge(0, &[0; 11], 0), Verdict::Drop(Cause::Short));
    }

    #[test]
    fn frames_with_the_source_address_of_another_node_are_dropped() {
        let mut switch = switch();
        let foreign = Verdict::Drop(Cause::ForeignSource);
        assert_eq!(switch.judge(0, &frame(mac(1), mac(77)), 0), foreign);
        assert_eq!(switch.judge(0, &frame(mac(1), mac(1)), 0), foreign);
        assert_eq!(switch.judge(2, &frame(mac(1), mac(0)), 0), foreign, "not even behind a bridge");
        assert_eq!(switch.judge(4, &frame(mac(1), mac(13)), 0), foreign, "nor from the fabric");
        assert_eq!(switch.judge(2, &frame(mac(1), MacAddress::BROADCAST), 0), foreign);
        assert_eq!(switch.judge(9, &frame(mac(1), mac(9)), 0), foreign, "there is no such port");
        assert!(
            !switch.insert(5, Attachment::Interface { mac: mac(1), is_bridge: false }),
            "an address has one owner"
        );
        assert!(!switch.announce(4, mac(13)));
    }

    #[test]
    fn broadcasts_go_to_every_port_but_their_own() {
        let mut switch = switch();
        let targets = |switch: &Switch, from| {
            (0..6).filter(|to| switch.floods(from, *to, false)).collect::<Vec<SwitchPortId>>()
        };
        assert_eq!(switch.judge(0, &frame(MacAddress::BROADCAST, mac(0)), 0), GROUP);
        assert_eq!(targets(&switch, 0), [1, 2, 3, 4]);
        assert_eq!(switch.judge(3, &frame(MacAddress::BROADCAST, mac(13)), 0), GROUP);
        assert_eq!(targets(&switch, 3), [0, 1, 2], "from the fabric never to the fabric");
    }

    #[test]
    fn link_local_frames_are_not_forwarded() {
        let stp = MacAddress([1, 0x80, 0xC2, 0, 0, 0]);
        assert_eq!(switch().judge(2, &frame(stp, mac(2)), 0), Verdict::Drop(Cause::LinkControl));
    }

    #[test]
    fn broadcast_storms_are_bounded_for_each_lane_and_end() {
        let mut switch = switch();
        let broadcast = |switch: &mut Switch, port: u8, now_ms| {
            switch.judge(port.into(), &frame(MacAddress::BROADCAST, mac(port)), now_ms)
        };
        let taken = (0..100).filter(|_| broadcast(&mut switch, 0, 1000) == GROUP).count();
        assert_eq!(taken, 10);
        assert_eq!(broadcast(&mut switch, 0, 1000), Verdict::Drop(Cause::Storm));
        assert_eq!(broadcast(&mut switch, 1, 1000), GROUP, "the others are not held to it");
        assert_eq!(broadcast(&mut switch, 0, 1100), GROUP);
        assert_eq!(broadcast(&mut switch, 0, 1150), Verdict::Drop(Cause::Storm));
    }

    #[test]
    fn repeated_announcements_give_no_new_allowance() {
        let mut switch = switch();
        let broadcast = frame(MacAddress::BROADCAST, mac(13));
        let taken = (0..100).filter(|_| {
            switch.lead_to_fabric(3, Attachment::Fabric);
            assert!(switch.announce(3, mac(13)));
            switch.judge(3, &broadcast, 1000) == GROUP
        });
        assert_eq!(taken.count(), 10);
        switch.lead_to_fabric(3, Attachment::Fabric);
        assert_eq!(switch.judge(0, &frame(mac(13), mac(0)), 0), UNKNOWN, "what is announced no more is gone");
    }

    #[test]
    fn a_local_interface_keeps_its_address_when_others_claim_it() {
        let mut switch = switch();
        assert!(switch.insert(5, Attachment::Interface { mac: mac(13), is_bridge: false }));
        assert_eq!(switch.judge(0, &frame(mac(13), mac(0)), 0), Verdict::To(5));
        assert!(!switch.announce(3, mac(13)));
    }

    #[test]
    fn addresses_behind_a_bridge_are_learned_and_forgotten() {
        let mut switch = switch();
        let behind = mac(50);
        assert_eq!(switch.judge(0, &frame(behind, mac(0)), 0), UNKNOWN);
        let asked: Vec<SwitchPortId> = (0..6).filter(|to| switch.floods(0, *to, true)).collect();
        assert_eq!(asked, [2, 3, 4], "only where somebody unknown can be");
        assert_eq!(switch.judge(2, &frame(mac(0), behind), 5), Verdict::To(0));
        assert_eq!(switch.judge(0, &frame(behind, mac(0)), 6), Verdict::To(2));
        assert_eq!(switch.judge(0, &frame(behind, mac(0)), 5 + LEARNED_MS), UNKNOWN);
        switch.remove(2);
        assert_eq!(switch.judge(3, &frame(behind, mac(13)), 7), Verdict::Drop(Cause::UnknownTarget));
    }

    #[test]
    fn nothing_is_learned_of_another_machine() {
        let mut switch = switch();
        switch.lead_to_fabric(5, Attachment::Node { is_bridge: false });
        assert!(switch.announce(5, mac(15)) && !switch.announce(5, mac(13)) && !switch.announce(5, mac(0)));
        assert_eq!(switch.judge(5, &frame(mac(0), mac(15)), 0), Verdict::To(0));
        for source in [mac(0), mac(13), mac(77), MacAddress::BROADCAST] {
            let verdict = switch.judge(5, &frame(mac(0), source), 0);
            assert_eq!(verdict, Verdict::Drop(Cause::ForeignSource), "{source}");
        }
        assert_eq!(switch.judge(5, &frame(mac(13), mac(15)), 0), Verdict::Drop(Cause::SentBack));
        assert_eq!(switch.judge(0, &frame(mac(50), mac(0)), 0), UNKNOWN);
        assert!(!switch.floods(0, 5, true) && switch.floods(0, 5, false) && !switch.floods(3, 5, false));
    }

    #[test]
    fn another_machine_cannot_send_from_an_announced_ip_address_of_others() {
        let mut switch = switch();
        let ip = |last: u8| IpAddr::from([10, 77, 0, last]);
        for (port, last) in [(5, 15), (7, 17)] {
            switch.lead_to_fabric(port, Attachment::Node { is_bridge: false });
            assert!(switch.announce(port, mac(last)) && switch.announce_ip(port, ip(last)));
        }
        assert!(!switch.announce_ip(7, ip(15)));
        switch.set_own_ips(0, &[ip(1), ip(17)]);
        let packet = |source: MacAddress, kind: [u8; 2], ip: u8| {
            let packet = match kind {
                [8, 0] => {
                    [&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 1, 0, 0, 10, 77, 0, ip][..], &[10, 77, 0, 1]].concat()
                }
                _ => [&[0, 1, 8, 0, 6, 4, 0, 2][..], &source.0, &[10, 77, 0, ip], &[0; 10]].concat(),
            };
            [&mac(0).0[..], &source.0, &kind, &packet].concat()
        };
        let foreign = Verdict::Drop(Cause::ForeignSource);
        for kind in [[8, 0], [8, 6]] {
            let mut verdict = |port, last, ip| switch.judge(port, &packet(mac(last), kind, ip), 0);
            assert_eq!(verdict(5, 15, 15), Verdict::To(0), "its own");
            assert_eq!(verdict(5, 15, 99), Verdict::To(0), "nobody's");
            assert_eq!([verdict(5, 15, 1), verdict(7, 17, 15), verdict(7, 17, 17)], [foreign; 3]);
            assert_eq!(verdict(3, 13, 15), Verdict::To(0), "of this machine");
            let tags = [0x81, 0, 0, 0].repeat(5);
            let mut tagged = packet(mac(17), kind, 15);
            drop(tagged.splice(12..12, tags));
            assert_eq!(switch.judge(7, &tagged, 0), foreign);
            for (port, last, expected) in [(7, 17, Verdict::Drop(Cause::Unparsable)), (3, 13, Verdict::To(0))]
            {
                assert_eq!(switch.judge(port, &packet(mac(last), kind, 15)[..20], 0), expected);
            }
        }
        switch.remove(5);
        assert!(switch.announce_ip(7, ip(15)));
    }

    #[test]
    fn addresses_behind_the_bridge_of_another_machine_are_learned_while_the_fabric_permits_it() {
        let mut switch = switch();
        for port in [5, 7] {
            switch.lead_to_fabric(port, Attachment::Node { is_bridge: port == 5 });
            assert!(switch.announce(port, mac(10 + port as u8)));
        }
        let host = mac(50);
        assert_eq!(switch.judge(0, &frame(host, mac(0)), 0), UNKNOWN);
        assert!(switch.floods(0, 5, true) && !switch.floods(0, 7, true) && !switch.floods(7, 5, true));
        assert_eq!(switch.judge(5, &frame(mac(0), host), 0), Verdict::To(0));
        assert_eq!(switch.judge(0, &frame(host, mac(0)), 0), Verdict::To(5));
        let foreign = Verdict::Drop(Cause::ForeignSource);
        for owned in [mac(17), mac(1)] {
            assert_eq!(switch.judge(5, &frame(mac(0), owned), 0), foreign, "it belongs to an interface");
        }
        assert_eq!(switch.judge(7, &frame(mac(0), host), 0), foreign, "its machine may have no bridge");
        switch.change_fabric(5, Attachment::Node { is_bridge: false });
        assert_eq!(switch.judge(5, &frame(mac(0), host), 0), foreign);
        assert_eq!(switch.judge(0, &frame(host, mac(0)), 0), UNKNOWN, "only the bridge here may lead to it");
        assert_eq!(switch.judge(5, &frame(mac(0), mac(15)), 0), Verdict::To(0), "its own address stays");
    }

    #[test]
    fn no_machine_can_take_the_addresses_that_all_send_from() {
        let mut switch = switch();
        for (port, last) in [(5, 15), (7, 17)] {
            switch.lead_to_fabric(port, Attachment::Node { is_bridge: false });
            assert!(switch.announce(port, mac(last)));
        }
        for ip in ["0.0.0.0", "255.255.255.255", "127.0.0.1", "169.254.0.9", "224.0.0.1"] {
            let ip: Ipv4Addr = ip.parse().expect(ip);
            assert!(switch.announce_ip(5, ip.into()), "{ip} is no conflict");
            switch.set_own_ips(0, &[ip.into()]);
            // As a question of DHCP, or of ARP before an address is used.
            let packet = [&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0][..], &ip.octets(), &[255; 4]].concat();
            let asked = [&mac(0).0[..], &mac(17).0, &[8, 0], &packet].concat();
            assert_eq!(switch.judge(7, &asked, 0), Verdict::To(0), "{ip}");
        }
        for ip in ["::", "::1", "fe80::11", "ff02::1"] {
            let ip: Ipv6Addr = ip.parse().expect(ip);
            assert!(switch.announce_ip(5, ip.into()), "{ip} is no conflict");
            let packet = [&[0x60, 0, 0, 0, 0, 0, 17, 255][..], &ip.octets(), &[255; 16]].concat();
            let asked = [&mac(0).0[..], &mac(17).0, &[0x86, 0xDD], &packet].concat();
            assert_eq!(switch.judge(7, &asked, 0), Verdict::To(0), "{ip}");
        }
    }

    #[test]
    fn learned_addresses_are_bounded() {
        let mut switch = Switch::new(10);
        assert!(switch.insert(0, Attachment::Interface { mac: mac(0), is_bridge: true }));
        for index in 0..2 * LEARNED_MAX as u32 {
            let [_, a, b, c] = index.to_be_bytes();
            let _ = switch.judge(0, &frame(mac(1), MacAddress([2, 1, 1, a, b, c])), 0);
        }
        assert_eq!(switch.learned.len(), LEARNED_MAX);
        let late = MacAddress([2, 2, 0, 0, 0, 0]);
        let _ = switch.judge(0, &frame(mac(1), late), LEARNED_MS);
        assert_eq!(switch.learned_at(late, LEARNED_MS), Some(0), "what has aged makes room");
    }
}
