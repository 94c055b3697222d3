//! Options of a port, and the small enumerations of the interface.

use std::ffi::{CString, c_char, c_int};
use std::time::Duration;

use bywire::{Admit, Confirm, Geometry, LaneGeometry, PortName, PortOptions, Priority, Reach};

use crate::failure::{Failure, answer, text_at};
use crate::sized::{self, Plain};

/// The longest message that needs no posted buffer when the sender uses the default geometry.
pub const BW_FRAGMENT_BYTES: u32 = 4096;
const _: () = assert!(BW_FRAGMENT_BYTES as usize == bywire::FRAGMENT_BYTES);

/// Who may connect to a port. The kernel attests a stranger's user, so it cannot be forged.
#[repr(C)]
pub enum bw_admit_t {
    /// Processes of the port owner's user, and of root.
    BW_ADMIT_SAME_USER = 0,
    /// The same processes, and members of the group `admit_group`.
    BW_ADMIT_GROUP = 1,
    /// Every user of this machine.
    BW_ADMIT_EVERYONE = 2,
}

/// From where a port can be reached. Connecting to other ports needs neither.
#[repr(C)]
pub enum bw_reach_t {
    /// From its own machine.
    BW_REACH_MACHINE = 0,
    /// From every node of the fabric that its machine's node belongs to, for whom `admit` lets in.
    BW_REACH_FABRIC = 1,
}

/// One of two independent lanes; neither can block the other.
#[repr(C)]
pub enum bw_priority_t {
    /// For the bulk of the traffic.
    BW_PRIORITY_LOW = 0,
    /// For messages that must not wait behind the bulk.
    BW_PRIORITY_HIGH = 1,
}

/// When a transfer counts as complete.
#[repr(C)]
pub enum bw_confirm_t {
    /// When the buffer may be used again.
    BW_CONFIRM_COPIED = 0,
    /// When the target port has consumed the message.
    BW_CONFIRM_DELIVERED = 1,
}

/// The size of one lane of the rings towards a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_lane_t {
    /// Records that can be outstanding; a power of two from 8 to 8192.
    pub slots: u32,
    /// Payload bytes that can be outstanding; a power of two from 4 KiB to 8 MiB.
    pub bulk_bytes: u32,
}

/// Everything that can be chosen when a port is opened. Fill it with bw_port_options_init, then change fields.
/// Programs then keep working when later versions have more options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_port_options_t {
    /// The size of this structure as the program knows it; bw_port_options_init sets it.
    pub size_bytes: usize,
    /// The port's number or name as text; NULL: any free number.
    pub name: *const c_char,
    /// The runtime directory, in which ports find each other. NULL: BYWIRE_RUNTIME_DIR, else /run/bywire if it can be
    /// used, else XDG_RUNTIME_DIR/bywire, else /tmp/bywire-UID.
    pub runtime_directory: *const c_char,
    /// The longest message that this port accepts, in bytes (up to 2^40).
    pub message_bytes_max: u64,
    /// Memory that one peer may share with this port to lend from, in bytes. All peers of another user share this
    /// amount.
    pub borrow_bytes_max: u64,
    /// The longest time that bw_wait spins before it sleeps.
    pub spin_ns: u64,
    /// How often a polled port looks for new peers and for dead ones.
    pub housekeeping_interval_ns: u64,
    /// A bw_admit_t.
    pub admit: u32,
    /// The group that BW_ADMIT_GROUP admits.
    pub admit_group: u32,
    /// 1: check every payload end to end with CRC32C, in both directions. On as soon as either end wants it.
    pub integrity: u32,
    /// Asynchronous transfers that may be outstanding, for each priority (1 to 256). A token is free as soon as its
    /// completion is queued. So it does not bound the completions that wait for a program that takes no events.
    pub send_tokens: u32,
    /// Receive buffers that may be posted, for each priority.
    pub receive_tokens: u32,
    /// The most connections at a time.
    pub peers_max: u32,
    /// The rings to each peer: for the library's own answers, high priority, low priority.
    pub lanes: [bw_lane_t; 3],
    /// The most payload that one record carries: 512 to 65472 bytes, in steps of 64.
    pub fragment_bytes: u32,
    /// The most peers that have a large window, a bulk area of 4 MiB of their own, once they are sent much; 0: none.
    pub large_window_peers_max: u32,
    /// How long bw_disconnect and bw_port_close go on until a peer on another machine has what was sent to it.
    pub linger_ns: u64,
    /// A peer on another machine is given up once neither it nor its node has answered for so long while something was
    /// to be sent to it; 0: never.
    pub unreachable_after_ns: u64,
    /// A bw_reach_t: from where others may connect.
    pub reach: u32,
    /// The longest message that is copied at once to a peer on another machine, if it is longer than `fragment_bytes`: up to 65536.
    pub remote_fragment_bytes: u32,
}

