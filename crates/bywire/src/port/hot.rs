//! Hot peers, which are polled at every call. The other peers take turns.

/// The most hot peers.
const HOT_MAX: usize = 16;
/// Messages taken from one hot peer before another is asked first.
const TURN: u32 = 8;

/// Peers that have sent something lately.
#[derive(Debug)]
pub(super) struct HotPeers {
    peers: Vec<Hot>,
    /// The place that is asked first. It moves on, so that no peer is always last.
    turn: usize,
    messages_in_turn: u32,
}

#[derive(Debug)]
struct Hot {
    index: u32,
    /// Has it sent something since the last ageing?
    is_fresh: bool,
}

impl HotPeers {
    pub fn new() -> Self {
        Self { peers: Vec::with_capacity(HOT_MAX), turn: 0, messages_in_turn: 0 }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// The place that is asked first.
    #[inline(always)]
    pub fn first(&self) -> usize {
        self.turn
    }

    /// The peer at a place.
    #[inline(always)]
    pub fn index(&self, place: usize) -> Option<u32> {
        self.peers.get(place).map(|hot| hot.index)
    }

    /// Notes that the peer at a place has sent a message. It is asked first until its turn is over.
    #[inline(always)]
    pub fn message_from(&mut self, place: usize) {
        self.refresh(place);
        self.turn = place;
        self.messages_in_turn += 1;
        if self.messages_in_turn == TURN {
            self.next_turn();
        }
    }

    /// Notes that the peer at a place has sent something.
    #[inline(always)]
    pub fn refresh(&mut self, place: usize) {
        if let Some(hot) = self.peers.get_mut(place) {
            hot.is_fresh = true;
        }
    }

    /// Passes the turn to the next peer, which is asked first from now on.
    pub fn next_turn(&mut self) {
        self.messages_in_turn = 0;
        self.turn = if self.turn + 1 < self.peers.len() { self.turn + 1 } else { 0 };
    }

    /// Adds a peer. If all places are taken, the stalest peer makes room.
    pub fn warm(&mut self, index: u32) {
        if self.peers.iter().any(|hot| hot.index == index) {
            return;
        }
        if self.peers.len() == HOT_MAX {
            let stalest = self.peers.iter().position(|hot| !hot.is_fresh).unwrap_or(0);
            self.peers.remove(stalest);
            self.turn = 0;
        }
        self.peers.push(Hot { index, is_fresh: true });
    }

    pub fn cool(&mut self, index: u32) {
        self.turn = 0;
        self.peers.retain(|hot| hot.index != index);
    }

    /// Drops peers that have sent nothing since the last ageing.
    pub fn age(&mut self) {
        self.peers.retain_mut(|hot| std::mem::take(&mut hot.is_fresh));
        self.turn = 0;
    }
}
