//! A port under attack, and an honest peer that must not notice it.

use std::time::{Duration, Instant};

use bywire::{ConnectError, DisconnectReason, Event, Peer, Port, PortOptions, Priority};
use bywire_sys::socket::Socket;
use bywire_testing::linger::UNDISTURBED;
use bywire_testing::rogue::{self, Inside, Rogue};

use crate::ports::{self, MINUTE, PortDirectory, meet, name, until};

/// The port `victim`, connected to an honest one.
pub struct Attacked {
    pub place: PortDirectory,
    pub victim: Port,
    pub honest: Port,
    pub to_honest: Peer,
    pub to_victim: Peer,
}

impl Attacked {
    pub fn new() -> Self {
        Self::with(PortOptions::default())
    }

    /// A victim with these options.
    pub fn with(options: PortOptions) -> Self {
        Self::at(PortDirectory::new(), options)
    }

    pub fn at(place: PortDirectory, options: PortOptions) -> Self {
        let mut victim = place.open(PortOptions { name: Some(name("victim")), ..options });
        let mut honest = place.open(place.options());
        let (to_victim, to_honest) = meet(&mut honest, &mut victim);
        Self { place, victim, honest, to_honest, to_victim }
    }

    pub fn rogue(&self) -> Rogue {
        Rogue::new(self.place.path(), "rogue")
    }

    /// Runs the victim while another thread acts. Returns the thread's result and the victim's events.
    pub fn serve<T: Send>(&mut self, act: impl FnOnce() -> T + Send) -> (T, Vec<Event>) {
        ports::serve(&mut self.victim, act)
    }

    /// A rogue that was let in, and the victim's handle of it.
    pub fn let_in(&mut self, rogue: &Rogue) -> (Inside, Peer) {
        let (inside, events) = self.serve(|| rogue.enter("victim").expect("let in"));
        let is_met = |event: &Event| matches!(event, Event::Connected(_));
        if !events.iter().any(is_met) {
            until(|| self.victim.poll().is_some_and(|event| is_met(&event)));
        }
        (inside, self.other_peer().expect("it is connected"))
    }

    /// The victim's handle of a peer that is not the honest one.
    pub fn other_peer(&self) -> Option<Peer> {
        self.victim.peers().find(|peer| *peer != self.to_honest)
    }

    /// Waits until the honest peer is the only peer.
    pub fn until_alone(&mut self) {
        until(|| {
            drop(self.victim.wait(Some(Duration::from_millis(1))).expect("wait"));
            self.victim.peers().count() == 1
        });
    }

    /// Runs the victim until a stranger's socket is closed.
    pub fn until_over(&mut self, socket: &Socket) {
        self.serve(|| until(|| rogue::is_over(socket)));
    }

    /// Runs the victim until it has ended a peer that broke a rule. `on_event` gets the events before that.
    #[track_caller]
    pub fn until_broken(&mut self, what: &str, mut on_event: impl FnMut(Event)) {
        let (peer, reason) = ports::until_ended(&mut self.victim, |_, event| on_event(event));
        assert_eq!(reason, DisconnectReason::Broken, "{what}");
        assert_ne!(peer, self.to_honest, "{what}");
    }

    /// Checks that both exchange messages without delay. The honest peer gets no other event.
    #[track_caller]
    pub fn is_undisturbed(&mut self) {
        let began = Instant::now();
        for round in 0..50u32 {
            self.honest.send(self.to_victim, Priority::Low, &round.to_ne_bytes()).expect("room");
            // It arrives, whatever else arrives.
            let heard = until(|| match self.victim.wait(Some(MINUTE)).expect("wait")? {
                Event::Message(message) if message.peer == self.to_honest => Some(message.payload),
                _ => None,
            });
            assert_eq!(heard[..], round.to_ne_bytes());
            self.victim.send(self.to_honest, Priority::High, &round.to_ne_bytes()).expect("room");
            match ports::next(&mut self.honest) {
                Event::Message(message) => assert_eq!(message.payload[..], round.to_ne_bytes()),
                other => panic!("{other:?}"),
            }
        }
        assert!(began.elapsed() < UNDISTURBED, "held up for {:?}", began.elapsed());
    }
}

/// Connects a port to a rogue, which answers as it is told. Its socket stays open until the outcome is there.
pub fn connect_to_rogue(
    port: &mut Port,
    rogue: &Rogue,
    timeout: Duration,
    answer: impl FnOnce(&Socket),
) -> Result<Peer, ConnectError> {
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| port.connect(&rogue.address(), timeout));
        let caller = rogue.accept();
        answer(&caller);
        connecting.join().expect("no panic")
    })
}
