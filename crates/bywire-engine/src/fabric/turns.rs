//! Which connections are looked at in each turn of the engine, and which now and then.
//!
//! A connection is *quiet* when looks at it have found nothing for a while, and nothing but its program or its stream makes progress
//! possible. Quiet ones are looked at a few in each turn, and all of them when a program rings and before the engine sleeps.

use super::connection::Progress;
use super::link::Use;
use super::{Entry, Fabric};
use crate::pairing_client::PairingClient;

/// Looks without anything to do after which a connection counts as quiet.
const QUIET_LOOKS: u32 = 64;
/// Quiet connections that are looked at in each turn, at least,
const QUIET_AT_ONCE: usize = 8;
/// and turns in which all of them are.
const QUIET_TURNS: usize = 64;

impl Fabric {
    pub(super) fn progress_connections(&mut self, pairing: &mut PairingClient) -> bool {
        let mut has_moved = self.scan_quiet();
        let (mut over, mut prepared) = (Vec::new(), Vec::new());
        let mut active = std::mem::take(&mut self.active);
        active.retain(|name| {
            let Some(entry) = self.connections.get_mut(name) else { return false };
            let progress = match entry.stream {
                None if !entry.is_prepared && entry.connection.is_prepared() => {
                    entry.is_prepared = true;
                    prepared.push(*name);
                    Ok(Progress::Moved)
                }
                None => Ok(Progress::Idle),
                Some((peer, stream)) => match self.links.get_mut(&peer) {
                    Some(link) => entry.connection.progress(stream, &mut link.streams),
                    None => Ok(Progress::Idle),
                },
            };
            match progress {
                Ok(Progress::Idle) if entry.gets_quiet() => {
                    if !std::mem::replace(&mut entry.is_listed, true) {
                        self.quiet.push(*name);
                    }
                    return false;
                }
                Ok(Progress::Idle) => {}
                Ok(Progress::Gathering) => entry.idle_looks = 0,
                Ok(Progress::Moved) => {
                    entry.idle_looks = 0;
                    has_moved = true;
                }
                result => over.push((*name, result)),
            }
            true
        });
        active.append(&mut self.active);
        self.active = active;
        for name in prepared {
            if let Some(action) = self.matching.prepared(name) {
                has_moved = true;
                self.act(action, pairing);
            }
        }
        for (name, result) in over {
            has_moved = true;
            let Some(entry) = self.connections.get(&name) else { continue };
            let Some((peer, stream)) = entry.stream else { continue };
            let stopped_at = entry.connection.stopped_at();
            if let (Some(link), Ok(progress)) = (self.links.get_mut(&peer), result) {
                if progress == Progress::Over {
                    link.uses.remove(&stream);
                    let _ = link.streams.close(stream);
                } else {
                    link.uses.insert(stream, Use::Orphan { stopped_at });
                }
                self.end(name, pairing);
            } else {
                self.lose(name, pairing);
            }
        }
        has_moved
    }

    /// Scans all quiet connections: a program has rung, or the engine is about to sleep. Those with news are active from here on.
    pub fn scan_all(&mut self) {
        let has_news = |name: &&u64| {
            self.connections.get(*name).is_some_and(|entry| !entry.is_active && entry.has_news())
        };
        let names: Vec<u64> = self.quiet.iter().filter(has_news).copied().collect();
        names.into_iter().for_each(|name| self.activate(name));
    }

    /// Scans the next few quiet connections. Returns whether one has news. It is active from here on.
    fn scan_quiet(&mut self) -> bool {
        let mut has_news = false;
        let count = QUIET_AT_ONCE.max(self.quiet.len() / QUIET_TURNS).min(self.quiet.len());
        for _ in 0..count {
            if self.turn >= self.quiet.len() {
                self.turn = 0;
            }
            let Some(name) = self.quiet.get(self.turn).copied() else { break };
            let Some(entry) = self.connections.get_mut(&name) else {
                self.quiet.swap_remove(self.turn);
                continue;
            };
            if !entry.is_active && entry.has_news() {
                has_news = true;
                self.activate(name);
            } else if entry.is_active {
                entry.is_listed = false;
                self.quiet.swap_remove(self.turn);
            } else {
                self.turn += 1;
            }
        }
        has_news
    }

    /// Has a connection looked at in each turn from here on, until it is quiet.
    pub(super) fn activate(&mut self, name: u64) {
        let Some(entry) = self.connections.get_mut(&name) else { return };
        entry.idle_looks = 0;
        if !std::mem::replace(&mut entry.is_active, true) {
            self.active.push(name);
        }
    }

    pub(super) fn active(&self) -> impl Iterator<Item = &Entry> {
        self.active.iter().filter_map(|name| self.connections.get(name))
    }
}

impl Entry {
    /// Counts a look that has found nothing. Returns whether the connection is quiet from here on.
    fn gets_quiet(&mut self) -> bool {
        self.idle_looks += 1;
        if self.idle_looks >= QUIET_LOOKS && self.connection.is_at_rest() {
            self.is_active = false;
        }
        !self.is_active
    }
}
