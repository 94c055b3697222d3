//! Ethernet over the fabric: what a frame is, what its sender left undone, and how a peer's frame is made safe.
//!
//! The kernel hands over *superframes*: one set of headers over up to 64 KiB of payload, which some device is to cut
//! into segments, and a checksum that some device is to complete. They cross the fabric whole. With a frame travels a
//! [`Descriptor`](offload::Descriptor) of eight bytes that says what is left to do; the receiving end believes none
//! of it, parses the frame itself and [derives](offload::derive) the header that its own kernel is given.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`frame`] | where the headers of a frame lie |
//! | [`offload`] | the kernel's header, the fabric's descriptor, and the way between |
//! | [`checksum`] | the internet checksum: whole, partial, completed, verified |
//! | [`segment`] | superframes cut into segments, or into smaller superframes |
//! | [`coalesce`] | consecutive frames of a flow merged into superframes |
//! | [`address`] | hardware addresses, and the one that follows from a node's name |
//! | [`rejection`] | why a frame was refused, to be counted by cause |
//!
//! Nothing of these does I/O, reads a clock or allocates for a frame, and no bytes whatever make them panic. Around
//! them stands what moves frames, in two parts that are processes of their own:
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`carrier`] | the loop that carries frames; it needs no privilege |
//! | [`confinement`] | how it gives up what it does not need |
//! | [`switch`] | where a frame goes |
//! | [`gather`] | a burst of frames taken from an interface, merged where that can be |
//! | [`lane`] | an interface as the loop sees it |
//! | [`fabric`] | other processes as the loop sees them |
//! | `backlog` | what waits for one of them, and for how long its senders wait with it |
//! | `parts` | frames too long for one datagram |
//! | [`spin`] | how long the loop looks before it sleeps |
//! | [`drops`] | why frames were dropped, counted |
//! | [`order`] | what the loop is told, and tells |
//! | [`network`] | all interfaces and loops of a process |
//! | [`station`] | an interface in its namespace |
//! | [`probe`] | what this kernel takes, found by trying |
//! | [`interface`] | links and addresses, by rtnetlink |
//! | [`settings`] | what the command line and the file say |
//! | [`service`] | a network that runs, is asked, and follows its settings |
//! | [`capture`] | copies of frames for whoever wants to look |
//! | [`control`], [`status`], [`metrics`] | how it is asked, and what it answers |
#![forbid(unsafe_code)]

pub mod address;
pub mod announced;
mod backlog;
pub mod capture;
pub mod carrier;
pub mod checksum;
pub mod coalesce;
pub mod confinement;
pub mod control;
pub mod drops;
pub mod fabric;
pub mod frame;
pub mod gather;
pub mod interface;
pub mod lane;
pub mod metrics;
pub mod network;
pub mod offload;
pub mod order;
mod parts;
mod patience;
pub mod probe;
pub mod rejection;
pub mod segment;
pub mod service;
pub mod settings;
pub mod spin;
pub mod station;
pub mod status;
pub mod switch;
