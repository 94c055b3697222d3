//! Writes to callers with a timeout. A caller may read slowly or not at all, and no other caller is served meanwhile.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// The most bytes written between two checks of the clock.
const PART_BYTES: usize = 64 * 1024;

/// Writes all `bytes` within `timeout`. `limit` sets the timeout of one write.
///
/// # Errors
/// The error of the kernel, or [`io::ErrorKind::TimedOut`].
pub fn write_within<S: Write>(
    stream: &mut S,
    limit: impl Fn(&S, Option<Duration>) -> io::Result<()>,
    bytes: &[u8],
    timeout: Duration,
) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut rest = bytes;
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        limit(stream, Some(left))?;
        let written = stream.write(&rest[..rest.len().min(PART_BYTES)])?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = &rest[written..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_reader_that_reads_byte_by_byte_is_dropped() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("a pair");
        let reader = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while matches!(theirs.read(&mut part), Ok(1..)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let start = Instant::now();
        let bytes = vec![0; 64 << 20];
        let said = write_within(&mut ours, UnixStream::set_write_timeout, &bytes, Duration::from_millis(300));
        // All of it would take more than a minute.
        assert!(said.is_err() && start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        drop(ours);
        reader.join().expect("it ends");
    }

    #[test]
    fn a_reader_gets_all_bytes() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("a pair");
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).map(|_| all)
        });
        let bytes: Vec<u8> = (0..1_000_000u32).map(|index| index as u8).collect();
        write_within(&mut ours, UnixStream::set_write_timeout, &bytes, Duration::from_secs(10))
            .expect("written");
        drop(ours);
        assert_eq!(reader.join().expect("it ends").expect("read"), bytes);
    }
}
