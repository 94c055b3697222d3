//! An echo server on async-io's loop of events, as smol has it, or clients that check every byte that comes back.

use std::io::Result;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use async_io::{Async, Timer, block_on};
use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use rustix as _;

const CLIENTS: u64 = 4;
/// More than the kernel holds for a connection, and than a ring holds.
const LONG_BYTES: usize = 12 << 20;

fn main() -> Result<()> {
    let Some(port) = std::env::args().nth(1) else { return block_on(serve()) };
    let port = port.parse().expect("a port");
    let clients = (1..=CLIENTS).map(|seed| thread::spawn(move || block_on(talk(port, seed))));
    for client in clients.collect::<Vec<_>>() {
        client.join().expect("no panic")?;
    }
    println!("fine");
    Ok(())
}

async fn serve() -> Result<()> {
    let listener = Async::<TcpListener>::bind(([127, 0, 0, 1], 0))?;
    println!("{}", listener.get_ref().local_addr()?.port());
    loop {
        let (peer, _) = listener.accept().await?;
        thread::spawn(move || block_on(echo(peer)));
    }
}

/// Answers, and pauses now and then.
async fn echo(mut peer: Async<TcpStream>) -> Result<()> {
    let mut room = vec![0; 50_000];
    let mut count: usize = 0;
    loop {
        let length = peer.read(&mut room).await?;
        if length == 0 {
            return Ok(());
        }
        peer.write_all(&room[..length]).await?;
        let megabytes = (count >> 20, (count + length) >> 20);
        count += length;
        if megabytes.0 != megabytes.1 {
            Timer::after(Duration::from_millis(10)).await;
        }
    }
}

async fn talk(port: u16, seed: u64) -> Result<()> {
    let peer = &Async::<TcpStream>::connect(([127, 0, 0, 1], port)).await?;
    for turn in 0..300 {
        exchange(peer, seed * 1000 + turn, 1 + (turn * 7919 * seed % 4000) as usize, Duration::ZERO).await?;
        // The service that pairs the two ends needs a moment.
        if turn % 30 == 0 {
            Timer::after(Duration::from_millis(10)).await;
        }
    }
    let silence = Duration::from_millis(50);
    let is_silent = future::or(
        async {
            let _byte = (&mut &*peer).read(&mut [0]).await;
            false
        },
        async {
            Timer::after(silence).await;
            true
        },
    );
    assert!(is_silent.await, "something came that nobody has sent");
    // One thread sends and receives: it would stand still if either call blocked.
    exchange(peer, seed, LONG_BYTES, Duration::from_millis(300)).await?;
    peer.get_ref().shutdown(Shutdown::Write)?;
    assert_eq!((&mut &*peer).read(&mut [0]).await?, 0, "bytes after the end");
    Ok(())
}

/// Sends bytes, and receives them after a pause.
async fn exchange(peer: &Async<TcpStream>, seed: u64, length_bytes: usize, pause: Duration) -> Result<()> {
    let (mut sending, mut receiving) = (peer, peer);
    let due: Vec<u8> = (0..length_bytes as u64).map(|at| (at * 31 + at / 251 + seed) as u8).collect();
    let mut got = vec![0; length_bytes];
    let (sent, received) = future::zip(sending.write_all(&due), async {
        if !pause.is_zero() {
            Timer::after(pause).await;
        }
        receiving.read_exact(&mut got).await
    })
    .await;
    sent.and(received)?;
    assert!(got == due, "other bytes came back");
    Ok(())
}
