//! Parses a response that arrives in pieces of any length.

use anyhow::{Result, bail, ensure};

const HEAD_BYTES_MAX: usize = 8192;
const LINES_MAX: usize = 64;

/// Reads one response after another. The length of each is known beforehand.
#[derive(Debug, Default)]
pub struct Response {
    /// The part of a head that has arrived.
    head: Vec<u8>,
    /// Bytes of the body that are still missing, once the head is known.
    left: Option<u64>,
}

impl Response {
    /// Takes the bytes that have arrived, and returns true once the response is complete. Its body has to be `expected`
    /// bytes long. It is passed on as (offset, bytes). Fails on a status other than success, another length, a version
    /// other than HTTP/1.1, a head that is too long, or more bytes than were requested.
    pub fn take(
        &mut self,
        mut arrived: &[u8],
        expected: u64,
        mut body: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let left = match self.left {
            Some(left) => left,
            None => {
                let Some(rest) = self.take_head(arrived, expected)? else { return Ok(false) };
                arrived = rest;
                expected
            }
        };
        ensure!(arrived.len() as u64 <= left, "the server sent more than it was asked for");
        body(expected - left, arrived)?;
        let left = left - arrived.len() as u64;
        self.left = (left > 0).then_some(left);
        Ok(left == 0)
    }

    /// The bytes that follow the head, once that is complete.
    fn take_head<'a>(&mut self, arrived: &'a [u8], expected: u64) -> Result<Option<&'a [u8]>> {
        if self.head.is_empty()
            && let Some(length) = head_length(arrived, expected)?
        {
            return Ok(Some(&arrived[length..]));
        }
        let before = self.head.len();
        let room = HEAD_BYTES_MAX - before;
        self.head.extend_from_slice(&arrived[..arrived.len().min(room)]);
        let Some(length) = head_length(&self.head, expected)? else {
            ensure!(self.head.len() < HEAD_BYTES_MAX, "a response's head has over {HEAD_BYTES_MAX} bytes");
            return Ok(None);
        };
        self.head.clear();
        // Up to `before` there was no complete head.
        Ok(Some(&arrived[length.saturating_sub(before)..]))
    }
}

/// The length of the head at the beginning of `bytes`, once it is complete.
fn head_length(bytes: &[u8], expected: u64) -> Result<Option<usize>> {
    let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
    let mut response = httparse::Response::new(&mut lines);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => bail!("the server does not speak HTTP: {error}"),
    };
    let code = response.code.unwrap_or(0);
    ensure!(code == 200, "the server answered {code} {}", response.reason.unwrap_or_default());
    let mut stated = None;
    for line in response.headers.iter() {
        let is = |name: &str| line.name.eq_ignore_ascii_case(name);
        let value = std::str::from_utf8(line.value).unwrap_or_default().trim();
        if is("content-length") {
            let agrees = value.parse() == Ok(expected) && stated.is_none_or(|stated| stated == value);
            ensure!(agrees, "a response has {value:?} bytes instead of {expected}");
            stated = Some(value);
        }
        ensure!(!is("transfer-encoding"), "the server sends a body without a length: {value}");
        let closes = is("connection") && value.eq_ignore_ascii_case("close");
        ensure!(!closes, "the server closes the connection, which should stay open");
    }
    ensure!(stated.is_some(), "a response has no Content-Length");
    Ok(Some(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] =
        b"HTTP/1.1 200 OK\r\nServer: any\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello";

    fn whole(pieces: &[&[u8]]) -> Result<Vec<u8>> {
        let (mut response, mut body) = (Response::default(), Vec::new());
        for (index, piece) in pieces.iter().enumerate() {
            let done = response.take(piece, 5, |offset, bytes| {
                assert_eq!(offset, body.len() as u64);
                body.extend_from_slice(bytes);
                Ok(())
            })?;
            assert_eq!(done, index == pieces.len() - 1, "after piece {index}");
        }
        Ok(body)
    }

    #[test]
    fn a_response_may_be_split_anywhere() {
        for first in 1..GOOD.len() {
            assert_eq!(whole(&[&GOOD[..first], &GOOD[first..]]).unwrap(), b"hello", "cut at {first}");
        }
        let bytes: Vec<&[u8]> = GOOD.chunks(1).collect();
        assert_eq!(whole(&bytes).unwrap(), b"hello");
    }

    #[test]
    fn responses_are_parsed_one_after_another() {
        let mut response = Response::default();
        for _ in 0..3 {
            assert!(!response.take(&GOOD[..40], 5, |_, _| Ok(())).unwrap());
            assert!(response.take(&GOOD[40..], 5, |_, _| Ok(())).unwrap());
        }
    }

    #[test]
    fn unexpected_responses_are_refused() {
        let long = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; HEAD_BYTES_MAX]].concat();
        let refusals: [(&[u8], &str); 8] = [
            (b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n", "answered 404 Not Found"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", "bytes instead of 5"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 05\r\n\r\n", "bytes instead of 5"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "without a length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!", "more than it was asked for"),
            (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
            (&long, "over 8192 bytes"),
        ];
        for (bytes, part) in refusals {
            let refused = Response::default().take(bytes, 5, |_, _| Ok(())).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
