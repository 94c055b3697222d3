//! QUIC by `quinn`, whose packets are as long as the fabric's and whose sockets and windows are as large: encrypted bytes in
//! order between two processes in namespaces.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_measure::clock::Clock;
use bywire_measure::endpoint::{Kind, Mark};
use bywire_measure::payload::{Reader, Writer};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, ReadExactError, ServerConfig, TokioRuntime,
    TransportConfig,
};
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};

use crate::bare_udp::What;
use crate::contestant::Contestant;
use crate::process::{Ends, Place};

/// The payload of a UDP packet at an MTU of 1500.
const PACKET_BYTES: u16 = 1472;
const MESSAGE_BYTES: usize = 1 << 20;
/// Bytes that may be under way, in sockets and on a stream.
const WINDOW_BYTES: u32 = 8 << 20;
const SERVER: &str = "target";

/// A ping-pong of 8 bytes between ends that sleep (median half-RTT in ns), or a stream of messages of 1 MiB (bytes per
/// second).
pub fn contestant(place: &Place, what: What, seconds: f64) -> Contestant {
    let place = place.clone();
    let take = move || place.figure("quic", &[&format!("{what:?}")], seconds);
    Contestant::of_value("./x figures links (quinn)", what.unit(), take)
}

/// Plays an end, whose word is the name of a [`What`]. The target prints its certificate, and the source its figure.
pub fn play(arguments: &[String]) -> Result<()> {
    let Ends { is_target, addresses: [_, target], duration, greeting, words } = Ends::of(arguments)?;
    let is_bulk = words[0] == format!("{:?}", What::Bulk);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if is_target {
        return runtime.block_on(serve(target, is_bulk));
    }
    println!("{}", runtime.block_on(ask(target, greeting, is_bulk, duration))?);
    Ok(())
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.initial_mtu(PACKET_BYTES).mtu_discovery_config(None);
    transport.stream_receive_window(WINDOW_BYTES.into()).receive_window(WINDOW_BYTES.into());
    transport.send_window(WINDOW_BYTES.into());
    Arc::new(transport)
}

fn endpoint(bind: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = UdpSocket::bind(bind)?;
    let wanted_bytes = WINDOW_BYTES as usize;
    set_socket_recv_buffer_size_force(&socket, wanted_bytes)
        .and_then(|()| set_socket_send_buffer_size_force(&socket, wanted_bytes))
        .context("a socket gets no large buffers: run as root")?;
    Ok(Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?)
}

async fn serve(bind: SocketAddr, is_bulk: bool) -> Result<()> {
    let made = rcgen::generate_simple_self_signed([SERVER.to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
    config.transport_config(transport());
    let endpoint = endpoint(bind, Some(config))?;
    println!("{}", serde_json::to_string(&certificate[..])?);
    let connection = endpoint.accept().await.context("nobody has come")?.await?;
    if is_bulk {
        receive_long(&connection).await?
    } else {
        answer(&connection).await?
    }
    connection.closed().await;
    Ok(())
}

async fn ask(server: SocketAddr, certificate: &str, is_bulk: bool, duration: Duration) -> Result<f64> {
    let certificate: Vec<u8> = serde_json::from_str(certificate)?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate))?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let endpoint = endpoint(([0, 0, 0, 0], 0).into(), None)?;
    let connection = endpoint.connect_with(config, server, SERVER)?.await?;
    let figure = match is_bulk {
        true => send_long(&connection, duration).await?,
        false => ping(&connection, duration).await?,
    };
    connection.close(0u32.into(), &[]);
    endpoint.wait_idle().await;
    Ok(figure)
}

/// Bytes per second, once the target has acknowledged all of them.
async fn send_long(connection: &Connection, duration: Duration) -> Result<f64> {
    let mut stream = connection.open_uni().await?;
    let (mut message, mut writer) = (vec![0; MESSAGE_BYTES], Writer::default());
    let (started, mut sent) = (Instant::now(), 0);
    while started.elapsed() < duration {
        writer.fill(&mut message, Mark::new(Kind::Data, 0));
        stream.write_all(&message).await?;
        sent += MESSAGE_BYTES;
    }
    stream.finish()?;
    stream.stopped().await?;
    Ok(sent as f64 / started.elapsed().as_secs_f64())
}

async fn receive_long(connection: &Connection) -> Result<()> {
    let mut stream = connection.accept_uni().await?;
    let (mut message, mut reader, mut sum) = (vec![0; MESSAGE_BYTES], Reader::new(false, true), 0u64);
    loop {
        match stream.read_exact(&mut message).await {
            Ok(()) => sum = sum.wrapping_add(reader.read(&message)?.sum),
            Err(ReadExactError::FinishedEarly(0)) => {
                std::hint::black_box(sum);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn ping(connection: &Connection, duration: Duration) -> Result<f64> {
    let (mut to, mut from) = connection.open_bi().await?;
    let (clock, started, mut round_trips) = (Clock::shared(), Instant::now(), Vec::new());
    let mut answer = [0; 8];
    while started.elapsed() < duration {
        let sent_ns = clock.now_ns();
        to.write_all(&sent_ns.to_le_bytes()).await?;
        from.read_exact(&mut answer).await?;
        ensure!(u64::from_le_bytes(answer) == sent_ns, "another message was answered");
        round_trips.push((clock.now_ns() - sent_ns) as f64 / 2.0);
    }
    to.finish()?;
    Ok(bywire_analysis::statistics::median(&round_trips))
}

async fn answer(connection: &Connection) -> Result<()> {
    let (mut to, mut from) = connection.accept_bi().await?;
    let mut message = [0; 8];
    while from.read_exact(&mut message).await.is_ok() {
        to.write_all(&message).await?;
    }
    Ok(())
}
