//! Tagged messages, as MPI and libfabric's `FI_TAGGED` have them, without I/O.
//!
//! A receive names a source or any, a tag, and the bits of the tag to ignore. An [`Endpoint`] matches messages with
//! receives: of the receives that a message fits, the one that was posted first takes it, and of the messages that a
//! receive fits, it takes the one that arrived first. Messages without a receive wait in a queue of unexpected ones.
//!
//! ```text
//!  program: send, receive, peek, claim, cancel ──►┌──────────┐──transmit──► frames, puts ──► link
//!  program: poll_event ◄──────────────────────────│ Endpoint │◄──arrive, notified, put_done── link
//!                                                 └──────────┘
//! ```
//!
//! - A short message is **eager**: its payload follows its head at once. A long one is a **request**: the receiver
//!   answers with a grant when a receive matches, and then the payload goes where it belongs, by one put into memory
//!   that the receiver has exposed, or in pieces.
//! - Eager messages use a **window** that the receiver gives back as they are matched. A sender whose window is
//!   used up sends requests instead. So the memory that a peer can take is bounded ([`Limits`]).
//! - The program's buffers are handles: [`Sink`] writes into the buffer of a receive, and the link reads that of a send.
//! - The link carries the frames of one peer in order. Those of different peers have no order. The driver of the endpoint
//!   gives it frames from [`Endpoint::transmit`], and passes on what has arrived.
//! - [`Rma`] reads and writes memory that other ends have registered, in frames of its own.
//! - A peer may be hostile. A frame that breaks a rule is a [`Violation`], and the driver then ends the connection.
//!
//! ```
//! use bywire_match::{Endpoint, Event, Frame, Limits, Selector, Send, Sink};
//!
//! /// The buffer of a receive.
//! struct Buffer(Vec<u8>);
//!
//! impl Sink for Buffer {
//!     fn capacity(&self) -> u64 {
//!         100
//!     }
//!
//!     fn write(&mut self, payload: &[u8]) {
//!         self.0.extend_from_slice(payload);
//!     }
//! }
//!
//! let mut source: Endpoint<&[u8], Buffer> = Endpoint::new(Limits::default());
//! let mut target: Endpoint<&[u8], Buffer> = Endpoint::new(Limits::default());
//! let (to, from) = (source.add_peer().unwrap(), target.add_peer().unwrap());
//! source.connected(to, 4096);
//! target.connected(from, 4096);
//!
//! let any_source = Selector { source: None, tag: 7, ignore: 0 };
//! target.receive(any_source, Buffer(Vec::new())).ok().expect("room for a receive");
//! let send = Send { tag: 7, data: None, length: 5, is_synchronous: false };
//! source.send(to, send, b"hello").expect("room for a send");
//!
//! // The link.
//! source.transmit(to, |frame| {
//!     let Frame::Message { head, payload } = frame else { unreachable!("the message is short") };
//!     let bytes = [head, payload.copied().unwrap_or_default()].concat();
//!     target.arrive(from, &bytes).expect("a valid frame");
//!     true
//! });
//! let Some(Event::Received { receive, envelope, .. }) = target.poll_event() else { panic!("no message") };
//! assert_eq!((receive.0.as_slice(), envelope.tag, envelope.source), (&b"hello"[..], 7, from));
//! ```
#![forbid(unsafe_code)]

mod counts;
mod endpoint;
pub mod head;
mod index;
mod limits;
mod operation;
mod ordered;
mod posted;
pub mod rma;
mod slab;
mod unexpected;

pub use counts::Counts;
pub use endpoint::Endpoint;
pub use index::CLASSES_MAX;
pub use limits::{ENVELOPE_BYTES, Limits};
pub use operation::{ClaimId, Event, Frame, ReceiveId, Refused, Send, SendId, Sink, TransferId, Violation};
pub use posted::{LINEAR_MAX, Posted, PostedReceive, Selector};
pub use rma::Rma;
pub use slab::PeerId;
pub use unexpected::{Content, Envelope, Message, Unexpected};
