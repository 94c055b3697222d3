//! The threads, and the event loop, that sleep until a port has something for them.
//!
//! A port has one descriptor, and arms it once for everybody who sleeps on it. Whoever polls the port disarms it, takes the
//! cause of its readiness, and may find what others wait for. So each sleeper also has a bell of its own, which nobody else
//! takes. One rule keeps them from being forgotten: when a turn with the port ends, every sleeper has been rung since the last
//! poll, unless the port was armed after it and nothing was put by for others meanwhile.

use std::sync::Arc;

/// Something that wakes one sleeper.
pub trait Ring {
    /// Wakes it, or keeps it from falling asleep.
    fn ring(&self);
}

/// An event loop that watches the port's descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Watcher {
    /// It looks for itself before it sleeps.
    Awake,
    /// It has armed the port, and sleeps or is about to.
    Asleep,
    /// It was rung, and has not looked since.
    Rung,
}

/// Everybody who sleeps until a port has something.
#[derive(Debug)]
pub struct Sleepers<B> {
    asleep: Vec<Arc<B>>,
    /// Bells of threads that have slept, for the next ones.
    spare: Vec<Arc<B>>,
    watcher: Watcher,
    /// The port was polled since it was armed.
    is_disarmed: bool,
    /// Something was put by in this turn.
    has_news: bool,
    /// Something was put by since the event loop asked for the last time.
    has_news_for_watcher: bool,
}

impl<B: Ring> Sleepers<B> {
    /// Nobody sleeps yet.
    pub fn new() -> Self {
        Self {
            asleep: Vec::new(),
            spare: Vec::new(),
            watcher: Watcher::Awake,
            is_disarmed: false,
            has_news: false,
            has_news_for_watcher: false,
        }
    }

    /// Notes that this turn polls the port.
    pub fn note_poll(&mut self) {
        self.is_disarmed = true;
    }

    /// Notes that the port was armed.
    pub fn note_arming(&mut self) {
        self.is_disarmed = false;
    }

    /// Notes that this turn has found something that it does not take.
    pub fn note_news(&mut self) {
        self.has_news = true;
        self.has_news_for_watcher = true;
    }

    /// A bell that was used before.
    pub fn spare_bell(&mut self) -> Option<Arc<B>> {
        self.spare.pop()
    }

    /// Notes that a thread sleeps from the end of this turn on.
    pub fn fall_asleep(&mut self, bell: Arc<B>) {
        self.asleep.push(bell);
    }

    /// Notes that a thread has slept.
    pub fn wake_up(&mut self, bell: Arc<B>) {
        self.asleep.retain(|other| !Arc::ptr_eq(other, &bell));
        self.spare.push(bell);
    }

    /// Returns whether the event loop was rung since it last asked. The caller takes the ring off its bell.
    pub fn take_watcher_ring(&mut self) -> bool {
        std::mem::replace(&mut self.watcher, Watcher::Awake) == Watcher::Rung
    }

    /// Returns whether something was put by since the event loop asked for the last time. It looks again then.
    pub fn take_watcher_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news_for_watcher)
    }

    /// Notes that the event loop has armed the port.
    pub fn watch(&mut self) {
        self.watcher = Watcher::Asleep;
    }

    /// Ends a turn: rings for those who have to look again, each of them once.
    pub fn end_turn(&mut self, watcher_bell: Option<&B>) {
        let is_disarmed = std::mem::take(&mut self.is_disarmed);
        let has_news = std::mem::take(&mut self.has_news);
        if is_disarmed || has_news {
            self.ring_all(watcher_bell);
        }
    }

    /// Rings for everybody.
    pub fn ring_all(&mut self, watcher_bell: Option<&B>) {
        self.asleep.drain(..).for_each(|bell| bell.ring());
        if self.watcher == Watcher::Asleep
            && let Some(bell) = watcher_bell
        {
            self.watcher = Watcher::Rung;
            bell.ring();
        }
    }
}
