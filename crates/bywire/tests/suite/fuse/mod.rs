//! A file whose close never ends. Its file system never answers the close, but answers all else that the kernel
//! needs.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

/// Numbers of `linux/fuse.h`.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const HEAD_BYTES: usize = 16;
/// The attributes of a regular file of root: `struct fuse_attr_out`.
const ATTRIBUTES: [u32; 26] = {
    let mut words = [0; 26];
    [words[4], words[19], words[20]] = [1, 0o100_600, 1];
    words
};
/// The file system ends by itself after this time, so that a failed test does not hang.
const LIFE: Duration = Duration::from_secs(50);

/// The file and its file system. Once that is dropped, every close ends.
pub struct Unclosable {
    pub file: OwnedFd,
    end: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Unclosable {
    /// # Errors
    /// The error of the kernel if this process may not mount, or has no FUSE.
    pub fn new() -> io::Result<Self> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let options = format!("fd={},rootmode=100600,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let (device, end) = (Arc::new(device), Arc::new(AtomicBool::new(false)));
        let place = tempfile::NamedTempFile::new()?;
        let path = CString::new(place.path().to_str().expect("text")).expect("no nought");
        let served = (Arc::clone(&device), Arc::clone(&end));
        let server = std::thread::spawn(move || serve(&served.0, &served.1));
        // A thread's own mounts end with it, except for open files.
        let opened = std::thread::spawn(move || mount_and_open(&path, &options)).join().expect("no panic");
        // From now on only the server has the device, so the file system ends with the server.
        drop(device);
        match opened {
            Ok(file) => Ok(Self { file, end, server: Some(server) }),
            Err(error) => {
                end.store(true, Ordering::Relaxed);
                server.join().expect("no panic");
                Err(error)
            }
        }
    }

    /// Ends the file system, and so every close.
    pub fn end(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            server.join().expect("no panic");
        }
    }
}

impl Drop for Unclosable {
    fn drop(&mut self) {
        // Must come before the close of the file itself.
        self.end();
    }
}

fn mount_and_open(path: &CStr, options: &str) -> io::Result<OwnedFd> {
    let options = CString::new(options).expect("no nought");
    let (fuse, none) = (c"fuse".as_ptr(), std::ptr::null());
    // SAFETY: the strings live until each call is over, and only this thread's namespace changes.
    unsafe {
        checked(libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS))?;
        checked(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()))?;
        checked(libc::mount(fuse, path.as_ptr(), fuse, libc::MS_NOSUID, options.as_ptr().cast()))?;
    }
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Answers the kernel's requests while a file is opened, and none when it is closed.
fn serve(device: &OwnedFd, end: &AtomicBool) {
    let (began, mut request) = (Instant::now(), [0; 1 << 17]);
    while !end.load(Ordering::Relaxed) && began.elapsed() < LIFE {
        let mut asked = [PollFd::new(device, PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        if rustix::event::poll(&mut asked, Some(&moment)) != Ok(1) {
            continue;
        }
        let Ok(40..) = rustix::io::read(device, &mut request) else { continue };
        let word = |place: usize| u32::from_ne_bytes(request[place..place + 4].try_into().expect("four"));
        let body = match word(4) {
            INIT => words(&[7, 31, 0, 0, 0, 1 << 16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            GETATTR => words(&ATTRIBUTES),
            OPEN => words(&[1, 0, 0, 0]),
            FLUSH => continue,
            _ => Vec::new(),
        };
        let error = if body.is_empty() { -libc::ENOSYS } else { 0 };
        let mut answer = words(&[(HEAD_BYTES + body.len()) as u32, error as u32, word(8), word(12)]);
        answer.extend(body);
        // The kernel may have dropped the request meanwhile.
        let _ = rustix::io::write(device, &answer);
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn checked(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