// SAFETY: integers and raw pointers without padding: their sizes add up to the whole, as the next line checks.
unsafe impl Plain for bw_port_options_t {}
const _: () = assert!(size_of::<bw_port_options_t>() == OPTIONS_BYTES_LEAST + 2 * 8 + 2 * 4);

/// The structure's size in the first version.
const OPTIONS_BYTES_LEAST: usize = 7 * 8 + 6 * 4 + 6 * 4 + 2 * 4;

/// Fills `options` with the defaults, which suit most programs. `size_bytes` is sizeof *options.
///
/// # Safety
/// `options` is null or valid for writes of `size_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_port_options_init(options: *mut bw_port_options_t, size_bytes: usize) -> c_int {
    answer(|| {
        let defaults = describe(&PortOptions::default(), [None, None]);
        // SAFETY: the caller's promise.
        unsafe { write(defaults, options, size_bytes) }
    })
}

/// Writes as much of `options` as the structure in C holds.
///
/// # Safety
/// `target` is null or valid for writes of `size_bytes`.
///
/// # Errors
/// Null, or a size that the structure never had.
pub unsafe fn write(
    options: bw_port_options_t,
    target: *mut bw_port_options_t,
    size_bytes: usize,
) -> Result<c_int, Failure> {
    let options = bw_port_options_t { size_bytes, ..options };
    // SAFETY: the caller's promise.
    unsafe { sized::write(&options, target, size_bytes, OPTIONS_BYTES_LEAST)? };
    Ok(0)
}

/// Options as C sees them; `texts` are the name and the runtime directory.
pub fn describe(options: &PortOptions, texts: [Option<&CString>; 2]) -> bw_port_options_t {
    let [name, runtime_directory] = texts.map(|text| text.map_or(std::ptr::null(), |text| text.as_ptr()));
    let (admit, admit_group) = match options.admit {
        Admit::SameUser => (bw_admit_t::BW_ADMIT_SAME_USER, 0),
        Admit::Group(group) => (bw_admit_t::BW_ADMIT_GROUP, group),
        Admit::Everyone => (bw_admit_t::BW_ADMIT_EVERYONE, 0),
    };
    let lane = |lane: LaneGeometry| bw_lane_t { slots: lane.slots, bulk_bytes: lane.bulk_bytes };
    bw_port_options_t {
        size_bytes: size_of::<bw_port_options_t>(),
        name,
        runtime_directory,
        message_bytes_max: options.message_bytes_max,
        borrow_bytes_max: options.borrow_bytes_max,
        spin_ns: nanoseconds(options.spin),
        housekeeping_interval_ns: nanoseconds(options.housekeeping_interval),
        admit: admit as u32,
        admit_group,
        integrity: u32::from(options.integrity),
        send_tokens: options.send_tokens,
        receive_tokens: options.receive_tokens,
        peers_max: options.peers_max,
        lanes: options.geometry.lanes.map(lane),
        fragment_bytes: options.geometry.fragment_bytes,
        large_window_peers_max: options.large_window_peers_max,
        linger_ns: nanoseconds(options.linger),
        unreachable_after_ns: nanoseconds(options.unreachable_after),
        reach: match options.reach {
            Reach::Machine => bw_reach_t::BW_REACH_MACHINE,
            Reach::Fabric => bw_reach_t::BW_REACH_FABRIC,
        } as u32,
        remote_fragment_bytes: options.remote_fragment_bytes,
    }
}

