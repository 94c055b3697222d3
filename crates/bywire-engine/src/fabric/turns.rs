//! Which connections are looked at in each turn of the engine, and which now and then.
//!
//! A connection is *quiet* when looks at it have found nothing for a while, and nothing but its program or its stream makes progress
//! possible. No turn looks at quiet ones: their programs count their news ([`bywire_ring::hints`]).

use bywire_ring::hints;

use super::connection::Progress;
use super::link::Use;
use super::{Entry, Fabric};
use crate::pairing_client::PairingClient;

/// Looks without anything to do after which a connection counts as quiet.
const QUIET_LOOKS: u32 = 64;

impl Fabric {
    pub(super) fn progress_connections(&mut self, pairing: &mut PairingClient) -> bool {
        let mut has_moved = self.follow_hints();
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
                Ok(Progress::Idle) if entry.gets_quiet(*name) => {
                    self.quiet.of_number(entry.number).push(*name);
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

    /// Looks at the quiet connections for whose numbers programs have counted news. Those that have some are active from here on.
    /// Returns whether there are any.
    pub(super) fn follow_hints(&mut self) -> bool {
        let mut numbers = std::mem::take(&mut self.quiet.hinted);
        for program in &self.programs {
            program.upgrade().iter().for_each(|program| program.note_hints(&mut numbers));
        }
        // Programs choose the same numbers.
        numbers.sort_unstable();
        numbers.dedup();
        let mut has_news = false;
        for number in numbers.drain(..) {
            let names = self.quiet.of_number(number);
            for name in std::mem::take(names) {
                let Some(entry) = self.connections.get_mut(&name) else { continue };
                // Its program may have news before it knows the new number.
                if entry.has_news() || entry.gets_cold(name) && entry.has_news() {
                    has_news = true;
                    self.activate(name);
                } else {
                    let number = entry.number;
                    self.quiet.of_number(number).push(name);
                }
            }
        }
        self.quiet.hinted = numbers;
        has_news
    }

    /// Has a connection looked at in each turn from here on, until it is quiet.
    pub(super) fn activate(&mut self, name: u64) {
        let Some(entry) = self.connections.get_mut(&name) else { return };
        entry.idle_looks = 0;
        if !std::mem::replace(&mut entry.is_active, true) {
            entry.connection.end_quiet();
            self.quiet.remove(entry.number, name);
            self.active.push(name);
        }
    }

    /// Forgets a connection. Its name among the active ones is left out at the next turn.
    pub(super) fn remove(&mut self, name: u64) -> Option<Entry> {
        let entry = self.connections.remove(&name)?;
        if !entry.is_active {
            self.quiet.remove(entry.number, name);
        }
        Some(entry)
    }

    pub(super) fn active(&self) -> impl Iterator<Item = &Entry> {
        self.active.iter().filter_map(|name| self.connections.get(name))
    }
}

impl Entry {
    /// Counts a look that has found nothing. Returns whether the connection is quiet from here on.
    fn gets_quiet(&mut self, name: u64) -> bool {
        self.idle_looks += 1;
        if self.idle_looks < QUIET_LOOKS || !self.connection.is_at_rest() {
            return false;
        }
        self.number = hints::warm(name);
        self.connection.begin_quiet(self.number);
        // Its program may have done something before it knew.
        if self.has_news() {
            self.connection.end_quiet();
            return false;
        }
        self.is_active = false;
        true
    }

    /// Others of its number have news. Returns whether it has another number from here on.
    fn gets_cold(&mut self, name: u64) -> bool {
        let is_warm = !hints::is_cold(self.number);
        if is_warm {
            self.number = hints::cold(name);
            self.connection.begin_quiet(self.number);
        }
        is_warm
    }
}
