//! Byte streams of many connections over one connection of messages between two engines, without I/O.
//!
//! An engine stands in for the other ends of connections whose programs are on another machine. [`Streams`] is what two such
//! engines share: each has one for the other, and passes messages between the two. It reads no clock, starts no thread,
//! holds no payload, and allocates nothing for a record once its queues have grown.
//!
//! ```text
//!  caller: open, start, queue, drain, half, back, reset ──►┌─────────┐──transmit(lane, buffer, read)──► messages
//!  caller: Opened, Bytes, Half, Back, Drained, Reset ◄─────│ Streams │◄─receive(lane, message)───────── messages
//!                                                          └─────────┘
//! ```
//!
//! # A stream
//!
//! A stream is one carried connection with both of its directions. They are opened, refused, reset and closed together, as
//! the connection is, and one identifier serves both. Everything else is of one direction alone: it starts, has credit, ends
//! and returns to the kernel by itself, and its offsets are those of the caller, for example the bytes of the kernel's stream.
//!
//! | step | by | calls | the other caller gets |
//! | --- | --- | --- | --- |
//! | opening, with a description | either engine | [`Streams::open`] | [`Event::Opened`] |
//! | answer | the other engine | [`Streams::accept`], [`Streams::refuse`] | [`Event::Accepted`], [`Event::Refused`] |
//! | a direction leaves the kernel | its writer | [`Streams::start`] | [`Event::Started`] |
//! | bytes | its writer | [`Streams::queue`] | [`Event::Bytes`] |
//! | credit | its reader | [`Streams::drain`] | [`Event::Drained`] |
//! | end of the direction | its writer | [`Streams::half`] | [`Event::Half`] |
//! | return to the kernel | its writer | [`Streams::back`] | [`Event::Back`] |
//! | request for the return | its reader | [`Streams::ask_back`] | [`Event::BackAsked`] |
//! | reset | either | [`Streams::reset`] | [`Event::Reset`] |
//! | the caller is done | each | [`Streams::close`] | nothing |
//!
//! - **A direction ends** by `half` or `back`. One that never leaves the kernel is given back at offset 0. Once both have
//!   ended, each caller closes the stream. A reset needs no close.
//! - **Return.** A reader that wants the return stops reading, and names the offset where it has stopped. The writer's caller
//!   answers with the offset of the first byte that the kernel delivers. If it has kept all bytes that were not drained, that is
//!   the reader's own offset, and what is under way behind it is void. Otherwise the offset is higher, and the reader takes the
//!   bytes up to there.
//! - **Credit.** A reader takes as many bytes as it has room for, within its limits, and reports what it has drained. A reader
//!   that stands still holds up its own direction only.
//! - **The connection ends** by a violation, by [`Streams::shut_down`], or when its messages are lost. Then all streams are
//!   lost ([`Streams::live`]), and both engines begin with new machines. No record of the old connection can reach them, because
//!   a message connection belongs to two incarnations.
//!
//! # Lanes
//!
//! The connection has two lanes per direction. Each is ordered, and they are not ordered against each other. Records of control
//! take the high lane. A stream with up to 2 KiB to send, of which nothing is under way on the low lane, takes the high lane
//! while less than 16 KiB wait there. Others take the low lane, in turns of 16 KiB. A message has records of as many streams as
//! fit.
//!
//! The bytes of a stream stay in order all the same:
//!
//! - A stream changes to the high lane only when all of its messages of the low lane have been acknowledged.
//! - It changes to the low lane at any time. The header of such a message names the last message of the high lane that has a
//!   record of one of its streams. The receiver holds it until it has processed that one, and later ones of the low lane behind it.
//!   The sender has no more than [`Limits::early_bytes_max`] bytes under way in this situation.
//!
//! # Driving it
//!
//! A loop of an engine takes what has arrived ([`Streams::receive`]), queues and drains what its rings have, and then makes
//! messages while the link has room: those of the high lane until there is none, then those of the low lane
//! ([`Streams::transmit`]). Before it sleeps it calls [`Streams::flush`] and transmits once more. Nothing happens by itself, so
//! there is no timeout. A call, a record and a piece take constant time, and an idle stream takes none.
//!
//! # Bounds
//!
//! [`Limits`] bound the streams that a peer opens, those that wait for an answer, the bytes of each stream and of all, and the
//! messages that are held. A description has at most [`DESCRIPTION_BYTES_MAX`] bytes. A peer that exceeds a limit or breaks
//! another rule ends the connection by a [`Violation`], and affects no other one. A peer's identifiers are bounded by the slots
//! that are granted. Each carries a generation, so it is never used again: a slot gets a new stream once both ends have sent their
//! last record of the old one, the opener first.
//!
//! # Format
//!
//! All numbers are little-endian. A message is a header of 16 bytes and any number of records. A record has a head of 12 bytes.
//!
//! ```text
//! header  version u8 · flags u8 · 0 u16 · after u32 · processed high u32 · processed low u32
//! record  kind u8 · code u8 · length u16 · stream u64 · words
//! ```
//!
//! | kind | record | code | length | words | lane |
//! | ---: | --- | --- | --- | --- | --- |
//! | 1 | hello, without a stream | 0 | 0 | streams u32 · unanswered u32 · early bytes u32 | high |
//! | 2 | open | 0 | of the description | window u32 · description | high |
//! | 3 | accept | 0 | 0 | window u32 | high |
//! | 4 | refuse | reason | 0 | | high |
//! | 5 | start | 0 | 0 | offset u64 | high |
//! | 6 | bytes | 1: the direction ends behind them | of the bytes | offset u64 · bytes | either |
//! | 7 | credit | 0 | 0 | drained u64 · window u32 | high |
//! | 8 | return | 0 | 0 | offset u64 | high |
//! | 9 | back | 0 | 0 | offset u64 | either |
//! | 10 | reset | reason | 0 | | high |
//! | 11 | done | 0 | 0 | | either |
//! | 12 | close, without a stream | reason | 0 | | high |
//!
//! The flags are 1 for a wanted acknowledgement and 2 for a valid `after`. A stream is its slot, in the low half, and its
//! generation. Slots of streams that [`Side::First`] has opened are even. Counts of messages are the low halves of 64-bit ones.
//!
//! # Example
//!
//! ```
//! use bywire_stream::{Event, Lane, Limits, MESSAGE_BYTES_MAX, Side, Streams};
//!
//! let mut first = Streams::new(Side::First, Limits::default());
//! let mut second = Streams::new(Side::Second, Limits::default());
//! let ring = b"hello";
//! let mut stored = Vec::new();
//! let mut buffer = vec![0; MESSAGE_BYTES_MAX];
//!
//! // The link, which carries all messages at once: `From` has some, `To` gets them.
//! let mut carry = |from: &mut Streams, to: &mut Streams, on_event: &mut dyn FnMut(Event)| {
//!     for lane in [Lane::High, Lane::Low] {
//!         loop {
//!             let read = |_, offset: u64, target: &mut [u8]| {
//!                 target.copy_from_slice(&ring[offset as usize..][..target.len()]);
//!             };
//!             let length = from.transmit(lane, &mut buffer, read);
//!             if length == 0 {
//!                 break;
//!             }
//!             to.receive(lane, &buffer[..length], &mut *on_event).expect("an honest peer");
//!         }
//!     }
//! };
//!
//! carry(&mut second, &mut first, &mut |_| ());
//! let stream = first.open(b"10.0.0.1:4000 10.0.0.2:80", 1 << 20).expect("room for a stream");
//! carry(&mut first, &mut second, &mut |_| ());
//! second.accept(stream, 1 << 20).expect("it was just opened");
//! carry(&mut second, &mut first, &mut |_| ());
//! first.start(stream, 0).expect("it was accepted");
//! first.queue(stream, 5).expect("it has started");
//! carry(&mut first, &mut second, &mut |event| {
//!     if let Event::Bytes { bytes, .. } = event {
//!         stored.extend_from_slice(bytes);
//!     }
//! });
//! assert_eq!(stored, ring);
//! second.drain(stream, 5, 1 << 20).expect("five bytes have arrived");
//! ```
#![forbid(unsafe_code)]

mod counts;
mod direction;
mod event;
mod id;
mod limits;
#[doc(hidden)]
pub mod planted;
pub mod record;
mod stream;
mod streams;

pub use counts::Counts;
pub use event::{CallError, Event, OpenError, Violation};
pub use id::{Lane, Side, StreamId};
pub use limits::{
    DESCRIPTION_BYTES_MAX, EARLY_BYTES_MIN, Limits, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN, OFFSET_MAX,
};
pub use record::{Refusal, ResetReason};
pub use streams::{Progress, Streams};
