//! Ethernet over the fabric: frames and their offloads, the carrying loop, interfaces of machines in namespaces, and peers that
//! break the rules.

mod backpressure;
mod carrier;
mod carrying;
mod checksums;
mod cutting;
mod ethernet;
mod hostile_peer;
mod hostile_peers;
mod hosts;
mod identity;
mod legal;
mod mtu;
mod packet;
mod processes;
mod vlan;
