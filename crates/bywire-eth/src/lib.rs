//! Ethernet over the fabric: the layout of a frame, the work that its sender left undone, and the checks that make a
//! peer's frame safe.
//!
//! The kernel delivers *superframes*: one set of headers over up to 64 KiB of payload. A device is expected to cut a
//! superframe into segments and to complete its checksums. Superframes cross the fabric whole. A
//! [`Descriptor`](offload::Descriptor) of eight bytes travels with each frame and states the work that is left to do.
//! The receiving end does not trust the descriptor. It parses the frame itself and [derives](offload::derive) the
//! header for its own kernel.
//!
//! | module | contents |
//! | --- | --- |
//! | [`frame`] | the location of a frame's headers |
//! | [`offload`] | the kernel's header, the fabric's descriptor, and the conversion between them |
//! | [`checksum`] | the internet checksum: complete, partial, completed, verified |
//! | [`segment`] | superframes cut into segments, or into smaller superframes |
//! | [`coalesce`] | consecutive frames of a flow merged into superframes |
//! | [`address`] | hardware addresses, and the address that follows from a node's name |
//! | [`claims`] | the IP addresses that a frame claims for its sender |
//! | [`rejection`] | the causes for which a frame is refused, for counters |
//!
//! These modules do no I/O, read no clock, and allocate nothing for a frame. No input makes them panic. The other
//! modules move frames, in two parts that run as separate processes:
//!
//! | module | contents |
//! | --- | --- |
//! | [`carrier`] | the loop that carries frames; it needs no privilege |
//! | [`confinement`] | how it gives up the privileges that it does not need |
//! | [`switch`] | the target of each frame |
//! | [`gather`] | a burst of frames read from an interface, merged where possible |
//! | [`merge`] | frames from another machine, merged again |
//! | [`tap_port`] | a port of the switch that is an interface |
//! | [`fabric`] | the other processes as the loop sees them |
//! | `backlog` | datagrams that wait for a process, and how long they hold back their senders |
//! | `geometry` | the sizes of the rings to other processes of this machine |
//! | `reassembly` | frames too long for one datagram, sent in parts and joined again |
//! | [`bywire_sys::spin`] | how long the loop polls before it sleeps |
//! | [`drops`] | counters of dropped frames |
//! | [`order`] | the orders to the loop and its answers |
//! | [`network`] | all interfaces and loops of a process |
//! | [`interface`] | an interface in its namespace |
//! | [`probe`] | the superframes that this kernel accepts, found by trying |
//! | [`rtnetlink`] | links and addresses, by rtnetlink |
//! | [`settings`] | the settings of the command line and the file |
//! | [`service`] | a running network that answers requests and follows its settings |
//! | [`capture`] | copies of frames for capturing programs |
//! | [`control`], [`status`], [`metrics`] | requests to a running network, and its answers |
#![forbid(unsafe_code)]

pub mod address;
pub mod announced;
mod backlog;
pub mod capture;
pub mod carrier;
pub mod checksum;
pub mod claims;
pub mod coalesce;
pub mod confinement;
pub mod control;
pub mod drops;
pub mod fabric;
pub mod frame;
pub mod gather;
mod geometry;
pub mod interface;
pub mod merge;
pub mod metrics;
pub mod network;
pub mod offload;
pub mod order;
mod peer_port;
pub mod probe;
mod reassembly;
pub mod rejection;
pub mod rtnetlink;
pub mod segment;
pub mod service;
pub mod settings;
pub mod status;
pub mod switch;
pub mod tap_port;
mod timed_write;
