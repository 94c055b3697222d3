//! What matching means: two lists, each walked through from its beginning.

/// What a receive takes. Sources are numbers of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub source: Option<usize>,
    pub tag: u64,
    pub ignore: u64,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub message: usize,
    pub source: usize,
    pub tag: u64,
    pub is_request: bool,
}

impl Wanted {
    fn takes(&self, arrived: &Arrived) -> bool {
        self.source.is_none_or(|source| source == arrived.source)
            && self.tag | self.ignore == arrived.tag | self.ignore
    }
}

/// The queues of one node.
#[derive(Debug, Default)]
pub struct Model {
    posted: Vec<(usize, Wanted)>,
    unexpected: Vec<Arrived>,
    claimed: Vec<Arrived>,
}

impl Model {
    /// A message arrives. The result is the receive that takes it.
    pub fn arrive(&mut self, arrived: Arrived) -> Option<usize> {
        let place = self.posted.iter().position(|(_, wanted)| wanted.takes(&arrived));
        if place.is_none() {
            self.unexpected.push(arrived);
        }
        place.map(|place| self.posted.remove(place).0)
    }

    /// A receive is posted. The result is the message that it takes.
    pub fn post(&mut self, receive: usize, wanted: Wanted) -> Option<Arrived> {
        let place = self.unexpected.iter().position(|arrived| wanted.takes(arrived));
        if place.is_none() {
            self.posted.push((receive, wanted));
        }
        place.map(|place| self.unexpected.remove(place))
    }

    /// The first message that a receive would take.
    pub fn first(&self, wanted: Wanted) -> Option<Arrived> {
        self.unexpected.iter().find(|arrived| wanted.takes(arrived)).copied()
    }

    /// Sets that message aside.
    pub fn claim(&mut self, arrived: Arrived) {
        self.unexpected.retain(|other| *other != arrived);
        self.claimed.push(arrived);
    }

    /// Takes a message that was set aside, if it is still there.
    pub fn unclaim(&mut self, message: usize) -> Option<Arrived> {
        let place = self.claimed.iter().position(|arrived| arrived.message == message)?;
        Some(self.claimed.remove(place))
    }

    /// Takes a receive back. The result says whether it waited.
    pub fn cancel(&mut self, receive: usize) -> bool {
        let before = self.posted.len();
        self.posted.retain(|(posted, _)| *posted != receive);
        self.posted.len() < before
    }

    /// A connection has ended. The result is the receives that name its peer.
    pub fn disconnect(&mut self, peer: usize) -> Vec<usize> {
        self.unexpected.retain(|arrived| arrived.source != peer || !arrived.is_request);
        let named: Vec<usize> = self
            .posted
            .iter()
            .filter(|(_, wanted)| wanted.source == Some(peer))
            .map(|(receive, _)| *receive)
            .collect();
        self.posted.retain(|(_, wanted)| wanted.source != Some(peer));
        named
    }

    /// A peer is forgotten with its messages.
    pub fn forget(&mut self, peer: usize) {
        self.unexpected.retain(|arrived| arrived.source != peer);
        self.claimed.retain(|arrived| arrived.source != peer);
    }

    pub fn unexpected(&self) -> &[Arrived] {
        &self.unexpected
    }

    /// The receives that wait.
    pub fn posted(&self) -> Vec<usize> {
        self.posted.iter().map(|(receive, _)| *receive).collect()
    }
}