/// The options that C asks for; null means the defaults.
///
/// # Safety
/// `options` is null or valid for reads of as many bytes as its first field says. Each of its texts is null or a
/// text.
///
/// # Errors
/// A structure of unknown size, or invalid values.
pub unsafe fn read(options: *const bw_port_options_t) -> Result<PortOptions, Failure> {
    if options.is_null() {
        return Ok(PortOptions::default());
    }
    // SAFETY: the first field is there by the caller's promise.
    let size_bytes = unsafe { (&raw const (*options).size_bytes).read() };
    let defaults = describe(&PortOptions::default(), [None, None]);
    // SAFETY: the caller's promise.
    let asked = unsafe { sized::read(defaults, options, size_bytes, OPTIONS_BYTES_LEAST)? };
    let text = |text: *const c_char, what: &str| {
        // SAFETY: a text by the caller's promise, unless it is null.
        if text.is_null() { Ok(None) } else { unsafe { text_at(text, what) }.map(Some) }
    };
    let name = text(asked.name, "options: name")?.map(str::parse::<PortName>).transpose()?;
    let lane = |lane: bw_lane_t| LaneGeometry { slots: lane.slots, bulk_bytes: lane.bulk_bytes };
    #[allow(clippy::needless_update, reason = "the message layer may have an option before C does")]
    let options = PortOptions {
        name,
        admit: admit(asked.admit, asked.admit_group)?,
        reach: reach(asked.reach)?,
        integrity: switch(asked.integrity, "options: integrity")?,
        message_bytes_max: asked.message_bytes_max,
        borrow_bytes_max: asked.borrow_bytes_max,
        send_tokens: asked.send_tokens,
        receive_tokens: asked.receive_tokens,
        peers_max: asked.peers_max,
        large_window_peers_max: asked.large_window_peers_max,
        spin: Duration::from_nanos(asked.spin_ns),
        housekeeping_interval: Duration::from_nanos(asked.housekeeping_interval_ns),
        linger: Duration::from_nanos(asked.linger_ns),
        unreachable_after: Duration::from_nanos(asked.unreachable_after_ns),
        geometry: Geometry { lanes: asked.lanes.map(lane), fragment_bytes: asked.fragment_bytes },
        remote_fragment_bytes: asked.remote_fragment_bytes,
        runtime_directory: text(asked.runtime_directory, "options: runtime_directory")?.map(Into::into),
        ..PortOptions::default()
    };
    Ok(options)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn admit(number: u32, group: u32) -> Result<Admit, Failure> {
    match number {
        0 => Ok(Admit::SameUser),
        1 => Ok(Admit::Group(group)),
        2 => Ok(Admit::Everyone),
        _ => Err(Failure::argument(format!("options: admit is a bw_admit_t, not {number}"))),
    }
}

fn reach(number: u32) -> Result<Reach, Failure> {
    match number {
        0 => Ok(Reach::Machine),
        1 => Ok(Reach::Fabric),
        _ => Err(Failure::argument(format!("options: reach is a bw_reach_t, not {number}"))),
    }
}

fn switch(number: u32, what: &str) -> Result<bool, Failure> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failure::argument(format!("{what} is 0 or 1, not {number}"))),
    }
}

/// The priority with this number.
///
/// # Errors
/// An invalid number.
#[inline(always)]
pub fn priority(number: u32) -> Result<Priority, Failure> {
    match number {
        0 => Ok(Priority::Low),
        1 => Ok(Priority::High),
        _ => Err(Failure::argument(format!("priority is a bw_priority_t, not {number}"))),
    }
}

/// The confirmation with this number.
///
/// # Errors
/// An invalid number.
pub fn confirm(number: u32) -> Result<Confirm, Failure> {
    match number {
        0 => Ok(Confirm::Copied),
        1 => Ok(Confirm::Delivered),
        _ => Err(Failure::argument(format!("confirm is a bw_confirm_t, not {number}"))),
    }
}
