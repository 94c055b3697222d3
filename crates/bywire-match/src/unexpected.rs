//! Messages that wait for a receive.

use crate::index::Index;
use crate::limits::ENVELOPE_BYTES;
use crate::ordered::Ordered;
use crate::posted::{LINEAR_MAX, Selector};
use crate::slab::PeerId;

/// What is known of a message besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Its sender.
    pub source: PeerId,
    /// Its tag.
    pub tag: u64,
    /// A word of its sender's program.
    pub data: Option<u64>,
    /// The bytes of its payload.
    pub length: u64,
}

/// What there is of a payload.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    /// All of it.
    Eager {
        /// The payload.
        payload: Box<[u8]>,
        /// The sender's number for the message, if it waits for an acknowledgement.
        synchronous: Option<u64>,
    },
    /// Nothing. The sender waits for a grant.
    Request {
        /// The sender's number for the message.
        send: u64,
    },
}

/// A message that waits.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// What is known of it.
    pub envelope: Envelope,
    /// Its payload.
    pub content: Content,
}

impl Message {
    /// What the message takes of its sender's window.
    pub fn window_bytes(&self) -> u64 {
        match &self.content {
            Content::Eager { payload, .. } => ENVELOPE_BYTES + payload.len() as u64,
            Content::Request { .. } => 0,
        }
    }
}

/// Messages in the order in which they arrived.
#[derive(Debug)]
pub struct Unexpected {
    messages: Ordered<Message>,
    /// There while the queue is long. Each message has a row for every class.
    index: Option<Box<Index>>,
    examined: u64,
}

impl Default for Unexpected {
    fn default() -> Self {
        Self { messages: Ordered::new(), index: None, examined: 0 }
    }
}

impl Unexpected {
    /// The number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Is there no message?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages and rows of the index all searches together have looked at.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// Adds a message, and returns its number.
    pub fn push(&mut self, message: Message) -> u64 {
        let (source, tag) = (message.envelope.source.0, message.envelope.tag);
        let number = self.messages.push(|| message);
        if let Some(index) = &mut self.index {
            for (class, open) in index.classes() {
                index.insert(class, open.key(source, tag), number);
            }
        } else if self.messages.len() > LINEAR_MAX {
            // Its classes come with the searches.
            self.index = Some(Box::default());
        }
        number
    }

    /// Adds an eager message.
    #[cold]
    pub(crate) fn push_eager(&mut self, envelope: Envelope, payload: &[u8], synchronous: Option<u64>) {
        self.push(Message { envelope, content: Content::Eager { payload: payload.into(), synchronous } });
    }

    /// The number of the first message that a receive with `selector` takes.
    ///
    /// A search looks at [`LINEAR_MAX`] messages at most, or at one row, but for the first search of its class since
    /// the queue became long, and for searches of classes beyond [`crate::CLASSES_MAX`].
    pub fn find(&mut self, selector: &Selector) -> Option<u64> {
        let open = selector.class();
        let class = self.index.as_mut().and_then(|index| {
            if let Some(class) = index.class(open) {
                return Some((class, index));
            }
            let class = index.learn(open)?;
            for (number, message) in self.messages.iter().inspect(|_| self.examined += 1) {
                index.insert(class, open.key(message.envelope.source.0, message.envelope.tag), number);
            }
            Some((class, index))
        });
        if let Some((class, index)) = class {
            self.examined += 1;
            let source = selector.source.map_or(0, |source| source.0);
            return index.numbers(class, open.key(source, selector.tag)).next();
        }
        let mut waiting = self.messages.iter().inspect(|_| self.examined += 1);
        let found =
            waiting.find(|(_, message)| selector.matches(message.envelope.source, message.envelope.tag));
        found.map(|(number, _)| number)
    }

    /// A message by its number.
    pub fn get(&self, number: u64) -> Option<&Message> {
        self.messages.get(number)
    }

    /// Removes a message by its number.
    pub fn remove(&mut self, number: u64) -> Option<Message> {
        let message = self.messages.remove(number)?;
        if self.messages.len() < LINEAR_MAX / 2 {
            self.index = None;
        } else if let Some(index) = &mut self.index {
            for (class, open) in index.classes() {
                index.remove(class, open.key(message.envelope.source.0, message.envelope.tag), number);
            }
        }
        Some(message)
    }

    /// The numbers of the messages for which `is_wanted` is true.
    pub fn numbers(&self, is_wanted: impl Fn(&Message) -> bool) -> Vec<u64> {
        self.messages.iter().filter(|(_, message)| is_wanted(message)).map(|(number, _)| number).collect()
    }
}
